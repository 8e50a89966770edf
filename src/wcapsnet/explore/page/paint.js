// Pixels and maps on canvases.

import { byId as $, clamp, make } from "./dom.js";

// Weights against the equal share, as in reports/colors.py: pale below it, gray at it, dark and warm above.
const SHARES = [[222, 235, 247], [196, 205, 213], [168, 166, 163], [186, 100, 52], [112, 20, 10]];
const EQUAL = 0.99; // a weight of at least this share of another is equal, to within 1 %
const THROUGH = 0.32; // contrast of a picture that shows through a weight map
export const DARK = 0.35; // from here on, text on the colour must be light
// Dark violet through green to yellow, with uniform steps in lightness: readable without colour vision.
const VIRIDIS = [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37]];
// Orange for negative, blue for positive: distinguishable with any colour vision.
const DIVERGING = [[179, 88, 6], [241, 163, 64], [247, 247, 247], [103, 169, 207], [33, 102, 172]];

/** 256 colours, as bytes: r, g, b, r, g, b, … */
function table(ramp) {
  const colors = new Uint8Array(3 * 256);
  for (let p = 0; p < 256; p++) {
    const at = (p / 255) * (ramp.length - 1);
    const low = Math.min(ramp.length - 2, Math.floor(at));
    const between = (a, c) => Math.round(a + (ramp[low + 1][c] - a) * (at - low));
    colors.set(ramp[low].map(between), 3 * p);
  }
  return colors;
}

const TABLES = { plain: table(VIRIDIS), signed: table(DIVERGING), shares: table(SHARES) };

/** The position of a weight on the scale, where 1/N is the equal share: log₂(b·N) between −1 and 1; 0 within 1 % of
 * the equal share. The same as `against_share` in Python. */
export function againstShare(b, n) {
  const share = b * n;
  return share >= EQUAL && share <= 1 / EQUAL ? 0 : clamp(Math.log2(share), -1, 1);
}

/** r, g, b of a position on the scale */
export function shade(position) {
  const at = 3 * Math.round(127.5 * (1 + position));
  return TABLES.shares.slice(at, at + 3);
}

function put(image, pixel, colors, share, opacity) {
  const at = 3 * Math.round(255 * clamp(share, 0, 1));
  for (let c = 0; c < 3; c++) image.data[4 * pixel + c] = colors[at + c];
  image.data[4 * pixel + 3] = opacity;
}

