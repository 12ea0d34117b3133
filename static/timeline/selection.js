// An area: a stretch of time on some lanes. Chosen by dragging or by walking from block to block.

import { clamp } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { AXIS } from "./layout.js";
import { line } from "./shapes.js";

const ASK_EVERY = 120; // milliseconds, while an area is being dragged

/** The chosen area `{layer, from, to, ranks}`, in ticks, or null; and what Python says of it. */
export class Area {
  constructor(chart) {
    this.chart = chart;
    this.mode = false; // dragging selects, without a modifier
    this.drop();
  }

  drop() {
    this.chosen = this.anchor = this.found = null;
    this.chart.asker.forget("area");
    clearTimeout(this.timer);
    this.timer = 0;
  }

  /** From the block in focus on, which walking extends; without one, of what is in view. Again, walking only walks. */
  start() {
    const { chart } = this;
    const place = chart.focus ?? chart.pinned;
    chart.panel.isClosed = false;
    if (this.anchor) this.anchor = null;
    else if (place && chart.openLayer) this.anchorAt(place);
    else this.turnMode();
  }

  /** Dragging selects an area, or pans again. */
  turnMode() {
    const { chart } = this;
    this.mode = !this.mode;
    chart.panel.isClosed = false;
    if (this.mode && !this.chosen) this.ofView();
    chart.stage.toggleAttribute("data-selecting", this.mode);
    chart.refresh();
  }

  /** No area any more, and dragging pans. */
  leave() {
    this.drop();
    this.mode = false;
    this.chart.stage.removeAttribute("data-selecting");
    this.chart.panel.hide();
    this.chart.refresh();
  }

  /** The area alone in view. */
  show() {
    this.chart.view.glide({ from: this.chosen.from, to: this.chosen.to });
  }

  /** Between two points of the canvas; a drag along the axis means all lanes. */
  between(start, end) {
    const { frame, plan } = this.chart;
    const [from, to] = [start.x, end.x].map((x) => frame.tick(clamp(x, frame.left, frame.right))).sort((a, b) => a - b);
    const [top, bottom] = [start.y, end.y].sort((a, b) => a - b);
    const seen = plan.lanes.filter((lane) => frame.isLaneSeen(lane));
    const crossed = seen.filter(({ y, height }) => y <= bottom && y + height >= top);
    const { layer } = crossed.find(({ y, height }) => start.y >= y && start.y < y + height) ?? crossed[0] ?? seen[0];
    const all = start.y < AXIS || !crossed.length;
    const ranks = all
      ? layer.meshes.map((_, rank) => rank)
      : crossed.filter((lane) => lane.layer === layer).map(({ rank }) => rank);
    this.choose({ layer, from, to, ranks: ranks.sort((a, b) => a - b) });
  }

  /** What is in view, on all lanes of the design that is open. */
  ofView() {
    const { view, openLayer: layer } = this.chart;
    this.choose({
      layer,
      from: Math.max(0, view.from),
      to: Math.min(layer.last, view.to),
      ranks: layer.meshes.map((_, rank) => rank),
    });
  }

  /** From now on the area reaches from this block to the one that the focus walks to. */
  anchorAt(place) {
    this.anchor = place;
    this.reach(place);
  }

  reach(place) {
    const { layer } = this.anchor;
    const ends = [this.anchor, place.layer === layer ? place : this.anchor];
    const [a, b] = ends.map(({ span }) => layer.rankOf(span)).sort((one, other) => one - other);
    this.choose({
      layer,
      from: Math.min(...ends.map(({ span }) => layer.start[span])),
      to: Math.max(...ends.map(({ span }) => layer.end[span])),
      ranks: layer.meshes.map((_, rank) => rank).filter((rank) => rank >= a && rank <= b),
    });
  }

  choose(area) {
    this.chosen = area;
    this.chart.overpaint();
    this.timer ||= setTimeout(() => this._ask(), ASK_EVERY);
  }

  _ask() {
    this.timer = 0;
    if (!this.chosen) return;
    const { layer, from, to, ranks } = this.chosen;
    this.chart.asker.ask(
      "area",
      layer,
      { start: from * layer.scale, end: to * layer.scale, ranks },
      (found, refused) => {
        this.found = found;
        this.chart.panel.showArea(found, refused);
      },
    );
  }

  /** Keep it where it still makes sense after the design changed. */
  keep(data, ratio) {
    if (!this.chosen) return;
    const { layer, from, to, ranks } = this.chosen;
    const now = data?.layers[layer.number];
    const there = ranks.filter((rank) => rank < (now?.ranks ?? 0));
    this.anchor = null;
    if (!there.length || from * ratio > now.last) return this.leave();
    this.choose({ layer: now, from: from * ratio, to: to * ratio, ranks: there });
  }

  paint(context) {
    if (!this.chosen) return;
    const { frame, plan, colours } = this.chart;
    const { layer, from, to, ranks } = this.chosen;
    const [a, b] = [from, to].map((tick) => clamp(frame.x(tick), frame.left - 2, frame.right + 2));
    const lanes = ranks.map((rank) => plan.laneOf(layer, rank)).filter((lane) => frame.isLaneSeen(lane));
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
