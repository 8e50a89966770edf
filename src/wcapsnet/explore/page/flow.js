// The diagram: levels in sequence, blocks as discs, and lines for the weighted sum passed to the next level.
// CSS arranges the parts; the lines are drawn between them.

import { clamp, make, node, set } from "./dom.js";
import { againstShare, DARK, pixels, shade } from "./paint.js";
import { about, chance, classOf, onIn, shown, state } from "./state.js";

const LINE = 16; // most blocks of a level in one column
const STEP = 84; // pixels from level to level: a weight, a disc, and the line to the next sum
const ENDS = 180; // pixels for the picture and for the prediction

/** Area: the weight relative to the largest; colour: compared with the equal share of the blocks that are on. */
function scaled(weights, on) {
  const kept = weights.filter((_, n) => on(n));
  const high = Math.max(...kept);
  return weights.map((b) => ({ size: high > 0 ? Math.sqrt(b / high) : 1, position: againstShare(b, kept.length) }));
}

/** The highlighted winners of a level: none if all blocks that are on tie. */
export function standing(winners, count) {
  return winners.length < count ? winners : [];
}

const named = (name, className, ...children) => node(name, { className, ariaHidden: "true" }, ...children);

export class Flow {
  /** `open` and `toggle` are called with the name of a block. */
  constructor(holder, open, toggle) {
    Object.assign(this, { holder, open, toggle });
    this.blocks = about.levels.map(({ capsules }, l) => Array.from({ length: capsules }, (_, n) => this.block(l, n)));
    this.sums = about.levels.slice(1).map(() => named("span", "sum", "Σ"));
    this.picture = named("canvas", "picture");
    this.end = named("i", "end");
    [this.name, this.probability] = [named("b", "answer-name"), named("span", "answer-probability")];
    const parts = this.blocks.flatMap((blocks, l) => {
      const buttons = node("div", {}, ...blocks.map(({ button }) => button));
      const level = node("div", { className: "level" }, named("b", "", `Level ${l + 1}`), buttons);
      return l ? [this.sums[l - 1], level] : [level];
    });
    this.links = make("svg", { class: "links", "aria-hidden": "true" }, holder);
    holder.append(this.picture, ...parts, named("div", "answer", this.end, this.name, this.probability));
    this.focused = this.blocks[0][0].button;
    this.focused.tabIndex = 0;
    new ResizeObserver(() => this.layout()).observe(holder);
    this.layout();
  }

  block(level, capsule) {
    const key = `${level + 1}.${capsule}`;
    const [weight, disc] = [named("span", "weight"), named("span", "disc")];
    const ring = named("span", "ring", disc, named("span", "pin"), named("span", "number", capsule));
    const button = node("button", { type: "button", className: "block", tabIndex: -1 }, weight, ring);
    button.dataset.block = key;
    button.addEventListener("click", (event) => {
      this.focus(button);
      this.open(key, event.detail === 0); // by a key
    });
    button.addEventListener("dblclick", () => this.toggle(key));
    button.addEventListener("keydown", (event) => this.key(event, level, capsule));
    button.addEventListener("keyup", (event) => event.key === " " && event.preventDefault()); // no click
    return { key, button, ring, weight, from: make("path"), to: make("path") };
  }

