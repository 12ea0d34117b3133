// The picture below the overlay: lanes as pixels and shapes, differences between two timelines, their ends, links,
// memory and the axis.

/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { Arrow, Lane } from "./types" */

import { css } from "../kit/palette.js";
import { paintAxis, paintGrid, paintScrollbar } from "./axis.js";
import { TALL } from "./frame.js";
import { paintNames, paintTitles } from "./gutter.js";
import { LinkLanes } from "./link_lanes.js";
import { MemoryStrips } from "./memory.js";
import { Pixels } from "./paint.js";
import { Shapes, clipped, line } from "./shapes.js";
import { outlineSlowLanes } from "./slow_lanes.js";
import { paintTransfers } from "./transfers.js";

const MARKED_ERROR = 0.05; // blocks with a larger prediction error are marked

export class Picture {
  /** @type {Pixels | null} */ pixels = null;

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
  }

  /**
   * Paint everything that does not depend on the pointer. Return counts and the arrows.
   * @param {CanvasRenderingContext2D} context
   */
  paint(context) {
    const { chart } = this;
    const { frame, plan } = chart;
    const pixels = this.pixels?.fits(frame) ? this.pixels : new Pixels(frame);
    this.pixels = pixels;
    const visible = plan.lanes.filter((lane) => frame.isLaneVisible(lane));
    const kept = visible.filter((lane) => lane.kept);
    const scrolled = visible.filter((lane) => !lane.kept);
    const shapes = this.fill(pixels, kept, scrolled);
    context.putImageData(pixels.image, Math.round(frame.left * frame.ratio), Math.round(frame.top * frame.ratio));
    const pen = new Shapes(context, chart.colours, chart.model.palette.names);
    clipped(context, frame, () => paintGrid(context, chart));
    [kept, scrolled].forEach((lanes, i) =>
      clipped(context, frame.parts[i], () => {
        pen.draw(frame, shapes[i], pixels.counts);
        this.drawCollectives(pen, lanes);
        this.markErrors(context, lanes);
        outlineSlowLanes(context, chart, lanes);
      }),
    );
    /** @type {Arrow[]} */
    let arrows = [];
    clipped(context, frame, () => {
      if (chart.model.show_transfers) arrows = paintTransfers(pen, chart, visible);
      this.markEnds(context);
    });
    chart.collapse.paint(context);
    new LinkLanes(context, frame, plan).paint();
    new MemoryStrips(context, frame, plan).paint();
    paintNames(context, chart, kept, scrolled);
    paintTitles(context, chart);
    paintAxis(context, chart);
    paintScrollbar(context, chart);
    return { arrows, counts: { ...pixels.counts, transfers: arrows.length }, lanes: visible.length };
  }

  /**
   * Fill the pixels; return the shapes that remain to be drawn, of pinned lanes and of other lanes.
   * @param {Pixels} pixels @param {Lane[]} kept @param {Lane[]} scrolled
   */
  fill(pixels, kept, scrolled) {
    const { frame, plan, data } = this.chart;
    pixels.begin(frame);
    const dense = new Set(data.layers.filter((layer) => pixels.isDense(layer)));
    for (const lane of scrolled) if (lane.height >= TALL || !dense.has(lane.layer)) pixels.lane(lane);
    for (const band of plan.bands) if (dense.has(band.layer)) pixels.band(band);
    const below = pixels.cutAbove(frame.split);
    for (const lane of kept) pixels.lane(lane);
    return [pixels.shapes, below];
  }

  /** Draw the bars of collectives again, above the shapes. @param {Shapes} pen @param {Lane[]} lanes */
  drawCollectives(pen, lanes) {
    const { frame } = this.chart;
    for (const lane of lanes) {
      const [from, to] = lane.layer.range(1, lane.rank);
      for (let span = from; span < to; span++) {
        if (frame.isVisible(lane.layer, span) && lane.height >= TALL) pen.block(frame, lane.layer, span, lane, []);
      }
    }
  }

  /**
   * Draw a line above each measured block whose duration differs from the prediction.
   * @param {CanvasRenderingContext2D} context @param {Lane[]} lanes
   */
  markErrors(context, lanes) {
    const { frame, plan, colours, data } = this.chart;
    const isShared = (/** @type {Lane} */ { layer, group = 1 }) => layer.over && group === 1 && !layer.isUntimed;
    for (const lane of lanes.filter(isShared)) {
      const { layer, rank } = lane;
      const predicted = plan.laneOf(data.layers[layer.number - 1], rank).layer;
      const [first, last] = layer.range(0, rank);
      for (let span = first; span < last; span++) {
        const width = (layer.end[span] - layer.start[span]) * frame.scale;
        if (width < 5 || !frame.isVisible(layer, span)) continue;
        const error = errorOf(layer, predicted, span, rank);
        if (Math.abs(error) <= MARKED_ERROR) continue;
        context.fillStyle = css(error > 0 ? colours.warning : colours.accent);
        context.fillRect(frame.x(layer.start[span]), lane.y - 2, width - 1, 2);
      }
    }
  }

  /** Mark where each timeline ends. @param {CanvasRenderingContext2D} context */
  markEnds(context) {
    const { frame, plan, colours } = this.chart;
    context.strokeStyle = css(colours.text, 0.55);
    context.lineWidth = 1;
    for (const { row, y, height, head } of plan.titles.filter(({ height, head }) => height > head)) {
      row.forEach((layer, i) => {
        const x = Math.round(frame.x(layer.last)) + 0.5;
        context.setLineDash(i ? [] : [3, 3]);
        line(context, x, Math.max(y + head - 2, frame.split), x, Math.max(y + height, frame.split));
      });
      context.setLineDash([]);
    }
  }
}

/**
 * The relative error of the predicted duration of a block.
 * @param {Layer} measured @param {Layer} predicted @param {number} span @param {number} rank
 */
function errorOf(measured, predicted, span, rank) {
  const twin = predicted.find(measured.op[span], measured.stage[span], measured.microbatch[span], rank);
  return twin < 0 ? 0 : measured.duration(span) / (predicted.duration(twin) || 1) - 1;
}
