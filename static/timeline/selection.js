// The selected area: an interval of time on some lanes, selected by dragging or by moving the focus.

/** @import { Point } from "../kit/types" */
/** @import { Chart } from "./timeline.js" */
/** @import { Area, Data, Place } from "./types" */

import { clamp } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { AXIS } from "./layout.js";
import { line } from "./shapes.js";

const ASK_EVERY_MS = 120; // while an area is being dragged

export class Selection {
  /** @type {Area | null} */ area = null;
  /** The block where a selection by keys began. @type {Place | null} */ anchor = null;
  /** Python's answer about the area. @type {object | null} */ found = null;
  isMode = false; // true if dragging without a modifier key selects
  timer = 0;

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
  }

  drop() {
    this.area = this.anchor = this.found = null;
    this.chart.asker.forget("area");
    clearTimeout(this.timer);
    this.timer = 0;
  }

  /** Begin an area at the focused block, which is extended by moving the focus; without a focused block, select the
   * visible part. */
  /** If an area was begun in this way, end it, so that the focus moves alone. */
  start() {
    const { chart } = this;
    const place = chart.focus ?? chart.pinned;
    chart.panel.isClosed = false;
    if (this.anchor) this.anchor = null;
    else if (place && chart.openLayer) this.anchorAt(place);
    else this.toggleMode();
  }

  /** Switch between dragging to select and dragging to pan. */
  toggleMode() {
    const { chart } = this;
    this.isMode = !this.isMode;
    chart.panel.isClosed = false;
    if (this.isMode && !this.area) this.selectView();
    chart.stage.toggleAttribute("data-selecting", this.isMode);
    chart.refresh();
  }

  /** Clear the area; dragging pans again. */
  leave() {
    this.drop();
    this.isMode = false;
    this.chart.stage.removeAttribute("data-selecting");
    this.chart.panel.hide();
    this.chart.refresh();
  }

  /** Zoom to the area. */
  zoom() {
    if (this.area) this.chart.view.glide(this.area);
  }

  /**
   * Select between two points of the canvas; a drag along the axis selects all lanes.
   * @param {Point} start @param {Point} end
   */
  selectBetween(start, end) {
    const { frame, plan } = this.chart;
    const [from, to] = [start.x, end.x].map((x) => frame.tick(clamp(x, frame.left, frame.right))).sort((a, b) => a - b);
    const [top, bottom] = [start.y, end.y].sort((a, b) => a - b);
    const visible = plan.lanes.filter((lane) => frame.isLaneVisible(lane));
    if (!visible.length) return;
    const crossed = visible.filter(({ y, height }) => y <= bottom && y + height >= top);
    const first = crossed.find(({ y, height }) => start.y >= y && start.y < y + height) ?? crossed[0] ?? visible[0];
    const { layer } = first;
    const isOnAxis = start.y < AXIS || !crossed.length;
    const ranks = isOnAxis
      ? layer.meshes.map((_, rank) => rank)
      : crossed.filter((lane) => lane.layer === layer).map(({ rank }) => rank);
    this.select({ layer, from, to, ranks: ranks.sort((a, b) => a - b) });
  }

  /** Select the visible part of the step on all lanes of the open design. */
  selectView() {
    const { view, openLayer: layer } = this.chart;
    if (!layer) return;
    const ranks = layer.meshes.map((_, rank) => rank);
    this.select({ layer, from: Math.max(0, view.from), to: Math.min(layer.last, view.to), ranks });
  }

  /** Begin an area at a block; it extends to the block that the focus moves to. @param {Place} place */
  anchorAt(place) {
    this.anchor = place;
    this.extendTo(place);
  }

  /** @param {Place} place */
  extendTo(place) {
    if (!this.anchor) return;
    const { layer } = this.anchor;
    const ends = [this.anchor, place.layer === layer ? place : this.anchor];
    const [a, b] = ends.map(({ span }) => layer.rankOf(span)).sort((one, other) => one - other);
    this.select({
      layer,
      from: Math.min(...ends.map(({ span }) => layer.start[span])),
      to: Math.max(...ends.map(({ span }) => layer.end[span])),
      ranks: layer.meshes.map((_, rank) => rank).filter((rank) => rank >= a && rank <= b),
    });
  }

  /** @param {Area} area */
  select(area) {
    this.area = area;
    this.chart.overpaint();
    this.timer ||= setTimeout(() => this.ask(), ASK_EVERY_MS);
  }

  ask() {
    this.timer = 0;
    if (!this.area) return;
    const { layer, from, to, ranks } = this.area;
    const question = { start: from * layer.scale, end: to * layer.scale, ranks };
    this.chart.asker.ask("area", layer, question, (found, refused) => {
      this.found = found;
      this.chart.panel.showArea(found, refused);
    });
  }

  /** Drop an area of a measured timeline, which is not shown while the order is edited. */
  leaveMeasured() {
    if (this.area?.layer.over) this.leave();
  }

  /**
   * Keep the area after a change of the design, if its lanes still exist.
   * @param {Data} data @param {number} ratio of the axes
   */
  keep(data, ratio) {
    if (!this.area) return;
    const { layer, from, to, ranks } = this.area;
    const now = data.layers[layer.number];
    const left = now ? ranks.filter((rank) => rank < now.ranks) : [];
    this.anchor = null;
    if (!left.length || from * ratio > now.last) return this.leave();
    this.select({ layer: now, from: from * ratio, to: to * ratio, ranks: left });
  }

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    if (!this.area) return;
    const { frame, plan, colours } = this.chart;
    const { layer, from, to, ranks } = this.area;
    const [a, b] = [from, to].map((tick) => clamp(frame.x(tick), frame.left - 2, frame.right + 2));
    const lanes = ranks.map((rank) => plan.laneOf(layer, rank)).filter((lane) => frame.isLaneVisible(lane));
    context.fillStyle = css(colours.accent, 0.16);
    for (const { whole, kept } of lanes) {
      const top = Math.max(whole[0] - 1, kept ? frame.top : frame.split);
      context.fillRect(a, top, b - a, Math.min(whole[0] + whole[1] + 1, frame.bottom) - top);
    }
    context.fillRect(a, AXIS - 5, b - a, 5);
    context.strokeStyle = css(colours.accent);
    context.lineWidth = 1;
    for (const x of [a, b]) line(context, Math.round(x) + 0.5, AXIS - 5, Math.round(x) + 0.5, frame.bottom);
  }
}
