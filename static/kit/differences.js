// The line below a canvas that explains the marks of the differences from the pinned design, and their switch.

/** @import { DifferencesModel } from "./types" */

import { h } from "./dom.js";
import { button } from "./controls.js";
import { keepNames } from "./language.js";

/** The sign and the word of each kind of mark. @type {Record<string, [sign: string, word: string]>} */
const KINDS = {
  added: ["+", "added"],
  removed: ["−", "removed"],
  moved: ["→", "moved"],
  resized: ["⤢", "resized"],
  axes: ["⟲", "other axes"],
  layers: ["±", "other layers"],
};

/** The sign of a kind of mark. @param {string} kind */
export const signOf = (kind) => KINDS[kind][0];

export class DifferenceLine {
  /** @param {DifferencesModel} model */
  constructor(model) {
    this.model = model;
    this.toggle = button("Show differences", {
      kind: "mw-differences-switch",
      title: "Mark the differences from the pinned design",
      onclick: () => (model.marks_shown = !model.marks_shown),
    });
    this.toggle.setAttribute("role", "switch");
    this.legend = h("span.mw-differences-legend");
    this.list = h("ul.mw-sr", { "aria-label": "Differences" });
    this.element = h("div.mw-differences", { role: "group", "aria-label": "Differences from the pinned design" });
    this.element.append(this.toggle, this.legend, this.list);
    model.on(["differences", "marks_shown"], () => this.draw());
    this.draw();
  }

  /** The marks to draw. */
  get marks() {
    const { differences, marks_shown: isShown } = this.model;
    return isShown ? (differences.marks ?? []) : [];
  }

  draw() {
    const { differences, marks_shown: isShown } = this.model;
    const { name, marks, words } = differences;
    this.element.hidden = name === undefined;
    this.toggle.setAttribute("aria-checked", String(isShown));
    if (name === undefined) return;
    keepNames([name]);
    const kinds = Object.entries(KINDS).flatMap(([kind, [sign, word]]) => {
      const number = marks.filter((mark) => mark.kind === kind).length;
      return number ? [h("span", {}, h("b", { "aria-hidden": "true" }, sign), ` ${number} ${word}`)] : [];
    });
    const hasGhosts = marks.some(({ kind }) => ["removed", "moved", "resized"].includes(kind));
    this.legend.replaceChildren(
      h("span", {}, "Pinned: ", h("b", { translate: "no" }, name)),
      ...(kinds.length ? kinds : [h("span", {}, "no differences here")]),
      ...(hasGhosts ? [h("span", {}, h("i", { "aria-hidden": "true" }), "former position")] : []),
    );
    this.legend.title = words.join("\n");
    this.legend.hidden = this.list.hidden = !isShown;
    this.list.replaceChildren(...words.map((line) => h("li", {}, line.replace(" -> ", " → "))));
  }
}

/** The texts of a difference, such as "key: old -> new", with an arrow sign. @param {string} line */
export function withArrow(line) {
  const at = line.indexOf(": ");
  if (at < 0) return [line];
  return [h("span", {}, `${line.slice(0, at)} `), h("b", {}, line.slice(at + 2).replace(" -> ", " → "))];
}
