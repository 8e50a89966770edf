// The blocks: diagram, table, and the panel of the open block.

import { testPicture } from "./api.js";
import { floats } from "./base64.js";
import { byId as $, count, node, percent, set, signed } from "./dom.js";
import { Flow, standing } from "./flow.js";
import * as paint from "./paint.js";
import { about, classOf, onIn, placeOf, shown, state, survey } from "./state.js";

let flow;

/** `open` and `toggle` are called with the name of a block. */
export function makeBlocks(open, toggle) {
  flow = new Flow($("flow"), open, toggle);
  const keys = about.levels.flatMap(({ capsules }, l) => Array.from({ length: capsules }, (_, n) => `${l + 1}.${n}`));
  $("table").replaceChildren(...keys.map((key) => {
    const check = node("input", { type: "checkbox", ariaLabel: `Block ${key} is on` });
    check.addEventListener("change", () => toggle(key));
    const name = node("th", { scope: "row", textContent: key });
    const values = ["", "", "of-pin"].map((className) => node("td", { className }));
    const row = node("tr", {}, name, ...values, node("td", {}, check));
    row.dataset.block = key;
    return row;
  }));
}

export function renderBlocks() {
  const { pinned } = shown;
  const { size } = state.off;
  flow.show();
  renderTable();
  renderBlock();
  document.body.classList.toggle("comparing", Boolean(pinned));
  $("key-pin").hidden = !pinned;
  $("all-on").hidden = !size;
  $("all-on").textContent = size === 1 ? `Switch block ${[...state.off][0]} on again` : `Switch all ${size} on again`;
}

function renderTable() {
  const { answer, pinned } = shown;
  for (const row of $("table").children) {
    const [l, n] = placeOf(row.dataset.block);
    const [, weight, fitness, pin, check] = row.children;
    const level = answer?.levels[l - 1];
    weight.textContent = level ? level.weights[n].toFixed(4) : "";
    weight.dataset.value = level?.weights[n] ?? "";
    fitness.textContent = level ? level.fitness[n].toFixed(4) : "";
    pin.textContent = pinned ? pinned.levels[l - 1].weights[n].toFixed(4) : "";
    check.firstChild.checked = !state.off.has(row.dataset.block);
    row.classList.toggle("winner", Boolean(level && standing(level.winners, onIn(l)).includes(n)));
  }
}

/** What is known about the open block: names and values */
function facts(l, n) {
  const { answer, pinned, block } = shown;
  const { weights, fitness } = answer.levels[l - 1];
  const last = l === about.levels.length;
  const where = about.levels[l - 1].per_position ? " at its best position" : "";
  const found = [["Weight", weights[n].toFixed(4)], ["Fitness", `${fitness[n].toFixed(4)}${where}`]];
  if (pinned) found.push(["Weight, pinned", pinned.levels[l - 1].weights[n].toFixed(4)]);
  if (last) found.push([`Adds to ${classOf(answer.target)}`, signed(answer.block_contributions[n].toFixed(3))]);
  if (block && !state.off.has(state.open)) {
    const { without } = block;
    const then = without && `${classOf(without.predicted)}, ${percent(without.probability)}`;
    found.push(["Without it", then ?? "no block would be left"]);
  }
  return found;
}

export function renderBlock() {
  $("block").hidden = !state.open;
  if (!state.open) return;
  const [l, n] = placeOf(state.open);
  const off = state.off.has(state.open);
  if (shown.block && (shown.block.level !== l - 1 || shown.block.capsule !== n)) shown.block = null;
  $("block-title").textContent = `Block ${n} of level ${l}`;
  $("block-switch").textContent = off ? "Switch on" : "Switch off";
  set($("block-switch"), { "aria-pressed": off });
  const known = shown.answer ? facts(l, n) : [];
  $("block-facts").replaceChildren(...known.map(([name, value]) =>
    node("div", {}, node("dt", { textContent: name }), node("dd", { textContent: value }))));
  $("maps-note").textContent = shown.answer
    ? "One map per element: orange is negative, blue positive. Each has its own scale, up to the number below it."
    : "Shown once there is a picture.";
  renderMaps(shown.answer && shown.block);
  renderFavourites();
}

function renderMaps(block) {
  if (renderMaps.last === block) return;
  renderMaps.last = block;
  if (!block) return $("maps").replaceChildren();
  const [elements, height, width] = block.map;
  const values = floats(block.maps);
  const plane = height * width;
  const canvases = Array.from({ length: elements + 1 }, (_, at) => {
    const k = at - 1; // the first map shows the lengths of the vectors
    const canvas = node("canvas", { role: "img", ariaLabel: at ? `Map of element ${k}` : "Length of the vectors" });
    const map = at ? values.subarray(k * plane, (k + 1) * plane) : floats(block.length);
    paint.map(canvas, map, height, width, at > 0);
    const most = paint.largest(map).toPrecision(2);
    return node("figure", {}, canvas, node("figcaption", { textContent: at ? `${k}: ±${most}` : `‖·‖ ${most}` }));
  });
  $("maps").replaceChildren(...canvases);
}

export function renderFavourites() {
  const found = shown.block?.favourites;
  thumbs($("favourites"), found?.images ?? [], (one) => one.weight.toFixed(3));
  $("favourites-note").textContent = {
    none: "The test images are not available.",
    failed: "The test images could not be processed; see the terminal for details.",
    running: `Processing the test images: ${count(survey.done ?? 0)} of ${count(survey.total ?? 0)}.`,
    ready: found ? preferences(found) : shown.answer ? "" : "Shown once there is a picture.",
  }[survey.state];
}

function preferences({ classes, equal, images, wins, total }) {
  const names = classes.slice(0, 6).map(classOf).join(", ");
  const own = names ? ` Its classes: ${names}${classes.length > 6 ? ", …" : ""}.` : "";
  const tied = ` Showing ${images.length} of ${count(equal)} images that give it the same weight to within 1\u00a0%.`;
  const most = `It has the largest weight, alone or tied, in ${count(wins)} of ${count(total)} test images.`;
  return most + own + (equal > images.length ? tied : "");
}

/** Test images to choose from; their buttons carry the number in data-test. */
export function thumbs(holder, images, caption) {
  const key = JSON.stringify(images);
  if (holder.dataset.key === key) return;
  holder.dataset.key = key;
  holder.replaceChildren(...images.map((one) => {
    const picture = node("img", { src: testPicture(one.index), alt: "", loading: "lazy" });
    const texts = [node("span", { textContent: classOf(one.label) }), node("small", { textContent: caption(one) })];
    const button = node("button", { type: "button", title: `Test image ${one.index}` }, picture, ...texts);
    button.dataset.test = one.index;
    return set(button, { "aria-label": `Test image ${one.index}, ${classOf(one.label)}, ${caption(one)}` });
  }));
}
