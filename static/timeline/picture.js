// The picture itself: lanes as pixels and shapes, what differs between two, where each ends, memory, the axis.

import { css } from "../kit/palette.js";
import { paintAxis, paintGrid, paintScrollbar } from "./axis.js";
import { TALL } from "./frame.js";
import { paintNames, paintTitles } from "./gutter.js";
import { LinkLanes } from "./link_lanes.js";
import { MemoryStrips } from "./memory.js";
import { Pixels, TITLE } from "./paint.js";
import { Shapes, clipped, line } from "./shapes.js";
import { paintTransfers } from "./transfers.js";

const APART = 0.05; // a block that takes so much more or less than predicted is marked

export class Picture {
  constructor(chart) {
    this.chart = chart;
  }

  /** Paint everything that does not follow the pointer; returns what was counted, and the arrows that are drawn. */
  paint(context) {
    const { chart } = this;
    const { frame, plan } = chart;
    if (!this.pixels?.fits(frame)) this.pixels = new Pixels(frame);
    const { pixels } = this;
    const seen = plan.lanes.filter((lane) => frame.isLaneSeen(lane));
    const kept = seen.filter((lane) => lane.kept);
    const scrolled = seen.filter((lane) => !lane.kept);
    const shapes = this._fill(kept, scrolled);
    context.putImageData(pixels.image, Math.round(frame.left * frame.ratio), Math.round(frame.top * frame.ratio));
    const pen = new Shapes(context, chart.colours, chart.model.palette.names);
    clipped(context, frame, () => paintGrid(context, chart));
    frame.parts.forEach((part, place) =>
      clipped(context, part, () => {
        pen.draw(frame, shapes[place], pixels.counts);
        this._reductionsOverShapes(pen, [kept, scrolled][place]);
        this._differences(context, [kept, scrolled][place]);
      }),
    );
    let arrows = [];
    clipped(context, frame, () => {
      if (chart.model.show_transfers) arrows = paintTransfers(pen, chart, seen);
      this._ends(context);
    });
    new LinkLanes(context, frame, plan).paint();
    new MemoryStrips(context, frame, plan).paint();
    paintNames(context, chart, kept, scrolled);
    paintTitles(context, chart);
    paintAxis(context, chart);
    paintScrollbar(context, chart);
    return { arrows, counts: { ...pixels.counts, transfers: arrows.length }, lanes: seen.length };
  }

  /** Fill the pixels; returns the shapes that are left to draw, of the lanes on top and of the others. */
  _fill(kept, scrolled) {
    const { pixels } = this;
    const { frame, plan, data } = this.chart;
    pixels.begin(frame);
    const dense = new Set(data.layers.filter((layer) => pixels.isDense(layer)));
    for (const lane of scrolled) if (lane.height >= TALL || !dense.has(lane.layer)) pixels.lane(lane);
    for (const band of plan.bands) if (dense.has(band.layer)) pixels.band(band);
    const below = pixels.cutAbove(frame.split);
    for (const lane of kept) pixels.lane(lane);
    return [pixels.shapes, below];
  }

  /** Shapes are drawn over the pixel buffer, so the bars of reductions come again, on top of them. */
  _reductionsOverShapes(shapes, seen) {
    const { frame } = this.chart;
    for (const lane of seen) {
      const [from, to] = lane.layer.range(1, lane.rank);
      for (let span = from; span < to; span++) {
        if (frame.isSeen(lane.layer, span) && lane.height >= TALL) shapes.block(frame, lane.layer, span, lane, []);
      }
    }
  }

  /** A line over each measured block that took longer or less long than predicted; of units nothing can be said. */
  _differences(context, seen) {
    const { frame, colours } = this.chart;
    for (const lane of seen) {
      if (!lane.over || lane.group > 1 || lane.layer.unit !== "s") continue;
      const above = this._under(lane);
      const [first, last] = lane.layer.range(0, lane.rank);
      for (let span = first; span < last; span++) {
        if (!frame.isSeen(lane.layer, span)) continue;
        const twin = above.layer.find(
          lane.layer.op[span],
          lane.layer.stage[span],
          lane.layer.microbatch[span],
          lane.rank,
        );
        if (twin < 0 || (lane.layer.end[span] - lane.layer.start[span]) * frame.scale < 5) continue;
        const error = lane.layer.duration(span) / (above.layer.duration(twin) || 1) - 1;
        if (Math.abs(error) <= APART) continue;
        context.fillStyle = css(error > 0 ? colours.warning : colours.accent);
        context.fillRect(
          frame.x(lane.layer.start[span]),
          lane.y - 2,
          (lane.layer.end[span] - lane.layer.start[span]) * frame.scale - 1,
          2,
        );
      }
    }
  }

  _under(lane) {
    return this.chart.plan.laneOf(this.chart.data.layers[lane.layer.number - 1], lane.rank);
  }

  /** Where each timeline ends. */
  _ends(context) {
    const { frame, plan, colours } = this.chart;
    context.strokeStyle = css(colours.text, 0.55);
    context.lineWidth = 1;
    for (const { row, y, height } of plan.titles) {
      row.forEach((layer, place) => {
        const x = Math.round(frame.x(layer.last)) + 0.5;
        context.setLineDash(place ? [] : [3, 3]);
        line(context, x, Math.max(y + TITLE - 2, frame.split), x, Math.max(y + height, frame.split));
      });
      context.setLineDash([]);
    }
  }
}
