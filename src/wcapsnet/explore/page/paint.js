// Pixels and maps on canvases.

// Dark violet over green to yellow, even in lightness: the order can be told without colour vision.
const VIRIDIS = [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37]];
// Orange for less than nothing, blue for more: a pair that everybody can tell apart.
const DIVERGING = [[179, 88, 6], [241, 163, 64], [247, 247, 247], [103, 169, 207], [33, 102, 172]];

/** 256 colours, as bytes: r, g, b, r, g, b, … */
function table(ramp) {
  const colors = new Uint8Array(3 * 256);
  for (let p = 0; p < 256; p++) {
    const at = (p / 255) * (ramp.length - 1);
    const low = Math.min(ramp.length - 2, Math.floor(at));
    for (let c = 0; c < 3; c++) colors[3 * p + c] = Math.round(ramp[low][c] + (ramp[low + 1][c] - ramp[low][c]) * (at - low));
  }
  return colors;
}

const TABLES = { plain: table(VIRIDIS), signed: table(DIVERGING) };

function put(image, pixel, colors, share, opacity) {
  const at = 3 * Math.round(255 * Math.min(1, Math.max(0, share)));
  for (let c = 0; c < 3; c++) image.data[4 * pixel + c] = colors[at + c];
  image.data[4 * pixel + 3] = opacity;
}

/** uint8 (ch, h, w) on a canvas of that size; the style makes it large */
export function pixels(canvas, data, about) {
  const { channels, height, width } = about;
  Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d");
  pen.putImageData(rgba(data, channels, height, width), 0, 0);
}

function rgba(data, channels, height, width) {
  const image = new ImageData(width, height);
  const plane = height * width;
  for (let p = 0; p < plane; p++) {
    for (let c = 0; c < 3; c++) image.data[4 * p + c] = data[(channels === 1 ? 0 : c * plane) + p];
    image.data[4 * p + 3] = 255;
  }
  return image;
}

/** A single map (i, j): darkest to lightest, or orange and blue around 0 if it has both signs */
export function map(canvas, values, height, width) {
  Object.assign(canvas, { width, height });
  const image = new ImageData(width, height);
  const [low, high] = range(values);
  const most = Math.max(-low, high);
  const signed = low < 0 && high > 0;
  for (let p = 0; p < values.length; p++) {
    const share = signed ? 0.5 + values[p] / most / 2 : high > low ? (values[p] - low) / (high - low) : 0;
    put(image, p, signed ? TABLES.signed : TABLES.plain, share, 255);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

export function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

/** A picture with a map laid over it: bilinear between the middles of the cells, as `over_image` in Python.
 *
 * `cells` is { values, height, width } or null; `signed` maps are orange and blue around 0. `best` outlines a cell. */
export function overlay(canvas, data, about, cells, signed, best) {
  const { channels, height, width, cell } = about;
  const zoom = Math.max(1, Math.min(8, Math.floor(256 / Math.max(height, width))));
  Object.assign(canvas, { width: width * zoom, height: height * zoom });
  const pen = canvas.getContext("2d");
  const small = new OffscreenCanvas(width, height);
  small.getContext("2d").putImageData(rgba(data, channels, height, width), 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
  if (cells) {
    const [low, high] = range(cells.values);
    const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
    const shade = new ImageData(canvas.width, canvas.height);
    for (let y = 0; y < canvas.height; y++) {
      for (let x = 0; x < canvas.width; x++) {
        const value = between(cells, (y + 0.5) / (zoom * cell) - 0.5, (x + 0.5) / (zoom * cell) - 0.5);
        const share = signed ? 0.5 + value / most / 2 : high > low ? (value - low) / (high - low) : 0.5;
        const strength = signed ? Math.min(1, Math.abs(value / most)) : share;
        put(shade, y * canvas.width + x, signed ? TABLES.signed : TABLES.plain, share, 255 * (0.25 + 0.5 * strength));
      }
    }
    const layer = new OffscreenCanvas(canvas.width, canvas.height);
    layer.getContext("2d").putImageData(shade, 0, 0);
    pen.drawImage(layer, 0, 0);
  }
  if (best) {
    const side = cell * zoom;
    for (const [line, style] of [[3, "#000a"], [1.5, "#fff"]]) {
      pen.lineWidth = line;
      pen.strokeStyle = style;
      pen.strokeRect(best[1] * side + 2, best[0] * side + 2, Math.min(side, canvas.width - best[1] * side) - 4, Math.min(side, canvas.height - best[0] * side) - 4);
    }
  }
}

/** The value at row y and column x, in cells from the middle of the first one */
export function between({ values, height, width }, y, x) {
  const [row, column] = [Math.min(height - 1, Math.max(0, y)), Math.min(width - 1, Math.max(0, x))];
  const [i, j] = [Math.floor(row), Math.floor(column)];
  const [below, right] = [Math.min(height - 1, i + 1), Math.min(width - 1, j + 1)];
  const [v, h] = [row - i, column - j];
  const above = values[i * width + j] * (1 - h) + values[i * width + right] * h;
  const under = values[below * width + j] * (1 - h) + values[below * width + right] * h;
  return above * (1 - v) + under * v;
}

/** The legend's colours as a gradient */
export function gradient(signed) {
  const ramp = signed ? DIVERGING : VIRIDIS;
  return `linear-gradient(to right, ${ramp.map((rgb) => `rgb(${rgb.join(" ")})`).join(", ")})`;
}
