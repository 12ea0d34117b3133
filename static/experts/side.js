// Metrics of the expert layer beside the board.

import { button } from "../kit/controls.js";
import { findAll, focusedElement, h } from "../kit/dom.js";
import { withDefinitions } from "../kit/glossary.js";
import { tipped, walkTips } from "../kit/shell.js";

export class Side {
  figures = h("div.mw-xcosts");
  updateTabStops = walkTips(this.figures);

  /** @param {import("./experts.js").Experts} experts */
  constructor(experts) {
    this.experts = experts;
    const compare = button("Compare schedules", {
      title: "Compare all expert schedules for this layer",
      onclick: () => experts.send("compare"),
    });
    const traffic = button("Traffic", {
      title: "Show the bytes that each device sends to every other device in all-to-alls",
      onclick: () => experts.send("traffic"),
    });
    const heading = h("div.mw-bar", {}, h("h3", {}, "Layer, forward"), h("span.mw-grow"), traffic, compare);
    this.element = h("aside.mw-xside", { "aria-label": "Layer metrics" }, heading, this.figures);
  }

  draw() {
    const { figures, reason, problem, about, terms } = this.experts.picture;
    const rows = figures.flatMap(({ key, label, value, small, help }) => [
      h("dt", {}, h("span", tipped(help), label)),
      h("dd", { "data-figure": key }, h("b", {}, value), " ", h("span.mw-quiet", {}, small)),
    ]);
    const words = about.map((text) => h("p.mw-quiet", {}, ...withDefinitions(text, reason ? {} : terms)));
    const tips = () => findAll(this.figures, "[data-tip]");
    const focused = focusedElement(this.experts.root);
    const at = tips().findIndex((tip) => tip === focused);
    this.figures.replaceChildren(
      h("dl", {}, ...rows),
      problem && h("p.mw-xproblem", { role: "alert" }, `${problem}.`),
      reason && h("p.mw-xreason", {}, ...withDefinitions(reason, terms)),
      ...words,
    );
    this.updateTabStops();
    if (at >= 0) tips()[Math.min(at, tips().length - 1)]?.focus();
  }
}
