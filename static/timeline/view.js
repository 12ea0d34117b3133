// What part of the step is in view, and how it moves there: zoom, pan, fit, gliding.

import { clamp } from "../kit/numbers.js";
import { TICKS } from "./columns.js";

const MARGIN = 0.012; // of the step, left and right of it
const WHOLE = { from: -MARGIN * TICKS, to: (1 + MARGIN) * TICKS };
const WIDEST = (1 + 2 * MARGIN) * TICKS;
const GLIDE = 130; // milliseconds
const THIN = 4; // CSS pixels: a block that is stepped to is seen at least so wide

/** A window on the time axis in ticks, `from` to `to`, and the pixels that the lanes are scrolled by. */
export class View {
  constructor(chart) {
    this.chart = chart;
    this.showWhole();
  }

  get place() {
    return { from: this.from, to: this.to, scroll: this.scroll };
  }

  set place({ from, to, scroll }) {
    Object.assign(this, { from, to, scroll });
  }

  get isWhole() {
    return this.to - this.from > WIDEST * 0.999;
  }

  showWhole() {
    this.place = { ...WHOLE, scroll: 0 };
  }

  /** Stay at the same seconds on an axis that is so many times as long, or at the whole step. */
  rescale(ratio) {
    if (!this.isWhole) this.look(this.from * ratio, this.to * ratio);
  }

  /** Look at a window, no smaller than a block and no wider than the step. */
  look(from, to) {
    const least = Math.max(400, Math.min(...(this.chart.data?.layers ?? []).map((layer) => layer.shortest)) * 1.4);
    const span = clamp(to - from, Math.min(least, WIDEST), WIDEST);
    const middle = (from + to) / 2;
    this.from = clamp(middle - span / 2, WHOLE.from, WHOLE.to - span);
    this.to = this.from + span;
  }

  /** Zoom so that what is under (x, y) stays there, in time and, while lanes grow, among the lanes. */
  zoom(factor, x, y) {
    const { frame } = this.chart;
    const tick = frame.tick(x);
    const hold = this._holdLane(y);
    const span = (this.to - this.from) / factor;
    const left = (x - frame.left) / (frame.right - frame.left);
    this.look(tick - left * span, tick + (1 - left) * span);
    this.scroll = hold();
    this.chart.repaint();
  }

  /** Remember the lane at a height of the canvas; returns what tells the scroll that puts it there again. */
  _holdLane(y) {
    const { plan } = this.chart;
    const scrolled = plan.lanes.filter((lane) => !lane.kept);
    const { layer, rank, ...lane } =
      scrolled.find((lane) => y < lane.y + lane.height) ?? scrolled.at(-1) ?? plan.lanes[0];
    const part = clamp((y - lane.y) / lane.height, 0, 1);
    return () => {
      const after = this.chart.layout();
      const now = after.laneOf(layer, rank);
      return Math.max(0, now.y + part * now.height + after.scroll - Math.max(y, after.split));
    };
  }

  pan(dx, dy = 0) {
    const ticks = dx / this.chart.frame.scale;
    this.look(this.from + ticks, this.to + ticks);
    this.scroll = clamp(this.scroll + dy, 0, Math.max(0, this.chart.plan.content));
    this.chart.repaint();
  }

  fit() {
    this.glide({ ...WHOLE, scroll: 0 });
  }

  /** Show a time range, in ticks, gliding there. */
  glide({ from, to, scroll = this.scroll }) {
    this.stop();
    const start = this.place;
    const began = performance.now();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.target = { from, to, scroll };
    const step = (now) => {
      const part = still ? 1 : clamp((now - began) / GLIDE, 0, 1);
      const eased = 1 - (1 - part) ** 3;
      const between = (a, b) => a + (b - a) * eased;
      this.look(between(start.from, from), between(start.to, to));
      this.scroll = between(start.scroll, scroll);
      this.chart.paint();
      if (part < 1) this.gliding = requestAnimationFrame(step);
      else this.target = null;
    };
    this.gliding = requestAnimationFrame(step);
  }

