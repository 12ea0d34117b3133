// Titles and names of the strips below the lanes, for links and memory.

/** @import { Frame } from "./frame.js" */
/** @import { Plan } from "./types" */

import { css } from "../kit/palette.js";
import { TITLE } from "./paint.js";
import { line, textWidth, write } from "./shapes.js";

const LEFT = 16; // x of titles in CSS pixels, right of the buttons that collapse their strips
const NAME_HEIGHT = 12; // CSS pixels, with the gap to the next name

/** The y at which the text of a heading ends. @param {number} y of the heading */
export const headingEnd = (y) => y + TITLE / 2 + 1 + NAME_HEIGHT / 2;

/** Paints strips on the axis of the timeline. */
export class Strips {
  /** @param {CanvasRenderingContext2D} context @param {Frame} frame @param {Plan} plan */
  constructor(context, frame, plan) {
    this.context = context;
    this.frame = frame;
    this.plan = plan;
    this.colours = frame.colours;
  }

  /**
   * Write a title with a line above it, and return the x at which its text ends.
   * @param {number} y @param {string} title @param {string} words @param {boolean} [isWarning]
   */
  writeHeading(y, title, words, isWarning = false) {
    const { context, colours, plan } = this;
    const middle = y + TITLE / 2 + 1;
    context.strokeStyle = css(colours.line);
    line(context, 0, Math.round(y) + 0.5, plan.width, Math.round(y) + 0.5);
    write(context, title, LEFT, middle, { font: `600 11px ${colours.font}`, colour: css(colours.text) });
    const x = LEFT + textWidth(context, title) + 6;
    const colour = css(isWarning ? colours.warning : colours.muted);
    write(context, words, x, middle, { font: `11px ${colours.font}`, colour, room: plan.width - x - 10 });
    return x + textWidth(context, words);
  }

  /**
   * Write the name of a strip and a number right of it, unless it overlaps the name above. Return the y at which the
   * name ends.
   * @param {number} middle
   * @param {{name: string, number: string, free: number, isWarning?: boolean}} strip `free`: where the name above ends
   */
  writeLabel(middle, { name, number, free, isWarning = false }) {
    if (middle - NAME_HEIGHT / 2 < free) return free;
    const { context, colours, plan } = this;
    const font = `${isWarning ? "600 " : ""}11px ${colours.font}`;
    const colour = css(isWarning ? colours.warning : colours.muted);
    write(context, number, plan.gutter - 11, middle, { font, colour, align: "right" });
    const room = plan.gutter - 27 - textWidth(context, number);
    write(context, name, 10, middle, { font: `600 11px ${colours.font}`, colour: css(colours.text), room });
    return middle + NAME_HEIGHT / 2;
  }
}
