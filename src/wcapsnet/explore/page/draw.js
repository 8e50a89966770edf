// Drawing by hand. A drawing is a list of strokes that determines the pixels exactly: plain arithmetic, the same in
// every browser, so that a link with the strokes reproduces the numbers.
//
// Coordinates are whole numbers, 1024 to the longer side of the picture. A stroke is { width, points: [x, y, x, y, …] }.

export const UNIT = 1024;
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
  const xs = strokes.flatMap((s) => s.points.filter((_, at) => at % 2 === 0));
  const ys = strokes.flatMap((s) => s.points.filter((_, at) => at % 2 === 1));
  const [left, right] = [xs.reduce((a, b) => Math.min(a, b)), xs.reduce((a, b) => Math.max(a, b))];
  const [top, bottom] = [ys.reduce((a, b) => Math.min(a, b)), ys.reduce((a, b) => Math.max(a, b))];
  const pen = Math.max(...strokes.map((s) => s.width)) * pixel;
  const room = Math.max(Math.min(height, width) * BOX - pen, 1);
  const scale = Math.min(room / Math.max((right - left) * pixel, (bottom - top) * pixel, 1e-6), 6);
  return {
    scale,
    x: (width - 1) / 2 - (((left + right) / 2) * pixel - 0.5) * scale,
    y: (height - 1) / 2 - (((top + bottom) / 2) * pixel - 0.5) * scale,
  };
}

function ink(strokes, height, width, place) {
  const pixel = Math.max(height, width) / UNIT;
  const value = new Float64Array(height * width);
  for (const { width: pen, points } of strokes) {
    const radius = (pen * pixel) / 2;
    const at = [];
    for (let p = 0; p < points.length; p += 2) {
      at.push([(points[p] * pixel - 0.5) * place.scale + place.x, (points[p + 1] * pixel - 0.5) * place.scale + place.y]);
    }
    for (let p = 0; p < at.length; p++) segment(value, height, width, at[p], at[Math.min(p + 1, at.length - 1)], radius);
  }
  return Uint8Array.from(value, (share) => Math.round(255 * share));
}

/** The ink of a pixel is the share of it covered by a disc of the pen's radius along the line. */
function segment(value, height, width, [x0, y0], [x1, y1], radius) {
  const reach = radius + 1;
  const [dx, dy] = [x1 - x0, y1 - y0];
  const length = dx * dx + dy * dy;
  const [top, bottom] = [Math.max(0, Math.floor(Math.min(y0, y1) - reach)), Math.min(height - 1, Math.ceil(Math.max(y0, y1) + reach))];
  const [left, right] = [Math.max(0, Math.floor(Math.min(x0, x1) - reach)), Math.min(width - 1, Math.ceil(Math.max(x0, x1) + reach))];
  for (let i = top; i <= bottom; i++) {
    for (let j = left; j <= right; j++) {
      const along = length ? Math.min(1, Math.max(0, ((j - x0) * dx + (i - y0) * dy) / length)) : 0;
      const [ex, ey] = [j - x0 - along * dx, i - y0 - along * dy];
      const share = Math.min(1, Math.max(0, radius + 0.5 - Math.sqrt(ex * ex + ey * ey)));
      if (share > value[i * width + j]) value[i * width + j] = share;
    }
  }
}

function middle(values, height, width) {
  let [mass, x, y] = [0, 0, 0];
  for (let i = 0; i < height; i++) {
    for (let j = 0; j < width; j++) {
      const value = values[i * width + j];
      [mass, x, y] = [mass + value, x + value * j, y + value * i];
    }
  }
  return mass ? [x / mass, y / mass] : [(width - 1) / 2, (height - 1) / 2];
}

/** The drawing canvas. `changed` is called for every new point. */
export class Easel {
  constructor(canvas, about, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.strokes = [];
    this.width = 84;
    const side = Math.max(about.height, about.width);
    this.size = [Math.round((UNIT * about.width) / side), Math.round((UNIT * about.height) / side)];
    this.dark = about.draw?.dark;
    canvas.style.aspectRatio = `${about.width} / ${about.height}`;
    this.pointer = null;
    canvas.addEventListener("pointerdown", (event) => this.begin(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => this.end(event));
    new ResizeObserver(() => this.paint()).observe(canvas);
  }

  begin(event) {
    if (this.pointer !== null || event.button > 0) return;
    event.preventDefault();
    this.pointer = event.pointerId;
    this.canvas.setPointerCapture(event.pointerId);
    this.strokes.push({ width: this.width, points: this.at(event) });
    this.paint();
    this.changed();
  }

  move(event) {
    if (event.pointerId !== this.pointer) return;
    const { points } = this.strokes.at(-1);
    let more = false;
    const passed = event.getCoalescedEvents?.() ?? [];
    for (const step of passed.length ? passed : [event]) {
      const [x, y] = this.at(step);
      const [dx, dy] = [x - points.at(-2), y - points.at(-1)];
      if (dx * dx + dy * dy < 36) continue; // too close to matter; keeps links short
      points.push(x, y);
      more = true;
    }
    if (!more) return;
    this.paint();
    this.changed();
  }

  end(event) {
    if (event.pointerId === this.pointer) this.pointer = null;
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const place = (value, size) => Math.min(size, Math.max(0, Math.round(value * size)));
    return [place((event.clientX - box.left) / box.width, this.size[0]), place((event.clientY - box.top) / box.height, this.size[1])];
  }

  undo() {
    this.strokes.pop();
    this.paint();
    this.changed();
  }

  clear() {
    this.set([]);
    this.changed();
  }

  set(strokes) {
    this.strokes = strokes;
    this.pointer = null;
    this.paint();
  }

  paint() {
    const { canvas } = this;
    const width = Math.round(canvas.clientWidth * (window.devicePixelRatio || 1));
    if (!width) return;
    const height = Math.round((width * this.size[1]) / this.size[0]);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const pen = canvas.getContext("2d");
    pen.setTransform(width / this.size[0], 0, 0, height / this.size[1], 0, 0);
    pen.fillStyle = this.dark ? "#000" : "#fff";
    pen.fillRect(0, 0, ...this.size);
    pen.strokeStyle = this.dark ? "#fff" : "#000";
    pen.lineCap = pen.lineJoin = "round";
    for (const { width: wide, points } of this.strokes) {
      pen.lineWidth = wide;
      pen.beginPath();
      pen.moveTo(points[0], points[1]);
      for (let p = 0; p < points.length; p += 2) pen.lineTo(points[p], points[p + 1]);
      pen.stroke();
    }
  }
}
