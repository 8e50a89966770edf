// The page: requests, actions, links, and events.

import { about as loadAbout, ask } from "./api.js";
import { bytes, text } from "./base64.js";
import { makeBlocks, renderBlock, renderBlocks, renderFavourites, thumbs } from "./blocks.js";
import { byId as $, clamp, count, node, say } from "./dom.js";
import { Easel } from "./draw.js";
import * as link from "./link.js";
import { renderCompare, renderLook } from "./look.js";
import { Newest } from "./newest.js";
import * as paint from "./paint.js";
import { nextImage, pixelsOf, renderPicture, renderTestNote, showTab } from "./picture.js";
import { renderPrediction } from "./prediction.js";
import { about, onIn, placeOf, routed, shown, state, survey } from "./state.js";
import { makeSliders, movedVector, renderVector } from "./vector.js";

const LONG = 32000; // length at which some programs truncate a link

let easel;
const kept = {}; // the last picture of each kind
const requests = {
  now: new Newest("/api/explain"),
  pin: new Newest("/api/explain"),
  before: new Newest("/api/explain"),
  block: new Newest("/api/block"),
  decode: new Newest("/api/decode"),
  near: new Newest("/api/near"),
};

// ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/** A picture as named in a request; null for an empty drawing. */
function named(source) {
  if (!source) return null;
  if (source.kind === "test") return { test: source.index };
  const data = pixelsOf(source);
  return data && { pixels: text(data) };
}

const offList = () => [...state.off].map(placeOf).map(([level, capsule]) => [level - 1, capsule]);
const question = (picture) => ({ ...picture, off: offList(), class: state.target });

/** Run an action and show its error, if there is one. */
async function trying(action) {
  try {
    await action();
  } catch (error) {
    say(error.message);
  }
}

/** Request the prediction again; `keep` keeps the sliders. */
async function refresh({ keep = false } = {}) {
  if (!keep) state.vector.clear();
  remember();
  const picture = named(state.source);
  if (!picture) {
    requests.now.drop();
    busy(false);
    Object.assign(shown, { answer: null, before: null });
    return render();
  }
  const own = pixelsOf(state.source);
  busy(true);
  try {
    const answer = await requests.now.ask(question(picture));
    if (!answer || !named(state.source)) return;
    shown.answer = { ...answer, pixels: own ?? bytes(answer.pixels) };
    if (!state.off.size) shown.before = null;
    render();
    busy(false);
    await Promise.all([askBefore(picture), askBlock(), decode(), near()]);
  } catch (error) {
    busy(false);
    say(error.message);
  }
}

/** A large network is slow; show that it is working. */
const busy = (on) => document.body.classList.toggle("busy", on);

/** The same picture with every block on, for comparison. */
async function askBefore(picture) {
  if (!state.off.size) return;
  const answer = await requests.before.ask({ ...picture, off: [] });
  if (!answer || !state.off.size) return;
  shown.before = answer;
  renderPrediction();
}

async function refreshPin() {
  remember();
  await trying(async () => {
    const answer = state.pin && (await requests.pin.ask(question(named(state.pin))));
    if (state.pin && !answer) return;
    shown.pinned = state.pin && { ...answer, pixels: pixelsOf(state.pin) ?? bytes(answer.pixels) };
    render();
  });
}

async function askBlock() {
  const { open } = state;
  const picture = named(state.source);
  if (!open || !picture) return;
  const [level, capsule] = placeOf(open);
  const answer = await requests.block.ask({ ...question(picture), block: [level - 1, capsule] });
  if (!answer || state.open !== open) return;
  shown.block = answer;
  renderBlock();
}

async function decode() {
  if (!state.vector.size || !shown.answer) return;
  const answer = await requests.decode.ask(movedVector());
  if (answer) paint.pixels($("rebuilt"), bytes(answer.reconstruction), about);
}

async function near() {
  if (survey.state !== "ready" || !shown.answer || !routed()) return;
  const answer = await requests.near.ask({ vector: shown.answer.vector, test: state.source.index ?? null });
  if (!answer?.near) return;
  $("near-part").hidden = false;
  thumbs($("near"), answer.near, (one) => `distance ${one.distance.toFixed(2)}`);
}

