// Requests to the server. In a page without a server, local.js replaces this module.

const token = document.querySelector("meta[name=token]").content;

/** Send a request and return the answer; throws an Error whose message is a sentence. */
export async function ask(path, body, kind = "application/json") {
  const headers = { "Content-Type": kind, "X-Wcapsnet-Token": token };
  const content = kind === "application/json" ? JSON.stringify(body) : body;
  const answer = await reach(path, { method: "POST", headers, body: content });
  const facts = await answer.json();
  if (!answer.ok) throw new Error(facts.error);
  return facts;
}

/** Facts about the network and its test images. */
export async function about() {
  return (await reach("/api/about")).json();
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch {
    throw new Error("The server does not answer; is it still running?");
  }
}

/** The address of a test image's picture. */
export function testPicture(index) {
  return `/api/test/${index}.png`;
}
