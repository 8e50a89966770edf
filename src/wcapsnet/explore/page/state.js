// What the page shows. Modules render it; app.js changes it.

import { percent } from "./dom.js";

/** Facts about the network, and the pass over its test images */
export const about = {};
export const survey = { state: "none" };

/** What a link stores. A block is named "level.capsule", with levels counted from 1. */
export const state = { id: "", source: null, pin: null, off: new Set(), target: null, vector: new Map(), open: null };
Object.assign(state, { heat: "weights", heatBlock: "all" });

/** Answers: for the picture, the pinned picture, the picture with every block on, and the open block */
export const shown = { answer: null, pinned: null, before: null, block: null };

export const routed = () => about.levels.length > 0; // else the network has no blocks
export const classOf = (r) => about.classes[r];
export const placeOf = (key) => key.split(".").map(Number);

/** The number of blocks of a level that are on */
export function onIn(level) {
  const off = [...state.off].filter((key) => placeOf(key)[0] === level);
  return about.levels[level - 1].capsules - off.length;
}

/** The probability of a class, by default that of the predicted one */
export const chance = (answer, r = answer.predicted) => percent(answer.probabilities[r]);
export const verdict = (answer) => `${classOf(answer.predicted)}, ${chance(answer)}`;
