// Memory per device of each mesh, below the lanes and on their axis.

/** @import { Layer } from "./data.js" */
/** @import { Frame } from "./frame.js" */
/** @import { Plan, Strip } from "./types" */

import { css, mix, pixel } from "../kit/palette.js";
import { TICKS, lowerBound } from "./columns.js";
import { TALL } from "./frame.js";
import { memoryLevels } from "./memory_parts.js";
import { TITLE } from "./paint.js";
import { clipped, line, textWidth, write } from "./shapes.js";
import { Strips } from "./strips.js";
import { bytes } from "./units.js";

const NEAR = 0.7; // part of the capacity; the strips are scaled to a peak below it
const DASHES = [[], [5, 3], [1.5, 2]]; // dashes of the lines of other designs
const LINE = 12; // height of a name in CSS pixels

/** Paints memory strips as step curves, or as rows of pixels if the strips are too low. */
export class MemoryStrips extends Strips {
  free = -Infinity; // the y from which on the next name does not overlap the one above

  paint() {
    /** @type {Strip[]} */
    let flat = []; // neighbours that are too low for curves
    for (const strip of this.plan.strips) {
      if (strip.rank >= 0 && strip.height < TALL) {
        flat.push(strip);
        continue;
      }
      this.paintFlat(flat);
      flat = [];
      if (strip.rank < 0) this.writeTitle(strip);
      else this.paintCurve(strip);
    }
    this.paintFlat(flat);
  }

  /** @param {Strip[]} strips neighbours of one layer */
  paintFlat(strips) {
    if (!strips.length) return;
    this.paintHeat(strips[0].layer, strips);
    this.nameHeat(strips[0].layer, strips);
  }

  /** @param {Strip} strip */
  writeTitle({ layer, others, y }) {
    const { context, colours, frame, plan } = this;
    const hasLabel = others.length > 0 || plan.strips.filter((strip) => strip.rank < 0).length > 1;
    const label = hasLabel ? `${layer.label}: ` : "";
    const middle = y + TITLE / 2 + 1;
    let x = this.writeHeading(y, "Memory", memoryWords(layer, label), isTooLarge(layer)) + 16;
    others.forEach((other, i) => {
      const text = `${other.label}: peak ${bytes(Math.max(...other.peaks))}`;
      const width = textWidth(context, text);
      if (x + 26 + width > frame.right) return;
      this.withPen(i, () => line(context, x, middle, x + 20, middle));
      write(context, text, x + 26, middle, { font: `11px ${colours.font}`, colour: css(colours.muted) });
      x += 26 + width + 16;
    });
  }

  /** Draw with the line style of another design. @param {number} design @param {() => void} draw */
  withPen(design, draw) {
    const { context, colours } = this;
    context.strokeStyle = css(colours.text, 0.85);
    context.lineWidth = 1.2;
    context.setLineDash(DASHES[design % DASHES.length]);
    draw();
    context.setLineDash([]);
    context.lineWidth = 1;
  }

  /** @param {Strip} strip */
  paintCurve(strip) {
    const { context, frame, colours } = this;
    const { layer, others, rank, ranks } = strip;
    const { top, limit } = scaleOf(layer, ...others);
    const width = Math.round(frame.right - frame.left);
    const columns = memoryColumns(layer, ranks, frame, new Float32Array(width));
    const bottom = Math.round(strip.y + strip.height) - 0.5;
    const y = (/** @type {number} */ value) => bottom - (value / top) * (strip.height - 3);
    const area = stepPath(columns, frame.left, bottom, y);
    const edges = { left: frame.left, right: frame.left + width, top: strip.y, bottom: strip.y + strip.height };
    const isOver = limit !== null && peakOf(strip) > limit;
    clipped(context, edges, () => {
      const [a, b] = [frame.x(0), frame.x(layer.last)];
      const ceiling = limit === null ? strip.y + 1 : y(limit);
      context.fillStyle = css(colours.idle);
      context.fillRect(a, ceiling, b - a, bottom - ceiling);
      context.fillStyle = css(colours.memory, 0.7);
      context.fill(area);
      if (ranks.length === 1) this.paintParts(layer, rank, y, bottom);
      context.strokeStyle = css(colours.memory);
      context.lineWidth = 1;
      context.stroke(area);
      if (limit !== null) this.paintCapacity(area, strip, ceiling, isOver);
      others.forEach((other, i) => {
        memoryColumns(other, ranks, frame, columns);
        this.withPen(i, () => context.stroke(stepPath(columns, frame.left, bottom, y)));
      });
    });
    context.strokeStyle = css(colours.line);
    line(context, frame.left, bottom + 0.5, frame.right, bottom + 0.5);
    context.fillStyle = ranks.length > 1 ? css(colours.muted) : colours.mesh(rank);
    context.fillRect(frame.left - 7, strip.y + 1, 3, strip.height - 2);
    this.writeName(strip, strip.y + strip.height / 2 + 0.5, isOver);
  }

