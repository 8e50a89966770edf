// Arrays as text.

export function bytes(text) {
  const letters = atob(text);
  const data = new Uint8Array(letters.length);
  for (let at = 0; at < data.length; at++) data[at] = letters.charCodeAt(at);
  return data;
}

export function floats(text) {
  return new Float32Array(bytes(text).buffer);
}

export function text(data) {
  let letters = "";
  for (let start = 0; start < data.length; start += 8192) letters += String.fromCharCode(...data.subarray(start, start + 8192));
  return btoa(letters);
}
