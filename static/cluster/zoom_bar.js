// The controls of the zoom of a large cluster, and the level to which its nodes are folded.

import { button } from "../kit/controls.js";
import { h } from "../kit/dom.js";

const STEP = 1.5;

export class ZoomBar {
  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
    const zoom = (/** @type {string} */ label, /** @type {string} */ content, /** @type {number} */ factor) =>
      button(label, { content, kind: "mw-icon", title: `${label} (${content})`, onclick: () => this.step(factor) });
    this.outward = zoom("Zoom out", "−", 1 / STEP);
    this.inward = zoom("Zoom in", "+", STEP);
    this.whole = button("Fit", { title: "Show the whole cluster (0)", onclick: () => cluster.view.fit() });
    this.level = h("span.mw-quiet", { "aria-live": "polite" });
    this.element = h("span.mw-zoom", {}, this.outward, this.inward, this.whole, this.level);
  }

  /** Zoom around the middle of the board. @param {number} factor */
  step(factor) {
    const { layout, view } = this.cluster;
    view.zoom(factor, { x: layout.width / 2, y: layout.height / 2 });
  }

  draw() {
    const { groups, isLarge, layout, view } = this.cluster;
    const { mostScale = 1 } = layout;
    this.element.hidden = !isLarge;
    this.level.textContent = groups.level;
    this.outward.enable(view.scale > 1);
    this.inward.enable(view.scale < mostScale);
    this.whole.enable(view.scale > 1);
  }
}
