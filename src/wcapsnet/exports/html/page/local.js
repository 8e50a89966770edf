// The answers of explore/api.py without a server: the network runs in this page. The files are in the page itself.

import { bytes, text } from "./base64.js";
import { pixels as paintPixels } from "./paint.js";
import { readPicture } from "./resize.js";

const EQUAL = Math.fround(0.99); // a weight of at least this share of the largest ties with it (D31)
const REMEMBERED = 6; // answers: now, with all blocks on, without the open block, pinned
const NEAREST = 6;

let facts; // { about, survey, favourites }
let images; // uint8 (m, ch, h, w): the test images
let vectors; // float32 (m, k): their decoded vectors
let worker;
let sent = 0;
const waiting = new Map(); // the number of a message: whom its answer concerns
const remembered = new Map();
const addresses = new Map(); // of test images

// ── the page's files and its thread ──────────────────────────────────────────────────────────────────────────────────

/** A file of the page, unpacked */
async function file(name) {
  const packed = new Blob([bytes(document.getElementById(`file-${name}`).textContent)]).stream();
  return new Uint8Array(await new Response(packed.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}

function send(message) {
  return new Promise((resolve, reject) => {
    sent += 1;
    waiting.set(sent, { resolve, reject });
    worker.postMessage({ id: sent, ...message });
  });
}

async function start() {
  const [runtime, script, wasm, loader, look, decode] = await Promise.all(["runtime", "worker", "wasm", "loader", "look", "decode"].map(file));
  worker = new Worker(URL.createObjectURL(new Blob([runtime, "\n", script], { type: "text/javascript" })));
  worker.onmessage = ({ data: { id, answer, error } }) => {
    const { resolve, reject } = waiting.get(id);
    waiting.delete(id);
    if (error === undefined) resolve(answer);
    else reject(new Error(`The network cannot run in this browser: ${error}`));
  };
  worker.onerror = (event) => {
    event.preventDefault();
    for (const { reject } of waiting.values()) reject(new Error(`The network cannot run in this browser: ${event.message ?? "its thread stopped"}`));
    waiting.clear();
  };
  await send({ files: { wasm, loader, look, decode } });
}

/** Facts about the network and its test images. */
export async function about() {
  facts = JSON.parse(document.getElementById("file-facts").textContent);
  [images, vectors] = await Promise.all([facts.about.test ? file("images") : null, facts.about.test ? file("vectors").then((data) => new Float32Array(data.buffer)) : null, start()]);
  const { channels, height, width } = facts.about;
  await explain({ pixels: text(new Uint8Array(channels * height * width)), off: [] }).catch(() => {}); // the first run is the slowest
  return facts.about;
}

/** The address of a test image's picture. */
export function testPicture(index) {
  if (!addresses.has(index)) {
    const canvas = document.createElement("canvas");
    paintPixels(canvas, testPixels(index), facts.about);
    addresses.set(index, canvas.toDataURL());
  }
  return addresses.get(index);
}

function testPixels(index) {
  const { channels, height, width } = facts.about;
  const size = channels * height * width;
  return images.subarray(index * size, (index + 1) * size);
}

// ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

const answers = { explain, block, decode, near, survey: () => facts.survey, picture };

/** The answer to a request, with the fields of the server's; throws an Error whose message is a sentence. */
export async function ask(path, body) {
  return answers[path.replace("/api/", "")](body);
}

/** Run the network on a picture with some blocks switched off. */
function look(picture, off) {
  const key = `${picture.test ?? picture.pixels} ${off.map((one) => one.join(".")).sort()}`;
  const found = remembered.get(key) ?? run(picture, off);
  remembered.delete(key);
  remembered.set(key, found);
  found.catch(() => remembered.delete(key));
  if (remembered.size > REMEMBERED) remembered.delete(remembered.keys().next().value);
  return found;
}

async function run(picture, off) {
  const { channels, height, width, levels } = facts.about;
  const data = picture.test === undefined ? bytes(picture.pixels) : testPixels(picture.test).slice();
  const inputs = { images: { type: "uint8", data, dims: [1, channels, height, width] } };
  levels.forEach(({ capsules }, l) => {
    const keep = new Uint8Array(capsules).fill(1);
    for (const [level, n] of off) if (level === l) keep[n] = 0;
    inputs[`keep_${l + 1}`] = { type: "bool", data: keep, dims: [capsules] };
  });
  const found = await send({ graph: "look", inputs });
  const values = Object.fromEntries(Object.entries(found).map(([name, { data }]) => [name, data]));
  const probabilities = [...values.probabilities];
  if (!probabilities.every(Number.isFinite)) throw new Error("The network's output for this image is not finite.");
  return { ...values, probabilities, predicted: best(probabilities), map: found[`weights_${levels.length}`].dims.slice(1) };
}

async function explain(body) {
  const { levels, test } = facts.about;
  const one = await look(body, body.off);
  const target = body.class ?? one.predicted;
  const [blocks, height, width] = one.map;
  const all = blocks * height * width;
  const weights = one[`weights_${levels.length}`];
  const parts = one.contributions.slice(target * all, (target + 1) * all);
  const tied = heaviest(weights).map((at) => [Math.floor(at / (height * width)), Math.floor(at / width) % height, at % width]);
  const [vector, position, place] = [[...one.vector], [...one.position], [...one.best_capsule]];
  const answer = {
    probabilities: one.probabilities,
    predicted: one.predicted,
    target,
    logit: one.logits[target],
    levels: levels.map((_, l) => {
      const b = blockWeights(one, l);
      return { weights: b, fitness: grouped(one[`fitness_${l + 1}`], b.length).map((a) => Math.max(...a)), winners: heaviest(b) };
    }),
    map: one.map,
    weights: text(new Uint8Array(weights.slice().buffer)),
    contributions: text(new Uint8Array(parts.buffer)),
    block_contributions: grouped(parts, blocks).map(sum),
    vector,
    position,
    place,
    tied,
    reconstruction: picturePixels(one.reconstruction),
  };
  if (body.test !== undefined) Object.assign(answer, { pixels: text(testPixels(body.test)), label: test.labels[body.test] });
  return answer;
}

async function block({ block: [level, capsule], ...body }) {
  const { capsules, dimension, map: [height, width] } = facts.about.levels[level];
  const more = [...body.off.filter(([l, n]) => l !== level || n !== capsule), [level, capsule]];
  const left = capsules - more.filter(([l]) => l === level).length;
  const [one, without] = await Promise.all([look(body, body.off), left ? look(body, more) : null]);
  const plane = height * width;
  const maps = one[`capsules_${level + 1}`].slice(capsule * dimension * plane, (capsule + 1) * dimension * plane);
  const length = Float32Array.from({ length: plane }, (_, p) => Math.hypot(...Array.from({ length: dimension }, (_, k) => maps[k * plane + p])));
  return {
    level,
    capsule,
    map: [dimension, height, width],
    maps: text(new Uint8Array(maps.buffer)),
    length: text(new Uint8Array(length.buffer)),
    without: without && { predicted: without.predicted, probability: without.probabilities[without.predicted] },
    favourites: facts.favourites?.[`${level}.${capsule}`] ?? null,
  };
}

async function decode({ vector, position }) {
  const inputs = { vector: { type: "float32", data: Float32Array.from(vector), dims: [1, vector.length] }, position: { type: "float32", data: Float32Array.from(position), dims: [1, 2] } };
  const { reconstruction } = await send({ graph: "decode", inputs });
  return { reconstruction: picturePixels(reconstruction.data) };
}

function picturePixels(values) {
  return text(Uint8Array.from(values, (value) => Math.round(255 * value)));
}

/** The test images whose decoded vectors are nearest to this one, without the image itself */
function near({ vector, test }) {
  if (!vectors) return { near: null };
  const { labels } = facts.about.test;
  const distance = (at) => Math.sqrt(sum(vector.map((value, k) => (vectors[at * vector.length + k] - value) ** 2)));
  const all = labels.map((label, index) => ({ index, label, distance: distance(index) })).filter(({ index }) => index !== test);
  return { near: all.sort((a, b) => a.distance - b.distance).slice(0, NEAREST) };
}

async function picture(file) {
  return { pixels: text(await readPicture(file, facts.about)) };
}

// ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/** The weight of every block of a level; in the last one, the sum over its positions */
function blockWeights(one, level) {
  return grouped(one[`weights_${level + 1}`], facts.about.levels[level].capsules).map(sum);
}

/** Values in `count` groups of equal size */
function grouped(values, count) {
  const size = values.length / count;
  return Array.from({ length: count }, (_, n) => values.subarray(n * size, (n + 1) * size));
}

function sum(values) {
  return Math.fround(values.reduce((total, value) => total + value, 0));
}

function best(values) {
  return values.reduce((found, value, at) => (value > values[found] ? at : found), 0);
}

/** Which values are within 1 % of the largest */
function heaviest(values) {
  const least = Math.fround(EQUAL * values.reduce((most, value) => Math.max(most, value), -Infinity));
  return [...values.keys()].filter((at) => values[at] >= least);
}
