// Where the picture comes from: a drawing, a file or a test image.

import { byId as $, count } from "./dom.js";
import { rasterize } from "./draw.js";
import * as paint from "./paint.js";
import { about, shown, state, survey } from "./state.js";

/** Select the tab that a picture belongs to. */
export function showTab({ kind }) {
  $(kind === "pixels" ? "tab-file" : `tab-${kind}`).checked = true;
}

/** uint8 (ch, h, w); null for an empty drawing, and for test images, which the answer brings */
export function pixelsOf(source) {
  if (source.kind === "pixels") return source.data;
  if (source.kind !== "draw" || !source.strokes.length) return null;
  const ink = rasterize(source.strokes, about.height, about.width, source.center);
  return about.draw.dark ? ink : ink.map((value) => 255 - value);
}

export function renderPicture(strokes) {
  const { source } = state;
  $("undo").disabled = $("clear").disabled = !strokes.length;
  $("easel-hint").hidden = strokes.length > 0;
  $("pin").disabled = !shown.answer;
  if (!shown.answer) return;
  const { pixels } = shown.answer;
  if (source.kind === "pixels") {
    paint.pixels($("file-view"), pixels, about);
    $("file-view").hidden = false;
    $("drop").classList.add("filled");
    $("drop-text").textContent = "Drop, paste or choose another";
    $("file-note").textContent = source.name ? `${source.name}, resized to ${about.width}×${about.height} pixels` : "";
  }
  if (source.kind === "test") {
    paint.pixels($("test-view"), pixels, about);
    $("test-index").value = source.index;
  }
}

/** The selected test images: of a class, misclassified */
function wanted() {
  const r = $("test-class").value;
  const wrong = $("mistakes").checked && survey.state === "ready";
  const fits = (label, at) => (r === "" || label === Number(r)) && (!wrong || survey.predicted[at] !== label);
  return about.test.labels.flatMap((label, at) => (fits(label, at) ? [at] : []));
}

/** The next (1), previous (-1) or a random (0) selected test image; undefined if there is none */
export function nextImage(step) {
  const all = wanted();
  const now = state.source?.kind === "test" ? state.source.index : -1;
  if (step === 0) return all[Math.floor(Math.random() * all.length)];
  return step > 0 ? all.find((at) => at > now) ?? all[0] : all.findLast((at) => at < now) ?? all.at(-1);
}

export function renderTestNote() {
  $("mistakes").disabled = survey.state !== "ready";
  const { images, of } = about.test; // `of`: the page holds a sample
  const { length } = wanted();
  const some = length === images ? count(images) : `${count(length)} of ${count(images)}`;
  const percent = (share, digits) => `${(100 * share).toFixed(digits)}\u00a0%`;
  let words = length ? `${some} images${of ? ` (a sample of ${count(of)})` : ""}.` : "No image matches.";
  if (survey.state === "running") words += ` Looking for mistakes: ${percent(survey.done / survey.total, 0)}.`;
  if (survey.state === "ready") {
    const { accuracy } = survey;
    const right = of ? `${Math.round(accuracy * images)} of these ${images}` : percent(accuracy, 2);
    words += ` The network classifies ${right} correctly.`;
  }
  $("test-note").textContent = words;
}
