// Heat maps of the last level: over the picture, and over two pictures side by side.

import { byId as $, count, set, signed } from "./dom.js";
import { floats } from "./base64.js";
import * as paint from "./paint.js";
import { about, classOf, onIn, shown, state, verdict } from "./state.js";

const seenHere = ([n]) => state.heatBlock === "all" || Number(state.heatBlock) === n;
const short = (value) => String(Number(value.toPrecision(3)));

/** The overlay of a picture: { values, height, width }, or null */
function cells(answer) {
  if (state.heat === "none") return null;
  const [blocks, height, width] = answer.map;
  const all = floats(answer[state.heat]);
  const plane = height * width;
  const values = new Float32Array(plane);
  for (let n = 0; n < blocks; n++) {
    for (let at = 0; seenHere([n]) && at < plane; at++) values[at] += all[n * plane + at];
  }
  return { values, height, width };
}

/** The number of vectors that share the weight, and of values in the heat map that add up to 1 */
function parts({ map: [, height, width] }) {
  const vectors = onIn(about.levels.length) * height * width;
  return { vectors, values: state.heatBlock === "all" ? height * width : vectors };
}

/** The tied vectors, or none if more than half of all vectors tie: outlining most of a picture is not informative */
function outlined(answer) {
  return 2 * answer.tied.length <= parts(answer).vectors ? answer.tied : [];
}

function heatOn(id, answer) {
  const map = cells(answer);
  const weights = state.heat === "weights";
  paint.overlay($(id), answer.pixels, about, map, weights ? parts(answer).values : null);
  const places = weights ? outlined(answer).filter(seenHere) : [];
  paint.marks($(`${id}-marks`), about, places, map && seenHere(answer.place) ? answer.place : null);
  return map;
}

/** One sentence on the vectors with the largest weight */
function ties(answer) {
  const { vectors } = parts(answer);
  const { length } = answer.tied;
  const [n] = answer.place;
  const dot = seenHere(answer.place);
  if (length === 1 && dot) return "The dot marks the vector with the largest weight, which is decoded.";
  if (length === 1) return `The vector with the largest weight, which is decoded, is in block ${n}.`;
  const decoded = dot ? "the dot marks the decoded one" : `the decoded one is in block ${n}`;
  if (length === vectors) return `All ${count(length)} vectors have the same weight to within 1\u00a0%; ${decoded}.`;
  const own = `, ${answer.tied.filter(seenHere).length} of them in block ${state.heatBlock}`;
  const here = state.heatBlock === "all" ? "" : own;
  const marked = outlined(answer).length ? "outlined" : "too many to outline";
  return `${count(length)} of ${count(vectors)} vectors share the largest weight${here} (${marked}); ${decoded}.`;
}

/** What the blocks add to the logit */
function sums({ target, logit, block_contributions: parts }) {
  const added = parts.slice(0, 8).map((part, n) => `block ${n} ${part < 0 ? "−" : "+"}${Math.abs(part).toFixed(2)}`);
  return (
    `Contributions to the logit of ${classOf(target)}, ${signed(logit.toFixed(2))}: ` +
    `${added.join(", ")}${parts.length > 8 ? ", …" : ""}. ` +
    "Blue is evidence for the class, orange against it; the dot marks the decoded vector."
  );
}

export function renderLook() {
  const { answer } = shown;
  $("heat-class").textContent = answer ? `For ${classOf(answer.target)}` : "For the class";
  $("look").classList.toggle("empty", !answer);
  if (!answer) paint.clear("heat");
  const map = answer && heatOn("heat", answer);
  $("heat-legend").hidden = !map;
  if (!map) return ($("look-note").textContent = "");
  const contributions = state.heat === "contributions";
  const share = 1 / parts(answer).values;
  const most = short(paint.largest(map.values));
  const ends = contributions
    ? [`−${most}`, "0", `+${most}`]
    : [`≤ ${short(share / 2)}`, `equal share ${short(share)}`, 2 * share < 1 ? `≥ ${short(2 * share)}` : "1"];
  ["heat-low", "heat-middle", "heat-high"].forEach((id, at) => ($(id).textContent = ends[at]));
  set($("heat-legend"), { "aria-label": `Colour scale: ${ends.join(", ")}` });
  $("heat-legend").querySelector("i").style.background = paint.gradient(contributions);
  $("look-note").textContent = contributions ? sums(answer) : ties(answer);
}

export function renderCompare() {
  const { answer, pinned } = shown;
  $("compare").hidden = !pinned;
  $("pin").textContent = pinned ? "Pin this picture instead" : "Pin this picture to compare";
  if (!pinned) return;
  heatOn("compare-pin", pinned);
  $("compare-pin-text").textContent = verdict(pinned);
  if (answer) heatOn("compare-now", answer);
  else paint.clear("compare-now");
  $("compare-now-text").textContent = answer ? verdict(answer) : "–";
  $("differences").textContent = answer ? differences(answer, pinned) : "";
}

function differences(answer, pinned) {
  const most = answer.levels
    .flatMap(({ weights }, l) => weights.map((b, n) => ({ key: `${l + 1}.${n}`, b, was: pinned.levels[l].weights[n] })))
    .map((one) => ({ ...one, apart: Math.abs(one.b - one.was) }))
    .filter(({ apart }) => apart > 0.0005)
    .sort((a, b) => b.apart - a.apart)
    .slice(0, 3);
  if (!most.length) return "Every block has the same weight in both.";
  const told = most.map(({ key, b, was }) => `block ${key} (${b.toFixed(3)}, pinned ${was.toFixed(3)})`);
  return `They differ most in ${told.join(", ")}.`;
}
