// Blocks as pixels: thin blocks are painted into a pixel buffer, the others are drawn as shapes.

/** @import { Frame } from "./frame.js" */
/** @import { Layer } from "./data.js" */
/** @import { Band, Fill, Lane } from "./types" */

import { pixel } from "../kit/palette.js";
import { OP, TICKS, lowerBound } from "./columns.js";
import { TALL } from "./frame.js";

const THIN = 3; // width in device pixels below which a block is counted as a share of its pixel columns

const WIDE = 9; // width in CSS pixels from which a block is a shape and, if there is room, has a label

export const TITLE = 19; // CSS pixels of the title above the lanes of a row

const PERIOD = 7; // CSS pixels between the lines of the hatch

const CLASSES = 9; // F, B, I and W, each down and up, and STEP

/** Device pixels of a lane in the buffer: its top and bottom, and the rows that are inside the buffer. */
/** @typedef {{top: number, bottom: number, first: number, last: number}} Rows */

/** The range of columns with shares, and a bit for each class of block in the range. */
/** @typedef {{low: number, high: number, present: number}} Extent */

/** Paints lanes into an ImageData, and collects the blocks that are drawn as shapes. */
export class Pixels {
  /** @param {Frame} frame */
  constructor(frame) {
    const { ratio } = frame;
    this.frame = frame;
    this.width = Math.max(1, Math.round((frame.right - frame.left) * ratio));
    this.height = Math.max(1, Math.round((frame.bottom - frame.top) * ratio));
    this.image = new ImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.shares = new Float32Array(CLASSES * this.width);
    this.hatches = this.makeHatches();
    /** Layer, span and lane of each block that is drawn as a shape. @type {any[]} */
    this.shapes = [];
    this.counts = { dense: 0, solid: 0, shapes: 0, labels: 0, transfers: 0 };
    this.begin(frame);
  }

  /** True if the buffer can be reused for a frame. @param {Frame} frame */
  fits(frame) {
    const { ratio } = this.frame;
    return (
      frame.ratio === ratio &&
      frame.colours === this.frame.colours &&
      Math.round((frame.right - frame.left) * ratio) === this.width &&
      Math.round((frame.bottom - frame.top) * ratio) === this.height
    );
  }

  /** @param {Frame} frame */
  begin(frame) {
    this.frame = frame;
    this.pixels.fill(pixel(frame.colours.background));
    this.shapes = [];
    this.counts = { dense: 0, solid: 0, shapes: 0, labels: 0, transfers: 0 };
  }

  /** Erase the pixels above a y in CSS pixels, and return the shapes that were collected so far. @param {number} y */
  cutAbove(y) {
    const rows = Math.max(0, Math.round((y - this.frame.top) * this.frame.ratio));
    this.pixels.fill(pixel(this.frame.colours.background), 0, rows * this.width);
    const { shapes } = this;
    this.shapes = [];
    return shapes;
  }

  /** A row of the hatch for each of its phases, so that idle time is copied instead of drawn. */
  makeHatches() {
    const { ratio, colours } = this.frame;
    const period = Math.round(PERIOD * ratio);
    const [idle, line] = [pixel(colours.idle), pixel(colours.hatch)];
    return Array.from({ length: period }, (_, phase) =>
      Uint32Array.from({ length: this.width }, (_, x) => ((x + phase) % period < ratio ? line : idle)),
    );
  }

  /** True if the blocks of a layer are too thin in this view to be distinguished. @param {Layer} layer */
  isDense(layer) {
    return layer.mean * this.frame.scale * this.frame.ratio < THIN;
  }

  /** @param {Lane} lane */
  lane(lane) {
    const rows = this.rowsOf(lane);
    if (!rows) return;
    this.paintIdle(lane, rows);
    this.paintBlocks(lane, rows);
    this.paintCollectives(lane, rows);
  }

  /**
   * Paint low lanes together: each column of pixels shows the shares of forward, backward and so on over all lanes. A
   * stack per lane would have stripes of one or two pixels, which look grey.
   * @param {Band} band
   */
  band(band) {
    const rows = this.rowsOf(band);
    if (!rows) return;
    this.paintIdle(band, rows);
    const extent = { low: this.width, high: -1, present: 0 };
    for (const lane of band.lanes) this.countLane(lane, 1 / band.lanes.length, extent);
    this.paintStacks({ ...rows, top: rows.top + 1 }, extent, this.fillsOf(band.layer));
    for (const lane of band.lanes) this.paintCollectives(lane, this.rowsOf(lane) ?? rows);
  }

