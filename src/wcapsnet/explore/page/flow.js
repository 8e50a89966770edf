// The diagram: levels in sequence, blocks as discs, and lines for the weighted sum passed to the next level.

import { againstShare, DARK, shade } from "./paint.js";

const SVG = "http://www.w3.org/2000/svg";
// The diagram runs to the right if there is room, otherwise down.
const LINE = 16; // most blocks of a level in one column
const NARROW = 560; // pixels
const ENDS = [48, 92]; // pixels for the picture and for the prediction
const STEP = 84; // pixels from level to level: a weight, a disc, and the line to the next sum

function make(name, attributes = {}, parent = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent?.append(element);
  return element;
}

/** Area: the weight relative to the largest; colour: compared with the equal share of the blocks that are on. */
export function scaled(weights, on) {
  const kept = weights.filter((_, n) => on(n));
  const high = Math.max(...kept);
  return weights.map((b) => ({ size: high > 0 ? Math.sqrt(b / high) : 1, position: againstShare(b, kept.length) }));
}

/** The highlighted winners of a level: none if all blocks that are on tie. */
export function standing(winners, count) {
  return winners.length < count ? winners : [];
}

export class Flow {
  /** `open` and `toggle` are called with level and capsule. */
  constructor(holder, about, { open, toggle }) {
    Object.assign(this, { holder, about, open, toggle });
    this.svg = make("svg", { class: "flow", role: "group", "aria-label": "Blocks of each level. Arrow keys move, Enter opens a block, Space switches it off or on." });
    this.links = make("g", { class: "links", "aria-hidden": "true" }, this.svg);
    this.blocks = about.levels.map((level, l) => Array.from({ length: level.capsules }, (_, n) => this.block(l, n)));
    this.titles = about.levels.map((_, l) => Object.assign(make("text", { class: "level-title", "aria-hidden": "true" }, this.svg), { textContent: `Level ${l + 1}` }));
    this.sums = about.levels.slice(1).map(() => {
      const g = make("g", { class: "sum", "aria-hidden": "true" }, this.svg);
      make("circle", { r: 9 }, g);
      make("text", { y: 4 }, g).textContent = "Σ";
      return g;
    });
    this.image = make("image", { class: "picture", "aria-hidden": "true", preserveAspectRatio: "xMidYMid meet" }, this.svg);
    this.frame = make("rect", { class: "picture-frame", rx: 4 }, this.svg);
    this.answer = make("g", { class: "answer", "aria-hidden": "true" }, this.svg);
    make("circle", { r: 7 }, this.answer);
    this.name = make("text", { class: "answer-name" }, this.answer);
    this.probability = make("text", { class: "answer-probability" }, this.answer);
    holder.append(this.svg);
    this.focused = [0, 0];
    this.given = null;
    new ResizeObserver(() => this.layout()).observe(holder);
    this.layout();
  }

  block(level, capsule) {
    const g = make("g", { class: "block", role: "button", tabindex: level || capsule ? -1 : 0, "data-block": `${level + 1}.${capsule}` }, this.svg);
    const parts = { g, title: make("title", {}, g) };
    parts.hit = make("rect", { class: "hit" }, g);
    parts.track = make("circle", { class: "track" }, g);
    parts.fitness = make("circle", { class: "fitness", pathLength: 100, transform: "rotate(-90)" }, g);
    parts.disc = make("circle", { class: "disc" }, g);
    parts.pin = make("circle", { class: "pin" }, g);
    parts.cross = make("path", { class: "cross" }, g);
    parts.number = make("text", { class: "number" }, g);
    parts.number.textContent = capsule;
    parts.weight = make("text", { class: "weight" }, g);
    g.addEventListener("click", () => {
      this.focus(level, capsule);
      this.open(level, capsule);
    });
    g.addEventListener("dblclick", () => this.toggle(level, capsule));
    g.addEventListener("keydown", (event) => this.key(event, level, capsule));
    return parts;
  }