  /**
   * Paint the categories below the curve, the most constant one at the bottom and darkest.
   * @param {Layer} layer @param {number} rank @param {(value: number) => number} y @param {number} bottom
   */
  paintParts(layer, rank, y, bottom) {
    const { context, frame, colours } = this;
    const columns = new Float32Array(Math.round(frame.right - frame.left));
    const levels = memoryLevels(layer);
    for (let at = levels.length - 1; at >= 0; at--) {
      memoryColumns(layer, [rank], frame, columns, levels[at]);
      context.fillStyle = css(mix(colours.background, colours.memory, 0.95 - (0.65 * at) / levels.length));
      context.fill(stepPath(columns, frame.left, bottom, y));
    }
  }

  /** @param {Path2D} area @param {Strip} strip @param {number} y @param {boolean} isOver */
  paintCapacity(area, strip, y, isOver) {
    const { context, frame, colours } = this;
    const edges = { left: frame.left, right: frame.right, top: strip.y, bottom: Math.max(strip.y, y) };
    if (isOver) {
      clipped(context, edges, () => {
        context.fillStyle = css(colours.warning);
        context.fill(area);
      });
    }
    context.strokeStyle = css(isOver ? colours.warning : colours.hatch);
    line(context, frame.x(0), Math.round(y) + 0.5, frame.x(strip.layer.last), Math.round(y) + 0.5);
  }

  /** @param {Strip} strip @param {number} middle @param {boolean} isWarning */
  writeName(strip, middle, isWarning) {
    const number = this.plan.gutter > 80 ? bytes(peakOf(strip)) : "";
    this.free = this.writeLabel(middle, { name: strip.name, number, free: this.free, isWarning });
  }

  /**
   * Paint many meshes, each as a row of pixels: darker for more memory, in the warning colour above the capacity.
   * @param {Layer} layer @param {Strip[]} strips
   */
  paintHeat(layer, strips) {
    const { context, frame, colours } = this;
    const { top, limit } = scaleOf(layer);
    const width = Math.max(1, Math.round((frame.right - frame.left) * frame.ratio));
    const above = Math.round(strips[0].y * frame.ratio);
    const last = strips[strips.length - 1];
    const height = Math.max(1, Math.round((last.y + last.height) * frame.ratio) - above - 1);
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const empty = mix(colours.background, colours.memory, 0.06);
    const ramp = Array.from({ length: 65 }, (_, step) => pixel(mix(empty, colours.memory, (step / 64) ** 1.5)));
    const [warning, part] = [pixel(colours.warning), 64 / top];
    const columns = new Float32Array(width);
    for (const strip of strips) {
      const first = Math.round(strip.y * frame.ratio) - above;
      const end = Math.min(height, Math.max(first + 1, Math.round((strip.y + strip.height) * frame.ratio) - above));
      if (end <= first) continue;
      memoryColumns(layer, strip.ranks, frame, columns);
      const row = first * width;
      for (let x = 0; x < width; x++)
        pixels[row + x] = limit !== null && columns[x] > limit ? warning : ramp[(columns[x] * part) | 0];
      for (let at = first + 1; at < end; at++) pixels.copyWithin(at * width, row, row + width);
    }
    context.putImageData(image, Math.round(frame.left * frame.ratio), above);
  }

