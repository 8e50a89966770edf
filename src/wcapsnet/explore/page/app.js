// The page: its state, its requests, and rendering.

import { about as loadAbout, ask, testPicture } from "./api.js";
import { bytes, floats, text } from "./base64.js";
import { Easel, rasterize } from "./draw.js";
import { Flow, standing } from "./flow.js";
import * as link from "./link.js";
import { Newest } from "./newest.js";
import * as paint from "./paint.js";

const $ = (id) => document.getElementById(id);
const FEW = 12; // up to this many classes keep their order; otherwise the most probable are shown
const LONG = 32000; // length at which some programs truncate a link

let about;
let easel;
let flow;
let survey = { state: "none" };
const state = { id: "", source: null, pin: null, off: new Set(), target: null, vector: new Map(), open: null, heat: "weights", heatBlock: "all" };
const shown = { answer: null, pinned: null, before: null, pixels: null, pinPixels: null }; // answers
const kept = { draw: null, pixels: null, test: null }; // the last picture of each kind
const questions = { now: new Newest("/api/explain"), pin: new Newest("/api/explain"), before: new Newest("/api/explain"), block: new Newest("/api/block"), decode: new Newest("/api/decode"), near: new Newest("/api/near") };

const percent = (p) => (p > 0.9995 ? "> 99.9 %" : p < 0.0005 && p > 0 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`);
const routed = () => about.levels.length > 0; // else the network has no blocks: prediction and reconstruction only
const classOf = (r) => about.classes[r];
const node = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

// ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/** A picture as named in a request; null for an empty drawing. */
function named(source) {
  if (!source) return null;
  if (source.kind === "test") return { test: source.index };
  const data = pixelsOf(source);
  return data && { pixels: text(data) };
}

/** uint8 (ch, h, w); null for an empty drawing, and for test images, which the answer brings */
function pixelsOf(source) {
  if (source.kind === "pixels") return source.data;
  if (source.kind !== "draw" || !source.strokes.length) return null;
  const ink = rasterize(source.strokes, about.height, about.width, source.center);
  return about.draw.dark ? ink : ink.map((value) => 255 - value);
}

function offList() {
  return [...state.off].map((key) => key.split(".").map(Number)).map(([level, capsule]) => [level - 1, capsule]);
}

/** Request the prediction again; `keep` keeps the sliders. */
async function refresh({ keep = false } = {}) {
  if (!keep) state.vector.clear();
  remember();
  const picture = named(state.source);
  if (!picture) {
    questions.now.drop();
    busy(false);
    Object.assign(shown, { answer: null, before: null, pixels: null });
    render();
    return;
  }
  const mine = state.source.kind === "test" ? null : pixelsOf(state.source);
  busy(true);
  try {
    const answer = await questions.now.ask({ ...picture, off: offList(), class: state.target, slot: "now" });
    if (!answer || !state.source || !named(state.source)) return;
    shown.answer = answer;
    shown.pixels = mine ?? bytes(answer.pixels);
    if (!state.off.size) shown.before = null;
    render();
    busy(false);
    await Promise.all([before(picture), openBlock(), decode(), near(picture)]);
  } catch (error) {
    busy(false);
    say(error.message);
  }
}

/** A large network is slow; show that it is working. */
function busy(on) {
  clearTimeout(busy.timer);
  if (on) busy.timer = setTimeout(() => document.body.classList.add("busy"), 300);
  else document.body.classList.remove("busy");
}

/** The same picture with everything on, for comparison. */
async function before(picture) {
  if (!state.off.size) return;
  const answer = await questions.before.ask({ ...picture, off: [], slot: "before" });
  if (!answer || !state.off.size) return;
  shown.before = answer;
  renderPrediction();
}

async function refreshPin() {
  remember();
  if (!state.pin) {
    Object.assign(shown, { pinned: null, pinPixels: null });
    render();
    return;
  }
  try {
    const answer = await questions.pin.ask({ ...named(state.pin), off: offList(), class: state.target, slot: "pin" });
    if (!answer || !state.pin) return;
    shown.pinned = answer;
    shown.pinPixels = answer.pixels ? bytes(answer.pixels) : pixelsOf(state.pin);
    render();
  } catch (error) {
    say(error.message);
  }
}

async function openBlock() {
  if (!state.open) return;
  const [level, capsule] = state.open.split(".").map(Number);
  const picture = named(state.source);
  const asked = state.open;
  if (!picture) return;
  const answer = await questions.block.ask({ ...picture, off: offList(), class: state.target, block: [level - 1, capsule] });
  if (answer && state.open === asked) renderMaps(answer);
}

async function decode() {
  if (!state.vector.size || !shown.answer) return;
  const answer = await questions.decode.ask(moved());
  if (!answer) return;
  paint.pixels($("rebuilt"), bytes(answer.reconstruction), about);
}

async function near(picture) {
  if (survey.state !== "ready" || !shown.answer || !routed()) return;
  const answer = await questions.near.ask({ vector: shown.answer.vector, test: picture.test ?? null });
  if (!answer?.near) return;
  $("near-part").hidden = false;
  thumbs($("near"), answer.near, (one) => `distance ${one.distance.toFixed(2)}`);
}

/** The decoded vector and its position, as set by the sliders */
function moved() {
  const { vector, position } = shown.answer;
  const at = (key, value) => state.vector.get(key) ?? value;
  return { vector: vector.map((value, k) => at(String(k), value)), position: [at("x", position[0]), at("y", position[1])] };
}

// ── rendering ────────────────────────────────────────────────────────────────────────────────────────────────────────

function render() {
  renderPicture();
  renderPrediction();
  if (!routed()) return renderPlain();
  renderLook();
  renderFlow();
  renderTable();
  renderBlock();
  renderVector();
  renderCompare();
}

/** The reconstruction of a network without blocks, if it has a decoder */
function renderPlain() {
  const { answer, pixels } = shown;
  $("vector").hidden = !answer?.reconstruction;
  if (!answer?.reconstruction) return;
  paint.pixels($("seen"), pixels, about);
  paint.pixels($("rebuilt"), bytes(answer.reconstruction), about);
}

function renderPicture() {
  const { source } = state;
  $("undo").disabled = $("clear").disabled = !easel.strokes.length;
  $("easel-hint").hidden = easel.strokes.length > 0;
  $("pin").disabled = !shown.answer;
  if (!shown.pixels) return;
  if (source.kind === "pixels") {
    paint.pixels($("file-view"), shown.pixels, about);
    $("file-view").hidden = false;
    $("drop").classList.add("filled");
    $("drop-text").textContent = "Drop, paste or choose another";
    $("file-note").textContent = source.name ? `${source.name}, resized to ${about.width}×${about.height} pixels` : "";
  }
  if (source.kind === "test") {
    paint.pixels($("test-view"), shown.pixels, about);
    $("test-index").value = source.index;
  }
}

function renderPrediction() {
  const { answer, pinned, before } = shown;
  const verdict = answer && classOf(answer.predicted);
  $("verdict").textContent = verdict ?? "–";
  $("verdict").classList.toggle("long", (verdict ?? "").length > 8);
  $("verdict-probability").textContent = answer ? percent(answer.probabilities[answer.predicted]) : state.source?.kind === "draw" ? "Nothing drawn yet." : "No picture yet.";
  const label = answer?.label;
  $("truth").textContent = label === undefined || label === null ? "" : label === answer.predicted ? `✓ Right: it is labelled ${classOf(label)}.` : `✗ Wrong: it is labelled ${classOf(label)}.`;
  $("truth").className = `small ${label === answer?.predicted ? "correct" : "mistaken"}`;
  $("change").hidden = !before || !answer;
  if (before && answer) {
    const then = before.predicted;
    $("change").textContent = then === answer.predicted
      ? `With every block on: ${percent(before.probabilities[then])}, the same class.`
      : `With every block on: ${classOf(then)}, ${percent(before.probabilities[then])}.`;
    $("change").classList.toggle("other", then !== answer.predicted);
  }
  renderClasses(answer, pinned, before);
  $("unchoose").hidden = state.target === null;
  if (state.target !== null) $("unchoose").textContent = `Explaining ${classOf(state.target)} – back to the prediction`;
  const float = $("float");
  float.hidden = !answer;
  if (answer) float.textContent = `${verdict} · ${percent(answer.probabilities[answer.predicted])}`;
  clearTimeout(renderPrediction.timer);
  if (answer) renderPrediction.timer = setTimeout(() => ($("said").textContent = `Prediction: ${verdict}, ${percent(answer.probabilities[answer.predicted])}`), 700);
}

function chosenClasses(answer) {
  const all = about.classes.map((_, r) => r);
  if (all.length <= FEW) return all;
  const words = $("search").value.trim().toLowerCase();
  const order = answer ? all.sort((a, b) => answer.probabilities[b] - answer.probabilities[a]) : all;
  if (!words) return order.slice(0, 8);
  return order.filter((r) => classOf(r).toLowerCase().includes(words)).slice(0, 20);
}

function renderClasses(answer, pinned, before) {
  const chosen = chosenClasses(answer);
  const list = $("classes");
  while (list.children.length > chosen.length) list.lastChild.remove();
  while (list.children.length < chosen.length) {
    const button = node("button", { type: "button" }, node("span", { className: "label" }), node("span", { className: "bar" }, node("i"), node("i", { className: "pinned" }), node("i", { className: "was" })), node("span", { className: "value" }));
    button.addEventListener("click", () => choose(Number(button.dataset.class)));
    list.append(node("li", {}, button));
  }
  chosen.forEach((r, place) => {
    const button = list.children[place].firstChild;
    const [label, bar, value] = button.children;
    const p = answer?.probabilities[r] ?? 0;
    button.dataset.class = r;
    button.dataset.probability = answer ? p : "";
    button.setAttribute("aria-pressed", state.target === r);
    button.classList.toggle("best", answer?.predicted === r);
    label.textContent = label.title = classOf(r);
    bar.children[0].style.width = `${100 * p}%`;
    bar.children[1].style.width = pinned ? `${100 * pinned.probabilities[r]}%` : "0";
    bar.children[2].hidden = !before || Math.abs(before.probabilities[r] - p) < 0.005;
    if (before) bar.children[2].style.left = `${100 * before.probabilities[r]}%`;
    bar.classList.toggle("two", Boolean(pinned));
    value.textContent = answer ? percent(p) : "";
  });
  const rest = about.classes.length - chosen.length;
  const searching = about.classes.length > FEW && $("search").value.trim();
  $("classes-note").textContent = searching && !chosen.length ? "No class matches." : rest && !searching ? `and ${rest} more classes` : "";
}

/** The overlay of a picture: { values, height, width }, or null */
function cells(answer) {
  if (!answer || state.heat === "none") return null;
  const [blocks, height, width] = answer.map;
  const all = floats(answer[state.heat]);
  const plane = height * width;
  const from = state.heatBlock === "all" ? null : Number(state.heatBlock);
  const values = from === null ? new Float32Array(plane) : all.slice(from * plane, (from + 1) * plane);
  if (from === null) for (let at = 0; at < blocks * plane; at++) values[at % plane] += all[at];
  return { values, height, width };
}

/** The number of weights that sum to 1: positions if the heat map adds up the blocks, otherwise vectors */
function parts(answer) {
  const [blocks, height, width] = answer.map;
  const off = [...state.off].filter((key) => key.startsWith(`${about.levels.length}.`)).length;
  return { shown: (state.heatBlock === "all" ? 1 : blocks - off) * height * width, vectors: (blocks - off) * height * width };
}

const seenHere = ([n]) => state.heatBlock === "all" || Number(state.heatBlock) === n;

/** The tied vectors, or none if more than half of all vectors tie: outlining most of a picture is not informative */
function outlined(answer) {
  return 2 * answer.tied.length <= parts(answer).vectors ? answer.tied : [];
}

function heatOn(id, answer, pixels) {
  const map = cells(answer);
  const weights = state.heat === "weights";
  paint.overlay($(id), pixels, about, map, weights ? parts(answer).shown : null);
  paint.marks($(`${id}-marks`), about, weights ? outlined(answer).filter(seenHere) : [], map && seenHere(answer.place) ? answer.place : null);
  return map;
}

/** One sentence on the vectors with the largest weight */
function ties(answer) {
  const { vectors } = parts(answer);
  const count = answer.tied.length;
  const dot = seenHere(answer.place);
  if (count === 1) return dot ? "The dot marks the vector with the largest weight, which is decoded." : `The vector with the largest weight, which is decoded, is in block ${answer.place[0]}.`;
  const decoded = dot ? "the dot marks the decoded one" : `the decoded one is in block ${answer.place[0]}`;
  if (count === vectors) return `All ${count} vectors have the same weight to within 1\u00a0%; ${decoded}.`;
  const here = state.heatBlock === "all" ? "" : `, ${answer.tied.filter(seenHere).length} of them in block ${state.heatBlock}`;
  return `${count} of ${vectors} vectors share the largest weight${here} (${outlined(answer).length ? "outlined" : "too many to outline"}); ${decoded}.`;
}

function renderLook() {
  const { answer, pixels } = shown;
  $("heat-class").textContent = answer ? `For ${classOf(answer.target)}` : "For the class";
  $("look").classList.toggle("empty", !answer);
  if (!answer) {
    clear("heat");
    $("look-note").textContent = "";
    $("heat-legend").hidden = true;
    return;
  }
  const map = heatOn("heat", answer, pixels);
  const signed = state.heat === "contributions";
  $("heat-legend").hidden = !map;
  if (map) {
    const short = (value) => String(Number(value.toPrecision(3)));
    const most = paint.largest(map.values);
    const share = 1 / parts(answer).shown;
    const ends = signed ? [`−${short(most)}`, "0", `+${short(most)}`] : [`≤ ${short(share / 2)}`, `equal share ${short(share)}`, 2 * share < 1 ? `≥ ${short(2 * share)}` : "1"];
    ["heat-low", "heat-middle", "heat-high"].forEach((id, at) => ($(id).textContent = ends[at]));
    $("heat-legend").setAttribute("aria-label", `Colour scale: ${ends.join(", ")}`);
    $("heat-legend").querySelector("i").style.background = paint.gradient(signed);
  }
  const total = answer.block_contributions.map((part, n) => `block ${n} ${part < 0 ? "−" : "+"}${Math.abs(part).toFixed(2)}`).slice(0, 8).join(", ");
  $("look-note").textContent = signed
    ? `What every position adds to the logit of ${classOf(answer.target)}, ${answer.logit.toFixed(2)}: ${total}${answer.block_contributions.length > 8 ? ", …" : ""}. Blue is evidence for it, orange against; the dot marks the decoded vector.`
    : map ? ties(answer) : "";
}

function clear(id) {
  $(id).getContext("2d").clearRect(0, 0, $(id).width, $(id).height);
  $(`${id}-marks`)?.replaceChildren();
}

function thumbnail() {
  if (!shown.pixels) return null;
  const canvas = document.createElement("canvas");
  paint.pixels(canvas, shown.pixels, about);
  return canvas.toDataURL();
}

function renderFlow() {
  const { answer, pinned } = shown;
  flow.show({
    answer,
    pinned,
    off: state.off,
    open: state.open,
    picture: thumbnail(),
    name: answer ? classOf(answer.target) : "",
    probability: answer ? percent(answer.probabilities[answer.target]) : "",
  });
  $("key-pin").hidden = !pinned;
  $("all-on").hidden = !state.off.size;
  $("all-on").textContent = `Switch ${state.off.size === 1 ? "block" : "all"} ${state.off.size === 1 ? [...state.off][0] : state.off.size} on again`;
}

function renderTable() {
  const { answer, pinned } = shown;
  const rows = $("table");
  if (!rows.children.length) {
    about.levels.forEach((level, l) => {
      for (let n = 0; n < level.capsules; n++) {
        const key = `${l + 1}.${n}`;
        const check = node("input", { type: "checkbox", ariaLabel: `Block ${key} is on` });
        check.addEventListener("change", () => toggle(key));
        rows.append(node("tr", {}, node("th", { scope: "row", textContent: key }), node("td"), node("td"), node("td", { className: "of-pin" }), node("td", {}, check)));
        rows.lastChild.dataset.block = key;
      }
    });
  }
  document.body.classList.toggle("comparing", Boolean(pinned));
  for (const row of rows.children) {
    const [l, n] = row.dataset.block.split(".").map(Number);
    const [, weight, fitness, pin, check] = row.children;
    const level = answer?.levels[l - 1];
    weight.textContent = level ? level.weights[n].toFixed(4) : "";
    weight.dataset.value = level ? level.weights[n] : "";
    fitness.textContent = level ? level.fitness[n].toFixed(4) : "";
    fitness.dataset.value = level ? level.fitness[n] : "";
    pin.textContent = pinned ? pinned.levels[l - 1].weights[n].toFixed(4) : "";
    check.firstChild.checked = !state.off.has(row.dataset.block);
    const on = about.levels[l - 1].capsules - [...state.off].filter((key) => key.startsWith(`${l}.`)).length;
    row.classList.toggle("winner", Boolean(level && standing(level.winners, on).includes(n)));
  }
}

function renderBlock() {
  $("block").hidden = !state.open;
  if (!state.open) return;
  const [l, n] = state.open.split(".").map(Number);
  const off = state.off.has(state.open);
  $("block-title").textContent = `Block ${n} of level ${l}`;
  $("block-switch").textContent = off ? "Switch on" : "Switch off";
  $("block-switch").setAttribute("aria-pressed", off);
  const { answer, pinned } = shown;
  if ($("block").dataset.block !== state.open) {
    $("block").dataset.block = state.open;
    $("maps").replaceChildren();
    $("favourites").replaceChildren();
    delete renderMaps.last;
  }
  if (!answer) {
    $("block-facts").replaceChildren();
    $("maps").replaceChildren(node("p", { className: "muted small", textContent: "Shown once there is a picture." }));
  } else {
    const level = answer.levels[l - 1];
    const facts = [["Weight", level.weights[n].toFixed(4)], ["Fitness", level.fitness[n].toFixed(4) + (l === about.levels.length ? " at its best place" : "")]];
    if (pinned) facts.push(["Weight, pinned", pinned.levels[l - 1].weights[n].toFixed(4)]);
    if (l === about.levels.length) facts.push([`Adds to ${classOf(answer.target)}`, answer.block_contributions[n].toFixed(3)]);
    const last = renderMaps.last;
    if (last && last.level === l - 1 && last.capsule === n && !off) {
      const without = last.without;
      facts.push(["Without it", without ? `${classOf(without.predicted)}, ${percent(without.probability)}` : "no block would be left"]);
    }
    $("block-facts").replaceChildren(...facts.map(([name, value]) => node("div", {}, node("dt", { textContent: name }), node("dd", { textContent: value }))));
  }
  renderFavourites();
}

function renderMaps(answer) {
  renderMaps.last = answer;
  renderBlock();
  const [count, height, width] = answer.map;
  const values = floats(answer.maps);
  const plane = height * width;
  const holder = $("maps");
  if (holder.children.length !== count + 1 || !holder.querySelector("canvas")) {
    holder.replaceChildren(...Array.from({ length: count + 1 }, (_, k) => node("figure", {}, node("canvas", { role: "img", ariaLabel: k ? `Map of element ${k - 1}` : "Length of the vectors" }), node("figcaption"))));
  }
  const show = (at, name, map, signed) => {
    const [canvas, caption] = holder.children[at].children;
    paint.map(canvas, map, height, width, signed);
    caption.textContent = `${name} ${signed ? "±" : ""}${paint.largest(map).toPrecision(2)}`;
  };
  show(0, "‖·‖", floats(answer.length), false);
  for (let k = 0; k < count; k++) show(k + 1, `${k}:`, values.subarray(k * plane, (k + 1) * plane), true);
}

function renderFavourites() {
  const found = renderMaps.last?.favourites;
  const note = $("favourites-note");
  if (survey.state === "none") note.textContent = "The test images are not available.";
  else if (survey.state === "failed") note.textContent = "The test images could not be processed; see the terminal for details.";
  else if (survey.state === "running") note.textContent = `Processing the test images: ${survey.done.toLocaleString("en")} of ${survey.total.toLocaleString("en")}.`;
  else if (found) {
    const classes = found.classes.length ? ` Its classes: ${found.classes.slice(0, 6).map(classOf).join(", ")}${found.classes.length > 6 ? ", …" : ""}.` : "";
    const tied = found.equal > found.images.length ? ` Showing ${found.images.length} of ${found.equal.toLocaleString("en")} images that give it the same weight to within 1\u00a0%.` : "";
    note.textContent = `Its weight is the largest, alone or tied, in ${found.wins.toLocaleString("en")} of ${found.total.toLocaleString("en")} test images.${classes}${tied}`;
    thumbs($("favourites"), found.images, (one) => one.weight.toFixed(3));
  } else note.textContent = shown.answer ? "" : "Shown once there is a picture.";
}

/** Test images to choose from */
function thumbs(holder, images, caption) {
  const key = JSON.stringify(images);
  if (holder.dataset.key === key && holder.children.length) return;
  holder.dataset.key = key;
  holder.replaceChildren(...images.map((one) => {
    const picture = node("img", { src: testPicture(one.index), alt: "", loading: "lazy" });
    const button = node("button", { type: "button", title: `Test image ${one.index}` }, picture, node("span", { textContent: classOf(one.label) }), node("small", { textContent: caption(one) }));
    button.setAttribute("aria-label", `Test image ${one.index}, ${classOf(one.label)}, ${caption(one)}`);
    button.addEventListener("click", () => see({ kind: "test", index: one.index }));
    return button;
  }));
}

function renderVector() {
  const { answer, pixels } = shown;
  $("vector").classList.toggle("empty", !answer);
  for (const slider of $("sliders").querySelectorAll("input")) slider.disabled = !answer;
  $("reset").disabled = !state.vector.size;
  if (!answer) {
    $("vector-note").textContent = "";
    for (const id of ["seen", "rebuilt"]) clear(id);
    $("near-part").hidden = true;
    return;
  }
  const [n] = answer.place;
  $("vector-note").textContent = `${answer.decoded[0].toUpperCase()}${answer.decoded.slice(1)}. Move its elements and watch the reconstruction.`;
  paint.pixels($("seen"), pixels, about);
  if (!state.vector.size) paint.pixels($("rebuilt"), bytes(answer.reconstruction), about);
  $("rebuilt-text").textContent = state.vector.size ? "Reconstructed from the moved vector" : "Reconstructed from the vector";
  const now = moved();
  const seen = survey.ranges?.[n];
  const far = 1.5 * Math.max(...answer.vector.map(Math.abs), 0.1);
  [...now.vector, ...now.position].forEach((value, at) => {
    const slider = $("sliders").children[at].querySelector("input");
    const own = at < now.vector.length ? answer.vector[at] : answer.position[at - now.vector.length];
    const [low, high] = at >= now.vector.length ? [-1, 1] : seen ? [seen.low[at], seen.high[at]] : [-far, far];
    slider.min = Math.min(low, own, value);
    slider.max = Math.max(high, own, value);
    if (document.activeElement !== slider || Number(slider.value) !== value) slider.value = value;
    const told = value.toFixed(far < 1 ? 3 : 2).replace(/^-(?=0\.0+$)/, "");
    slider.setAttribute("aria-valuetext", told);
    $("sliders").children[at].querySelector("output").textContent = told.replace("-", "−");
    $("sliders").children[at].classList.toggle("moved", state.vector.has(slider.dataset.element));
  });
}

function makeSliders() {
  const names = [...Array(about.levels.at(-1).dimension).keys()].map((k) => [String(k), `Element ${k}`, k]).concat([["x", "Position, left to right", "↔"], ["y", "Position, top to bottom", "↕"]]);
  $("sliders").replaceChildren(...names.map(([element, title, sign]) => {
    const slider = node("input", { type: "range", step: "any", ariaLabel: title });
    slider.dataset.element = element;
    slider.addEventListener("input", () => {
      if (!shown.answer) return;
      state.vector.set(element, Number(slider.value));
      renderVector();
      remember();
      decode().catch((error) => say(error.message));
    });
    return node("label", { title }, node("span", { textContent: sign }), slider, node("output"));
  }));
}

function renderCompare() {
  const { answer, pinned, pixels, pinPixels } = shown;
  $("compare").hidden = !pinned;
  $("pin").textContent = pinned ? "Pin this picture instead" : "Pin this picture to compare";
  if (!pinned) return;
  heatOn("compare-pin", pinned, pinPixels);
  const told = (one) => `${classOf(one.predicted)}, ${percent(one.probabilities[one.predicted])}`;
  $("compare-pin-text").textContent = told(pinned);
  if (answer) heatOn("compare-now", answer, pixels);
  else clear("compare-now");
  $("compare-now-text").textContent = answer ? told(answer) : "–";
  const apart = answer ? answer.levels.flatMap((level, l) => level.weights.map((b, n) => [`${l + 1}.${n}`, b, pinned.levels[l].weights[n]])) : [];
  const most = apart.sort((a, b) => Math.abs(b[1] - b[2]) - Math.abs(a[1] - a[2])).slice(0, 3).filter(([, a, b]) => Math.abs(a - b) > 0.0005);
  $("differences").textContent = !answer ? "" : most.length ? `They differ most in ${most.map(([key, a, b]) => `block ${key} (${a.toFixed(3)}, pinned ${b.toFixed(3)})`).join(", ")}.` : "Every block has the same weight in both.";
}

// ── actions ──────────────────────────────────────────────────────────────────────────────────────────────────────────

function see(source) {
  const kind = source.kind;
  state.source = kept[kind] = source;
  showTab(kind === "pixels" ? "file" : kind);
  return refresh();
}

function showTab(name) {
  for (const one of ["draw", "file", "test"]) {
    $(`tab-${one}`).setAttribute("aria-selected", one === name);
    $(`tab-${one}`).tabIndex = one === name ? 0 : -1;
    $(`panel-${one}`).hidden = one !== name;
  }
  if (name === "draw") easel.paint();
}

function pickTab(name) {
  showTab(name);
  const source = name === "draw" ? drawing() : name === "file" ? kept.pixels : about.test && (kept.test ?? { kind: "test", index: 0 });
  if (source && source !== state.source) see(source);
}

function drawing() {
  return { kind: "draw", strokes: easel.strokes, center: $("center").checked };
}

function drawn() {
  state.source = kept.draw = drawing();
  renderPicture();
  refresh();
}

async function take(file) {
  if (!file) return;
  try {
    if (file.size > about.max_upload) throw new Error(`The picture is larger than ${about.max_upload / 2 ** 20} MB; make it smaller.`);
    const answer = await ask("/api/picture", file, "application/octet-stream");
    await see({ kind: "pixels", data: bytes(answer.pixels), name: file.name ?? "" });
  } catch (error) {
    say(error.message);
  }
}

function choose(r) {
  if (!routed()) return; // there is nothing to explain
  state.target = state.target === r ? null : r;
  again();
}

function again() {
  refresh({ keep: true });
  if (state.pin) refreshPin();
}

function toggle(key) {
  const level = key.split(".")[0];
  const off = new Set(state.off);
  if (off.has(key)) off.delete(key);
  else off.add(key);
  const count = [...off].filter((one) => one.split(".")[0] === level).length;
  if (count === about.levels[level - 1].capsules) {
    say(`One block of level ${level} must stay on.`);
    renderTable();
    return;
  }
  state.off = off;
  state.vector.clear();
  again();
  render();
}

function open(key, focus = false) {
  if (state.open !== key) {
    state.open = key;
    remember();
    renderFlow();
    renderBlock();
    openBlock().catch((error) => say(error.message));
  }
  if (focus) $("block").focus();
}

function close() {
  if (!state.open) return;
  const [l, n] = state.open.split(".").map(Number);
  state.open = null;
  remember();
  renderFlow();
  renderBlock();
  flow.blocks[l - 1][n].g.focus();
}

/** The selected test images: of a class, misclassified */
function wanted() {
  const r = $("test-class").value;
  const wrong = $("mistakes").checked && survey.state === "ready";
  const { labels } = about.test;
  return [...labels.keys()].filter((at) => (r === "" || labels[at] === Number(r)) && (!wrong || survey.predicted[at] !== labels[at]));
}

function walk(step) {
  const all = wanted();
  const now = state.source?.kind === "test" ? state.source.index : -1;
  renderTestNote(all);
  if (!all.length) return;
  let index;
  if (step === 0) index = all[Math.floor(Math.random() * all.length)];
  else if (step > 0) index = all.find((at) => at > now) ?? all[0];
  else index = all.findLast((at) => at < now) ?? all.at(-1);
  see({ kind: "test", index });
}

function renderTestNote(all = wanted()) {
  $("mistakes").disabled = survey.state !== "ready";
  const count = all.length.toLocaleString("en");
  const total = about.test.images.toLocaleString("en");
  const whole = about.test.of?.toLocaleString("en"); // the page may hold a sample
  let words = `${all.length === about.test.images ? total : `${count} of ${total}`} images${whole ? ` (a sample of ${whole})` : ""}.`;
  if (!all.length) words = "No image matches.";
  if (survey.state === "running") words += ` Looking for mistakes: ${Math.floor((100 * survey.done) / survey.total)} %.`;
  if (survey.state === "ready") words += ` The network classifies ${whole ? `${Math.round(survey.accuracy * about.test.images)} of these ${total}` : `${(100 * survey.accuracy).toFixed(2)}\u00a0%`} correctly.`;
  $("test-note").textContent = words;
}

async function pollSurvey() {
  let before;
  do {
    before = survey.state;
    try {
      survey = await ask("/api/survey", {});
    } catch {
      return; // the next request reports it
    }
    renderTestNote();
    if (state.open) renderFavourites();
    if (survey.state === "running") await new Promise((resolve) => setTimeout(resolve, 1000));
  } while (survey.state === "running");
  if (survey.state !== "ready" || before === "ready" || !shown.answer || !routed()) return;
  renderVector();
  openBlock().catch(() => {});
  near(named(state.source) ?? {}).catch(() => {});
}

// ── links ────────────────────────────────────────────────────────────────────────────────────────────────────────────

let remembering;

function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(async () => history.replaceState(null, "", await fragment()), 300);
}

async function fragment() {
  const seen = named(state.source) ? state.source : null;
  return seen || state.pin || state.off.size ? `#${await link.write({ ...state, source: seen })}` : location.pathname;
}

