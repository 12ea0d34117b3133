// What lies over the picture: the pinned block with where it comes from and leads to, critical path, hits of a
// search, area, marks, focus, pointer.

import { clamp } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { flowOf } from "./flow.js";
import { box } from "./frame.js";
import { AXIS } from "./layout.js";
import { TITLE } from "./paint.js";
import { twinOf } from "./place.js";
import { Shapes, clipped, line } from "./shapes.js";
import { amount } from "./units.js";

export class Overlay {
  constructor(chart) {
    this.chart = chart;
  }

  paint() {
    const { chart } = this;
    if (!chart.frame) return;
    const context = chart.over.getContext("2d");
    const { ratio } = chart.frame;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, chart.plan.width, chart.plan.height);
    if (!chart.data) return;
    this.context = context;
    this.shapes = new Shapes(context, chart.colours, chart.model.palette.names);
    clipped(context, chart.frame, () => {
      const hits = chart.search.isShown ? chart.search.seen() : null;
      const isCritical = chart.model.show_critical && (!hits || chart.pinned);
      if (isCritical) this._critical();
      if (chart.pinned) this._pin(!isCritical);
      else if (hits) this._hits(hits);
      chart.area.paint(context);
      if (hits) chart.search.paint(context, chart.pinned ? null : hits);
      if (chart.hover?.span >= 0) this._hover();
      if (chart.focus && (chart.focused || hits)) this._outline(chart.focus, css(chart.colours.accent), 2);
      chart.edit.paint(context);
    });
    if (chart.search.isShown)
      clipped(context, { ...chart.frame, top: 0, bottom: AXIS }, () => chart.search.paint(context, null));
    if (chart.area.chosen) clipped(context, { ...chart.frame, top: 0, bottom: AXIS }, () => chart.area.paint(context));
    chart.marks.paint(context);
    if (!chart.input.isDragging) this._pointer();
  }

  _veil(light, dark) {
    const { frame, plan, colours } = this.chart;
    this.context.fillStyle = css(colours.background, colours.theme === "dark" ? dark : light);
    const veiled = (top, bottom) =>
      bottom > top && this.context.fillRect(frame.left, top, frame.right - frame.left, bottom - top);
    veiled(frame.top, frame.split - 3);
    if (frame.split > frame.top) return veiled(frame.split, frame.bottom); // arrows to lanes on top cross the titles
    for (const { y, height } of plan.titles) veiled(Math.max(y + TITLE, frame.split), y + height);
  }

  /** The pinned block and its flow; the rest is veiled, unless the critical path stands there too. */
  _pin(isVeiled) {
    const { chart } = this;
    const { pinned, colours } = chart;
    const { layer } = pinned;
    const { causes, effects, spans, joins } = (chart.related ??= flowOf(pinned, chart.flow));
    if (isVeiled) this._veil(0.78, 0.72);
    this._spans(
      layer,
      spans.filter((span) => chart.frame.isSeen(layer, span)),
    );
    if (joins.length) {
      this._joins(layer, joins, true);
    } else {
      this._joins(
        layer,
        causes.map((other) => [other, pinned.span]),
        true,
      );
      this._joins(
        layer,
        effects.map((other) => [pinned.span, other]),
        false,
      );
      for (const other of causes) this._outline({ layer, span: other }, css(colours.text, 0.9), 1.5);
      for (const other of effects) this._outline({ layer, span: other }, css(colours.muted), 1.2, [3, 2]);
    }
    this._outline(pinned, css(colours.accent), 2.5);
    const twin = twinOf(chart, pinned);
    if (twin) {
      this._spans(twin.layer, [twin.span]);
      this._outline(twin, css(colours.accent), 1.5, [3, 2]);
      this._shift(pinned, twin);
    }
  }

  /** From end to end of an action predicted and measured: the slope is by how much it shifted. */
  _shift(place, twin) {
    const { context } = this;
    const { frame, plan, colours } = this.chart;
    const ends = [place, twin].map(({ layer, span }) => ({
      at: box(frame, layer, span, plan.laneOf(layer, layer.rankOf(span))),
    }));
    const [above, below] = ends.sort((a, b) => a.at.y - b.at.y).map(({ at }) => at);
    context.strokeStyle = css(colours.text, 0.85);
    context.lineWidth = 1.2;
    line(context, above.x + above.width - 0.5, above.y + above.height, below.x + below.width - 0.5, below.y);
  }

  /** The hits of a search in view stand out. */
  _hits(hits) {
    this._veil(0.78, 0.72);
    this._spans(this.chart.search.layer, hits);
  }

  _spans(layer, spans) {
    const { frame, plan } = this.chart;
    const labels = [];
    for (const span of spans) {
      const lane = plan.laneOf(layer, layer.rankOf(span));
      if (layer.isTransfer(span)) {
        const to = plan.laneOf(layer, layer.peerOf(span));
        if (to) this.shapes.transfer(frame, layer, span, lane, to, { alpha: 1, width: 1.8 });
      } else if (frame.isLaneClear(lane)) {
        this.shapes.block(frame, layer, span, lane, labels);
      }
    }
    this.shapes.write(labels);
  }

  /** Curves from the end of one block to the start of another, for pairs of them. */
  _joins(layer, pairs, strong) {
    const { context } = this;
    const { frame, plan, colours } = this.chart;
    context.strokeStyle = css(strong ? colours.text : colours.muted, 0.85);
    context.lineWidth = strong ? 1.4 : 1;
    for (const [from, to] of pairs) {
      if (layer.isTransfer(from) || layer.isTransfer(to)) continue;
      if (layer.start[to] < frame.from || layer.end[from] > frame.to) continue;
      const lanes = [from, to].map((end) => plan.laneOf(layer, layer.rankOf(end)));
      const [a, b] = [box(frame, layer, from, lanes[0]), box(frame, layer, to, lanes[1])];
      const [x1, y1, x2, y2] = [a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2];
      if (Math.abs(y1 - y2) < 1 && x2 - x1 < 6) continue;
      const bow = clamp(Math.abs(x2 - x1) / 2, 3, 80);
      context.beginPath();
      context.moveTo(x1, y1);
      context.bezierCurveTo(x1 + bow, y1, x2 - bow, y2, x2, y2);
      context.stroke();
    }
  }

  _critical() {
    const { context } = this;
    const { frame, plan, colours, data } = this.chart;
    this._veil(0.74, 0.66);
    for (const layer of data.layers) {
      const shown = layer.criticalSpans.filter((span) => frame.isSeen(layer, span));
      this._spans(layer, shown);
      context.strokeStyle = css(colours.text, 0.85);
      context.lineWidth = 1;
      for (const span of shown) {
        const lane = plan.laneOf(layer, layer.rankOf(span));
        const at = box(frame, layer, span, lane);
        if (frame.isLaneClear(lane) && !layer.isTransfer(span) && at.width >= 5)
          context.strokeRect(at.x + 0.5, at.y + 0.5, at.width - 2, at.height - 1);
      }
    }
  }

  _hover() {
    const { hover, colours } = this.chart;
    const { layer, span } = hover;
    if (layer.isTransfer(span)) return this._spans(layer, [span]);
    this._outline(hover, css(colours.text), 1.5);
    const twin = twinOf(this.chart, hover);
    if (!twin) return;
    this._outline(twin, css(colours.text), 1, [3, 2]);
    this._shift(hover, twin);
  }

  _outline({ layer, span }, colour, width, dash = []) {
    if (layer.isTransfer(span)) return;
    const { context } = this;
    const lane = this.chart.plan.laneOf(layer, layer.rankOf(span));
    if (!this.chart.frame.isLaneClear(lane)) return;
    const at = box(this.chart.frame, layer, span, lane);
    const slim = at.width < 6 ? 2 : 0; // what is thin gets a frame around it
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    context.roundRect(
      at.x - slim,
      at.y - slim / 2,
      at.width - (slim ? 0 : 1) + 2 * slim,
      at.height + slim,
      Math.min(3, at.height / 5),
    );
    context.stroke();
    context.setLineDash([]);
  }

  _pointer() {
    const { context } = this;
    const { frame, plan, colours, data } = this.chart;
    const x = this.cursor;
    if (x === null || x < frame.left || x > frame.right) return;
    context.strokeStyle = css(colours.text, 0.3);
    context.lineWidth = 1;
    line(context, Math.round(x) + 0.5, AXIS, Math.round(x) + 0.5, plan.height);
    const [layer] = data.layers;
    this._flag(x, amount(frame.tick(x) * layer.scale, layer.unit));
  }

  /** Where the cursor's line stands: under the pointer, or after keys at the start of the block in focus; or null. */
  get cursor() {
    const { frame, pointer, focus, isByKey } = this.chart;
    if (isByKey && focus) return frame.x(focus.layer.start[focus.span]);
    if (!pointer || pointer.x < frame.left || pointer.x > frame.right) return null;
    return Math.max(pointer.x, frame.x(0)); // before the step there is no time
  }

  /** Words on the axis. */
  _flag(x, words) {
    const { context } = this;
    const { frame, colours } = this.chart;
    context.font = `600 11px ${colours.font}`;
    const width = context.measureText(words).width + 10;
    const left = clamp(x - width / 2, frame.left, frame.right - width);
    context.fillStyle = css(colours.text);
    context.beginPath();
    context.roundRect(left, 3, width, AXIS - 6, 4);
    context.fill();
    context.fillStyle = css(colours.background);
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(words, left + width / 2, AXIS / 2 + 0.5);
  }
}