  /** @param {Layer} layer @param {Strip[]} strips */
  nameHeat(layer, strips) {
    const { context, frame, colours, plan } = this;
    const { limit } = scaleOf(layer);
    for (const strip of strips) {
      const { rank, y, height } = strip;
      context.fillStyle = colours.mesh(rank);
      context.fillRect(frame.left - 7, y, 3, height);
      const isOver = limit !== null && layer.peaks[rank] > limit;
      if (y + LINE - 2 <= plan.height) this.writeName(strip, y + LINE / 2 - 0.5, isOver);
    }
  }
}

/** The peak of a timeline and whether it fits. @param {Layer} layer @param {string} [label] */
export function memoryWords(layer, label = "") {
  const limit = layer.capacity ? ` of ${bytes(layer.capacity)}` : "";
  const isOver = isTooLarge(layer);
  return `${label}peak ${bytes(Math.max(...layer.peaks))}${limit} per device${isOver ? ", does not fit" : ""}`;
}

/** @param {Layer} layer */
const isTooLarge = ({ capacity, peaks }) => Boolean(capacity && Math.max(...peaks) > capacity);

/**
 * The upper limit of the strips in bytes, and the capacity if the peak is near it.
 * @param {Layer[]} layers the first is the open design
 */
function scaleOf(...layers) {
  const [{ capacity }] = layers;
  const peak = Math.max(1, ...layers.flatMap(({ peaks }) => peaks));
  const limit = capacity && peak > NEAR * capacity ? capacity : null;
  return { top: Math.max(peak, limit ?? 0) * 1.08, limit };
}

/** The peak bytes on a device of the ranks of a strip. @param {Strip} strip */
const peakOf = ({ layer, ranks }) => Math.max(...ranks.map((rank) => layer.peaks[rank]));

/**
 * The outline of columns of values as a step curve.
 * @param {Float32Array} columns @param {number} left @param {number} bottom @param {(value: number) => number} y
 */
export function stepPath(columns, left, bottom, y) {
  const path = new Path2D();
  path.moveTo(left, bottom);
  let last = 0;
  for (let x = 0; x < columns.length; x++) {
    if (columns[x] === last) continue;
    path.lineTo(left + x, y(last));
    path.lineTo(left + x, y(columns[x]));
    last = columns[x];
  }
  path.lineTo(left + columns.length, y(last));
  path.lineTo(left + columns.length, bottom);
  path.closePath();
  return path;
}

/**
 * Write the peak bytes of the fullest of some ranks in each column of the view into `columns`.
 * @param {Layer} layer @param {number[]} ranks @param {{from: number, to: number}} frame @param {Float32Array} columns
 * @param {Float32Array} held bytes after each change of the memory
 */
export function memoryColumns(layer, ranks, frame, columns, held = layer.memory_bytes) {
  columns.fill(0);
  for (const rank of ranks) raiseColumns(layer, rank, frame, columns, held);
  return columns;
}

/**
 * @param {Layer} layer @param {number} rank @param {{from: number, to: number}} frame @param {Float32Array} columns
 * @param {Float32Array} held
 */
function raiseColumns(layer, rank, frame, columns, held) {
  const width = columns.length;
  const { memory_time: time } = layer;
  const [first, last] = [layer.memory_bounds[rank], layer.memory_bounds[rank + 1]];
  const scale = width / (frame.to - frame.from);
  const to = lowerBound(time, Math.min(TICKS, frame.to), first, last);
  for (let at = Math.max(first, lowerBound(time, Math.max(0, frame.from), first, last) - 1); at < to; at++) {
    const until = at + 1 < last ? time[at + 1] : layer.last;
    const a = Math.max(0, Math.floor((time[at] - frame.from) * scale));
    const b = Math.min(width - 1, Math.floor((until - frame.from) * scale));
    const value = held[at];
    for (let x = a; x <= b; x++) if (value > columns[x]) columns[x] = value;
  }
}