async function share() {
  const place = new URL(await fragment(), location.href).href;
  history.replaceState(null, "", place);
  const long = place.length > LONG ? ` It is long (${Math.round(place.length / 1000)} kB): some programs truncate it.` : "";
  try {
    await navigator.clipboard.writeText(place);
    say(`Link copied.${long}`, "good");
  } catch {
    say(`Copy the link from the address bar.${long}`, "good");
  }
}

function fits(source) {
  if (!source) return true;
  if (source.kind === "test") return about.test && source.index < about.test.images;
  if (source.kind === "draw") return Boolean(about.draw);
  return source.data.length === about.channels * about.height * about.width;
}

const isBlock = (key) => /^\d+\.\d+$/.test(key) && Number(key.split(".")[1]) < (about.levels[Number(key.split(".")[0]) - 1]?.capsules ?? 0);

/** Restore the state in a link; false without a link, or with a link of another network. */
async function restore() {
  if (location.hash.length < 2) return false;
  try {
    const was = await link.read(location.hash.slice(1));
    const elements = new Set([...$("sliders").querySelectorAll("input")].map((slider) => slider.dataset.element));
    const sound = [was.source, was.pin].every(fits) && [...was.off, ...(was.open ? [was.open] : [])].every(isBlock) && (was.target === null || was.target in about.classes) && [...was.vector.keys()].every((key) => elements.has(key));
    if (!sound) throw new Error("This link belongs to another network.");
    if (was.id !== about.id) say("This link was made with another network, so the answers may differ.");
    Object.assign(state, was, { id: about.id });
  } catch (error) {
    say(error.message);
    return false;
  }
  $("center").checked = state.source?.kind === "draw" ? state.source.center : $("center").checked;
  if (state.source) kept[state.source.kind] = state.source;
  if (state.source?.kind === "draw") easel.set(state.source.strokes);
  for (const [name, value] of [["heat", state.heat], ["heat-block", state.heatBlock]]) {
    const box = document.querySelector(`input[name=${name}][value="${CSS.escape(value)}"]`);
    if (box) box.checked = true;
    else state[name === "heat" ? "heat" : "heatBlock"] = name === "heat" ? "weights" : "all";
  }
  if (state.source) showTab(state.source.kind === "pixels" ? "file" : state.source.kind);
  render();
  await Promise.all([refresh({ keep: true }), refreshPin()]);
  return true;
}

// ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────────

function say(words, kind = "bad") {
  const toast = $("toast");
  toast.textContent = words;
  toast.className = kind;
  toast.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (toast.hidden = true), 6000);
}

const THEMES = { auto: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = THEMES[name][0];
  $("theme").setAttribute("aria-label", `Colours: ${THEMES[name][1]}`);
  $("theme").title = `Colours: ${THEMES[name][1]}`;
  try {
    localStorage.setItem("wcapsnet-theme", name);
  } catch {
    // private windows may have no storage
  }
}

function storedTheme() {
  try {
    const name = localStorage.getItem("wcapsnet-theme");
    return name in THEMES ? name : "auto";
  } catch {
    return "auto";
  }
}

function fill() {
  const { classes, levels, channels, height, width } = about;
  document.title = `${about.name} · wcapsnet explore`;
  $("name").textContent = about.name;
  const kind = channels === 1 ? "gray" : "colour";
  $("facts").textContent = `${classes.length} classes · ${width}×${height} ${kind} · ${routed() ? `${levels.map((level) => level.capsules).join("-")} blocks · ` : ""}${about.parameters.toLocaleString("en")} parameters`;
  $("classes").style.setProperty("--label", `${0.6 * Math.min(14, Math.max(2, ...classes.map((name) => name.length)))}em`);
  $("search-label").hidden = classes.length <= FEW;
  if (!routed()) withoutBlocks();
  else $("heat-blocks").append(...["all", ...Array(levels.at(-1).capsules).keys()].map((n) => node("label", {}, node("input", { type: "radio", name: "heat-block", value: n, checked: n === "all" }), node("span", { textContent: n === "all" ? "All blocks" : n, title: n === "all" ? "Sum over the blocks" : `Block ${n}` }))));
  $("test-class").append(node("option", { value: "", textContent: "any" }), ...classes.map((name, r) => node("option", { value: r, textContent: name })));
  for (const id of ["heat", "seen", "rebuilt", "file-view", "test-view", "compare-now", "compare-pin"]) $(id).style.aspectRatio = `${width} / ${height}`;
  $("flow-legend").querySelector("i").style.background = paint.gradient(false);
  $("tab-draw").hidden = !about.draw;
  $("center").checked = Boolean(about.draw?.center);
  $("test-walk").hidden = !about.test;
  $("no-test").hidden = Boolean(about.test);
  if (about.test) $("test-index").max = about.test.images - 1;
  document.querySelector(".easel").classList.toggle("light", about.draw?.dark === false);
}

