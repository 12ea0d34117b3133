// What edit mode paints over the picture: chosen blocks, where they would land, what becomes later, the ring that
// waits for ever, what was moved.

import { clamp } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { OP, firstFrom } from "./columns.js";
import { box } from "./frame.js";
import { line } from "./shapes.js";

const SAME = 1e-6; // of the step: starts that differ by less are the same
const TINT = 0.3; // so that the words of a block stay legible

export class EditPainter {
  constructor(edit) {
    this.edit = edit;
    this.chart = edit.chart;
  }

  paint(context) {
    const { edit } = this;
    this.context = context;
    this.danger = this._colour("--danger");
    if (edit.preview?.delays) this._delays(edit.preview.delays);
    if (edit.state?.difference) this._differences(edit.state.difference);
    for (const span of edit.chosenSpans) this._frame(span, css(this.chart.colours.accent), 2.5, 0.18);
    const ring = edit.moving ? edit.preview?.ring : edit.state?.ring;
    if (ring?.length) this._ring(ring);
    if (edit.moving?.edit) this._ghost(edit.moving);
    if (edit.rectangle?.moved) this._rectangle(edit.rectangle);
  }

  /** A step that is tried: what starts at another time than it does now, and the stage that is carried. */
  paintTrial(context, { delays, stage, mesh }) {
    this.context = context;
    this._delays(delays);
    const { layer } = this.edit;
    const { frame, colours } = this.chart;
    const lane = this.chart.plan.laneOf(layer, mesh);
    if (!lane || !frame.isLaneSeen(lane)) return;
    const [first, last] = layer.range(0, mesh);
    for (
      let span = firstFrom(layer.end, Math.max(0, frame.from), first, last);
      span < last && layer.start[span] <= frame.to;
      span++
    ) {
      if (layer.stage[span] === stage && layer.op[span] <= OP.W && box(frame, layer, span, lane).width >= 5)
        this._frame(span, css(colours.accent), 2);
    }
  }

  _colour(variable) {
    const { probe } = this.chart;
    probe.style.color = `var(${variable})`;
    return getComputedStyle(probe).color;
  }

  _laneOf(span) {
    const { layer } = this.edit;
    return this.chart.plan.laneOf(layer, layer.rankOf(span));
  }

  _box(span) {
    return box(this.chart.frame, this.edit.layer, span, this._laneOf(span));
  }

  /** Blocks that would start later or earlier, one stroke a pixel where they are thin. */
  _delays(delays) {
    const { context, chart } = this;
    const { layer } = this.edit;
    const { frame, colours } = chart;
    if (delays.length !== layer.blocks) return;
    const least = SAME * layer.makespan;
    const tints = { later: css(colours.warning, TINT), earlier: css(colours.accent, TINT) };
    for (const lane of chart.plan.lanes) {
      if (lane.layer !== layer || !frame.isLaneSeen(lane)) continue;
      const [first, last] = layer.range(0, lane.rank);
      const from = firstFrom(layer.end, Math.max(0, frame.from), first, last);
      let painted = -1;
      for (let span = from; span < last && layer.start[span] <= frame.to; span++) {
        const delay = delays[span];
        if (Math.abs(delay) <= least) continue;
        const at = box(frame, layer, span, lane);
        const right = Math.ceil(at.x + at.width);
        if (right <= painted) continue;
        painted = right;
        const bar = clamp(at.height * 0.28, 1.5, 6);
        context.fillStyle = delay > 0 ? tints.later : tints.earlier;
        context.fillRect(at.x, at.y, Math.max(1, at.width - 1), at.height);
        if (at.height < 12 || at.width < 12) continue;
        context.fillStyle = delay > 0 ? css(colours.warning) : css(colours.accent);
        context.fillRect(at.x, at.y + at.height - bar, at.width - 1, bar);
      }
    }
  }

  /** Blocks that stand elsewhere than where one started, with the side that they came from. */
  _differences({ blocks, changed }) {
    const { context, edit } = this;
    const text = css(this.chart.colours.text);
    for (const [op, stage, mb, places] of blocks) {
      const span = edit.spanOf([op, stage, mb]);
      if (span < 0 || !this._isSeen(span)) continue;
      const at = this._frame(span, text, 1.6, 0, [4, 2]);
      if (at.width < 14 || at.height < 12 || !places) continue;
      const [x, y, side] = [places > 0 ? at.x + at.width - 4 : at.x + 3, at.y + 5, places > 0 ? -5 : 5];
      context.fillStyle = text;
      context.beginPath(); // points to where it went
      context.moveTo(x, y);
      context.lineTo(x + side, y - 3);
      context.lineTo(x + side, y + 3);
      context.fill();
    }
    for (const [op, stage, mb] of changed) {
      for (const name of [
        [op, stage, mb],
        [op + 1, stage, mb],
        [op + 2, stage, mb],
      ]) {
        const span = edit.spanOf(name);
        if (span >= 0 && this._isSeen(span)) this._frame(span, text, 1.6, 0, [1, 2]);
      }
    }
  }

