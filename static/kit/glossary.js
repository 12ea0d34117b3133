// Definitions of terms in a sentence, as tooltips.

import { h } from "./dom.js";
import { translate } from "./language.js";
import { tipped } from "./shell.js";

/**
 * Return `text` as nodes in the language of the page; the first occurrence of each of `terms` has its definition as a
 * tooltip. A definition begins with its term: "Gate: the network that ...".
 * @param {string} text @param {Record<string, string>} [terms]
 */
export function withDefinitions(text, terms = {}) {
  const words = translate(text);
  if (!Object.keys(terms).length) return [words];
  const isTranslated = words !== text;
  /** @type {Map<string, string>} */
  const left = new Map();
  for (const [term, definition] of Object.entries(terms)) {
    const translation = translate(definition);
    left.set(isTranslated ? translation.split(":", 1)[0] : term, translation);
  }
  const end = isTranslated ? "(?=s?\\b)" : "\\b"; // the term of a translated definition is a singular
  const parts = words.split(new RegExp(`\\b(${[...left.keys()].join("|")})${end}`));
  const nodes = parts.map((part) => {
    const definition = left.get(part);
    left.delete(part);
    return definition ? h("span.mw-term", tipped(definition), part) : part;
  });
  return isTranslated ? [h("span", { translate: "no" }, ...nodes)] : nodes; // its parts are no texts of their own
}
