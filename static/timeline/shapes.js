// Blocks as shapes with labels, arrows between them, lines and texts.

/** @import { Colours, Frame } from "./frame.js" */
/** @import { Layer } from "./data.js" */
/** @import { Box } from "../kit/types" */
/** @import { Edges, Label, Lane, Segment } from "./types" */

import { translate } from "../kit/language.js";
import { css, mix } from "../kit/palette.js";
import { OP } from "./columns.js";
import { TALL, boxOf } from "./frame.js";

const MOST_LABELS = 3500;
const HATCHED = 14; // width in CSS pixels from which a block is hatched
const HATCH = 6; // CSS pixels between the lines

/** Draws blocks as shapes, with labels if there is room. */
export class Shapes {
  /** @type {Map<string, number>} */ widths = new Map(); // widths of texts, by length and size

  /** @param {CanvasRenderingContext2D} context @param {Colours} colours @param {string[]} names */
  constructor(context, colours, names) {
    this.context = context;
    this.colours = colours;
    this.names = names;
  }

  /**
   * Draw blocks given as layer, span, lane, ... and count them.
   * @param {Frame} frame @param {any[]} shapes @param {{shapes: number, labels: number}} counts
   */
  draw(frame, shapes, counts) {
    /** @type {Label[]} */
    const labels = [];
    for (let at = 0; at < shapes.length; at += 3) {
      this.block(frame, shapes[at], shapes[at + 1], shapes[at + 2], labels);
    }
    counts.shapes += shapes.length / 3;
    counts.labels += this.write(labels);
  }

  /**
   * Draw a block; its label is added to `labels`.
   * @param {Frame} frame @param {Layer} layer @param {number} span @param {Lane} lane @param {Label[]} labels
   */
  block(frame, layer, span, lane, labels) {
    const { context } = this;
    const { x, y, width, height } = boxOf(frame, layer, span, lane);
    const left = Math.max(x, frame.left - 8);
    const right = Math.min(x + width, frame.right + 8);
    const shade = layer.shadeOf(span, lane.rank);
    const op = layer.op[span];
    const fill = this.colours.fills(op, layer.tints)[shade] ?? this.colours.fills(op, [0])[0];
    const gap = width >= 4 ? 1 : 0;
    context.fillStyle = fill.css;
    if (width >= 14 && height >= TALL) {
      context.beginPath();
      context.roundRect(left, y, Math.max(1, right - left - gap), height, Math.min(3, height / 5));
      context.fill();
    } else {
      context.fillRect(left, y, Math.max(1, right - left - gap), height);
    }
    const box = { x: left, y, width: right - left - gap, height };
    const isBlocked = layer.isBlocked(span);
    if (isBlocked) this.cross(box);
    else this.decorate(box, op, shade, fill.deep);
    const size = Math.floor(Math.min(height * 0.72, Math.max(12, height / 6)));
    if (size < 8) return;
    // the label of a block that extends beyond the view is in the middle of its visible part
    const [from, to] = [Math.max(left, frame.left), Math.min(right, frame.right)];
    const label = this.labelOf(layer, span, to - from - gap, size, layer.shortest * frame.scale);
    if (label)
      labels.push({
        ...label,
        ink: isBlocked ? this.inkOfBlocked : fill.ink,
        x: (from + to - gap) / 2,
        y: y + height / 2,
      });
  }

  get inkOfBlocked() {
    return this.colours.theme === "dark" ? "#ffffff" : "#000000";
  }

  /** Fade and hatch a block that never runs. @param {Box} box */
  cross({ x, y, width, height }) {
    const { background, danger } = this.colours;
    this.context.fillStyle = css(background, 0.6);
    this.context.fillRect(x, y, width, height);
    this.hatch(x, y, width, height, css(danger, 0.75));
  }

  /**
   * Hatch a weight gradient, and draw a line along the top of a block in the return of a wave.
   * @param {Box} box @param {number} op @param {number} shade @param {string} colour
   */
  decorate({ x, y, width, height }, op, shade, colour) {
    if (op === OP.W && height >= TALL && width >= HATCHED) this.hatch(x, y, width, height, colour);
    if (!(shade & 1) || height < 13 || width < 5) return;
    this.context.fillStyle = colour;
    this.context.fillRect(x + 2, y + 1, width - 4, 1.5);
  }

