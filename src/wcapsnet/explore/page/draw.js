// Drawing by hand. A drawing is a list of strokes that determines the pixels exactly: plain arithmetic, the same in
// every browser, so that a link with the strokes reproduces the numbers.
//
// Coordinates are whole numbers, 1024 to the longer side of the picture. A stroke is { width, points: [x, y, …] }.

import { clamp, make } from "./dom.js";

const UNIT = 1024;
const BOX = 20 / 28; // MNIST's digits fit a box of 20 of 28 pixels and are centred by mass

/** uint8 (h, w): the ink in each pixel, 255 if it is full */
export function rasterize(strokes, height, width, center) {
  if (!strokes.length) return new Uint8Array(height * width);
  let place = { scale: 1, x: 0, y: 0 };
  if (center) {
    place = fitted(strokes, height, width);
    const [x, y] = middle(ink(strokes, height, width, place), height, width);
    place = { ...place, x: place.x + (width - 1) / 2 - x, y: place.y + (height - 1) / 2 - y };
  }
  return ink(strokes, height, width, place);
}

function fitted(strokes, height, width) {
  const pixel = Math.max(height, width) / UNIT;
  const points = strokes.flatMap((s) => s.points);
  const ends = (axis) => {
    const all = points.filter((_, at) => at % 2 === axis).sort((a, b) => a - b);
    return [all[0], all.at(-1)];
  };
  const [[left, right], [top, bottom]] = [ends(0), ends(1)];
  const pen = Math.max(...strokes.map((s) => s.width)) * pixel;
  const room = Math.max(Math.min(height, width) * BOX - pen, 1);
  const scale = Math.min(room / Math.max((right - left) * pixel, (bottom - top) * pixel, 1e-6), 6);
  const at = (low, high, side) => (side - 1) / 2 - (((low + high) / 2) * pixel - 0.5) * scale;
  return { scale, x: at(left, right, width), y: at(top, bottom, height) };
}

function ink(strokes, height, width, place) {
  const pixel = Math.max(height, width) / UNIT;
  const value = new Float64Array(height * width);
  for (const { width: pen, points } of strokes) {
    const radius = (pen * pixel) / 2;
    const x = (p) => (points[p] * pixel - 0.5) * place.scale + place.x;
    const y = (p) => (points[p + 1] * pixel - 0.5) * place.scale + place.y;
    for (let p = 0; p < points.length; p += 2) {
      const next = Math.min(p + 2, points.length - 2); // a single point is a dot
      segment(value, height, width, [x(p), y(p)], [x(next), y(next)], radius);
    }
  }
  return Uint8Array.from(value, (share) => Math.round(255 * share));
}

/** The ink of a pixel is the share of it covered by a disc of the pen's radius along the line. */
function segment(value, height, width, [x0, y0], [x1, y1], radius) {
  const reach = radius + 1;
  const [dx, dy] = [x1 - x0, y1 - y0];
  const length = dx * dx + dy * dy;
  const top = Math.max(0, Math.floor(Math.min(y0, y1) - reach));
  const bottom = Math.min(height - 1, Math.ceil(Math.max(y0, y1) + reach));
  const left = Math.max(0, Math.floor(Math.min(x0, x1) - reach));
  const right = Math.min(width - 1, Math.ceil(Math.max(x0, x1) + reach));
  for (let i = top; i <= bottom; i++) {
    for (let j = left; j <= right; j++) {
      const along = length ? clamp(((j - x0) * dx + (i - y0) * dy) / length, 0, 1) : 0;
      const [ex, ey] = [j - x0 - along * dx, i - y0 - along * dy];
      const share = clamp(radius + 0.5 - Math.sqrt(ex * ex + ey * ey), 0, 1);
      if (share > value[i * width + j]) value[i * width + j] = share;
    }
  }
}

function middle(values, height, width) {
  let [mass, x, y] = [0, 0, 0];
  values.forEach((value, at) => {
    [mass, x, y] = [mass + value, x + value * (at % width), y + value * Math.floor(at / width)];
  });
  return mass ? [x / mass, y / mass] : [(width - 1) / 2, (height - 1) / 2];
}

/** The drawing area, an SVG. `changed` is called for every new point. */
export class Easel {
  constructor(svg, { height, width, draw }, changed) {
    Object.assign(this, { svg, changed, strokes: [], width: 84, pointer: null });
    this.size = [width, height].map((side) => Math.round((UNIT * side) / Math.max(height, width)));
    svg.setAttribute("viewBox", `0 0 ${this.size.join(" ")}`);
    svg.classList.toggle("dark", Boolean(draw?.dark));
    svg.addEventListener("pointerdown", (event) => this.begin(event));
    svg.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, (event) => this.end(event));
  }

  begin(event) {
    if (this.pointer !== null || event.button > 0) return;
    event.preventDefault();
    this.pointer = event.pointerId;
    this.svg.setPointerCapture(event.pointerId);
    this.strokes.push({ width: this.width, points: this.at(event) });
    this.update();
  }

  move(event) {
    if (event.pointerId !== this.pointer) return;
    const { points } = this.strokes.at(-1);
    const { length } = points;
    const passed = event.getCoalescedEvents?.() ?? [];
    for (const step of passed.length ? passed : [event]) {
      const [x, y] = this.at(step);
      const [dx, dy] = [x - points.at(-2), y - points.at(-1)];
      if (dx * dx + dy * dy >= 36) points.push(x, y); // what is closer does not matter; links stay short
    }
    if (points.length > length) this.update();
  }

  end(event) {
    if (event.pointerId === this.pointer) this.pointer = null;
  }

  at(event) {
    const box = this.svg.getBoundingClientRect();
    const [width, height] = this.size;
    const x = ((event.clientX - box.left) / box.width) * width;
    const y = ((event.clientY - box.top) / box.height) * height;
    return [clamp(Math.round(x), 0, width), clamp(Math.round(y), 0, height)];
  }

  undo() {
    this.strokes.pop();
    this.update();
  }

  clear() {
    this.set([]);
    this.changed();
  }

  set(strokes) {
    Object.assign(this, { strokes, pointer: null });
    this.paint();
  }

  update() {
    this.paint();
    this.changed();
  }

  paint() {
    this.svg.replaceChildren();
    for (const { width, points } of this.strokes) {
      const line = [...points.slice(0, 2), ...points].join(" "); // a single point is a dot
      make("polyline", { points: line, "stroke-width": width }, this.svg);
    }
  }
}
