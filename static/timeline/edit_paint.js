// The markings of edit mode over the picture: selected blocks, their new position, blocks that would start later or
// earlier, the cycle of a deadlock, and moved blocks.

/** @import { Box, Point } from "../kit/types" */
/** @import { Edit, Moving } from "./edit.js" */
/** @import { BlockName, InsertionMark, Lane, OrderState, Trial, Wait } from "./types" */

import { clamp } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { OP, lowerBound } from "./columns.js";
import { boxOf } from "./frame.js";
import { line, outline } from "./shapes.js";

const SAME = 1e-6; // part of the step; smaller changes of a start are not marked
const TINT = 0.3; // opacity that keeps labels legible

/** @typedef {{colour: string, width: number, fill?: number, dash?: number[]}} Style */

export class EditPainter {
  /** @type {CanvasRenderingContext2D} */ context;
  danger = "";

  /** @param {Edit} edit */
  constructor(edit) {
    this.edit = edit;
    this.chart = edit.chart;
  }

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { edit } = this;
    const { delays, ring: previewed = [] } = edit.preview ?? {};
    const { difference, ring = [] } = edit.state ?? {};
    const { colours } = this.chart;
    this.context = context;
    this.danger = css(colours.danger);
    if (delays) this.paintDelays(delays);
    if (difference) this.paintDifferences(difference);
    for (const span of edit.selectedSpans) this.frame(span, { colour: css(colours.accent), width: 2.5, fill: 0.18 });
    this.paintCycle(edit.moving ? previewed : ring);
    this.paintGesture();
  }

  /** Paint the move or the selection rectangle in progress. */
  paintGesture() {
    const { moving, drag } = this.edit;
    if (moving?.edit) this.paintMove(moving);
    if (drag?.isRectangle && drag.moved) this.paintRectangle(drag.from, drag.to);
  }

  /**
   * Paint changed starts in the step of a trial, and its stage.
   * @param {CanvasRenderingContext2D} context @param {Trial} trial
   */
  paintTrial(context, { delays, stage, mesh }) {
    this.context = context;
    this.paintDelays(delays);
    const { layer } = this.edit;
    const { frame, colours, plan } = this.chart;
    const lane = plan.laneOf(layer, mesh);
    if (!lane || !frame.isLaneVisible(lane)) return;
    const style = { colour: css(colours.accent), width: 2 };
    for (const span of this.blocksInView(lane)) {
      if (layer.stage[span] === stage && layer.op[span] <= OP.W && this.box(span).width >= 5) this.frame(span, style);
    }
  }

  // ── parts ──

  /** The blocks of a lane that are in view. @param {Lane} lane */
  *blocksInView({ layer, rank }) {
    const { frame } = this.chart;
    const [first, last] = layer.range(0, rank);
    let span = lowerBound(layer.end, Math.max(0, frame.from), first, last);
    for (; span < last && layer.start[span] <= frame.to; span++) yield span;
  }

  /** @param {number} span @returns {Lane | undefined} */
  laneOf(span) {
    const { layer } = this.edit;
    return this.chart.plan.laneOf(layer, layer.rankOf(span));
  }

  /** @param {number} span */
  box(span) {
    return boxOf(this.chart.frame, this.edit.layer, span, /** @type {Lane} */ (this.laneOf(span)));
  }

  /** @param {number} span */
  isVisible(span) {
    if (span < 0) return false;
    const { frame } = this.chart;
    const lane = this.laneOf(span);
    return lane && frame.isVisible(this.edit.layer, span) && frame.isLaneVisible(lane);
  }

  /** Draw a frame around a block; return the box of the block. @param {number} span @param {Style} style */
  frame(span, style) {
    const box = this.box(span);
    outline(this.context, box, style);
    return box;
  }

  /** Fill a polygon. @param {[number, number][]} points */
  polygon(points) {
    const { context } = this;
    context.beginPath();
    for (const [x, y] of points) context.lineTo(x, y);
    context.fill();
  }

  // ── changed starts ──

  /**
   * Tint blocks that would start later or earlier; thin blocks are tinted once per pixel.
   * @param {Float32Array} delays
   */
  paintDelays(delays) {
    const { layer } = this.edit;
    const { frame, plan } = this.chart;
    if (delays.length !== layer.blocks) return;
    for (const lane of plan.lanes) {
      if (lane.layer !== layer || !frame.isLaneVisible(lane)) continue;
      let painted = -1;
      for (const span of this.blocksInView(lane)) {
        if (Math.abs(delays[span]) <= SAME * layer.makespan) continue;
        const box = boxOf(frame, layer, span, lane);
        const right = Math.ceil(box.x + box.width);
        if (right <= painted) continue;
        painted = right;
        this.paintDelay(box, delays[span] > 0);
      }
    }
  }

  /** @param {Box} box @param {boolean} isLater */
  paintDelay({ x, y, width, height }, isLater) {
    const { context } = this;
    const { warning, accent } = this.chart.colours;
    const colour = isLater ? warning : accent;
    const bar = clamp(height * 0.28, 1.5, 6);
    context.fillStyle = css(colour, TINT);
    context.fillRect(x, y, Math.max(1, width - 1), height);
    if (height < 12 || width < 12) return;
    context.fillStyle = css(colour);
    context.fillRect(x, y + height - bar, width - 1, bar);
  }

  // ── differences ──

  /**
   * Frame moved blocks, each with an arrow to its new position.
   * @param {NonNullable<OrderState["difference"]>} difference
   */
  paintDifferences({ blocks, changed }) {
    const { edit, context } = this;
    const text = css(this.chart.colours.text);
    for (const [op, stage, mb, places] of blocks) {
      const span = edit.spanOf([op, stage, mb]);
      if (!this.isVisible(span)) continue;
      const { x, y, width, height } = this.frame(span, { colour: text, width: 1.6, dash: [4, 2] });
      if (width < 14 || height < 12 || !places) continue;
      const [tip, side] = places > 0 ? [x + width - 4, -5] : [x + 3, 5];
      context.fillStyle = text;
      this.polygon([
        [tip, y + 5],
        [tip + side, y + 2],
        [tip + side, y + 8],
      ]);
    }
    const halves = changed.flatMap(([op, stage, mb]) =>
      [op, op + 1, op + 2].map((each) => /** @type {BlockName} */ ([each, stage, mb])),
    );
    for (const span of halves.map((name) => edit.spanOf(name)))
      if (this.isVisible(span)) this.frame(span, { colour: text, width: 1.6, dash: [1, 2] });
  }

  // ── a move ──

  /** Mark the new position of the selected blocks, and draw the blocks at the pointer. @param {Moving} moving */
  paintMove({ mark, dx }) {
    const { context, edit, chart } = this;
    const { y, height } = chart.plan.laneOf(edit.layer, mark.rank);
    const x = this.markX(mark);
    const colour = edit.preview?.fault ? this.danger : css(chart.colours.accent);
    context.fillStyle = context.strokeStyle = colour;
    context.lineWidth = 2.5;
    const ends = /** @type {const} */ ([
      [y - 3, 1],
      [y + height + 3, -1],
    ]);
    line(context, x, ends[0][0], x, ends[1][0]);
    for (const [end, way] of ends) {
      const base = end - 5 * way;
      this.polygon([
        [x - 5, base],
        [x + 5, base],
        [x, end + 2 * way],
      ]);
    }
    if (dx !== undefined) for (const span of edit.selectedSpans) this.paintGhost(span, dx);
  }

  /** @param {number} span @param {number} dx */
  paintGhost(span, dx) {
    const { context } = this;
    const { colours } = this.chart;
    const { x, y, width, height } = this.box(span);
    context.globalAlpha = 0.5;
    context.fillStyle = css(colours.ops[this.edit.layer.op[span]]);
    context.fillRect(x + dx, y + 2, width - 1, height - 4);
    context.globalAlpha = 1;
    context.strokeStyle = css(colours.accent);
    context.lineWidth = 1.5;
    context.strokeRect(x + dx, y + 2, width - 1, height - 4);
  }

  /** The x between the blocks before and after the new position of the moved blocks. @param {InsertionMark} mark */
  markX({ rank, before, end }) {
    const { layer, selectedSpans } = this.edit;
    const { frame } = this.chart;
    const moved = new Set(selectedSpans);
    const [first] = layer.range(0, rank);
    let last = (before < 0 ? end : before) - 1;
    while (last >= first && (moved.has(last) || layer.op[last] > OP.W)) last--;
    const left = last >= first ? frame.x(layer.end[last]) : -Infinity;
    const right = before >= 0 ? frame.x(layer.start[before]) : Infinity;
    if (right - left <= 24) return (left + right) / 2;
    if (last >= first) return left + 1;
    return before >= 0 ? right - 2 : frame.left;
  }

  /** @param {Point} from @param {Point} to */
  paintRectangle(from, to) {
    const { context } = this;
    const { accent } = this.chart.colours;
    context.fillStyle = css(accent, 0.12);
    context.strokeStyle = css(accent);
    context.lineWidth = 1;
    context.fillRect(from.x, from.y, to.x - from.x, to.y - from.y);
    context.strokeRect(from.x + 0.5, from.y + 0.5, to.x - from.x, to.y - from.y);
  }

  // ── a deadlock ──

  /** Draw the cycle of blocks that wait for each other. @param {Wait[]} cycle */
  paintCycle(cycle) {
    const { edit } = this;
    cycle.forEach(({ at, needs }, i) => {
      const [waiting, needed] = [edit.spanOf(at), edit.spanOf(needs)];
      const next = edit.spanOf(cycle[(i + 1) % cycle.length].at);
      for (const span of new Set([waiting, needed]))
        if (span >= 0) this.frame(span, { colour: this.danger, width: 2.5, fill: 0.22 });
      if (needed >= 0 && waiting >= 0) this.paintArrow(needed, waiting);
      if (next >= 0 && needed >= 0 && next !== needed) this.paintArrow(next, needed, [5, 3]);
    });
  }

  /**
   * Draw an arrow from a block to a block that has to come after it. The arrow is bent, so that two opposite arrows
   * differ.
   * @param {number} from @param {number} to @param {number[]} [dash]
   */
  paintArrow(from, to, dash = []) {
    const { context } = this;
    const [[x1, y1], [x2, y2]] = [from, to].map((span) => {
      const { x, y, width, height } = this.box(span);
      return [x + width / 2, y + height / 2];
    });
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const bend = clamp(length * 0.25, 14, 60) / length;
    const [cx, cy] = [(x1 + x2) / 2 + (y2 - y1) * bend, (y1 + y2) / 2 - (x2 - x1) * bend];
    context.strokeStyle = context.fillStyle = this.danger;
    context.lineWidth = 2.2;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x1, y1);
    context.quadraticCurveTo(cx, cy, x2, y2);
    context.stroke();
    context.setLineDash([]);
    const angle = Math.atan2(y2 - cy, x2 - cx);
    const side = (/** @type {number} */ turn) =>
      /** @type {[number, number]} */ ([x2 + 10 * Math.cos(angle + turn), y2 + 10 * Math.sin(angle + turn)]);
    this.polygon([[x2, y2], side(2.7), side(-2.7)]);
  }
}
