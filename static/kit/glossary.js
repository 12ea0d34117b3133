// Words of the papers inside a sentence, each with what it means to hover over.

import { h } from "./canvas.js";
import { tipped } from "./shell.js";

/** `text` as nodes: the first time that one of `terms` occurs in it, the word carries its meaning. */
export function explained(text, terms = {}) {
  const left = new Set(Object.keys(terms));
  if (!left.size) return [text];
  const words = new RegExp(`\\b(${[...left].join("|")})\\b`);
  return text
    .split(words)
    .map((part) => (left.delete(part) ? h("span", { class: "mw-term", ...tipped(terms[part]) }, part) : part));
}