  _isSeen(span) {
    const lane = this._laneOf(span);
    return lane && this.chart.frame.isSeen(this.edit.layer, span) && this.chart.frame.isLaneSeen(lane);
  }

  _frame(span, colour, width, fill = 0, dash = []) {
    const { context } = this;
    const at = this._box(span);
    const slim = at.width < 6 ? 2 : 0;
    context.beginPath();
    context.roundRect(at.x - slim, at.y, at.width - (slim ? 0 : 1) + 2 * slim, at.height, Math.min(3, at.height / 5));
    if (fill) {
      context.globalAlpha = fill;
      context.fillStyle = colour;
      context.fill();
      context.globalAlpha = 1;
    }
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.stroke();
    context.setLineDash([]);
    return at;
  }

  /** The chosen blocks on their way, and a mark where they would land. */
  _ghost({ mark, dx }) {
    const { context, edit, chart } = this;
    const { layer } = edit;
    const accent = css(chart.colours.accent);
    const lane = chart.plan.laneOf(layer, mark.rank);
    const x = this._markAt(mark);
    context.fillStyle = context.strokeStyle = edit.preview?.fault ? this.danger : accent;
    context.lineWidth = 2.5;
    line(context, x, lane.y - 3, x, lane.y + lane.height + 3);
    for (const [y, way] of [
      [lane.y - 3, 1],
      [lane.y + lane.height + 3, -1],
    ]) {
      context.beginPath();
      context.moveTo(x - 5, y - 5 * way);
      context.lineTo(x + 5, y - 5 * way);
      context.lineTo(x, y + 2 * way);
      context.fill();
    }
    if (dx === undefined) return;
    for (const span of edit.chosenSpans) {
      const at = this._box(span);
      context.globalAlpha = 0.5;
      context.fillStyle = css(chart.colours.ops[layer.op[span]]);
      context.fillRect(at.x + dx, at.y + 2, at.width - 1, at.height - 4);
      context.globalAlpha = 1;
      context.strokeStyle = accent;
      context.lineWidth = 1.5;
      context.strokeRect(at.x + dx, at.y + 2, at.width - 1, at.height - 4);
    }
  }

  /** Between what stands before the place and what stands after it. */
  _markAt({ rank, before, end }) {
    const { layer, chosenSpans } = this.edit;
    const { frame } = this.chart;
    const chosen = new Set(chosenSpans);
    const [first] = layer.range(0, rank);
    let last = (before < 0 ? end : before) - 1;
    while (last >= first && (chosen.has(last) || layer.op[last] > 3)) last--;
    const left = last >= first ? frame.x(layer.end[last]) : null;
    const right = before >= 0 ? frame.x(layer.start[before]) : null;
    if (left === null) return right === null ? frame.left : right - 2;
    return right === null || right - left > 24 ? left + 1 : (left + right) / 2;
  }

  /** The ring of blocks that wait for each other: what has to come before what. */
  _ring(ring) {
    const { context, edit } = this;
    context.strokeStyle = context.fillStyle = this.danger;
    ring.forEach(({ at, needs }, number) => {
      const [stands, needed] = [edit.spanOf(at), edit.spanOf(needs)];
      const next = edit.spanOf(ring[(number + 1) % ring.length].at);
      for (const span of new Set([stands, needed])) if (span >= 0) this._frame(span, this.danger, 2.5, 0.22);
      if (needed >= 0 && stands >= 0) this._arrow(needed, stands);
      if (next >= 0 && needed >= 0 && next !== needed) this._arrow(next, needed, [5, 3]);
    });
  }

  /** From a block that has to come first to one that has to come after: bent, so that both ways are seen. */
  _arrow(from, to, dash = []) {
    const { context } = this;
    const [a, b] = [this._box(from), this._box(to)];
    const [x1, y1] = [a.x + a.width / 2, a.y + a.height / 2];
    const [x2, y2] = [b.x + b.width / 2, b.y + b.height / 2];
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const bow = clamp(length * 0.25, 14, 60);
    const [cx, cy] = [(x1 + x2) / 2 + ((y2 - y1) / length) * bow, (y1 + y2) / 2 - ((x2 - x1) / length) * bow];
    context.strokeStyle = context.fillStyle = this.danger;
    context.lineWidth = 2.2;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x1, y1);
    context.quadraticCurveTo(cx, cy, x2, y2);
    context.stroke();
    context.setLineDash([]);
    const angle = Math.atan2(y2 - cy, x2 - cx);
    context.beginPath();
    context.moveTo(x2, y2);
    for (const turn of [2.7, -2.7]) context.lineTo(x2 + 10 * Math.cos(angle + turn), y2 + 10 * Math.sin(angle + turn));
    context.fill();
  }

  _rectangle({ from, to }) {
    const { context } = this;
    const { accent } = this.chart.colours;
    context.fillStyle = css(accent, 0.12);
    context.strokeStyle = css(accent);
    context.lineWidth = 1;
    context.fillRect(from.x, from.y, to.x - from.x, to.y - from.y);
    context.strokeRect(from.x + 0.5, from.y + 0.5, to.x - from.x, to.y - from.y);
  }
}
