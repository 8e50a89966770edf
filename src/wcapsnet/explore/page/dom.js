// Elements, texts and messages.

export const byId = (id) => document.getElementById(id);

/** An HTML element with properties and children */
export function node(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** An SVG element with attributes, appended to its parent */
export function make(name, attributes = {}, parent = null) {
  const element = set(document.createElementNS("http://www.w3.org/2000/svg", name), attributes);
  parent?.append(element);
  return element;
}

export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
export const count = (value) => value.toLocaleString("en");
export const signed = (text) => text.replace("-", "−");

export function percent(p) {
  if (p > 0.9995) return "> 99.9 %";
  return p > 0 && p < 0.0005 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`;
}

/** Show a message for a few seconds. */
export function say(words, kind = "bad") {
  Object.assign(byId("toast"), { textContent: words, className: kind, hidden: false });
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (byId("toast").hidden = true), 6000);
}
