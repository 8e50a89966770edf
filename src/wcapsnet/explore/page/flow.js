// The diagram: levels in sequence, blocks as discs, and lines for the weighted sum passed to the next level.

import { clamp, make, set } from "./dom.js";
import { againstShare, DARK, pixels, shade } from "./paint.js";
import { about, chance, classOf, onIn, shown, state } from "./state.js";

// The diagram runs to the right if there is room, otherwise down.
const LINE = 16; // most blocks of a level in one column
const NARROW = 560; // pixels
const ENDS = [48, 92]; // pixels for the picture and for the prediction
const STEP = 84; // pixels from level to level: a weight, a disc, and the line to the next sum
const GAP = 64; // pixels between the lines of a level
const HELP = "Blocks of each level. Arrow keys move, Enter opens a block, Space switches it off or on.";

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
  /** `open` and `toggle` are called with the name of a block. */
  constructor(holder, open, toggle) {
    Object.assign(this, { holder, open, toggle });
    this.svg = make("svg", { class: "flow", role: "group", "aria-label": HELP }, holder);
    const hidden = (name, className) => make(name, { class: className, "aria-hidden": "true" }, this.svg);
    this.links = hidden("g", "links");
    this.blocks = about.levels.map(({ capsules }, l) => Array.from({ length: capsules }, (_, n) => this.block(l, n)));
    this.titles = about.levels.map(() => hidden("text", "level-title"));
    this.titles.forEach((title, l) => (title.textContent = `Level ${l + 1}`));
    this.sums = about.levels.slice(1).map(() => hidden("g", "sum"));
    for (const sum of this.sums) {
      make("circle", { r: 9 }, sum);
      make("text", { y: 4 }, sum).textContent = "Σ";
    }
    this.image = hidden("image", "picture");
    this.frame = make("rect", { class: "picture-frame", rx: 4 }, this.svg);
    this.answer = hidden("g", "answer");
    make("circle", { r: 7 }, this.answer);
    this.name = make("text", { class: "answer-name" }, this.answer);
    this.probability = make("text", { class: "answer-probability" }, this.answer);
    this.focused = this.blocks[0][0].g;
    this.focused.setAttribute("tabindex", 0);
    new ResizeObserver(() => this.layout()).observe(holder);
    this.layout();
  }

  block(level, capsule) {
    const key = `${level + 1}.${capsule}`;
    const g = make("g", { class: "block", role: "button", tabindex: -1, "data-block": key }, this.svg);
    const parts = { g, title: make("title", {}, g), hit: make("rect", { class: "hit" }, g) };
    for (const name of ["track", "fitness", "disc", "pin"]) parts[name] = make("circle", { class: name }, g);
    set(parts.fitness, { pathLength: 100, transform: "rotate(-90)" });
    parts.cross = make("path", { class: "cross" }, g);
    make("text", { class: "number", y: 4 }, g).textContent = capsule;
    parts.weight = make("text", { class: "weight" }, g);
    g.addEventListener("click", () => {
      this.focus(g);
      this.open(key);
    });
    g.addEventListener("dblclick", () => this.toggle(key));
    g.addEventListener("keydown", (event) => this.key(event, level, capsule));
    return parts;
  }

  key(event, level, capsule) {
    const key = `${level + 1}.${capsule}`;
    const steps = this.down
      ? { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }
      : { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
    if (event.key in steps) {
      const [dl, dn] = steps[event.key];
      const blocks = this.blocks[clamp(level + dl, 0, this.blocks.length - 1)];
      const n = dl ? Math.round((capsule / this.blocks[level].length) * blocks.length) : capsule + dn;
      this.focus(blocks[clamp(n, 0, blocks.length - 1)].g);
      this.focused.focus();
    } else if (event.key === "Enter") this.open(key, true);
    else if (event.key === " ") this.toggle(key);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Make this the block that the Tab key reaches. */
  focus(g) {
    this.focused.setAttribute("tabindex", -1);
    this.focused = g;
    g.setAttribute("tabindex", 0);
  }

  /** Compute the layout. u runs along the diagram, v across it. */
  layout() {
    const wide = this.holder.clientWidth;
    if (!wide || wide === this.wide) return;
    this.wide = wide;
    const { levels } = about;
    const right = (wide - ENDS[0] - ENDS[1]) / (levels.length + 0.6);
    const down = wide < NARROW || right < STEP || levels.some((level) => level.capsules > LINE);
    this.down = down;
    const line = down ? clamp(Math.floor(wide / 42), 4, LINE) : LINE;
    const lines = levels.map((level) => Math.ceil(level.capsules / line));
    const most = Math.max(...levels.map((level) => Math.min(line, level.capsules)));
    const across = down ? wide : clamp(most * 54 + 40, 160, 460);
    const pitch = Math.min(58, (across - (down ? 8 : 40)) / most);
    this.radius = Math.min(20, pitch * 0.4);
    const ends = down ? [34, 46] : ENDS;
    const thick = lines.reduce((sum, n) => sum + (n - 1) * GAP, 0);
    const step = down ? 118 : right;
    const along = down ? ends[0] + ends[1] + thick + step * (levels.length + 0.35) : wide;
    const titles = down ? 0 : 22;
    const place = (u, v) => (down ? [v, u] : [u, v + titles]);
    const [width, height] = place(along, across);
    set(this.svg, { viewBox: `0 0 ${width} ${height}`, width, height });
    this.svg.classList.toggle("down", down);

    let u = ends[0] + step * 0.8;
    const places = levels.map(({ capsules }, l) => {
      const rows = lines[l];
      const each = Math.ceil(capsules / rows);
      const found = Array.from({ length: capsules }, (_, n) => {
        const row = Math.floor(n / each);
        const inRow = Math.min(each, capsules - row * each);
        return place(u + row * GAP, across / 2 + ((n % each) - (inRow - 1) / 2) * pitch);
      });
      const middle = u + ((rows - 1) * GAP) / 2;
      set(this.titles[l], down ? { x: 2, y: u - this.radius - 26 } : { x: middle, y: 12 });
      u += (rows - 1) * GAP + step;
      return found;
    });
    const [start, end] = [place(ends[0], across / 2), place(along - ends[1], across / 2)];
    const sums = places.slice(1).map((next, l) => {
      const before = Math.max(...places[l].map((p) => p[Number(down)]));
      const after = Math.min(...next.map((p) => p[Number(down)]));
      return place(before + (after - before) * (down ? 0.58 : 0.42), across / 2);
    });

    const side = down ? 44 : 52;
    const square = { x: start[0] - side / 2, y: start[1] - side / 2, width: side, height: side };
    for (const element of [this.image, this.frame]) set(element, square);
    this.sums.forEach((g, l) => set(g, { transform: `translate(${sums[l]})` }));
    set(this.answer, { transform: `translate(${end})` });
    set(this.name, down ? { x: 0, y: 25 } : { x: 14, y: 0 });
    set(this.probability, down ? { x: 0, y: 41 } : { x: 14, y: 17 });
    this.links.replaceChildren();
    places.forEach((level, l) => level.forEach((p, n) => {
      const parts = this.blocks[l][n];
      this.shape(parts, p, pitch);
      parts.from = this.path(l ? sums[l - 1] : start, p, "in");
      parts.to = this.path(p, sums[l] ?? end, "out");
    }));
    this.show();
  }

  shape(parts, [x, y], pitch) {
    const r = this.radius;
    const half = Math.max(11, Math.min(pitch / 2, r + 6));
    const arm = r * 0.6;
    set(parts.g, { transform: `translate(${x} ${y})` });
    set(parts.hit, this.down
      ? { x: -half, y: -r - 20, width: 2 * half, height: 2 * r + 26, rx: half }
      : { x: -r - 46, y: -half, width: 2 * r + 54, height: 2 * half, rx: half });
    for (const ring of [parts.track, parts.fitness]) set(ring, { r: r + 2.5 });
    set(parts.cross, { d: `M${-arm} ${-arm}L${arm} ${arm}M${-arm} ${arm}L${arm} ${-arm}` });
    set(parts.weight, this.down ? { x: 0, y: -r - 8 } : { x: -r - 8, y: 4 });
  }

  path([x0, y0], [x1, y1], kind) {
    const [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2];
    const bend = this.down ? `${x0} ${y} ${x1} ${y}` : `${x} ${y0} ${x} ${y1}`;
    return make("path", { class: `link ${kind}`, d: `M${x0} ${y0}C${bend} ${x1} ${y1}` }, this.links);
  }

  /** The name of the explained class, shortened to fit */
  fit(name) {
    const room = this.down ? this.wide : ENDS[1] - 12;
    if (this.fitted === `${room} ${name}`) return; // measuring is slow
    this.fitted = `${room} ${name}`;
    this.name.textContent = name;
    this.name.classList.toggle("long", this.name.getComputedTextLength() > room);
    for (let length = name.length - 1; length > 0 && this.name.getComputedTextLength() > room; length--) {
      this.name.textContent = `${name.slice(0, length)}…`;
    }
  }

  show() {
    const { answer } = shown;
    this.svg.classList.toggle("empty", !answer);
    this.blocks.forEach((_, l) => this.showLevel(l));
    if (answer) set(this.image, { href: pixels(document.createElement("canvas"), answer.pixels, about).toDataURL() });
    else this.image.removeAttribute("href");
    this.fit(answer ? classOf(answer.target) : "");
    this.probability.textContent = answer ? chance(answer, answer.target) : "";
  }

  showLevel(l) {
    const blocks = this.blocks[l];
    const level = shown.answer?.levels[l];
    const on = (n) => !state.off.has(`${l + 1}.${n}`);
    const look = scaled(level?.weights ?? blocks.map(() => 1 / blocks.length), on);
    const pins = shown.pinned && scaled(shown.pinned.levels[l].weights, on);
    const winners = level ? standing(level.winners, onIn(l + 1)) : [];
    // What the blocks of the last level add to the logit
    const parts = l === this.blocks.length - 1 ? shown.answer?.block_contributions : null;
    const most = parts && (Math.max(...parts.map(Math.abs)) || 1);
    blocks.forEach(({ g, title, disc, fitness, pin, weight, from, to }, n) => {
      const key = `${l + 1}.${n}`;
      const { size, position } = look[n];
      const radius = on(n) ? Math.max(3, this.radius * size) : 3;
      const open = state.open === key;
      const [deep, tiny, winner] = [position > DARK, radius < 5.5, winners.includes(n)];
      const classes = { off: !on(n), deep, tiny, winner, open };
      for (const [name, holds] of Object.entries(classes)) g.classList.toggle(name, holds);
      for (const element of [g, to]) element.style.setProperty("--fill", `rgb(${shade(position).join(" ")})`);
      set(disc, { r: radius });
      set(fitness, { "stroke-dasharray": `${100 * clamp(level?.fitness[n] ?? 0, 0, 1)} 100` });
      set(pin, { r: pins && on(n) ? Math.max(3, this.radius * pins[n].size) : 0 });
      weight.textContent = level && on(n) ? level.weights[n].toFixed(3) : "";
      title.textContent = `Block ${key}: ${level ? this.told(level, n, winners, Boolean(parts)) : "no picture yet"}`;
      set(g, { "aria-label": `${title.textContent}, ${on(n) ? "on" : "switched off"}`, "aria-expanded": open });
      const part = parts ? parts[n] / most : null;
      to.style.strokeWidth = on(n) ? 0.75 + (part === null ? 5 * size * size : 6 * Math.abs(part)) : 0;
      to.classList.toggle("against", part !== null && part < 0);
      to.classList.toggle("for", part !== null && part >= 0);
      from.classList.toggle("off", !on(n));
    });
  }

  told({ weights, fitness }, n, winners, last) {
    const best = winners.length > 1 ? ", tied for the largest weight" : ", the largest weight";
    const where = last ? " at its best position" : "";
    const rank = winners.includes(n) ? best : "";
    return `weight ${weights[n].toFixed(3)}, fitness ${fitness[n].toFixed(3)}${where}${rank}`;
  }
}