  key(event, level, capsule) {
    const steps = this.down
      ? { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }
      : { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
    if (event.key in steps) {
      const [dl, dn] = steps[event.key];
      const l = Math.min(this.blocks.length - 1, Math.max(0, level + dl));
      const place = dl ? Math.round((capsule / this.blocks[level].length) * this.blocks[l].length) : capsule + dn;
      this.focus(l, Math.min(this.blocks[l].length - 1, Math.max(0, place)));
      this.blocks[this.focused[0]][this.focused[1]].g.focus();
    } else if (event.key === "Enter") this.open(level, capsule, true);
    else if (event.key === " ") this.toggle(level, capsule);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  focus(level, capsule) {
    this.blocks[this.focused[0]][this.focused[1]].g.setAttribute("tabindex", -1);
    this.focused = [level, capsule];
    this.blocks[level][capsule].g.setAttribute("tabindex", 0);
  }

  /** Compute the layout. u runs along the diagram, v across it. */
  layout() {
    const wide = this.holder.clientWidth;
    if (!wide || wide === this.wide) return;
    this.wide = wide;
    const levels = this.about.levels;
    const right = (wide - ENDS[0] - ENDS[1]) / (levels.length + 0.6);
    this.down = wide < NARROW || right < STEP || levels.some((level) => level.capsules > LINE);
    const line = this.down ? Math.min(LINE, Math.max(4, Math.floor(wide / 42))) : LINE;
    const lines = levels.map((level) => Math.ceil(level.capsules / line));
    const most = Math.max(...levels.map((level) => Math.min(line, level.capsules)));
    const across = this.down ? wide : Math.max(260, Math.min(460, most * 54 + 40));
    const pitch = Math.min(58, (across - (this.down ? 8 : 40)) / most);
    this.radius = Math.min(20, pitch * 0.4);
    const gap = 64; // between the lines of a level
    const ends = this.down ? [34, 46] : ENDS;
    const thick = lines.reduce((sum, n) => sum + (n - 1) * gap, 0);
    const step = this.down ? 118 : right;
    const along = this.down ? ends[0] + ends[1] + thick + step * (levels.length + 0.35) : wide;
    const titles = this.down ? 0 : 22;
    const place = (u, v) => (this.down ? [v, u] : [u, v + titles]);
    const size = place(along, across);
    if (!this.down) size[1] = across + titles;
    this.svg.setAttribute("viewBox", `0 0 ${size[0]} ${size[1]}`);
    this.svg.setAttribute("width", size[0]);
    this.svg.setAttribute("height", size[1]);
    this.svg.classList.toggle("down", this.down);

    let u = ends[0] + step * 0.8;
    this.places = levels.map((level, l) => {
      const rows = lines[l];
      const each = Math.ceil(level.capsules / rows);
      const found = Array.from({ length: level.capsules }, (_, n) => {
        const row = Math.floor(n / each);
        const inRow = Math.min(each, level.capsules - row * each);
        return place(u + row * gap, across / 2 + ((n % each) - (inRow - 1) / 2) * pitch);
      });
      this.titles[l].setAttribute("x", this.down ? 2 : u + ((rows - 1) * gap) / 2);
      this.titles[l].setAttribute("y", this.down ? u - this.radius - 26 : 12);
      u += (rows - 1) * gap + step;
      return found;
    });
    this.middles = this.places.slice(1).map((next, l) => {
      const at = this.down ? 1 : 0;
      const before = Math.max(...this.places[l].map((p) => p[at]));
      const after = Math.min(...next.map((p) => p[at]));
      return place(before + (after - before) * (this.down ? 0.58 : 0.42), across / 2);
    });
    this.start = place(ends[0], across / 2);
    this.end = place(along - ends[1], across / 2);

    const side = this.down ? 44 : 52;
    for (const element of [this.image, this.frame]) {
      const [x, y] = [this.start[0] - side / 2, this.start[1] - side / 2];
      for (const [key, value] of Object.entries({ x, y, width: side, height: side })) element.setAttribute(key, value);
    }
    this.sums.forEach((g, l) => g.setAttribute("transform", `translate(${this.middles[l]})`));
    this.answer.setAttribute("transform", `translate(${this.end})`);
    this.name.setAttribute("x", this.down ? 0 : 14);
    this.name.setAttribute("y", this.down ? 25 : 0);
    this.probability.setAttribute("x", this.down ? 0 : 14);
    this.probability.setAttribute("y", this.down ? 41 : 17);
    this.places.forEach((places, l) => places.forEach((p, n) => this.shape(this.blocks[l][n], p, pitch)));
    this.links.replaceChildren();
    this.paths = this.places.map((places, l) => places.map((p) => [this.path(l ? this.middles[l - 1] : this.start, p, "in"), this.path(p, this.middles[l] ?? this.end, "out")]));
    if (this.given) this.show(this.given);
  }

  shape(parts, [x, y], pitch) {
    const r = this.radius;
    parts.g.setAttribute("transform", `translate(${x} ${y})`);
    const half = Math.max(11, Math.min(pitch / 2, r + 6));
    const hit = this.down
      ? { x: -half, y: -r - 20, width: 2 * half, height: 2 * r + 26, rx: half }
      : { x: -r - 46, y: -half, width: 2 * r + 54, height: 2 * half, rx: half };
    for (const [key, value] of Object.entries(hit)) parts.hit.setAttribute(key, value);
    for (const ring of [parts.track, parts.fitness]) ring.setAttribute("r", r + 2.5);
    parts.cross.setAttribute("d", `M${-r * 0.6} ${-r * 0.6}L${r * 0.6} ${r * 0.6}M${-r * 0.6} ${r * 0.6}L${r * 0.6} ${-r * 0.6}`);
    parts.number.setAttribute("y", 4);
    parts.weight.setAttribute("x", this.down ? 0 : -r - 8);
    parts.weight.setAttribute("y", this.down ? -r - 8 : 4);
    parts.weight.setAttribute("text-anchor", this.down ? "middle" : "end");
  }

  path([x0, y0], [x1, y1], kind) {
    const bend = this.down ? `${x0} ${(y0 + y1) / 2} ${x1} ${(y0 + y1) / 2}` : `${(x0 + x1) / 2} ${y0} ${(x0 + x1) / 2} ${y1}`;
    return make("path", { class: `link ${kind}`, d: `M${x0} ${y0}C${bend} ${x1} ${y1}` }, this.links);
  }

  /** The name of the predicted class, shortened to fit */
  fit(name) {
    const room = this.down ? this.wide : ENDS[1] - 12;
    if (this.fitted === `${room} ${name}`) return; // measuring is slow
    this.fitted = `${room} ${name}`;
    this.name.textContent = name;
    for (let length = name.length - 1; length > 0 && this.name.getComputedTextLength() > room; length--) this.name.textContent = `${name.slice(0, length)}…`;
  }

  /** given: { answer, pinned, off, open, picture, name, probability }, answer may be null */
  show(given) {
    this.given = given;
    const { answer, pinned, off, open } = given;
    this.svg.classList.toggle("empty", !answer);
    const last = this.blocks.length - 1;
    this.blocks.forEach((blocks, l) => {
      const on = (n) => !off.has(`${l + 1}.${n}`);
      const weights = answer?.levels[l].weights ?? blocks.map(() => 1 / blocks.length);
      const look = scaled(weights, on);
      const pins = pinned && scaled(pinned.levels[l].weights, on);
      const winners = answer ? standing(answer.levels[l].winners, blocks.filter((_, n) => on(n)).length) : [];
      const most = l === last && answer ? Math.max(...answer.block_contributions.map(Math.abs)) : 0;
      blocks.forEach((parts, n) => {
        const { size, position } = look[n];
        const color = `rgb(${shade(position).join(" ")})`;
        const radius = on(n) ? Math.max(3, this.radius * size) : 3;
        const key = `${l + 1}.${n}`;
        const winner = winners.includes(n);
        parts.g.classList.toggle("off", !on(n));
        parts.g.classList.toggle("deep", position > DARK);
        parts.g.classList.toggle("tiny", radius < 5.5);
        parts.g.classList.toggle("winner", winner);
        parts.g.classList.toggle("open", open === key);
        parts.g.style.setProperty("--fill", color);
        parts.disc.setAttribute("r", radius);
        parts.fitness.setAttribute("stroke-dasharray", `${Math.min(1, Math.max(0, answer?.levels[l].fitness[n] ?? 0)) * 100} 100`);
        parts.pin.setAttribute("r", pins && on(n) ? Math.max(3, this.radius * pins[n].size) : 0);
        parts.weight.textContent = answer && on(n) ? weights[n].toFixed(3) : "";
        const said = answer ? `weight ${weights[n].toFixed(3)}, fitness ${answer.levels[l].fitness[n].toFixed(3)}${l === last ? " at its best place" : ""}${winner ? (winners.length > 1 ? ", tied for the largest weight" : ", the largest weight") : ""}` : "no picture yet";
        parts.title.textContent = `Block ${key}: ${said}`;
        parts.g.setAttribute("aria-label", `Block ${key}: ${said}, ${on(n) ? "on" : "switched off"}`);
        parts.g.setAttribute("aria-expanded", open === key);
        const [, path] = this.paths[l][n];
        const part = l === last && answer ? answer.block_contributions[n] / (most || 1) : null;
        path.style.strokeWidth = !on(n) ? 0 : part === null ? 0.75 + 5 * size * size : 0.75 + 6 * Math.abs(part);
        path.style.setProperty("--fill", color);
        path.classList.toggle("against", part !== null && part < 0);
        path.classList.toggle("for", part !== null && part >= 0);
        this.paths[l][n][0].classList.toggle("off", !on(n));
      });
    });
    if (given.picture) this.image.setAttribute("href", given.picture);
    else this.image.removeAttribute("href");
    this.fit(given.name);
    this.probability.textContent = given.probability;
  }
}
