// Marks on the meshes that differ from the pinned design: signs, and dashed outlines and arrows from where they were.

/** @import { Box } from "../kit/types" */
/** @import { MeshMark } from "./types" */

import { DifferenceLine, signOf } from "../kit/differences.js";
import { h, s } from "../kit/dom.js";
import { around, boxesOf, grow, px } from "./layout.js";
import { cover } from "./owners.js";

const HEAD = 7; // length of the head of an arrow in CSS pixels

export class Differences {
  layer = h("div.mw-layer.mw-through");

  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
    this.line = new DifferenceLine(cluster.model);
    cluster.model.on(["differences", "marks_shown"], () => cluster.redraw());
  }

  draw() {
    const marks = /** @type {MeshMark[]} */ (this.line.marks);
    const outlines = marks.flatMap((mark) => this.boxes(mark.devices).map((box) => outline(mark, box)));
    const arrows = marks.flatMap((mark) => (mark.kind === "moved" ? this.arrow(mark) : []));
    const drawing = s("svg.mw-links", { "aria-hidden": "true" }, ...arrows);
    this.layer.replaceChildren(...outlines, drawing, ...marks.flatMap((mark) => this.sign(mark)));
  }

  /** @param {number[]} devices */
  boxes(devices) {
    const { grid, layout } = this.cluster;
    const covers = devices.length ? cover(grid, devices) : [];
    return covers.flatMap((each) => boxesOf(layout, each)).map((box) => grow(box, 1));
  }

  /** The boxes of the mesh of a mark, or of the place where it was. @param {MeshMark} mark */
  boxesNow({ rank, devices }) {
    return this.boxes(this.cluster.meshList[rank]?.devices ?? devices);
  }

  /** @param {MeshMark} mark */
  arrow(mark) {
    const [from, to] = [this.boxes(mark.devices), this.boxesNow(mark)];
    if (!from.length || !to.length) return [];
    const [a, b] = [from, to].map((boxes) => middleOf(around(boxes)));
    const angle = Math.atan2(b.y - a.y, b.x - a.x);
    const corner = (/** @type {number} */ turn) =>
      `${b.x - HEAD * Math.cos(angle + turn)},${b.y - HEAD * Math.sin(angle + turn)}`;
    const head = s("polygon.mw-way-head", { points: `${b.x},${b.y} ${corner(0.45)} ${corner(-0.45)}` });
    return [s("line.mw-way", { x1: a.x, y1: a.y, x2: b.x, y2: b.y }), head];
  }

  /** The sign of a mark, on the lower edge of its mesh. @param {MeshMark} mark */
  sign(mark) {
    const [box] = this.boxesNow(mark);
    if (!box) return [];
    const { kind, name } = mark;
    const text = kind === "removed" ? `${signOf(kind)} ${name}` : signOf(kind);
    const style = { left: `${box.x + box.width / 2}px`, top: `${box.y + box.height}px` };
    return [h("span.mw-mark", { "data-kind": kind, "aria-hidden": "true", translate: "no", style }, text)];
  }
}

/** @param {MeshMark} mark @param {Box} box */
const outline = ({ kind }, box) => h("div.mw-was", { "data-kind": kind, style: px(box) });

/** @param {Box} box */
const middleOf = ({ x, y, width, height }) => ({ x: x + width / 2, y: y + height / 2 });
