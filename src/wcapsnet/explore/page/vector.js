// The decoded vector: sliders, reconstruction, and the test images with the nearest vectors.

import { bytes } from "./base64.js";
import { byId as $, count, node, set, signed } from "./dom.js";
import * as paint from "./paint.js";
import { about, classOf, shown, state, survey } from "./state.js";

/** `moved` is called with an element and its new value. */
export function makeSliders(moved) {
  const elements = Array.from({ length: about.levels.at(-1).dimension }, (_, k) => [String(k), `Element ${k}`, k]);
  const position = [["x", "Position, left to right", "↔"], ["y", "Position, top to bottom", "↕"]];
  $("sliders").replaceChildren(...[...elements, ...position].map(([element, title, sign]) => {
    const slider = node("input", { type: "range", step: "any", ariaLabel: title });
    slider.dataset.element = element;
    slider.addEventListener("input", () => shown.answer && moved(element, Number(slider.value)));
    return node("label", { title }, node("span", { textContent: sign }), slider, node("output"));
  }));
}

/** The decoded vector and its position, as set by the sliders */
export function movedVector() {
  const { vector, position } = shown.answer;
  const at = (key, value) => state.vector.get(key) ?? value;
  const [x, y] = position;
  return { vector: vector.map((value, k) => at(String(k), value)), position: [at("x", x), at("y", y)] };
}

export function renderVector() {
  const { answer } = shown;
  const changed = state.vector.size > 0;
  $("vector").classList.toggle("empty", !answer);
  for (const slider of $("sliders").querySelectorAll("input")) slider.disabled = !answer;
  $("reset").disabled = !changed;
  $("rebuilt-text").textContent = changed ? "Reconstruction, changed vector" : "Reconstruction";
  if (!answer) {
    $("vector-note").textContent = "";
    $("near-part").hidden = true;
    return ["seen", "rebuilt"].forEach(paint.clear);
  }
  $("vector-note").textContent = `${decoded(answer)} Move a slider to see what its element encodes.`;
  paint.pixels($("seen"), answer.pixels, about);
  if (!changed) paint.pixels($("rebuilt"), bytes(answer.reconstruction), about);
  renderSliders(answer);
}

/** The same sentence as `ImageExplanation.decoded` in Python */
function decoded({ place: [n, i, j], tied: { length }, predicted }) {
  const tied = `one of ${count(length)} equally weighted vectors, the one that adds most to '${classOf(predicted)}'`;
  return `Decoded: block ${n}, row ${i}, column ${j}; ${length > 1 ? tied : "the vector with the largest weight"}.`;
}

function renderSliders({ vector, position, place: [block] }) {
  const now = movedVector();
  const values = [...now.vector, ...now.position];
  const range = survey.ranges?.[block];
  const far = 1.5 * Math.max(...vector.map(Math.abs), 0.1);
  [...vector, ...position].forEach((own, at) => {
    const label = $("sliders").children[at];
    const [, slider, output] = label.children;
    const value = values[at];
    const [low, high] = at >= vector.length ? [-1, 1] : range ? [range.low[at], range.high[at]] : [-far, far];
    Object.assign(slider, { min: Math.min(low, own, value), max: Math.max(high, own, value) });
    if (document.activeElement !== slider || Number(slider.value) !== value) slider.value = value;
    const told = value.toFixed(far < 1 ? 3 : 2).replace(/^-(?=0\.0+$)/, "");
    set(slider, { "aria-valuetext": told });
    output.textContent = signed(told);
    label.classList.toggle("moved", state.vector.has(slider.dataset.element));
  });
}