  /** @param {{y: number, height: number}} lane @returns {Rows | null} */
  rowsOf({ y, height }) {
    const { frame } = this;
    const top = Math.round((y - frame.top) * frame.ratio);
    const bottom = Math.max(top + 1, Math.round((y + height - frame.top) * frame.ratio));
    if (bottom <= 0 || top >= this.height) return null;
    return { top, bottom, first: Math.max(0, top), last: Math.min(this.height, bottom) };
  }

  /** @param {Layer} layer */
  fillsOf(layer) {
    return Array.from({ length: OP.STEP + 1 }, (_, op) => this.frame.colours.fills(op, layer.tints));
  }

  /** @param {number} tick */
  column(tick) {
    return (tick - this.frame.from) * this.frame.scale * this.frame.ratio;
  }

  /** @param {{layer: Layer}} lane @param {Rows} rows */
  paintIdle({ layer }, rows) {
    const from = Math.max(0, Math.round(this.column(0)));
    const to = Math.min(this.width, Math.round(this.column(layer.last)));
    if (to <= from) return;
    for (let y = rows.first; y < rows.last; y++) {
      this.pixels.set(this.hatches[y % this.hatches.length].subarray(from, to), y * this.width + from);
    }
  }

  /** @param {Lane} lane @param {Rows} rows */
  paintBlocks(lane, rows) {
    const { layer } = lane;
    const { start, end, op, group } = layer;
    const fills = this.fillsOf(layer);
    const scale = this.frame.scale * this.frame.ratio;
    const wide = lane.height >= TALL ? WIDE * this.frame.ratio : Infinity;
    const extent = { low: this.width, high: -1, present: 0 };
    const [from, to] = this.spansInView(lane);
    for (let span = from; span < to; span++) {
      const left = (start[span] - this.frame.from) * scale;
      const right = (end[span] - this.frame.from) * scale;
      const half = layer.halfOf(span);
      if (right - left >= wide) this.shapes.push(layer, span, lane);
      else if (right - left < THIN) this.countBlock(group[span], left, right, half ? 0.5 : 1, extent);
      else
        this.paintBlock(
          half ? halfOf(rows, half) : rows,
          left,
          right,
          fills[op[span]][layer.shadeOf(span, lane.rank)] ?? fills[op[span]][0],
          this.frame.ratio,
        );
    }
    this.paintStacks(rows, extent, fills);
  }

  /**
   * Add the blocks of a lane to the shares of columns.
   * @param {Lane} lane @param {number} weight @param {Extent} extent
   */
  countLane(lane, weight, extent) {
    const { layer } = lane;
    const { start, end, group } = layer;
    const origin = this.frame.from;
    const scale = this.frame.scale * this.frame.ratio;
    const [from, to] = this.spansInView(lane);
    for (let span = from; span < to; span++) {
      const part = layer.halfOf(span) ? weight / 2 : weight;
      this.countBlock(group[span], (start[span] - origin) * scale, (end[span] - origin) * scale, part, extent);
    }
  }

  /** @param {Lane} lane */
  spansInView({ layer, rank }) {
    const [first, last] = layer.range(0, rank);
    const from = lowerBound(layer.end, Math.max(0, this.frame.from), first, last);
    return [from, lowerBound(layer.start, Math.min(TICKS, this.frame.to), from, last)];
  }

  /**
   * Add a block to the columns of its class.
   * @param {number} group @param {number} left @param {number} right @param {number} weight @param {Extent} extent
   */
  countBlock(group, left, right, weight, extent) {
    const { shares, width } = this;
    const a = left < 0 ? 0 : left;
    const b = right > width ? width : right;
    if (b <= a) return;
    const row = group * width;
    const first = a | 0;
    const last = b | 0;
    if (first === last) {
      shares[row + first] += (b - a) * weight;
    } else {
      shares[row + first] += (first + 1 - a) * weight;
      for (let x = first + 1; x < last; x++) shares[row + x] += weight;
      if (last < width) shares[row + last] += (b - last) * weight;
    }
    extent.present |= 1 << group;
    if (first < extent.low) extent.low = first;
    if (last > extent.high) extent.high = last < width ? last : width - 1;
    this.counts.dense++;
  }

