// Blocks as shapes with their words, arrows between them, and lines.

import { css, mix } from "../kit/palette.js";
import { OP } from "./columns.js";
import { TALL, box } from "./frame.js";

const MOST_LABELS = 3500;

/** Draws blocks as shapes, with their words where there is room. */
export class Shapes {
  constructor(context, colours, names) {
    this.context = context;
    this.colours = colours;
    this.names = names;
    this.widths = new Map();
  }

  draw(frame, shapes, counts) {
    const labels = [];
    for (let at = 0; at < shapes.length; at += 3) {
      this.block(frame, shapes[at], shapes[at + 1], shapes[at + 2], labels);
    }
    counts.shapes += shapes.length / 3;
    counts.labels += this.write(labels);
  }

  /** One block; its label is added to `labels`. */
  block(frame, layer, span, lane, labels) {
    const { context } = this;
    const { x, y, width, height } = box(frame, layer, span, lane);
    const left = Math.max(x, frame.left - 8);
    const right = Math.min(x + width, frame.right + 8);
    const shade = layer.shadeOf(span, lane.rank);
    const fill = this.colours.fills(layer.op[span], layer.tints)[shade] ?? this.colours.fills(layer.op[span], [0])[0];
    const gap = width >= 4 ? 1 : 0;
    context.fillStyle = fill.css;
    if (width >= 14 && height >= TALL) {
      context.beginPath();
      context.roundRect(left, y, Math.max(1, right - left - gap), height, Math.min(3, height / 5));
      context.fill();
    } else {
      context.fillRect(left, y, Math.max(1, right - left - gap), height);
    }
    if (shade & 1 && height >= 13 && width >= 6) this._rising(left, y, right - left - gap, fill);
    const size = Math.min(12, Math.floor(height * 0.72));
    if (size < 8) return;
    // a block that reaches out of the view keeps its words in the middle of what is seen
    const [a, b] = [Math.max(left, frame.left), Math.min(right, frame.right)];
    const label = this._words(layer, span, b - a - gap, size, layer.shortest * frame.scale);
    if (label) labels.push({ ...label, ink: fill.ink, x: (a + b - gap) / 2, y: y + height / 2 });
  }

  /** A line along the top: this stage belongs to a pass that goes up. */
  _rising(x, y, width, fill) {
    this.context.fillStyle = fill.deep;
    this.context.fillRect(x + 2, y + 1, width - 4, 1.5);
  }

  /**
   * The whole action where the shortest block has room for it, else the microbatch, so that a picture is of one kind.
   */
  _words(layer, span, room, size, shortest) {
    const [op, microbatch] = [layer.op[span], layer.microbatch[span]];
    const whole = op === OP.STEP && !layer.labels ? "step" : layer.notation(span, this.names);
    const width = this._width(whole, size) + 10;
    if (layer.labels)
      return (
        [whole, whole.split(" ", 1)[0]]
          .map((text) => ({ text, size }))
          .find(({ text }) => this._width(text, size) + 10 <= room) ?? null
      );
    if (width <= room && (microbatch < 0 || width <= shortest || room >= 90)) return { text: whole, size };
    if (microbatch < 0) return null;
    const fits = [size, 9].find((size) => this._width(String(microbatch), size) + 3 <= room);
    return fits ? { text: String(microbatch), size: fits } : null;
  }

  _width(text, size) {
    const key = `${text.length} ${size}`;
    if (!this.widths.has(key)) {
      this.context.font = `500 ${size}px ${this.colours.font}`;
      this.widths.set(key, this.context.measureText("0".repeat(text.length)).width);
    }
    return this.widths.get(key);
  }

  /** Write labels, as many as a person could read; returns how many. */
  write(labels) {
    const { context } = this;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const colour of ["#000000", "#ffffff"]) {
      context.fillStyle = colour;
      let font = 0;
      for (const { text, size, ink, x, y } of labels.slice(0, MOST_LABELS)) {
        if (ink !== colour) continue;
        if (size !== font) context.font = `500 ${(font = size)}px ${this.colours.font}`;
        context.fillText(text, x, y + 0.5);
      }
    }
    return Math.min(labels.length, MOST_LABELS);
  }

  /** A transfer, from the lane of the sender at its start to that of the receiver at its end. */
  transfer(frame, layer, span, from, to, { alpha = 0.75, width = 1.1, head = true } = {}) {
    const { context } = this;
    const path = transferPath(frame, layer, span, from, to);
    context.strokeStyle = context.fillStyle = css(mix(this.colours.ops[layer.op[span]], this.colours.text, 0.4), alpha);
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(path.x1, path.y1);
    context.lineTo(path.x2, path.y2);
    context.stroke();
    if (head) this._head(path, 3.2 + width);
    return path;
  }

  _head({ x1, y1, x2, y2 }, size) {
    const angle = Math.atan2(y2 - y1, x2 - x1);
    const { context } = this;
    context.beginPath();
    context.moveTo(x2 + Math.cos(angle), y2 + Math.sin(angle));
    for (const turn of [2.62, -2.62])
      context.lineTo(x2 + size * Math.cos(angle + turn), y2 + size * Math.sin(angle + turn));
    context.fill();
  }
}

/** The line of a transfer, a little into both lanes so that it is seen where they touch. */
function transferPath(frame, layer, span, from, to) {
  const down = to.y > from.y;
  const inset = 0.2;
  return {
    span,
    x1: frame.x(layer.start[span]),
    y1: down ? from.y + from.height * (1 - inset) : from.y + from.height * inset,
    x2: frame.x(layer.end[span]),
    y2: down ? to.y + to.height * inset : to.y + to.height * (1 - inset),
  };
}

/** Draw what stays inside the lanes of a frame. */
export function clipped(context, { left, top, right, bottom }, draw) {
  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
  draw();
  context.restore();
}

export function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

/** A text cut so that it fits. */
export function shorten(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let kept = text;
  while (kept && context.measureText(`${kept}…`).width > room) kept = kept.slice(0, -1);
  return `${kept}…`;
}