  /**
   * Hatch a block, which distinguishes weight gradients from input gradients, and blocked blocks, without colour.
   * @param {number} x @param {number} y @param {number} width @param {number} height @param {string} colour
   */
  hatch(x, y, width, height, colour) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.beginPath();
    for (let at = x - height + (HATCH - ((x - height) % HATCH)); at < x + width; at += HATCH) {
      context.moveTo(at, y + height);
      context.lineTo(at + height, y);
    }
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.stroke();
    context.restore();
  }

  /**
   * The label of a block: the whole action if the shortest block has room for it, else the microbatch, so that all
   * blocks of a picture have the same kind of label. The label of a step inside a block is its name, or the first
   * word of the name.
   * @param {Layer} layer @param {number} span @param {number} room @param {number} size @param {number} shortest
   */
  labelOf(layer, span, room, size, shortest) {
    const microbatch = layer.microbatchOf(span);
    const name = layer.notation(span, this.names);
    const fits = (/** @type {string} */ text) => this.width(text, size) + 10 <= room;
    if (layer.labels) {
      const text = [name, name.split(" ", 1)[0]].find(fits);
      return text === undefined ? null : { text, size };
    }
    const full = layer.op[span] === OP.STEP ? "step" : name;
    const isUniform = microbatch < 0 || this.width(full, size) + 10 <= shortest || room >= 90;
    if (fits(full) && isUniform) return { text: full, size };
    const text = String(microbatch);
    const smaller = microbatch < 0 ? undefined : [size, 9].find((size) => this.width(text, size) + 3 <= room);
    return smaller ? { text, size: smaller } : null;
  }

  /** @param {string} text @param {number} size */
  width(text, size) {
    const key = `${text.length} ${size}`;
    const known = this.widths.get(key);
    if (known !== undefined) return known;
    this.context.font = `500 ${size}px ${this.colours.font}`;
    const { width } = this.context.measureText("0".repeat(text.length));
    this.widths.set(key, width);
    return width;
  }

  /** Write labels, up to a limit, and return how many. @param {Label[]} labels */
  write(labels) {
    const { context } = this;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const colour of ["#000000", "#ffffff"]) {
      context.fillStyle = colour;
      let fontSize = 0;
      for (const { text, size, ink, x, y } of labels.slice(0, MOST_LABELS)) {
        if (ink !== colour) continue;
        if (size !== fontSize) context.font = `500 ${(fontSize = size)}px ${this.colours.font}`;
        context.fillText(text, x, y + 0.5);
      }
    }
    return Math.min(labels.length, MOST_LABELS);
  }

  /**
   * Draw a transfer as an arrow from the sender's lane at its start to the receiver's lane at its end.
   * @param {Frame} frame @param {Layer} layer @param {number} span @param {Lane} from @param {Lane} to
   * @param {{alpha: number, width: number, head?: boolean}} style
   */
  transfer(frame, layer, span, from, to, { alpha, width, head = true }) {
    const { context } = this;
    const path = transferPath(frame, layer, span, from, to);
    context.strokeStyle = context.fillStyle = css(mix(this.colours.ops[layer.op[span]], this.colours.text, 0.4), alpha);
    context.lineWidth = width;
    line(context, path.x1, path.y1, path.x2, path.y2);
    if (head) this.head(path, 3.2 + width);
    return { ...path, layer, span };
  }

  /** @param {Segment} path @param {number} size */
  head({ x1, y1, x2, y2 }, size) {
    const angle = Math.atan2(y2 - y1, x2 - x1);
    arrowHead(this.context, x2 + Math.cos(angle), y2 + Math.sin(angle), x2, y2, angle, size);
  }
}

/**
 * The line of a transfer. It begins and ends inside the lanes, so that it is visible between adjacent lanes.
 * @param {Frame} frame @param {Layer} layer @param {number} span @param {Lane} from @param {Lane} to @returns {Segment}
 */
function transferPath(frame, layer, span, from, to) {
  const [near, far] = to.y > from.y ? [0.2, 0.8] : [0.8, 0.2];
  return {
    x1: frame.x(layer.start[span]),
    y1: from.y + from.height * far,
    x2: frame.x(layer.end[span]),
    y2: to.y + to.height * near,
  };
}

/**
 * Fill the head of an arrow: its tip, and two barbs around a point behind it.
 * @param {CanvasRenderingContext2D} context @param {number} tipX @param {number} tipY @param {number} x
 * @param {number} y @param {number} angle @param {number} size
 */
export function arrowHead(context, tipX, tipY, x, y, angle, size) {
  context.beginPath();
  context.moveTo(tipX, tipY);
  for (const turn of [2.65, -2.65])
    context.lineTo(x + size * Math.cos(angle + turn), y + size * Math.sin(angle + turn));
  context.fill();
}

/**
 * Draw only inside a rectangle.
 * @param {CanvasRenderingContext2D} context @param {Omit<Edges, "split">} edges @param {() => void} draw
 */
export function clipped(context, { left, top, right, bottom }, draw) {
  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
  draw();
  context.restore();
}

/**
 * @param {CanvasRenderingContext2D} context @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2
 */
export function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

/**
 * Stroke a frame around a block, at some distance around a thin one.
 * @param {CanvasRenderingContext2D} context @param {{x: number, y: number, width: number, height: number}} box
 * @param {{colour: string, width: number, dash?: number[], fill?: number}} style `fill` is an opacity
 */
export function outline(context, { x, y, width, height }, { colour, width: lineWidth, dash = [], fill = 0 }) {
  const margin = width < 6 ? 2 : 0;
  const inner = width - (margin ? 0 : 1);
  context.beginPath();
  context.roundRect(x - margin, y - margin / 2, inner + 2 * margin, height + margin, Math.min(3, height / 5));
  if (fill) {
    context.globalAlpha = fill;
    context.fillStyle = colour;
    context.fill();
    context.globalAlpha = 1;
  }
  context.strokeStyle = colour;
  context.lineWidth = lineWidth;
  context.setLineDash(dash);
  context.stroke();
  context.setLineDash([]);
}

/**
 * Write a text at a point in a font of 11 to 13 CSS pixels, in the language of the page.
 * @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y
 * @param {{font: string, colour: string, align?: CanvasTextAlign, room?: number, isName?: boolean}} style names are
 * not translated
 */
export function write(context, text, x, y, { font, colour, align = "left", room = Infinity, isName = false }) {
  context.font = font;
  context.fillStyle = colour;
  context.textAlign = align;
  context.textBaseline = "middle";
  const words = isName ? text : translate(text);
  context.fillText(room < Infinity ? shorten(context, words, room) : words, x, y);
}

/** The width of a text in the language of the page. @param {CanvasRenderingContext2D} context @param {string} text */
export const textWidth = (context, text) => context.measureText(translate(text)).width;

/**
 * A text that is truncated to fit.
 * @param {CanvasRenderingContext2D} context @param {string} text @param {number} room
 */
function shorten(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let kept = text;
  while (kept && context.measureText(`${kept}…`).width > room) kept = kept.slice(0, -1);
  return `${kept}…`;
}