/** uint8 (ch, h, w) on a canvas of that size; CSS enlarges it */
export function pixels(canvas, data, { channels, height, width }) {
  Object.assign(canvas, { width, height });
  const image = new ImageData(width, height);
  const plane = height * width;
  for (let p = 0; p < plane; p++) {
    for (let c = 0; c < 3; c++) image.data[4 * p + c] = data[(channels === 1 ? 0 : c * plane) + p];
    image.data[4 * p + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Clear a canvas and its marks. */
export function clear(id) {
  $(id).getContext("2d").reset();
  $(`${id}-marks`)?.replaceChildren();
}

/** A single map (i, j), from −most to most: orange below 0, blue above. Without a sign: dark at 0, light at most. */
export function map(canvas, values, height, width, signed) {
  Object.assign(canvas, { width, height });
  const image = new ImageData(width, height);
  const most = largest(values);
  for (let p = 0; p < values.length; p++) {
    const part = most ? values[p] / most : 0;
    put(image, p, signed ? TABLES.signed : TABLES.plain, signed ? 0.5 + part / 2 : part, 255);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** The largest absolute value */
export function largest(values) {
  return values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

/** The picture in gray, minus its median: 0 in most of a background, so that its colours match the legend */
function relief(data, channels, plane) {
  const gray = new Float32Array(plane);
  data.forEach((value, at) => (gray[at % plane] += value / channels));
  const median = gray.slice().sort()[(plane - 1) >> 1];
  return gray.map((value) => value - median);
}

/** A picture with a map on top: bilinear between the centres of the cells, like `over_image` in Python.
 *
 * `cells` is { values, height, width } or null. Weights are coloured relative to the equal share 1/N; with n = null the
 * map is signed, orange and blue around 0. */
export function overlay(canvas, data, about, cells, n) {
  const { channels, height, width, cell } = about;
  const zoom = Math.max(1, Math.min(8, Math.floor(256 / Math.max(height, width))));
  Object.assign(canvas, { width: width * zoom, height: height * zoom });
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(pixels(new OffscreenCanvas(width, height), data, about), 0, 0, canvas.width, canvas.height);
  if (!cells) return;
  const most = largest(cells.values) || 1;
  const under = n === null ? null : relief(data, channels, height * width);
  const layer = new ImageData(canvas.width, canvas.height);
  const rows = neighbours(canvas.height, zoom * cell, cells.height);
  const columns = neighbours(canvas.width, zoom * cell, cells.width);
  for (let y = 0; y < canvas.height; y++) {
    for (let x = 0; x < canvas.width; x++) {
      const value = between(cells, rows[y], columns[x]);
      const pixel = y * canvas.width + x;
      if (n === null) {
        const part = value / most;
        put(layer, pixel, TABLES.signed, 0.5 + part / 2, 255 * (0.25 + 0.5 * Math.min(1, Math.abs(part))));
      } else {
        const light = THROUGH * under[Math.floor(y / zoom) * width + Math.floor(x / zoom)];
        put(layer, pixel, TABLES.shares, 0.5 + againstShare(value, n) / 2, 255);
        for (let c = 0; c < 3; c++) layer.data[4 * pixel + c] += light; // bytes stay between 0 and 255
      }
    }
  }
  const shades = new OffscreenCanvas(canvas.width, canvas.height);
  shades.getContext("2d").putImageData(layer, 0, 0);
  pen.drawImage(shades, 0, 0);
}

/** Marks on top of a picture: a thin outline around each position [n, i, j], a dot at the decoded one, if visible.
 *
 * Outlines of several blocks at one position are nested. */
export function marks(svg, about, places, dot) {
  const { height, width, cell } = about;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const depth = new Map();
  const box = ([, i, j]) => {
    const [x, y] = [j * cell, i * cell];
    return { x, y, wide: Math.min(cell, width - x), tall: Math.min(cell, height - y) }; // the border may cut it off
  };
  for (const place of places) {
    const { x, y, wide, tall } = box(place);
    const before = depth.get(`${x}.${y}`) ?? 0;
    depth.set(`${x}.${y}`, before + 1);
    const inset = cell * Math.min(0.42, 0.08 + 0.13 * before);
    const size = { width: Math.max(0, wide - 2 * inset), height: Math.max(0, tall - 2 * inset) };
    make("rect", { class: "tied", "data-place": place.join("."), x: x + inset, y: y + inset, ...size }, svg);
  }
  if (!dot) return;
  const { x, y, wide, tall } = box(dot);
  const middle = { cx: x + wide / 2, cy: y + tall / 2, r: 0.17 * cell };
  make("circle", { class: "decoded", "data-place": dot.join("."), ...middle }, svg);
}

/** For each of `count` pixels of a line: the cells before and after its centre, and its place between their centres */
export function neighbours(count, pixels, size) {
  return Array.from({ length: count }, (_, at) => {
    const place = clamp((at + 0.5) / pixels - 0.5, 0, size - 1);
    const before = Math.floor(place);
    return { before, after: Math.min(size - 1, before + 1), share: place - before };
  });
}

/** The value between four cells */
export function between({ values, width }, row, column) {
  const above = row.before * width; // no arrays here: this runs for every pixel
  const under = row.after * width;
  const left = 1 - column.share;
  const high = values[above + column.before] * left + values[above + column.after] * column.share;
  const low = values[under + column.before] * left + values[under + column.after] * column.share;
  return high * (1 - row.share) + low * row.share;
}

/** The colours of the legend as a gradient */
export function gradient(signed) {
  const ramp = signed ? DIVERGING : SHARES;
  return `linear-gradient(to right, ${ramp.map((rgb) => `rgb(${rgb.join(" ")})`).join(", ")})`;
}
