// Marks on the time axis and the distances between them.

/** @import { Point } from "../kit/types" */
/** @import { Chart } from "./timeline.js" */

import { css } from "../kit/palette.js";
import { AXIS } from "./layout.js";
import { laneAt } from "./place.js";
import { line, textWidth, write } from "./shapes.js";
import { amount, timeText } from "./units.js";

const NEAR = 7; // CSS pixels within which a press hits a mark
const SNAP = 6; // CSS pixels within which a mark snaps to the edge of a block

export class Marks {
  /** Seconds, ascending. @type {number[]} */ times = [];

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
  }

  /** Add a mark at a tick, or remove the existing mark. @param {number} tick */
  toggle(tick) {
    const { frame, data, live } = this.chart;
    const { scale, unit } = data.layers[0];
    const near = this.times.findIndex((time) => Math.abs(frame.x(time / scale) - frame.x(tick)) < NEAR);
    if (near >= 0) {
      this.times.splice(near, 1);
      live.textContent = `Mark ${near + 1} removed.`;
    } else {
      const time = tick * scale;
      this.times = [...this.times, time].sort((a, b) => a - b);
      const at = this.times.indexOf(time);
      const after = at ? `, ${timeText(time - this.times[at - 1], unit)} after mark ${at}` : "";
      live.textContent = `Mark ${at + 1} at ${timeText(time, unit)}${after}.`;
    }
    this.chart.overpaint();
  }

  /** Toggle a mark at the pointer, else at the start of the focused block, else in the middle of the view. */
  toggleHere() {
    const { frame, pointer, pinned, focus, view } = this.chart;
    const place = pinned ?? focus;
    if (pointer && pointer.x >= frame.left && pointer.x <= frame.right) this.toggle(this.snap(pointer));
    else if (place) this.toggle(place.layer.start[place.span]);
    else this.toggle((view.from + view.to) / 2);
  }

  clear() {
    this.times = [];
    this.chart.live.textContent = "All marks removed.";
    this.chart.overpaint();
  }

  /** The tick at a point, or the tick of a block's edge near the point. @param {Point} point */
  snap(point) {
    const { frame } = this.chart;
    const tick = frame.tick(point.x);
    const lane = laneAt(this.chart, point);
    const span = lane ? lane.layer.at(lane.rank, tick, SNAP / frame.scale) : -1;
    if (!lane || span < 0) return tick;
    const edges = [lane.layer.start[span], lane.layer.end[span]];
    return edges.find((edge) => Math.abs(frame.x(edge) - point.x) <= SNAP) ?? tick;
  }

  /** The tick of the mark at a point; without a mark, of a block's edge or the point. @param {Point} point */
  snapToMark(point) {
    const { frame, data } = this.chart;
    const ticks = this.times.map((time) => time / data.layers[0].scale);
    return ticks.find((tick) => Math.abs(frame.x(tick) - point.x) < NEAR) ?? this.snap(point);
  }

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { frame, data } = this.chart;
    const { scale, unit } = data.layers[0];
    const at = this.times.map((time) => frame.x(time / scale));
    at.forEach((x, i) => {
      if (i) this.paintDistance(context, at[i - 1], x, amount(this.times[i] - this.times[i - 1], unit));
    });
    at.forEach((x, i) => {
      if (x >= frame.left - 1 && x <= frame.right + 1) this.paintMark(context, x, String(i + 1));
    });
  }

  get style() {
    const { colours } = this.chart;
    const align = /** @type {CanvasTextAlign} */ ("center");
    return { font: `600 11px ${colours.font}`, colour: css(colours.background), align };
  }

  /** @param {CanvasRenderingContext2D} context @param {number} x @param {string} name */
  paintMark(context, x, name) {
    const { plan, colours } = this.chart;
    context.strokeStyle = context.fillStyle = css(colours.accent);
    context.lineWidth = 1.5;
    context.setLineDash([5, 3]);
    line(context, Math.round(x) + 0.5, AXIS, Math.round(x) + 0.5, plan.height);
    context.setLineDash([]);
    context.beginPath();
    context.roundRect(x - 7, 4, 14, AXIS - 6, 4);
    context.fill();
    write(context, name, x, AXIS / 2 + 1.5, this.style);
  }

  /**
   * Paint the visible part of a line between two marks, with the distance.
   * @param {CanvasRenderingContext2D} context @param {number} from @param {number} to @param {string} words
   */
  paintDistance(context, from, to, words) {
    const { frame, colours } = this.chart;
    const [a, b] = [Math.max(from, frame.left) + 8, Math.min(to, frame.right) - 8];
    if (b - a < 4) return;
    const y = AXIS - 4;
    context.strokeStyle = css(colours.accent);
    context.lineWidth = 1;
    line(context, a, y, b, y);
    const { style } = this;
    context.font = style.font;
    const width = textWidth(context, words) + 10;
    if (width > b - a) return;
    const middle = (a + b) / 2;
    context.fillStyle = css(colours.background);
    context.fillRect(middle - width / 2, 1, width, AXIS - 2);
    write(context, words, middle, AXIS / 2 + 0.5, { ...style, colour: css(colours.accent) });
  }
}
