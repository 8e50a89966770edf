// The thread that runs the network, so that the page stays fluid. The runtime, `ort`, comes before this text.

let graphs;

/** files: the runtime's WebAssembly and its loader, and the graphs by name */
async function load({ wasm, loader, ...models }) {
  const address = (text) => URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  // The loader would look for the WebAssembly next to itself, where there is none.
  const mjs = address(`import start from "${address(loader)}"; export default (settings) => start({ locateFile: (name) => name, ...settings });`);
  Object.assign(ort.env.wasm, { numThreads: 1, wasmBinary: wasm, wasmPaths: { mjs } });
  graphs = {};
  for (const [name, model] of Object.entries(models)) graphs[name] = await ort.InferenceSession.create(model, { executionProviders: ["wasm"] });
}

/** Values by name → values by name; each is { type, data, dims } */
async function run(name, inputs) {
  const feeds = Object.fromEntries(Object.entries(inputs).map(([key, { type, data, dims }]) => [key, new ort.Tensor(type, data, dims)]));
  const found = await graphs[name].run(feeds);
  return Object.fromEntries(Object.entries(found).map(([key, { type, data, dims }]) => [key, { type, data, dims }]));
}

let last = Promise.resolve(); // a session runs one request at a time

onmessage = ({ data: { id, files, graph, inputs } }) => {
  last = last.then(async () => {
    try {
      postMessage({ id, answer: files ? await load(files) : await run(graph, inputs) });
    } catch (error) {
      postMessage({ id, error: error?.message ?? String(error) });
    }
  });
};
