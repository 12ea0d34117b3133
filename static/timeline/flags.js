// Marks of blocks that other people have selected or commented: a coloured outline with a text above.

/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { Flag } from "./types" */

import { css, ink, rgb } from "../kit/palette.js";
import { boxOf } from "./frame.js";
import { outline, textWidth, write } from "./shapes.js";

const HEIGHT = 14;

export class Flags {
  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    /** Right end of the last text above a span. @type {Map<number, number>} */
    this.ends = new Map();
  }

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { openLayer: layer, model } = this.chart;
    if (!layer) return;
    this.ends.clear();
    for (const flag of model.flags) {
      const span = flag.rank < layer.ranks ? layer.find(flag.op, flag.stage, flag.mb, flag.rank) : -1;
      if (span >= 0 && !layer.isTransfer(span)) this.paintFlag(context, layer, span, flag);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Layer} layer @param {number} span @param {Flag} flag */
  paintFlag(context, layer, span, { colour, text }) {
    const { frame, plan, colours } = this.chart;
    const lane = plan.laneOf(layer, layer.rankOf(span));
    if (!frame.isLaneClear(lane) || !frame.isVisible(layer, span)) return;
    const box = boxOf(frame, layer, span, lane);
    outline(context, box, { colour, width: 2.5 });
    const font = `600 11px ${colours.font}`;
    context.font = font;
    const width = textWidth(context, text) + 8;
    const left = Math.max(frame.left, Math.min(this.ends.get(span) ?? box.x, frame.right - width));
    this.ends.set(span, left + width + 1);
    const top = Math.max(frame.top, box.y - HEIGHT + 2);
    const fill = rgb(colour);
    context.fillStyle = css(fill);
    context.fillRect(left, top, width, HEIGHT);
    write(context, text, left + 4, top + HEIGHT / 2 + 0.5, { font, colour: ink(fill) });
  }
}
