// Arrays as text.

export function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export function floats(text) {
  return new Float32Array(bytes(text).buffer);
}

export function text(data) {
  let letters = "";
  for (let at = 0; at < data.length; at += 8192) letters += String.fromCharCode(...data.subarray(at, at + 8192));
  return btoa(letters);
}
