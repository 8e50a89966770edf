// The state of the page, as the part of its address after the #.

import { bytes, text as base64 } from "./base64.js";

const version = "1";

/** { id, source, pin, off: Set("level.capsule"), target, vector: Map, open, heat } → text */
export async function write(state) {
  const parts = new URLSearchParams({ v: version, net: state.id });
  if (state.source) parts.set("see", await writeSource(state.source));
  if (state.pin) parts.set("pin", await writeSource(state.pin));
  if (state.off.size) parts.set("off", [...state.off].join("_"));
  if (state.target !== null) parts.set("class", state.target);
  if (state.vector.size) parts.set("vector", [...state.vector].map((moved) => moved.join(":")).join("_"));
  if (state.open) parts.set("block", state.open);
  if (state.heat !== "weights") parts.set("heat", state.heat);
  if (state.heatBlock !== "all") parts.set("of", state.heatBlock);
  return parts.toString();
}

/** The inverse; throws if the link cannot be read. */
export async function read(text) {
  const parts = new URLSearchParams(text);
  if (parts.get("v") !== version) throw new Error("This link cannot be read.");
  const list = (name) => (parts.get(name) ? parts.get(name).split("_") : []);
  const vector = list("vector").map((one) => [one.split(":")[0], Number(one.split(":")[1])]);
  if (vector.some(([, value]) => !Number.isFinite(value))) throw new Error("This link cannot be read.");
  return {
    id: parts.get("net"),
    source: parts.has("see") ? await readSource(parts.get("see")) : null,
    pin: parts.has("pin") ? await readSource(parts.get("pin")) : null,
    off: new Set(list("off")),
    target: parts.has("class") ? Number(parts.get("class")) : null,
    vector: new Map(vector),
    open: parts.get("block"),
    heat: parts.get("heat") ?? "weights",
    heatBlock: parts.get("of") ?? "all",
  };
}

async function writeSource(source) {
  if (source.kind === "test") return `t${source.index}`;
  if (source.kind === "draw") return `d${source.center ? 1 : 0}${letters(packed(source.strokes))}`;
  return `p${letters(await through(new CompressionStream("deflate-raw"), source.data))}`;
}

async function readSource(text) {
  const [kind, rest] = [text[0], text.slice(1)];
  try {
    if (kind === "t" && /^\d+$/.test(rest)) return { kind: "test", index: Number(rest) };
    if (kind === "d") return { kind: "draw", center: rest[0] === "1", strokes: unpacked(numbers(rest.slice(1))) };
    const data = kind === "p" && (await through(new DecompressionStream("deflate-raw"), numbers(rest)));
    if (data) return { kind: "pixels", data };
  } catch {
    // reported below
  }
  throw new Error("This link cannot be read.");
}

// Strokes as bytes: width, number of points, the first point, then steps. Integers with seven bits per byte, the lowest
// first; signed ones are folded into 0, -1, 1, -2, …
function packed(strokes) {
  const bytesOf = (value) => (value < 128 ? [value] : [(value % 128) + 128, ...bytesOf(Math.floor(value / 128))]);
  const folded = (step) => (step < 0 ? -2 * step - 1 : 2 * step);
  const steps = (points) => points.map((value, at) => folded(at < 2 ? value : value - points[at - 2]));
  const values = strokes.flatMap(({ width, points }) => [width, points.length / 2, ...steps(points)]);
  return Uint8Array.from(values.flatMap(bytesOf));
}

function unpacked(data) {
  const values = [];
  let [value, weight] = [0, 1];
  for (const byte of data) {
    [value, weight] = [value + (byte % 128) * weight, weight * 128];
    if (byte >= 128) continue;
    values.push(value);
    [value, weight] = [0, 1];
  }
  if (weight > 1) throw new Error("cut off");
  const strokes = [];
  while (values.length) {
    const [width, count] = values.splice(0, 2);
    const steps = values.splice(0, 2 * count).map((folded) => (folded % 2 ? -(folded + 1) / 2 : folded / 2));
    if (!count || steps.length < 2 * count) throw new Error("cut off");
    steps.forEach((_, at) => at >= 2 && (steps[at] += steps[at - 2]));
    strokes.push({ width, points: steps });
  }
  return strokes;
}

async function through(stream, data) {
  return new Uint8Array(await new Response(new Blob([data]).stream().pipeThrough(stream)).arrayBuffer());
}

const letters = (data) => base64(data).replaceAll("+", "-").replaceAll("/", ".").replaceAll("=", "");
const numbers = (text) => bytes(text.replaceAll("-", "+").replaceAll(".", "/"));
