// A few facts of a chart for tests and measurements, so that they need not read pixels.

import { OP, TICKS } from "./columns.js";
import { box } from "./frame.js";
import { names } from "./gutter.js";
import { nameOf } from "./place.js";
import { imageOf } from "./save.js";

export function debug(chart) {
  const scale = () => (chart.data?.horizon ?? 1) / TICKS;
  return {
    get stats() {
      return { ...chart.stats };
    },
    get layers() {
      return (chart.data?.layers ?? []).map(({ label, source, ranks, count, makespan }) => ({
        label,
        source,
        ranks,
        count,
        makespan,
      }));
    },
    get view() {
      const { view } = chart;
      const { pitch, fit, scroll } = chart.plan ?? {};
      return { from: view.from * scale(), to: view.to * scale(), whole: view.isWhole, pitch, fit, scroll };
    },
    get pinned() {
      return nameOf(chart.pinned);
    },
    get focus() {
      return nameOf(chart.focus);
    },
    get related() {
      const names = chart.model.palette.names;
      const named = (spans) => spans.map((span) => chart.pinned.layer.notation(span, names));
      return chart.related && chart.pinned
        ? { causes: named(chart.related.causes), effects: named(chart.related.effects) }
        : null;
    },
    get kept() {
      return [...chart.kept];
    },
    get marks() {
      return chart.marks.times;
    },
    get area() {
      const { chosen, found } = chart.area;
      return chosen && { from: chosen.from * scale(), to: chosen.to * scale(), ranks: chosen.ranks, found };
    },
    get hits() {
      const { hits, at, layer } = chart.search;
      const names = chart.model.palette.names;
      return { total: hits.length, at, now: hits[at] === undefined ? null : layer.notation(hits[at], names) };
    },
    get flow() {
      const names = chart.model.palette.names;
      return chart.related && chart.pinned
        ? chart.related.spans.map((span) => chart.pinned.layer.notation(span, names))
        : [];
    },
    /** The arrows that are drawn, each with its middle in the window. */
    get arrows() {
      const { left, top } = chart.stage.getBoundingClientRect();
      return chart.arrows.map(({ layer, span, x1, x2, y1, y2 }) => ({
        ...nameOf({ layer, span }),
        x: left + (x1 + x2) / 2,
        y: top + (y1 + y2) / 2,
      }));
    },
    /** The lanes of links, each with its rectangle in the window and how many shares it has. */
    get links() {
      const { left, top } = chart.stage.getBoundingClientRect();
      const { layer, lanes } = chart.plan.links ?? { lanes: [] };
      return lanes.map(({ port, y, height }) => ({
        name: port.name,
        share: port.share,
        x: left + chart.frame.left,
        y: top + y,
        width: chart.frame.right - chart.frame.left,
        height,
        shares: layer.link_bounds[port.number + 1] - layer.link_bounds[port.number],
      }));
    },
    /** The middle of a share of a lane of links in the window. */
    shareAt(number, share) {
      const { left, top } = chart.stage.getBoundingClientRect();
      const { layer, lanes } = chart.plan.links;
      const { y, height } = lanes[number];
      const at = layer.link_bounds[number] + share;
      const middle = (one, other) => (one[at] + other[at]) / 2;
      return {
        x: left + chart.frame.x(middle(layer.link_start, layer.link_end)),
        y: top + y + height * (1 - middle(layer.link_low, layer.link_high)),
      };
    },
    get edit() {
      return chart.edit.facts;
    },
    /** Seconds (or units) at the cursor's line, or null. */
    get cursor() {
      const x = chart.overlay.cursor;
      return x === null ? null : chart.frame.tick(x) * scale();
    },
    /** What is written left of the lanes that are scrolled. */
    get names() {
      return names(
        chart.plan.lanes.filter(({ kept }) => !kept),
        chart.frame,
      ).map(({ name }) => name);
    },
    get theme() {
      return chart.colours?.theme;
    },
    /** The rectangle of a block in pixels of the window, or null. */
    blockAt(rank, stage, mb, op = "F", layer = 0) {
      const owner = chart.data?.layers[layer];
      const span = owner?.find(OP[op], stage, mb, rank) ?? -1;
      const lane = span >= 0 ? chart.plan.laneOf(owner, owner.rankOf(span)) : null;
      if (!lane) return null;
      const area = chart.stage.getBoundingClientRect();
      const at = box(chart.frame, owner, span, lane);
      return { x: at.x + area.left, y: at.y + area.top, width: at.width, height: at.height };
    },
    look(from, to) {
      chart.view.look(from / scale(), to / scale());
      chart.paint();
      return chart.stats.paintMs;
    },
    paint() {
      chart.paint();
      return chart.stats.paintMs;
    },
    picture: () => imageOf(chart),
  };
}
