// Tiling the cluster: three small numbers, and what they will do in words that Python finds.

import { button, h } from "../kit/canvas.js";

const AXES = { pp: "meshes in the pipeline", dp: "data parallel in a mesh", tp: "tensor parallel in a mesh" };

export class Tiler {
  constructor(cluster) {
    this.cluster = cluster;
    this.typed = false; // numbers that are not the design's
    this.fields = Object.entries(AXES).map(([axis, title]) => this.makeField(axis, title));
    this.button = button("Tile", { kind: "mw-tile-button", onclick: () => this.tile() });
    this.button.refuse = (reason) => cluster.sayAt(this.button, reason);
    const boxes = Object.keys(AXES).flatMap((axis, place) => [
      place ? h("span", { class: "mw-quiet" }, "×") : null,
      h("label", { class: "mw-size" }, h("span", {}, axis), this.fields[place]),
    ]);
    this.element = h(
      "div",
      { class: "mw-tiler", role: "group", "aria-label": "Tile the cluster" },
      ...boxes,
      this.button,
    );
    this.words = h("div", { class: "mw-tile-words mw-quiet", "aria-live": "polite" });
  }

  makeField(axis, title) {
    const field = h("input", {
      class: "mw-number",
      type: "number",
      min: 1,
      step: 1,
      value: 1,
      "aria-label": `${axis}: ${title}`,
      title,
    });
    field.addEventListener("input", () => {
      this.typed = true;
      this.try();
    });
    field.atRest = () => !this.typed; // then Ctrl+Z takes back an edit of the design
    field.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
      if (event.key === "Enter") this.button.click();
      if (event.key === "Escape") this.giveUp();
    });
    return field;
  }

  get sizes() {
    const [pp, dp, tp] = this.fields.map((field) => Number.parseInt(field.value, 10) || 0);
    return { pp, dp, tp };
  }

  /**
   * The sizes are those of the open design, where its meshes differ those of the first; but never over what is typed.
   */
  suggest() {
    const { root, model } = this.cluster;
    if (this.typed && this.fields.includes(root.getRootNode().activeElement)) return;
    const { meshes } = model;
    const sizes = [Math.max(1, meshes.length), meshes[0]?.dp ?? 1, meshes[0]?.tp ?? 1];
    this.fields.forEach((field, place) => (field.value = sizes[place]));
    this.typed = false;
  }

  try() {
    this.cluster.send("try_tile", this.sizes);
  }

  trySoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.try(), 60);
  }

  tile() {
    this.typed = false; // the design's, as soon as Python has answered
    this.cluster.send("tile", this.sizes);
  }

  giveUp() {
    this.typed = false;
    this.suggest();
    this.try();
  }

  /** What Python says of the sizes. */
  told({ possible, words }) {
    this.button.allow(possible, words);
    this.words.textContent = this.words.title = words;
    this.words.dataset.kind = possible ? "tell" : "no";
  }

  remove() {
    clearTimeout(this.timer);
  }
}
