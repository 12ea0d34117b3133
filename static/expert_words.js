// Words of the papers inside a sentence, each with what it means to hover over.

import { h } from "static/canvas.js";

/** `text` as nodes: the first time that one of `terms` occurs in it, the word carries its meaning. */
export function explained(text, terms = {}) {
  const left = new Set(Object.keys(terms));
  if (!left.size) return [text];
  const words = new RegExp(`\\b(${[...left].join("|")})\\b`);
  return text.split(words).map((part) => (left.delete(part) ? h("span", { class: "mw-term", "data-tip": terms[part], "aria-description": terms[part] }, part) : part));
}

/** One stop of the keyboard for all that explains itself in `box`: arrows go from one to the next. */
export function walkTips(box) {
  const tips = () => [...box.querySelectorAll("[data-tip]")];
  box.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    const all = tips();
    const at = all.indexOf(event.target);
    if (!step || at < 0) return;
    for (const each of all) each.tabIndex = -1; // a press may have put the keyboard on any
    const next = all.at((at + step) % all.length);
    next.tabIndex = 0;
    next.focus();
    event.preventDefault();
    event.stopPropagation();
  });
  return () => tips().forEach((tip, number) => (tip.tabIndex = number ? -1 : 0));
}
