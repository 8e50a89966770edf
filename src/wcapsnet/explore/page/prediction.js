// The prediction: the class, its probability, and the bars of all classes.

import { byId as $, node, percent } from "./dom.js";
import { about, chance, classOf, shown, state, verdict } from "./state.js";

const FEW = 12; // up to this many classes keep their order; otherwise the most probable are shown
let speaking;

export function renderPrediction() {
  const { answer } = shown;
  const name = answer ? classOf(answer.predicted) : "–";
  const nothing = state.source?.kind === "draw" ? "Nothing drawn yet." : "No picture yet.";
  $("verdict").textContent = name;
  $("verdict").classList.toggle("long", name.length > 8);
  $("verdict-probability").textContent = answer ? chance(answer) : nothing;
  $("float").hidden = !answer;
  $("float").textContent = answer ? `${name} · ${chance(answer)}` : "";
  $("unchoose").hidden = state.target === null;
  $("unchoose").textContent = `Explaining ${classOf(state.target)} – back to the prediction`;
  renderTruth(answer);
  renderChange(shown);
  renderClasses(shown);
  clearTimeout(speaking); // for screen readers, once the hand rests
  if (answer) speaking = setTimeout(() => ($("said").textContent = `Prediction: ${verdict(answer)}`), 700);
}

/** The label of a test image */
function renderTruth(answer) {
  const known = typeof answer?.label === "number";
  const right = known && answer.label === answer.predicted;
  $("truth").textContent = known ? `${right ? "✓ Right" : "✗ Wrong"}: labelled ${classOf(answer.label)}.` : "";
  $("truth").className = `small ${right ? "correct" : "mistaken"}`;
}

/** What switching blocks off changed */
function renderChange({ answer, before }) {
  $("change").hidden = !before || !answer;
  if (!before || !answer) return;
  const same = before.predicted === answer.predicted;
  $("change").textContent = `With every block on: ${same ? `${chance(before)}, the same class` : verdict(before)}.`;
  $("change").classList.toggle("other", !same);
}

function chosenClasses(answer, words) {
  const all = about.classes.map((_, r) => r);
  if (all.length <= FEW) return all;
  if (answer) all.sort((a, b) => answer.probabilities[b] - answer.probabilities[a]);
  if (!words) return all.slice(0, 8);
  return all.filter((r) => classOf(r).toLowerCase().includes(words)).slice(0, 20);
}

function renderClasses({ answer, pinned, before }) {
  const words = $("search").value.trim().toLowerCase();
  const chosen = chosenClasses(answer, words);
  const list = $("classes");
  while (list.children.length > chosen.length) list.lastChild.remove();
  while (list.children.length < chosen.length) list.append(emptyRow());
  chosen.forEach((r, place) => {
    const button = list.children[place].firstChild;
    const [label, bar, value] = button.children;
    const [own, other, was] = bar.children;
    const p = answer?.probabilities[r] ?? 0;
    Object.assign(button.dataset, { class: r, probability: answer ? p : "" });
    button.setAttribute("aria-pressed", state.target === r);
    button.classList.toggle("best", answer?.predicted === r);
    label.textContent = label.title = classOf(r);
    bar.classList.toggle("two", Boolean(pinned));
    own.style.width = `${100 * p}%`;
    other.style.width = `${100 * (pinned?.probabilities[r] ?? 0)}%`;
    was.hidden = !before || Math.abs(before.probabilities[r] - p) < 0.005;
    was.style.left = `${100 * (before?.probabilities[r] ?? 0)}%`;
    value.textContent = answer ? percent(p) : "";
  });
  const rest = about.classes.length - chosen.length;
  const none = words && !chosen.length ? "No class matches." : "";
  $("search-label").hidden = about.classes.length <= FEW;
  $("classes-note").textContent = rest && !words ? `and ${rest} more classes` : none;
}

function emptyRow() {
  const bars = ["", "pinned", "was"].map((className) => node("i", { className }));
  const [label, bar, value] = ["label", "bar", "value"].map((className) => node("span", { className }));
  bar.append(...bars);
  return node("li", {}, node("button", { type: "button" }, label, bar, value));
}
