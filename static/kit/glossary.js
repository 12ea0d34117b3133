// Definitions of terms in a sentence, as tooltips.

import { h } from "./dom.js";
import { tipped } from "./shell.js";

/**
 * Return `text` as nodes; the first occurrence of each of `terms` has its definition as a tooltip.
 * @param {string} text @param {Record<string, string>} [terms]
 */
export function withDefinitions(text, terms = {}) {
  const left = new Set(Object.keys(terms));
  if (!left.size) return [text];
  return text
    .split(new RegExp(`\\b(${[...left].join("|")})\\b`))
    .map((part) => (left.delete(part) ? h("span.mw-term", tipped(terms[part]), part) : part));
}
