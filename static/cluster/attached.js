// The line below a cluster that was taken from a launch target: how many of its nodes are free, and since when.

import { button } from "../kit/controls.js";
import { h } from "../kit/dom.js";
import { keepNames } from "../kit/language.js";

export class AttachedLine {
  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
    this.text = h("span.mw-attached-text", { role: "status" });
    const refresh = button("Refresh", {
      kind: "mw-attached-refresh",
      title: "Count the free nodes again",
      onclick: () => cluster.send("refresh"),
    });
    this.element = h(
      "div.mw-attached",
      { role: "group", "aria-label": "Nodes of the launch target" },
      this.text,
      refresh,
    );
    cluster.model.on("attached", () => cluster.redraw());
  }

  draw() {
    const { target, free, total, time } = this.cluster.model.attached;
    this.element.hidden = target === undefined;
    if (target === undefined) return;
    keepNames([target]);
    this.text.replaceChildren(h("b", { translate: "no" }, target), ` ${free} of ${total} nodes free at ${time}`);
  }

  /** The name of a node and its state in words, empty if nobody knows. @param {number} node */
  words(node) {
    const found = this.cluster.model.attached.nodes?.[node];
    return found ? `${found[0]}, ${stateOf(found)}` : "";
  }

  /** The state of a node for the head of its panel. @param {number} node */
  label(node) {
    const found = this.cluster.model.attached.nodes?.[node];
    return found && h("span.mw-node-state", { "data-free": String(found[1]) }, stateOf(found));
  }
}

/** @param {[name: string, isFree: boolean]} node */
const stateOf = ([, isFree]) => (isFree ? "free" : "in use");