  key(event, level, capsule) {
    const steps = this.down
      ? { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }
      : { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
    if (event.key in steps) {
      const [dl, dn] = steps[event.key];
      const blocks = this.blocks[clamp(level + dl, 0, this.blocks.length - 1)];
      const n = dl ? Math.round((capsule / this.blocks[level].length) * blocks.length) : capsule + dn;
      this.focus(blocks[clamp(n, 0, blocks.length - 1)].button);
      this.focused.focus();
    } else if (event.key === " ") this.toggle(this.blocks[level][capsule].key);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Make this the block that the Tab key reaches. */
  focus(button) {
    this.focused.tabIndex = -1;
    this.focused = button;
    button.tabIndex = 0;
  }

  /** To the right if there is room, otherwise down; then the lines between the parts */
  layout() {
    const width = this.holder.clientWidth;
    if (!width) return;
    this.down = width < ENDS + STEP * (about.levels.length + 1) || about.levels.some(({ capsules }) => capsules > LINE);
    this.holder.classList.toggle("down", this.down);
    const line = this.down ? clamp(Math.floor(width / 42), 4, LINE) : LINE;
    const each = about.levels.map(({ capsules }) => Math.ceil(capsules / Math.ceil(capsules / line)));
    const pitch = Math.min(58, (this.down ? width : 420) / Math.max(...each));
    this.radius = Math.min(20, 0.4 * pitch);
    this.holder.style.setProperty("--pitch", `${pitch}px`);
    this.holder.style.setProperty("--r", `${this.radius}px`);
    this.holder.querySelectorAll(".level").forEach((level, l) => level.style.setProperty("--each", each[l]));
    const { left, top, height } = this.holder.getBoundingClientRect();
    const middle = (element) => {
      const box = element.getBoundingClientRect();
      return [box.left + box.width / 2 - left, box.top + box.height / 2 - top];
    };
    const draw = (path, [x0, y0], [x1, y1], kind) => {
      const [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2];
      const bend = this.down ? `${x0} ${y} ${x1} ${y}` : `${x} ${y0} ${x} ${y1}`;
      set(path, { class: kind, d: `M${x0} ${y0}C${bend} ${x1} ${y1}` });
    };
    const stops = [this.picture, ...this.sums, this.end].map(middle);
    this.blocks.forEach((blocks, l) => blocks.forEach(({ ring, from, to }) => {
      draw(from, stops[l], middle(ring), "in");
      draw(to, middle(ring), stops[l + 1], "out");
    }));
    set(this.links, { width, height });
    this.links.replaceChildren(...this.blocks.flat().flatMap(({ from, to }) => [from, to]));
    this.show();
  }

  show() {
    const { answer } = shown;
    this.holder.classList.toggle("empty", !answer);
    this.blocks.forEach((_, l) => this.showLevel(l));
    if (answer) pixels(this.picture, answer.pixels, about);
    else this.picture.getContext("2d").reset();
    this.name.textContent = answer ? classOf(answer.target) : "";
    this.name.classList.toggle("long", this.name.textContent.length > 8);
    this.probability.textContent = answer ? chance(answer, answer.target) : "";
  }

  showLevel(l) {
    const blocks = this.blocks[l];
    const level = shown.answer?.levels[l];
    const on = (n) => !state.off.has(blocks[n].key);
    const look = scaled(level?.weights ?? blocks.map(() => 1 / blocks.length), on);
    const pins = shown.pinned && scaled(shown.pinned.levels[l].weights, on);
    const winners = level ? standing(level.winners, onIn(l + 1)) : [];
    // What the blocks of the last level add to the logit
    const parts = l === this.blocks.length - 1 ? shown.answer?.block_contributions : null;
    const most = parts && (Math.max(...parts.map(Math.abs)) || 1);
    blocks.forEach(({ key, button, weight, from, to }, n) => {
      const { size, position } = look[n];
      const [winner, open, part] = [winners.includes(n), state.open === key, parts ? parts[n] / most : null];
      const tiny = this.radius * size < 1.5 + 2.7 * String(n).length; // the number does not fit
      const classes = { off: !on(n), deep: position > DARK, tiny, winner, open, pinned: pins && on(n) };
      for (const [name, holds] of Object.entries(classes)) button.classList.toggle(name, Boolean(holds));
      const fitness = 100 * clamp(level?.fitness[n] ?? 0, 0, 1);
      const fill = `rgb(${shade(position).join(" ")})`;
      const style = { "--fill": fill, "--size": size, "--pin-size": pins?.[n].size ?? 0, "--fitness": `${fitness}%` };
      for (const [name, value] of Object.entries(style)) button.style.setProperty(name, value);
      weight.textContent = level && on(n) ? level.weights[n].toFixed(3) : "";
      button.title = `Block ${key}: ${level ? told(level, n, winners, about.levels[l].per_position) : "no picture yet"}`;
      set(button, { "aria-label": `${button.title}, ${on(n) ? "on" : "switched off"}`, "aria-expanded": open });
      to.style.setProperty("--fill", fill);
      to.style.strokeWidth = on(n) ? 0.75 + (part === null ? 5 * size * size : 6 * Math.abs(part)) : 0;
      to.classList.toggle("against", part !== null && part < 0);
      to.classList.toggle("for", part !== null && part >= 0);
      from.classList.toggle("off", !on(n));
    });
  }
}

function told({ weights, fitness }, n, winners, perPosition) {
  const best = winners.length > 1 ? ", tied for the largest weight" : ", the largest weight";
  const where = perPosition ? " at its best position" : "";
  const rank = winners.includes(n) ? best : "";
  return `weight ${weights[n].toFixed(3)}, fitness ${fitness[n].toFixed(3)}${where}${rank}`;
}