/** Follow the pass over the test images until its end. */
async function follow() {
  do {
    Object.assign(survey, await ask("/api/survey", {}));
    renderTestNote();
    if (state.open) renderFavourites();
    if (survey.state === "running") await new Promise((resolve) => setTimeout(resolve, 1000));
  } while (survey.state === "running");
  if (survey.state !== "ready" || !shown.answer || !routed()) return;
  renderVector();
  await Promise.all([askBlock(), near()]);
}

// ── rendering ────────────────────────────────────────────────────────────────────────────────────────────────────────

function render() {
  renderPicture(easel.strokes);
  renderPrediction();
  if (!routed()) return renderReconstruction();
  renderLook();
  renderBlocks();
  renderVector();
  renderCompare();
}

/** The reconstruction of a network without blocks, if it has a decoder */
function renderReconstruction() {
  const { answer } = shown;
  $("vector").hidden = !answer?.reconstruction;
  if (!answer?.reconstruction) return;
  paint.pixels($("seen"), answer.pixels, about);
  paint.pixels($("rebuilt"), bytes(answer.reconstruction), about);
}

// ── actions ──────────────────────────────────────────────────────────────────────────────────────────────────────────

function see(source) {
  state.source = kept[source.kind] = source;
  showTab(source);
  return refresh();
}

/** Show the last picture of a tab. */
function pickTab(name) {
  const test = about.test && { kind: "test", index: 0 };
  const source = { draw: drawing(), file: kept.pixels, test: kept.test ?? test }[name];
  $(`tab-${name}`).checked = true;
  if (source && source !== state.source) see(source);
}

const drawing = () => ({ kind: "draw", strokes: easel.strokes, center: $("center").checked });

function drawn() {
  renderPicture(easel.strokes);
  see(drawing());
}

/** Show a drawing of the state on the easel. */
function putOnEasel({ kind, strokes, center }) {
  if (kind !== "draw") return;
  easel.set(strokes);
  $("center").checked = center;
}

const take = (file) => trying(async () => {
  const most = about.max_upload;
  if (file.size > most) throw new Error(`The picture is larger than ${most / 2 ** 20} MB; make it smaller.`);
  const answer = await ask("/api/picture", file, "application/octet-stream");
  await see({ kind: "pixels", data: bytes(answer.pixels), name: file.name ?? "" });
});

function walk(step) {
  const index = nextImage(step);
  renderTestNote();
  if (index !== undefined) see({ kind: "test", index });
}

/** Blocks or the class to explain have changed. */
function again() {
  refresh({ keep: true });
  if (state.pin) refreshPin();
}

function choose(r) {
  if (!routed()) return; // there is nothing to explain
  state.target = state.target === r ? null : r;
  again();
}

function toggle(key) {
  const [level] = placeOf(key);
  if (state.off.has(key)) state.off.delete(key);
  else if (onIn(level) > 1) state.off.add(key);
  else {
    say(`One block of level ${level} must stay on.`);
    return renderBlocks();
  }
  state.vector.clear();
  again();
  render();
}

/** Open a block; with null, close it. */
function open(key, focus = false) {
  const before = state.open;
  state.open = key;
  if (before !== key) {
    remember();
    renderBlocks();
    trying(askBlock);
  }
  if (focus) $("block").focus();
  if (!key && before) document.querySelector(`.flow [data-block="${before}"]`).focus();
}

function pin(source) {
  state.pin = structuredClone(source); // a drawing may continue
  refreshPin();
}

function swap() {
  const pinned = state.pin;
  pin(state.source);
  putOnEasel(pinned);
  see(pinned);
}

function moved(element, value) {
  state.vector.set(element, value);
  renderVector();
  remember();
  trying(decode);
}

function reset() {
  state.vector.clear();
  requests.decode.drop();
  remember();
  renderVector();
}

// ── links ────────────────────────────────────────────────────────────────────────────────────────────────────────────

function remember() {
  clearTimeout(remember.timer);
  remember.timer = setTimeout(async () => history.replaceState(null, "", await fragment()), 300);
}

async function fragment() {
  const source = named(state.source) ? state.source : null;
  return source || state.pin || state.off.size ? `#${await link.write({ ...state, source })}` : location.pathname;
}

async function share() {
  const place = new URL(await fragment(), location.href).href;
  history.replaceState(null, "", place);
  const kilobytes = Math.round(place.length / 1000);
  const long = place.length > LONG ? ` It is long (${kilobytes} kB): some programs truncate it.` : "";
  try {
    await navigator.clipboard.writeText(place);
    say(`Link copied.${long}`, "good");
  } catch {
    say(`Copy the link from the address bar.${long}`, "good");
  }
}