function withoutBlocks() {
  for (const id of ["look", "routing", "vector", "sliders", "reset"]) $(id).hidden = true;
  $("main").classList.add("plain");
  $("unrouted").hidden = false;
  $("unrouted").textContent = about.unrouted;
  $("vector-title").textContent = "Reconstruction";
  $("rebuilt-text").textContent = "Reconstructed from the capsule of the predicted class";
}

function wire() {
  for (const name of ["draw", "file", "test"]) $(`tab-${name}`).addEventListener("click", () => pickTab(name));
  document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
    const tabs = ["draw", "file", "test"].filter((name) => !$(`tab-${name}`).hidden);
    const now = tabs.findIndex((name) => $(`tab-${name}`).getAttribute("aria-selected") === "true");
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.stopPropagation();
    const name = tabs[(now + step + tabs.length) % tabs.length];
    pickTab(name);
    $(`tab-${name}`).focus();
  });
  $("undo").addEventListener("click", () => easel.undo());
  $("clear").addEventListener("click", () => easel.clear());
  $("pen").addEventListener("input", () => (easel.width = Number($("pen").value)));
  $("center").addEventListener("change", drawn);
  $("file").addEventListener("change", () => {
    take($("file").files[0]);
    $("file").value = "";
  });
  $("previous").addEventListener("click", () => walk(-1));
  $("next").addEventListener("click", () => walk(1));
  $("random").addEventListener("click", () => walk(0));
  $("test-class").addEventListener("change", () => walk(1));
  $("mistakes").addEventListener("change", () => walk(1));
  $("test-index").addEventListener("change", () => {
    const index = Math.min(about.test.images - 1, Math.max(0, Math.round(Number($("test-index").value)) || 0));
    see({ kind: "test", index });
  });
  $("search").addEventListener("input", () => renderPrediction());
  $("unchoose").addEventListener("click", () => choose(state.target));
  for (const box of document.querySelectorAll("input[name=heat]")) box.addEventListener("change", () => ((state.heat = box.value), remember(), renderLook(), renderCompare()));
  for (const box of document.querySelectorAll("input[name=heat-block]")) box.addEventListener("change", () => ((state.heatBlock = box.value), remember(), renderLook(), renderCompare()));
  $("pin").addEventListener("click", () => {
    if (!shown.answer) return;
    state.pin = state.source.kind === "draw" ? { ...state.source, strokes: structuredClone(state.source.strokes) } : state.source;
    refreshPin();
  });
  $("unpin").addEventListener("click", () => ((state.pin = null), refreshPin()));
  $("swap").addEventListener("click", () => {
    const [now, pin] = [state.source, state.pin];
    state.pin = now.kind === "draw" ? { ...now, strokes: structuredClone(now.strokes) } : now;
    if (pin.kind === "draw") easel.set(pin.strokes);
    if (pin.kind === "draw") $("center").checked = pin.center;
    see(pin);
    refreshPin();
  });
  $("all-on").addEventListener("click", () => ((state.off = new Set()), again(), render()));
  $("block-close").addEventListener("click", close);
  $("block-switch").addEventListener("click", () => toggle(state.open));
  $("reset").addEventListener("click", () => ((state.vector.clear()), questions.decode.drop(), remember(), renderVector()));
  $("share").addEventListener("click", share);
  $("help").addEventListener("click", () => $("help-box").showModal());
  $("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    setTheme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
  });
  addEventListener("hashchange", restore);
  // Keep the prediction visible at the edge of the screen when its card is not.
  new IntersectionObserver(([seen]) => $("float").classList.toggle("needless", seen.isIntersecting)).observe($("verdict"));
  wireFiles();
  wireKeys();
}