  /** Stay where a glide has come to. */
  stop() {
    cancelAnimationFrame(this.gliding);
    this.target = null;
  }

  /** One step of a key: from where a glide is heading, so that steps add up. */
  step(change) {
    const { from, to, scroll } = this.target ?? this;
    const next = change({ from, to, span: to - from, scroll });
    const wide = Math.min(next.to - next.from, WIDEST);
    const start = clamp(next.from, WHOLE.from, WHOLE.to - wide);
    this.glide({ from: start, to: start + wide, scroll: next.scroll ?? scroll });
  }

  /** Along the axis by a part of what is in view. */
  stepAlong(part) {
    this.step(({ from, to, span }) => ({ from: from + part * span, to: to + part * span }));
  }

  /** Across the lanes by a part of what is in view. */
  stepAcross(part) {
    const { frame, plan } = this.chart;
    const room = frame.bottom - plan.split;
    this.step(({ from, to, scroll }) => ({
      from,
      to,
      scroll: clamp(scroll + part * room, 0, Math.max(0, plan.content - room)),
    }));
  }

  /** Zoom by key: around the pointer where it is over the lanes, else around the middle. */
  stepZoom(factor) {
    const { frame, pointer } = this.chart;
    const inside = pointer && pointer.x > frame.left && pointer.x < frame.right;
    const part = inside ? (pointer.x - frame.left) / (frame.right - frame.left) : 0.5;
    const hold = this._holdLane(
      inside ? clamp(pointer.y, frame.split, frame.bottom) : (frame.split + frame.bottom) / 2,
    );
    this.step(({ from, span }) => {
      const tick = from + part * span;
      const wide = span / factor;
      const before = this.place;
      this.look(tick - part * wide, tick + (1 - part) * wide);
      const next = { from: this.from, to: this.to, scroll: hold() };
      this.place = before;
      return next;
    });
  }

  /** Bring a span into view: by panning just enough, or, where it is too thin to be seen, by going to it. */
  reveal(place) {
    const { layer, span } = place;
    const { frame } = this.chart;
    const [x, right] = [frame.x(layer.start[span]), frame.x(layer.end[span])];
    if (right - x < THIN && layer.duration(span) > 0) this.show(place, 60);
    else this.bringIn(place);
  }

  /** Pan just enough to have a span in view. */
  bringIn({ layer, span }) {
    const { frame, plan } = this.chart;
    const [x, right] = [frame.x(layer.start[span]), frame.x(layer.end[span])];
    const lane = plan.laneOf(layer, layer.rankOf(span));
    const aside =
      x < frame.left
        ? x - frame.left - 40
        : right > frame.right
          ? Math.min(right - frame.right + 40, x - frame.left)
          : 0;
    const above = lane.kept ? 0 : Math.min(0, lane.y - frame.split - 4);
    const below = lane.kept ? 0 : Math.max(0, lane.y + lane.height - frame.bottom + 4);
    if (aside || above || below) this.pan(aside, above + below);
  }

  /** Glide to a span, so that it and what is around it fill the view. */
  show({ layer, span }, wide = 5) {
    const { plan } = this.chart;
    const [start, end] = [layer.start[span], layer.end[span]];
    const half = (Math.max(end - start, 1) * wide) / 2;
    const lane = plan.laneOf(layer, layer.rankOf(span));
    const middle = (start + end) / 2;
    const before = this.place;
    this.look(middle - half, middle + half);
    const target = this.place;
    const { content, size, scroll: scrolled, laneOf } = this.chart.layout();
    this.place = before;
    const room = size.bottom - size.split;
    const now = laneOf(layer, layer.rankOf(span));
    const middleOf = now.y + now.height / 2 + scrolled - size.split;
    const scroll = lane.kept ? this.scroll : clamp(middleOf - room / 2, 0, Math.max(0, content - room));
    this.glide({ ...target, scroll });
  }
}
