// Marks on the stages that differ from the pinned design: the place where a stage was, and its additional layers.

/** @import { StageMark } from "./types" */

import { DifferenceLine, signOf } from "../kit/differences.js";
import { s } from "../kit/dom.js";
import { place } from "./layout.js";

const HEAD = 5; // length of the head of an arrow in CSS pixels

export class Differences {
  group = s("g", { "aria-hidden": "true" });

  /** @param {import("./wave.js").Wave} wave */
  constructor(wave) {
    this.wave = wave;
    this.line = new DifferenceLine(wave.model);
    wave.model.on(["differences", "marks_shown"], () => wave.redraw());
  }

  /** The marks of stages that are drawn. @returns {StageMark[]} */
  get marks() {
    const { routes } = this.wave;
    const marks = /** @type {StageMark[]} */ (this.line.marks);
    return marks.filter(({ replica, stage }) => routes[replica]?.[stage] !== undefined);
  }

  draw() {
    const { marks } = this;
    const moved = marks.filter(({ kind, mesh }) => kind === "moved" && mesh >= 0).map((mark) => this.way(mark));
    this.group.replaceChildren(...moved, ...this.signs(marks));
  }

  /** The differences of a stage, for its description. @param {number} stage */
  describe(stage) {
    const own = this.marks.filter((mark) => mark.stage === stage);
    const words = own.map((mark) => mark.words.replace(" -> ", " → ")).join(", ");
    return words && `; pinned design → open design: ${words}`;
  }

  /** The outline of the place where a stage was, and an arrow to its box. @param {StageMark} mark */
  way({ stage, replica, mesh }) {
    const { routes, layout } = this.wave;
    const { middle, width, height } = layout.slots[stage];
    const [from, to] = [layout.y(mesh), layout.y(routes[replica][stage])];
    const direction = Math.sign(to - from);
    const [start, end] = [from + (direction * height) / 2, to - (direction * height) / 2];
    const box = s("rect.mw-stage-was");
    place(box, { x: middle - width / 2, y: from - height / 2, width, height, rx: Math.min(7, width / 4) });
    const line = s("line.mw-way", { x1: middle, x2: middle, y1: start, y2: end });
    const base = end - direction * HEAD;
    const points = `${middle},${end} ${middle - HEAD / 2},${base} ${middle + HEAD / 2},${base}`;
    return s("g", { "data-stage": stage }, box, line, s("polygon.mw-way-head", { points }));
  }

  /** The signs of each stage, above its box. @param {StageMark[]} marks */
  signs(marks) {
    const { routes, layout } = this.wave;
    /** @type {Map<string, string>} */
    const texts = new Map();
    for (const { kind, stage, replica, layers } of marks) {
      const sign = kind === "layers" ? `${layers > 0 ? "+" : "−"}${Math.abs(layers)}` : signOf(kind);
      const key = `${replica} ${stage}`;
      texts.set(key, `${texts.get(key) ?? ""} ${kind === "added" ? "+ new" : sign}`.trim());
    }
    return [...texts].map(([key, text]) => {
      const [replica, stage] = key.split(" ").map(Number);
      const { middle, width, height } = layout.slots[stage];
      const at = {
        x: middle + width / 2,
        y: layout.y(routes[replica][stage]) - height / 2 + 3,
        "text-anchor": "middle",
      };
      return s("text.mw-stage-mark", at, text);
    });
  }
}
