// A picture file as the network's input, with the arithmetic of `read_image` in Python: Pillow's Lanczos filter in
// fixed point, rows first, each direction rounded to bytes. Pillow 13 begins with the columns of some tall pictures, and
// browsers decode JPEG and transparency in their own way; otherwise the result is the same.

const BITS = 22; // of a filter weight after the point
const LOBES = 3;

/** uint8 (ch, h, w) of a file; throws an Error whose message is a sentence. */
export async function readPicture(file, { channels, height, width, max_pixels }) {
  let picture;
  try {
    picture = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  } catch {
    throw new Error("The browser cannot read this picture; save it as PNG or JPEG.");
  }
  try {
    if (picture.width * picture.height > max_pixels) throw new Error(`The picture has more than ${max_pixels.toLocaleString("en")} pixels; make it smaller.`);
    const planes = planesOf(picture, channels);
    return covering(planes, picture.height, picture.width, height, width);
  } finally {
    picture.close();
  }
}

/** The picture on white, as one gray or three colour planes of bytes */
function planesOf(picture, channels) {
  const pen = new OffscreenCanvas(picture.width, picture.height).getContext("2d", { willReadFrequently: true });
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, picture.width, picture.height);
  pen.drawImage(picture, 0, 0);
  const { data } = pen.getImageData(0, 0, picture.width, picture.height);
  const planes = Array.from({ length: channels }, () => new Uint8Array(data.length / 4));
  for (let p = 0; p < data.length / 4; p++) {
    const [r, g, b] = [data[4 * p], data[4 * p + 1], data[4 * p + 2]];
    if (channels === 1) planes[0][p] = (19595 * r + 38470 * g + 7471 * b + 32768) >> 16;
    else [planes[0][p], planes[1][p], planes[2][p]] = [r, g, b];
  }
  return planes;
}

/** Resized until it covers height × width, the rest cut off on both sides */
function covering(planes, tall, wide, height, width) {
  const result = new Uint8Array(planes.length * height * width);
  const ratio = width / height;
  const wider = wide / tall >= ratio;
  const [across, along] = wide / tall === ratio ? [wide, tall] : wider ? [ratio * tall, tall] : [wide, wide / ratio];
  const [left, top] = [(wide - across) / 2, (tall - along) / 2];
  const columns = tall === height && wide === width ? null : filter(left, left + across, wide, width);
  const rows = columns && filter(top, top + along, tall, height);
  planes.forEach((plane, c) => {
    const part = result.subarray(c * height * width, (c + 1) * height * width);
    if (!columns) return part.set(plane);
    const between = new Uint8Array(tall * width);
    for (let i = rows[0].first; i < rows.at(-1).first + rows.at(-1).weights.length; i++) filterLine(plane, i * wide, 1, columns, between, i * width, 1);
    for (let j = 0; j < width; j++) filterLine(between, j, width, rows, part, j, width);
  });
  return result;
}

/** The weights of each of `count` results between two places of a line of `size` values */
function filter(from, to, size, count) {
  [from, to] = [Math.fround(from), Math.fround(to)];
  const scale = (to - from) / count;
  const wide = Math.max(scale, 1);
  return Array.from({ length: count }, (_, at) => {
    const middle = from + (at + 0.5) * scale;
    const first = Math.max(0, Math.trunc(middle - LOBES * wide + 0.5));
    const end = Math.min(size, Math.trunc(middle + LOBES * wide + 0.5));
    const values = Array.from({ length: end - first }, (_, x) => lanczos((x + first - middle + 0.5) / wide));
    const sum = values.reduce((a, b) => a + b, 0);
    const weights = Int32Array.from(values, (value) => Math.trunc((value / sum) * 2 ** BITS + (value / sum < 0 ? -0.5 : 0.5)));
    return { first, weights };
  });
}

function lanczos(x) {
  return x > -LOBES && x < LOBES ? sinc(x) * sinc(x / LOBES) : 0;
}

function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

/** Filter one line of bytes, which starts at `start` with a step from value to value */
function filterLine(source, start, step, filters, target, place, stride) {
  for (let at = 0; at < filters.length; at++) {
    const { first, weights } = filters[at];
    let sum = 1 << (BITS - 1);
    for (let x = 0; x < weights.length; x++) sum += weights[x] * source[start + (first + x) * step];
    target[place + at * stride] = Math.min(255, Math.max(0, sum >> BITS));
  }
}
