// Tiling of the cluster: four numbers, and a description of their effect that Python computes.

/** @import { Message } from "../kit/types" */

import { button } from "../kit/controls.js";
import { focusedElement, h } from "../kit/dom.js";

const AXES = {
  pp: "meshes in the pipeline",
  dp: "data parallelism per mesh",
  cp: "context parallelism per mesh",
  tp: "tensor parallelism per mesh",
};

export class Tiler {
  isTyped = false; // true if the numbers differ from those of the design
  unanswered = 0; // tilings that Python has not answered yet
  timer = 0;

  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
    this.fields = Object.entries(AXES).map(([axis, title]) => this.makeField(axis, title));
    this.button = button("Tile", { kind: "mw-tile-button", onclick: () => this.tile() });
    this.button.onblocked = (reason) => cluster.announceAt(this.button, reason);
    const labels = Object.keys(AXES).flatMap((axis, i) => [
      i ? h("span.mw-quiet", {}, "×") : "",
      h("label.mw-size", {}, h("span", {}, axis), this.fields[i]),
    ]);
    this.element = h("div.mw-tiler", { role: "group", "aria-label": "Tile the cluster" }, ...labels, this.button);
    this.message = h("div.mw-tile-words.mw-quiet", { "aria-live": "polite" });
  }

  /** @param {string} axis @param {string} title */
  makeField(axis, title) {
    const number = { type: "number", min: 1, step: 1, value: 1 };
    const field = h("input.mw-number", { ...number, "aria-label": `${axis}: ${title}`, title });
    field.isUnedited = () => !this.isTyped;
    field.addEventListener("input", () => {
      this.isTyped = true;
      this.try();
    });
    field.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
      if (event.key === "Enter") this.button.click();
      if (event.key === "Escape") this.revert();
    });
    return field;
  }

  get sizes() {
    const [pp, dp, cp, tp] = this.fields.map((field) => Number.parseInt(field.value, 10) || 0);
    return { pp, dp, cp, tp };
  }

  /**
   * Show the sizes of the design (of its first mesh if meshes differ), unless the user is typing or a tiling is on its
   * way: sizes that were typed after it must not be replaced by its result.
   */
  update() {
    const { root, meshList: meshes } = this.cluster;
    const focused = focusedElement(root);
    if (this.unanswered > 1) return; // the last one sets the sizes
    if (this.isTyped && (this.unanswered || this.fields.some((field) => field === focused))) return;
    const { dp = 1, cp = 1, tp = 1 } = Object.fromEntries(meshes[0]?.axes ?? []);
    const sizes = [Math.max(1, meshes.length), dp, cp, tp];
    this.fields.forEach((field, i) => (field.value = String(sizes[i])));
    this.isTyped = false;
  }

  try() {
    this.cluster.send("try_tile", this.sizes);
  }

  trySoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.try(), 60);
  }

  tile() {
    this.isTyped = false; // the typed sizes become the sizes of the design
    if (this.cluster.send("tile", this.sizes)) this.unanswered++;
  }

  onTiled() {
    this.unanswered = Math.max(0, this.unanswered - 1);
  }

  revert() {
    this.isTyped = false;
    this.update();
    this.try();
  }

  /** Show the effect of the sizes. @param {Message} message */
  onTried({ possible, words }) {
    this.button.enable(possible, words);
    this.message.textContent = this.message.title = words;
    this.message.dataset.kind = possible ? "info" : "error";
  }

  remove() {
    clearTimeout(this.timer);
  }
}