/** Whether a link fits this network */
function fits({ source, pin, off, open, target, vector }) {
  const picture = (one) => {
    if (!one) return true;
    if (one.kind === "test") return about.test && one.index < about.test.images;
    return one.kind === "draw" ? about.draw : one.data.length === about.channels * about.height * about.width;
  };
  const block = (key) => /^\d+\.\d+$/.test(key) && placeOf(key)[1] < about.levels[placeOf(key)[0] - 1]?.capsules;
  const element = (key) => document.querySelector(`#sliders [data-element="${CSS.escape(key)}"]`);
  const sound = [source, pin].every(picture) && [...off, ...(open ? [open] : [])].every(block);
  return sound && (target === null || target in about.classes) && [...vector.keys()].every(element);
}

/** Restore the state in a link; false without a link, or with a link of another network. */
async function restore() {
  if (location.hash.length < 2) return false;
  try {
    const was = await link.read(location.hash.slice(1));
    if (!fits(was)) throw new Error("This link belongs to another network.");
    if (was.id !== about.id) say("This link was made with another network, so the answers may differ.");
    Object.assign(state, was, { id: about.id });
  } catch (error) {
    say(error.message);
    return false;
  }
  for (const [name, usual] of [["heat", "weights"], ["heatBlock", "all"]]) {
    const boxes = [...document.getElementsByName(name)];
    if (!boxes.some(({ value }) => value === state[name])) state[name] = usual;
    for (const box of boxes) box.checked = box.value === state[name];
  }
  if (state.source) {
    kept[state.source.kind] = state.source;
    putOnEasel(state.source);
    showTab(state.source);
  }
  render();
  await Promise.all([refresh({ keep: true }), refreshPin()]);
  return true;
}

// ── colours ──────────────────────────────────────────────────────────────────────────────────────────────────────────

const THEMES = { auto: ["◐", "system"], light: ["☀", "light"], dark: ["☾", "dark"] };

function setTheme(name) {
  const [sign, words] = THEMES[name];
  document.documentElement.dataset.theme = name;
  Object.assign($("theme"), { textContent: sign, title: `Colours: ${words}`, ariaLabel: `Colours: ${words}` });
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const name = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  setTheme(name);
  stored((storage) => storage.setItem("wcapsnet-theme", name));
}

/** Private windows may have no storage. */
function stored(use) {
  try {
    return use(localStorage);
  } catch {
    return null;
  }
}

// ── start ────────────────────────────────────────────────────────────────────────────────────────────────────────────

function fill() {
  const { classes, levels, channels, height, width, draw, test } = about;
  const kind = `${width}×${height} ${channels === 1 ? "gray" : "colour"}`;
  const blocks = routed() ? [`${levels.map((level) => level.capsules).join("-")} blocks`] : [];
  document.title = `${about.name} · wcapsnet explore`;
  $("name").textContent = about.name;
  const facts = [`${classes.length} classes`, kind, ...blocks, `${count(about.parameters)} parameters`];
  $("facts").textContent = facts.join(" · ");
  const options = classes.map((name, r) => node("option", { value: r, textContent: name }));
  $("test-class").append(node("option", { value: "", textContent: "any" }), ...options);
  document.documentElement.style.setProperty("--ratio", `${width} / ${height}`);
  $("flow-legend").querySelector("i").style.background = paint.gradient(false);
  $("tab-draw").disabled = !draw; // and so hidden
  $("center").checked = Boolean(draw?.center);
  $("test-walk").hidden = !test;
  $("no-test").hidden = Boolean(test);
  if (test) $("test-index").max = test.images - 1;
}

function withBlocks() {
  const { capsules } = about.levels.at(-1);
  const choices = [["all", "All blocks", "Sum over the blocks"]];
  for (let n = 0; n < capsules; n++) choices.push([n, n, `Block ${n}`]);
  $("heat-blocks").append(...choices.map(([value, textContent, title]) => {
    const box = node("input", { type: "radio", name: "heatBlock", value, checked: value === "all" });
    return node("label", {}, box, node("span", { textContent, title }));
  }));
  makeBlocks(open, toggle);
  makeSliders(moved);
}

function withoutBlocks() {
  $("main").classList.add("plain");
  $("unrouted").textContent = about.unrouted;
  $("vector-title").textContent = "Reconstruction";
  $("rebuilt-text").textContent = "From the capsule of the predicted class";
}