function wireFiles() {
  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) take(file);
    else if (!/^(input|textarea)$/i.test(event.target.tagName)) say("The clipboard holds no picture.");
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("dropping"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    const file = event.dataTransfer?.files[0];
    if (file) take(file);
    else say("Drop a picture file; save pictures from other pages first.");
  });
}

function wireKeys() {
  addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") return close();
    const typing = /^(input|select|textarea)$/i.test(event.target.tagName) && event.target.type !== "checkbox";
    if (typing) return;
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !event.shiftKey && state.source?.kind === "draw" && easel.strokes.length) {
      event.preventDefault();
      easel.undo();
    } else if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    } else if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && state.source?.kind === "test") {
      event.preventDefault();
      walk(event.key === "ArrowLeft" ? -1 : 1);
    }
  });
}

async function begin() {
  setTheme(storedTheme());
  about = await loadAbout();
  state.id = about.id;
  fill();
  $("main").hidden = false;
  $("loading").hidden = true;
  easel = new Easel($("easel"), about, drawn);
  if (routed()) flow = new Flow($("flow"), about, { open: (l, n, byKey) => open(`${l + 1}.${n}`, byKey), toggle: (l, n) => toggle(`${l + 1}.${n}`) });
  if (routed()) makeSliders();
  wire();
  if (about.test) renderTestNote();
  if (!(await restore())) {
    if (about.draw) pickTab("draw");
    else if (about.test) pickTab("test");
    else pickTab("file");
    render();
  }
  document.body.classList.add("ready");
  if (about.test) pollSurvey();
  else if (routed()) renderBlock();
}

begin().catch((error) => {
  $("loading").textContent = error.message;
  $("loading").hidden = false;
  console.error(error);
});
