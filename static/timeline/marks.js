// Marks on the time axis and the distances between them.

import { css } from "../kit/palette.js";
import { AXIS } from "./layout.js";
import { line } from "./shapes.js";
import { amount } from "./units.js";

const NEAR = 7; // CSS pixels: a press so near to a mark is meant for it
const SNAP = 6; // CSS pixels from the edge of a block

/** Moments that a person marked, in seconds, ascending. */
export class Marks {
  constructor(chart) {
    this.chart = chart;
    this.times = [];
  }

  /** Put a mark at a tick, or take away the one that stands there. */
  toggle(tick) {
    const { frame, data, live } = this.chart;
    const { scale, unit } = data.layers[0];
    const near = this.times.findIndex((time) => Math.abs(frame.x(time / scale) - frame.x(tick)) < NEAR);
    if (near >= 0) {
      this.times.splice(near, 1);
      live.textContent = `Mark ${near + 1} is taken away.`;
    } else {
      const time = tick * scale;
      this.times = [...this.times, time].sort((one, other) => one - other);
      const place = this.times.indexOf(time);
      const after = place ? `, ${amount(time - this.times[place - 1], unit)} after mark ${place}` : "";
      live.textContent = `Mark ${place + 1} at ${amount(time, unit)}${after}.`;
    }
    this.chart.overpaint();
  }

  /** A mark at the pointer, else at the start of the block in focus, else in the middle. */
  toggleHere() {
    const { frame, pointer, pinned, focus, view } = this.chart;
    const place = pinned ?? focus;
    if (pointer && pointer.x >= frame.left && pointer.x <= frame.right) this.toggle(this.snapped(pointer));
    else if (place) this.toggle(place.layer.start[place.span]);
    else this.toggle((view.from + view.to) / 2);
  }

  clear() {
    this.times = [];
    this.chart.live.textContent = "All marks are taken away.";
    this.chart.overpaint();
  }

  /** The tick at a point, or the edge of a block of its lane where one is near. */
  snapped({ x, y }) {
    const { frame, plan } = this.chart;
    const tick = frame.tick(x);
    const lane = plan.lanes.find((lane) => frame.isLaneSeen(lane) && y >= lane.y && y < lane.y + lane.height);
    const span = lane ? lane.layer.at(lane.rank, tick, SNAP / frame.scale) : -1;
    if (span < 0) return tick;
    const edges = [lane.layer.start[span], lane.layer.end[span]];
    return edges.find((edge) => Math.abs(frame.x(edge) - x) <= SNAP) ?? tick;
  }

  paint(context) {
    const { frame, plan, colours, data } = this.chart;
    const { scale, unit } = data.layers[0];
    const at = this.times.map((time) => frame.x(time / scale));
    context.font = `600 11px ${colours.font}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    at.forEach((x, place) => {
      if (place) this._distance(context, at[place - 1], x, amount(this.times[place] - this.times[place - 1], unit));
    });
    at.forEach((x, place) => {
      if (x < frame.left - 1 || x > frame.right + 1) return;
      context.strokeStyle = css(colours.accent);
      context.lineWidth = 1.5;
      context.setLineDash([5, 3]);
      line(context, Math.round(x) + 0.5, AXIS, Math.round(x) + 0.5, plan.height);
      context.setLineDash([]);
      context.fillStyle = css(colours.accent);
      context.beginPath();
      context.roundRect(x - 7, 4, 14, AXIS - 6, 4);
      context.fill();
      context.fillStyle = css(colours.background);
      context.fillText(String(place + 1), x, AXIS / 2 + 1.5);
    });
  }

  /** From mark to mark: a line with its length, as much of it as is in view. */
  _distance(context, from, to, words) {
    const { frame, colours } = this.chart;
    const [a, b] = [Math.max(from, frame.left) + 8, Math.min(to, frame.right) - 8];
    if (b - a < 4) return;
    const y = AXIS - 4;
    context.strokeStyle = css(colours.accent);
    context.lineWidth = 1;
    line(context, a, y, b, y);
    const width = context.measureText(words).width + 10;
    if (width > b - a) return;
    const middle = (a + b) / 2;
    context.fillStyle = css(colours.background);
    context.fillRect(middle - width / 2, 1, width, AXIS - 2);
    context.fillStyle = css(colours.accent);
    context.fillText(words, middle, AXIS / 2 + 0.5);
  }
}