function wire() {
  const on = (id, kind, action) => $(id).addEventListener(kind, action);
  const clicks = {
    undo: () => easel.undo(),
    clear: () => easel.clear(),
    previous: () => walk(-1),
    next: () => walk(1),
    random: () => walk(0),
    unchoose: () => choose(state.target),
    pin: () => shown.answer && pin(state.source),
    unpin: () => pin(null),
    swap,
    "all-on": () => (state.off.clear(), again(), render()),
    "block-close": () => open(null),
    "block-switch": () => toggle(state.open),
    reset,
    share,
    help: () => $("help-box").showModal(),
    theme: nextTheme,
  };
  for (const [id, action] of Object.entries(clicks)) on(id, "click", action);
  for (const name of ["draw", "file", "test"]) on(`tab-${name}`, "change", () => pickTab(name));
  const picked = (event) => event.target.closest("button")?.dataset ?? {};
  on("classes", "click", (event) => picked(event).class && choose(Number(picked(event).class)));
  const seeTest = (event) => picked(event).test && see({ kind: "test", index: Number(picked(event).test) });
  for (const id of ["favourites", "near"]) on(id, "click", seeTest);
  on("pen", "input", () => (easel.width = Number($("pen").value)));
  on("center", "change", drawn);
  on("file", "change", () => {
    if ($("file").files.length) take($("file").files[0]);
    $("file").value = "";
  });
  for (const id of ["test-class", "mistakes"]) on(id, "change", () => walk(1));
  on("test-index", "change", () => {
    const index = Math.round(Number($("test-index").value)) || 0;
    see({ kind: "test", index: clamp(index, 0, about.test.images - 1) });
  });
  on("search", "input", renderPrediction);
  on("look", "change", ({ target }) => {
    state[target.name] = target.value;
    remember();
    renderLook();
    renderCompare();
  });
  addEventListener("hashchange", restore);
  // Keep the prediction visible at the edge of the screen when its card is not.
  const repeat = ([seen]) => $("float").classList.toggle("needless", seen.isIntersecting);
  new IntersectionObserver(repeat).observe($("verdict"));
}

function wireFiles() {
  const dropping = (on) => document.body.classList.toggle("dropping", on);
  addEventListener("paste", ({ clipboardData, target }) => {
    const file = clipboardData?.files[0];
    if (file) take(file);
    else if (!/^(input|textarea)$/i.test(target.tagName)) say("The clipboard holds no picture.");
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    dropping(true);
  });
  addEventListener("dragleave", (event) => event.relatedTarget ?? dropping(false));
  addEventListener("drop", (event) => {
    event.preventDefault();
    dropping(false);
    const file = event.dataTransfer?.files[0];
    if (file) take(file);
    else say("Drop a picture file; save pictures from other pages first.");
  });
}

function wireKeys() {
  const step = { ArrowLeft: -1, ArrowRight: 1 };
  addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (document.querySelector("dialog[open]")) return;
    if (key === "Escape") return state.open && open(null);
    if (/^(input|select|textarea)$/i.test(target.tagName) && target.type !== "checkbox") return;
    const command = event.ctrlKey || event.metaKey;
    const kind = state.source?.kind;
    const undo = command && !event.shiftKey && key.toLowerCase() === "z";
    if (undo && kind === "draw" && easel.strokes.length) easel.undo();
    else if (!command && !event.altKey && key in step && kind === "test") walk(step[key]);
    else return;
    event.preventDefault();
  });
}

async function begin() {
  const theme = stored((storage) => storage.getItem("wcapsnet-theme"));
  setTheme(theme in THEMES ? theme : "auto");
  Object.assign(about, await loadAbout());
  state.id = about.id;
  fill();
  $("main").hidden = false;
  $("loading").hidden = true;
  easel = new Easel($("easel"), about, drawn);
  if (routed()) withBlocks();
  else withoutBlocks();
  wire();
  wireFiles();
  wireKeys();
  if (about.test) renderTestNote();
  if (!(await restore())) {
    pickTab(about.draw ? "draw" : about.test ? "test" : "file");
    render();
  }
  document.body.classList.add("ready");
  if (about.test) follow().catch(() => {}); // the next request reports it
}

begin().catch((error) => {
  $("loading").textContent = error.message;
  $("loading").hidden = false;
  console.error(error);
});
