// The overlay of the picture: the pinned block with its flow, the critical path, search matches, the selected area,
// marks, the focus and the pointer.

/** @import { Layer } from "./data.js" */
/** @import { Shapes } from "./shapes.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { Flow, Label, Place } from "./types" */

import { clamp } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { Flags } from "./flags.js";
import { flowOf } from "./flow.js";
import { boxOf } from "./frame.js";
import { AXIS } from "./layout.js";
import { Notes } from "./notes.js";
import { twinOf } from "./place.js";
import * as shapes from "./shapes.js";
import { amount } from "./units.js";

export class Overlay {
  /** @type {CanvasRenderingContext2D} */ context;
  /** @type {Shapes} */ pen;

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    this.flags = new Flags(chart);
    this.notes = new Notes(chart);
  }

  paint() {
    const { chart } = this;
    const context = chart.over.getContext("2d");
    if (!chart.frame || !context) return;
    const { ratio } = chart.frame;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, chart.plan.width, chart.plan.height);
    if (!chart.hasData) return;
    this.context = context;
    this.pen = new shapes.Shapes(context, chart.colours, chart.model.palette.names);
    const { search, selection } = chart;
    const hits = search.hits.length ? search.hitsInView() : null;
    shapes.clipped(context, chart.frame, () => this.paintLanes(hits));
    chart.toolbar.play.paint(context);
    shapes.clipped(context, { ...chart.frame, top: 0, bottom: AXIS }, () => {
      if (search.hits.length) search.paint(context, null);
      selection.paint(context);
    });
    chart.marks.paint(context);
    if (!chart.input.isDragging) this.paintCursor();
  }

  /** @param {number[] | null} hits of a search, in view */
  paintLanes(hits) {
    const { chart, context } = this;
    const { hover, pinned, focus, colours } = chart;
    this.paintSubject(pinned, hits);
    chart.selection.paint(context);
    if (hits) chart.search.paint(context, pinned ? null : hits);
    if (hover && hover.span >= 0) this.paintHover(hover);
    if (focus && (chart.isFocused || hits)) this.outline(focus, css(colours.accent), 2);
    this.flags.paint(context);
    this.notes.paint(context);
    chart.edit.paint(context);
  }

  /**
   * Dim all but the critical path, the pinned block or the search matches.
   * @param {Place | null} pinned @param {number[] | null} hits
   */
  paintSubject(pinned, hits) {
    const isCritical = this.chart.model.show_critical && (!hits || pinned !== null);
    if (isCritical) this.paintCritical();
    if (pinned) this.paintPin(pinned, !isCritical);
    else if (hits) this.paintHits(this.chart.search.layer, hits);
  }

  /** Dim the lanes. @param {number} light @param {number} dark opacities by theme */
  dim(light, dark) {
    const { frame, plan, colours } = this.chart;
    this.context.fillStyle = css(colours.background, colours.theme === "dark" ? dark : light);
    const fill = (/** @type {number} */ top, /** @type {number} */ bottom) => {
      if (bottom > top) this.context.fillRect(frame.left, top, frame.right - frame.left, bottom - top);
    };
    fill(frame.top, frame.split - 3);
    if (frame.split > frame.top) return fill(frame.split, frame.bottom); // arrows to pinned lanes cross the titles
    for (const { y, height, head } of plan.titles) fill(Math.max(y + head, frame.split), y + height);
  }

  // ── the pin ──

  /**
   * Paint the pinned block and its flow; dim the rest, unless the critical path is shown too.
   * @param {Place} pinned @param {boolean} dims
   */
  paintPin(pinned, dims) {
    const { chart } = this;
    const { frame, colours } = chart;
    const { layer } = pinned;
    const flow = (chart.related ??= flowOf(pinned, chart.flow));
    if (dims) this.dim(0.78, 0.72);
    this.drawSpans(
      layer,
      flow.spans.filter((span) => frame.isVisible(layer, span)),
    );
    if (flow.joins.length) this.drawJoins(layer, flow.joins, true);
    else this.drawRelatives(pinned, flow);
    this.outline(pinned, css(colours.accent), 2.5);
    const twin = twinOf(chart, pinned);
    if (!twin) return;
    this.drawSpans(twin.layer, [twin.span]);
    this.outline(twin, css(colours.accent), 1.5, [3, 2]);
    this.drawShift(pinned, twin);
  }

  /** @param {Place} pinned @param {Flow} flow */
  drawRelatives({ layer, span }, { causes, effects }) {
    const { colours } = this.chart;
    this.drawJoins(
      layer,
      causes.map((other) => [other, span]),
      true,
    );
    this.drawJoins(
      layer,
      effects.map((other) => [span, other]),
      false,
    );
    for (const other of causes) this.outline({ layer, span: other }, css(colours.text, 0.9), 1.5);
    for (const other of effects) this.outline({ layer, span: other }, css(colours.muted), 1.2, [3, 2]);
  }

  /** Draw a line between the predicted and the measured end of an action. @param {Place} place @param {Place} twin */
  drawShift(place, twin) {
    const { frame, plan, colours } = this.chart;
    const [above, below] = [place, twin]
      .map(({ layer, span }) => boxOf(frame, layer, span, plan.laneOf(layer, layer.rankOf(span))))
      .sort((a, b) => a.y - b.y);
    this.context.strokeStyle = css(colours.text, 0.85);
    this.context.lineWidth = 1.2;
    const [x1, x2] = [above.x + above.width - 0.5, below.x + below.width - 0.5];
    shapes.line(this.context, x1, above.y + above.height, x2, below.y);
  }

  // ── search, critical path, hover ──

  /** @param {Layer} layer @param {number[]} hits */
  paintHits(layer, hits) {
    this.dim(0.78, 0.72);
    this.drawSpans(layer, hits);
  }

  paintCritical() {
    const { context } = this;
    const { frame, plan, colours, data } = this.chart;
    this.dim(0.74, 0.66);
    for (const layer of data.layers) {
      const visible = layer.criticalSpans.filter((span) => frame.isVisible(layer, span));
      this.drawSpans(layer, visible);
      context.strokeStyle = css(colours.text, 0.85);
      context.lineWidth = 1;
      for (const span of visible) {
        const lane = plan.laneOf(layer, layer.rankOf(span));
        const { x, y, width, height } = boxOf(frame, layer, span, lane);
        if (frame.isLaneClear(lane) && !layer.isTransfer(span) && width >= 5)
          context.strokeRect(x + 0.5, y + 0.5, width - 2, height - 1);
      }
    }
  }

  /** @param {Place} hover */
  paintHover(hover) {
    const { colours } = this.chart;
    const { layer, span } = hover;
    if (layer.isTransfer(span)) return this.drawSpans(layer, [span]);
    this.outline(hover, css(colours.text), 1.5);
    const twin = twinOf(this.chart, hover);
    if (!twin) return;
    this.outline(twin, css(colours.text), 1, [3, 2]);
    this.drawShift(hover, twin);
  }

  // ── parts ──

  /** @param {Layer} layer @param {number[]} spans */
  drawSpans(layer, spans) {
    const { frame, plan } = this.chart;
    /** @type {Label[]} */
    const labels = [];
    for (const span of spans) {
      const lane = plan.laneOf(layer, layer.rankOf(span));
      if (layer.isTransfer(span)) {
        const to = plan.laneOf(layer, layer.peerOf(span));
        if (lane.height && to?.height) this.pen.transfer(frame, layer, span, lane, to, { alpha: 1, width: 1.8 });
      } else if (frame.isLaneClear(lane)) {
        this.pen.block(frame, layer, span, lane, labels);
      }
    }
    this.pen.write(labels);
  }

  /**
   * Draw a curve from the end of the first block to the start of the second block of each pair.
   * @param {Layer} layer @param {[number, number][]} pairs @param {boolean} isStrong
   */
  drawJoins(layer, pairs, isStrong) {
    const { context } = this;
    const { frame, plan, colours } = this.chart;
    context.strokeStyle = css(isStrong ? colours.text : colours.muted, 0.85);
    context.lineWidth = isStrong ? 1.4 : 1;
    for (const [from, to] of pairs) {
      if (!this.isJoinInView(layer, from, to)) continue;
      const [a, b] = [from, to].map((span) => boxOf(frame, layer, span, plan.laneOf(layer, layer.rankOf(span))));
      const [x1, y1, x2, y2] = [a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2];
      if (Math.abs(y1 - y2) < 1 && x2 - x1 < 6) continue;
      const bend = clamp(Math.abs(x2 - x1) / 2, 3, 80);
      context.beginPath();
      context.moveTo(x1, y1);
      context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
      context.stroke();
    }
  }

  /** @param {Layer} layer @param {number} from @param {number} to */
  isJoinInView(layer, from, to) {
    const { frame, plan } = this.chart;
    if (layer.isTransfer(from) || layer.isTransfer(to)) return false;
    if (layer.start[to] < frame.from || layer.end[from] > frame.to) return false;
    return [from, to].every((span) => plan.laneOf(layer, layer.rankOf(span)).height > 0);
  }

  /** @param {Place} place @param {string} colour @param {number} width @param {number[]} [dash] */
  outline({ layer, span }, colour, width, dash) {
    if (layer.isTransfer(span)) return;
    const { frame, plan } = this.chart;
    const lane = plan.laneOf(layer, layer.rankOf(span));
    if (frame.isLaneClear(lane)) shapes.outline(this.context, boxOf(frame, layer, span, lane), { colour, width, dash });
  }

  // ── the cursor ──

  /** Paint the cursor line, with its time on the axis. */
  paintCursor() {
    const { context } = this;
    const { frame, plan, colours, data } = this.chart;
    const x = this.cursor;
    if (x === null || x < frame.left || x > frame.right) return;
    context.strokeStyle = css(colours.text, 0.3);
    context.lineWidth = 1;
    shapes.line(context, Math.round(x) + 0.5, AXIS, Math.round(x) + 0.5, plan.height);
    const [layer] = data.layers;
    const text = amount(frame.tick(x) * layer.scale, layer.unit);
    const font = `600 11px ${colours.font}`;
    context.font = font;
    const width = shapes.textWidth(context, text) + 10;
    const left = clamp(x - width / 2, frame.left, frame.right - width);
    context.fillStyle = css(colours.text);
    context.beginPath();
    context.roundRect(left, 3, width, AXIS - 6, 4);
    context.fill();
    const style = { font, colour: css(colours.background), align: /** @type {CanvasTextAlign} */ ("center") };
    shapes.write(context, text, left + width / 2, AXIS / 2 + 0.5, style);
  }

  /** The x of the cursor: the playhead, the pointer or, after key presses, the start of the focused block; or null. */
  get cursor() {
    const { frame, pointer, focus, isByKey, toolbar } = this.chart;
    if (toolbar.play.tick !== null) return frame.x(toolbar.play.tick);
    if (isByKey && focus) return frame.x(focus.layer.start[focus.span]);
    if (!pointer || pointer.x < frame.left || pointer.x > frame.right) return null;
    return Math.max(pointer.x, frame.x(0)); // time begins at the start of the step
  }
}
