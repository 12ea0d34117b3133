// The side of the experts: what the layer costs.

import { button, h } from "../kit/canvas.js";
import { explained } from "../kit/glossary.js";
import { tipped, walkTips } from "../kit/shell.js";

/** What the layer costs, beside the board. */
export class Side {
  /** @param {import("./experts.js").Experts} experts */
  constructor(experts) {
    this.experts = experts;
    this.costs = h("div", { class: "mw-xcosts" });
    this.reachTips = walkTips(this.costs);
    const compare = button("Compare schedules", {
      title: "All expert schedules for this layer, side by side",
      onclick: () => experts.send("compare"),
    });
    this.element = h(
      "aside",
      { class: "mw-xside", "aria-label": "What the layer costs" },
      h("div", { class: "mw-bar" }, h("h3", {}, "Layer, forward"), h("span", { class: "mw-grow" }), compare),
      this.costs,
    );
  }

  drawSide() {
    const { figures, reason, problem, about, terms } = this.experts.picture;
    const rows = figures.flatMap(({ key, label, value, small, help }) => [
      h("dt", {}, h("span", tipped(help), label)),
      h("dd", { "data-figure": key }, h("b", {}, value), " ", h("span", { class: "mw-quiet" }, small)),
    ]);
    const words = [
      problem && h("p", { class: "mw-xproblem", role: "alert" }, `${problem}.`),
      reason && h("p", { class: "mw-xreason" }, ...explained(reason, terms)),
      ...about.map((sentence) => h("p", { class: "mw-quiet" }, ...explained(sentence, reason ? {} : terms))),
    ];
    const tips = () => [...this.costs.querySelectorAll("[data-tip]")];
    const at = tips().indexOf(this.experts.root.getRootNode().activeElement);
    this.costs.replaceChildren(h("dl", {}, ...rows), ...words.filter(Boolean));
    this.reachTips();
    if (at >= 0) tips()[Math.min(at, tips().length - 1)]?.focus();
  }
}
