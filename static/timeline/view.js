// The visible part of the step, and its movements: zoom, pan, fit, animation.

/** @import { Chart } from "./timeline.js" */
/** @import { Place, ViewWindow } from "./types" */

import { clamp } from "../kit/numbers.js";
import { TICKS } from "./columns.js";
import { isHidden } from "./place.js";

const MARGIN = 0.012; // margin left and right of the step, as a part of the step
const WHOLE = { from: -MARGIN * TICKS, to: (1 + MARGIN) * TICKS, scroll: 0 };
const WIDEST = WHOLE.to - WHOLE.from;
const LEAST_TICKS = 400;
const GLIDE_MS = 130;
const THIN = 4; // least width of a search match in CSS pixels

/** A window on the time axis in ticks, and the scroll position of the lanes in CSS pixels. */
export class View {
  from = WHOLE.from;
  to = WHOLE.to;
  scroll = 0;
  frame = 0; // handle of the animation
  /** The window at the end of an animation. @type {ViewWindow | null} */ target = null;

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
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
    this.place = WHOLE;
  }

  /** Keep the same interval in seconds on an axis that is longer by a factor. @param {number} ratio */
  rescale(ratio) {
    if (!this.isWhole) this.look(this.from * ratio, this.to * ratio);
  }

  /**
   * Show a window that is at least as wide as a block and at most as wide as the step.
   * @param {number} from @param {number} to
   */
  look(from, to) {
    const shortest = Math.min(...this.chart.data.layers.map((layer) => layer.shortest));
    const span = clamp(to - from, Math.min(Math.max(LEAST_TICKS, shortest * 1.4), WIDEST), WIDEST);
    const middle = (from + to) / 2;
    this.from = clamp(middle - span / 2, WHOLE.from, WHOLE.to - span);
    this.to = this.from + span;
  }

  /**
   * Zoom and keep the time and the lane at a point in place.
   * @param {number} factor @param {number} x @param {number} y
   */
  zoom(factor, x, y) {
    const { frame } = this.chart;
    const tick = frame.tick(x);
    const scrollToLane = this.holdLane(y);
    const span = (this.to - this.from) / factor;
    const part = (x - frame.left) / (frame.right - frame.left);
    this.look(tick - part * span, tick + (1 - part) * span);
    this.scroll = scrollToLane();
    this.chart.repaint();
  }

  /**
   * Return a function that computes the scroll position at which the lane that is now at a y is there again.
   * @param {number} y
   */
  holdLane(y) {
    const { plan } = this.chart;
    const scrolled = plan.lanes.filter((lane) => !lane.kept);
    const lane = scrolled.find((lane) => y < lane.y + lane.height) ?? scrolled.at(-1) ?? plan.lanes[0];
    if (!lane) return () => this.scroll;
    const part = clamp((y - lane.y) / lane.height, 0, 1);
    return () => {
      const after = this.chart.layout();
      const now = after.laneOf(lane.layer, lane.rank);
      return Math.max(0, now.y + part * now.height + after.scroll - Math.max(y, after.split));
    };
  }

  /** @param {number} dx @param {number} [dy] in CSS pixels */
  pan(dx, dy = 0) {
    const ticks = dx / this.chart.frame.scale;
    this.look(this.from + ticks, this.to + ticks);
    this.scroll = clamp(this.scroll + dy, 0, Math.max(0, this.chart.plan.content));
    this.chart.repaint();
  }

  fit() {
    this.glide(WHOLE);
  }

  /** Move to a window with an animation. @param {{from: number, to: number, scroll?: number}} window */
  glide({ from, to, scroll = this.scroll }) {
    this.stop();
    const start = this.place;
    const began = performance.now();
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.target = { from, to, scroll };
    const step = (/** @type {number} */ now) => {
      const part = isStill ? 1 : clamp((now - began) / GLIDE_MS, 0, 1);
      const eased = 1 - (1 - part) ** 3;
      const interpolate = (/** @type {number} */ a, /** @type {number} */ b) => a + (b - a) * eased;
      this.look(interpolate(start.from, from), interpolate(start.to, to));
      this.scroll = interpolate(start.scroll, scroll);
      this.chart.paint();
      if (part < 1) this.frame = requestAnimationFrame(step);
      else this.target = null;
    };
    this.frame = requestAnimationFrame(step);
  }

  /** Stop the animation. */
  stop() {
    cancelAnimationFrame(this.frame);
    this.target = null;
  }

  // ── steps of keys, which start at the target of an animation in progress, so that steps add up ──

  /** @param {{from: number, to: number, scroll?: number}} window */
  stepTo({ from, to, scroll = (this.target ?? this).scroll }) {
    const span = Math.min(to - from, WIDEST);
    const start = clamp(from, WHOLE.from, WHOLE.to - span);
    this.glide({ from: start, to: start + span, scroll });
  }

  /** Move along the axis by a part of the visible interval. @param {number} part */
  stepAlong(part) {
    const { from, to } = this.target ?? this;
    this.stepTo({ from: from + part * (to - from), to: to + part * (to - from) });
  }

  /** Move across the lanes by a part of the visible height. @param {number} part */
  stepAcross(part) {
    const { frame, plan } = this.chart;
    const { from, to, scroll } = this.target ?? this;
    const room = frame.bottom - plan.split;
    this.stepTo({ from, to, scroll: clamp(scroll + part * room, 0, Math.max(0, plan.content - room)) });
  }

  /** Zoom around the pointer if it is over the lanes, else around the middle. @param {number} factor */
  stepZoom(factor) {
    const { frame, pointer } = this.chart;
    const { from, to } = this.target ?? this;
    const at = pointer && pointer.x > frame.left && pointer.x < frame.right ? pointer : null;
    const part = at ? (at.x - frame.left) / (frame.right - frame.left) : 0.5;
    const y = at ? clamp(at.y, frame.split, frame.bottom) : (frame.split + frame.bottom) / 2;
    const scrollToLane = this.holdLane(y);
    const tick = from + part * (to - from);
    const span = (to - from) / factor;
    const before = this.place;
    this.look(tick - part * span, tick + (1 - part) * span);
    const window = { from: this.from, to: this.to, scroll: scrollToLane() };
    this.place = before;
    this.stepTo(window);
  }

  // ── to a place ──

  /** Bring a span into view by panning or, if it is too thin to be seen, by zooming. @param {Place} place */
  reveal(place) {
    const { layer, span } = place;
    const { frame } = this.chart;
    const width = frame.x(layer.end[span]) - frame.x(layer.start[span]);
    if (width < THIN && layer.duration(span) > 0) this.show(place, 60);
    else this.panTo(place);
  }

  /** Show the lane of a span if it is hidden. @param {Place} place */
  unhide(place) {
    const { chart } = this;
    const row = chart.rows.find((row) => row.includes(place.layer));
    if (row && isHidden(chart, place)) chart.collapse.unfold(row, place.layer.rankOf(place.span));
    if (isHidden(chart, place)) chart.filter.set("");
  }

  /** Pan by the smallest amount that brings a span into view. @param {Place} place */
  panTo({ layer, span }) {
    const { frame } = this.chart;
    this.unhide({ layer, span });
    const [x, right] = [frame.x(layer.start[span]), frame.x(layer.end[span])];
    const { y, height, kept } = this.chart.plan.laneOf(layer, layer.rankOf(span));
    const isLeft = x < frame.left;
    const toRight = right > frame.right ? Math.min(right - frame.right + 40, x - frame.left) : 0;
    const dx = isLeft ? x - frame.left - 40 : toRight;
    const above = Math.min(0, y - frame.split - 4);
    const below = Math.max(0, y + height - frame.bottom + 4);
    const dy = kept ? 0 : above + below;
    if (dx || above || below) this.pan(dx, dy);
  }

  /**
   * Move to a span with an animation, so that the span and its neighbours fill the view.
   * @param {Place} place @param {number} [spans]
   */
  show({ layer, span }, spans = 5) {
    this.unhide({ layer, span });
    const [start, end] = [layer.start[span], layer.end[span]];
    const half = (Math.max(end - start, 1) * spans) / 2;
    const middle = (start + end) / 2;
    const before = this.place;
    this.look(middle - half, middle + half);
    const target = this.place;
    const { content, size, scroll, laneOf } = this.chart.layout();
    this.place = before;
    const room = size.bottom - size.split;
    const { y, height, kept } = laneOf(layer, layer.rankOf(span));
    const laneMiddle = y + height / 2 + scroll - size.split;
    const centred = clamp(laneMiddle - room / 2, 0, Math.max(0, content - room));
    this.glide({ ...target, scroll: kept ? this.scroll : centred });
  }
}