  /** @param {Rows} rows @param {number} left @param {number} right @param {Fill} fill @param {number} ratio */
  paintBlock(rows, left, right, fill, ratio) {
    const from = Math.max(0, Math.round(left));
    const to = Math.min(this.width, Math.max(Math.round(left) + 1, Math.round(right)));
    const edge = right - left >= 4 * ratio && to < this.width ? to - 1 : to;
    for (let y = rows.first; y < rows.last; y++) {
      const row = y * this.width;
      this.pixels.fill(fill.pixel, row + from, row + edge);
      if (edge < to) this.pixels[row + edge] = fill.edge;
    }
    this.counts.solid++;
  }

  /**
   * Paint columns as stacks of the shares of each class above the idle part.
   * @param {Rows} rows @param {Extent} extent @param {Fill[][]} fills
   */
  paintStacks(rows, { low, high, present }, fills) {
    const classes = Array.from({ length: CLASSES }, (_, group) => group).filter((group) => present & (1 << group));
    const colours = classes.map((group) =>
      group === CLASSES - 1 ? fills[OP.STEP][0] : (fills[group >> 1][group & 1] ?? fills[group >> 1][0]),
    );
    for (let x = low; x <= high; x++) this.paintStack(rows, x, classes, colours);
  }

  /** @param {Rows} rows @param {number} x @param {number[]} classes @param {Fill[]} colours */
  paintStack(rows, x, classes, colours) {
    const { shares, width } = this;
    const height = rows.bottom - rows.top;
    let y = rows.bottom - 1;
    let room = 1; // index of the row that is being filled
    let [r, g, b] = [0, 0, 0];
    for (let i = 0; i < classes.length; i++) {
      const at = classes[i] * width + x;
      let left = shares[at] * height;
      if (left <= 0) continue;
      shares[at] = 0;
      const { rgb, pixel: full } = colours[i];
      if (room < 1) {
        const part = Math.min(left, room);
        r += part * rgb[0];
        g += part * rgb[1];
        b += part * rgb[2];
        room -= part;
        left -= part;
        if (room > 1e-3) continue;
        this.put(rows, x, y--, rgba(r, g, b));
        room = 1;
      }
      for (; left >= 0.999 && y >= rows.top; left--) this.put(rows, x, y--, full);
      if (left > 1e-3) {
        [r, g, b] = [left * rgb[0], left * rgb[1], left * rgb[2]];
        room = 1 - left;
      }
    }
    if (room === 1) return;
    const { idle } = this.frame.colours;
    this.put(rows, x, y, rgba(r + room * idle[0], g + room * idle[1], b + room * idle[2]));
  }

  /** @param {Rows} rows @param {number} x @param {number} y @param {number} value */
  put(rows, x, y, value) {
    if (y >= rows.first && y < rows.last) this.pixels[y * this.width + x] = value;
  }

  /**
   * Paint collectives, which overlap with blocks, as a bar along the bottom of the lane.
   * @param {Lane} lane @param {Rows} rows
   */
  paintCollectives(lane, rows) {
    const { layer } = lane;
    const [from, to] = layer.range(1, lane.rank);
    const thickness = Math.max(1, Math.round(Math.min(0.24 * (rows.bottom - rows.top), 6 * this.frame.ratio)));
    const bar = { ...rows, first: Math.max(rows.first, rows.bottom - thickness) };
    for (let span = from; span < to; span++) {
      const [left, right] = [this.column(layer.start[span]), this.column(layer.end[span])];
      const [fill] = this.frame.colours.fills(layer.op[span], [0]);
      if (right >= 0 && left < this.width) this.paintBlock(bar, left, Math.max(right, left + 1), fill, Infinity);
    }
  }
}

/** @param {number} r @param {number} g @param {number} b */
const rgba = (r, g, b) => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;

/** The rows of the upper (1) or lower (2) half of a lane. @param {Rows} rows @param {number} half */
function halfOf({ top, bottom, first, last }, half) {
  const middle = Math.round((top + bottom) / 2);
  return half === 1
    ? { top, bottom: middle, first, last: Math.min(last, middle) }
    : { top: middle, bottom, first: Math.max(first, middle), last };
}
