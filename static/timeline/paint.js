// Blocks as pixels: what is thinner than a few pixels goes into a pixel buffer, the rest is drawn with its words.

import { pixel } from "../kit/palette.js";
import { OP, TICKS, firstFrom } from "./columns.js";
import { TALL } from "./frame.js";

const THIN = 3; // device pixels: a block below is counted into shares of its pixel columns

const WIDE = 9; // CSS pixels: a block from here on has its own shape and, if there is room, words

export const TITLE = 19; // CSS pixels of the words above the lanes of a row

const PERIOD = 7; // CSS pixels between the lines of the hatch

const CLASSES = 9; // F, B, I and W, each down and up, and STEP

/** Paints lanes into an ImageData that covers the lanes, and collects what is to be drawn as shapes. */
export class Pixels {
  constructor(frame) {
    const { ratio } = frame;
    this.frame = frame;
    this.width = Math.max(1, Math.round((frame.right - frame.left) * ratio));
    this.height = Math.max(1, Math.round((frame.bottom - frame.top) * ratio));
    this.image = new ImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.shares = new Float32Array(CLASSES * this.width);
    this.hatches = this._hatches();
    this.begin(frame);
  }

  fits(frame) {
    const { ratio } = this.frame;
    return (
      frame.ratio === ratio &&
      frame.colours === this.frame.colours &&
      Math.round((frame.right - frame.left) * ratio) === this.width &&
      Math.round((frame.bottom - frame.top) * ratio) === this.height
    );
  }

  begin(frame) {
    this.frame = frame;
    this.pixels.fill(pixel(frame.colours.background));
    this.shapes = []; // layer, span, lane of each block that is drawn as a shape
    this.counts = { dense: 0, solid: 0, shapes: 0, labels: 0, transfers: 0 };
  }

  /** Take away what was painted above a place, in CSS pixels of the canvas; the shapes collected so far. */
  cutAbove(y) {
    const rows = Math.max(0, Math.round((y - this.frame.top) * this.frame.ratio));
    this.pixels.fill(pixel(this.frame.colours.background), 0, rows * this.width);
    const { shapes } = this;
    this.shapes = [];
    return shapes;
  }

  /** A row of the hatch for each of its phases, so that idle time is copied and not drawn. */
  _hatches() {
    const { ratio, colours } = this.frame;
    const period = Math.round(PERIOD * ratio);
    const [idle, line] = [pixel(colours.idle), pixel(colours.hatch)];
    return Array.from({ length: period }, (_, phase) =>
      Uint32Array.from({ length: this.width }, (_, x) => ((x + phase) % period < ratio ? line : idle)),
    );
  }

  /** Whether the blocks of a layer are too thin in this view to be told apart. */
  isDense(layer) {
    return layer.mean * this.frame.scale * this.frame.ratio < THIN;
  }

  /** Paint a lane: `{layer, rank, y, height}`, y and height in CSS pixels from the top of the canvas. */
  lane(lane) {
    const rows = this._rows(lane);
    if (!rows) return;
    this._idle(lane, rows);
    this._blocks(lane, rows);
    this._reductions(lane, rows);
  }

  /**
   * Paint low lanes together: in each column of pixels the share of forward, backward and so on over
   * all of them. A stack a lane would be stripes of a pixel or two, which the eye mixes to grey.
   */
  band(band) {
    const rows = this._rows(band);
    if (!rows) return;
    this._idle(band, rows);
    const seen = { low: this.width, high: -1, present: 0 };
    for (const lane of band.lanes) this._count(lane, 1 / band.lanes.length, seen);
    this._stack({ ...rows, top: rows.top + 1 }, seen, this._fills(band.layer));
    for (const lane of band.lanes) this._reductions(lane, this._rows(lane) ?? rows);
  }

  _rows({ y, height }) {
    const { frame } = this;
    const top = Math.round((y - frame.top) * frame.ratio);
    const bottom = Math.max(top + 1, Math.round((y + height - frame.top) * frame.ratio));
    if (bottom <= 0 || top >= this.height) return null;
    return { top, bottom, first: Math.max(0, top), last: Math.min(this.height, bottom) };
  }

  _fills(layer) {
    return Array.from({ length: OP.STEP + 1 }, (_, op) => this.frame.colours.fills(op, layer.tints));
  }

  _column(tick) {
    return (tick - this.frame.from) * this.frame.scale * this.frame.ratio;
  }

  _idle({ layer }, rows) {
    const from = Math.max(0, Math.round(this._column(0)));
    const to = Math.min(this.width, Math.round(this._column(layer.last)));
    if (to <= from) return;
    for (let y = rows.first; y < rows.last; y++) {
      this.pixels.set(this.hatches[y % this.hatches.length].subarray(from, to), y * this.width + from);
    }
  }

  _blocks(lane, rows) {
    const { layer } = lane;
    const { start, end, op, group } = layer;
    const fills = this._fills(layer);
    const scale = this.frame.scale * this.frame.ratio;
    const wide = lane.height >= TALL ? WIDE * this.frame.ratio : Infinity;
    const seen = { low: this.width, high: -1, present: 0 };
    const [from, to] = this._inView(lane);
    for (let span = from; span < to; span++) {
      const left = (start[span] - this.frame.from) * scale;
      const right = (end[span] - this.frame.from) * scale;
      const half = layer.halfOf(span);
      if (right - left >= wide) this.shapes.push(layer, span, lane);
      else if (right - left < THIN) this._share(group[span], left, right, half ? 0.5 : 1, seen);
      else
        this._solid(
          half ? halfOf(rows, half) : rows,
          left,
          right,
          fills[op[span]][layer.shadeOf(span, lane.rank)] ?? fills[op[span]][0],
          this.frame.ratio,
        );
    }
    this._stack(rows, seen, fills);
  }

  /** The blocks of a lane into shares of columns, each counting for `weight`. */
  _count(lane, weight, seen) {
    const { layer } = lane;
    const { start, end, group } = layer;
    const origin = this.frame.from;
    const scale = this.frame.scale * this.frame.ratio;
    const [from, to] = this._inView(lane);
    for (let span = from; span < to; span++) {
      const part = layer.halfOf(span) ? weight / 2 : weight;
      this._share(group[span], (start[span] - origin) * scale, (end[span] - origin) * scale, part, seen);
    }
  }

  _inView({ layer, rank }) {
    const [first, last] = layer.range(0, rank);
    const from = firstFrom(layer.end, Math.max(0, this.frame.from), first, last);
    return [from, firstFrom(layer.start, Math.min(TICKS, this.frame.to), from, last)];
  }

  /** Count a block into the columns of its class. */
  _share(group, left, right, weight, seen) {
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
    seen.present |= 1 << group;
    if (first < seen.low) seen.low = first;
    if (last > seen.high) seen.high = last < width ? last : width - 1;
    this.counts.dense++;
  }

  _solid(rows, left, right, fill, ratio) {
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

  /** Columns as stacks: how much of each is forward, backward, ...; what is left over stays idle. */
  _stack(rows, { low, high, present }, fills) {
    const { shares, pixels, width } = this;
    const colour = Array.from({ length: CLASSES }, (_, group) =>
      group === CLASSES - 1 ? fills[OP.STEP][0] : (fills[group >> 1][group & 1] ?? fills[group >> 1][0]),
    );
    const groups = colour.map((_, group) => group).filter((group) => present & (1 << group));
    const { idle } = this.frame.colours;
    const height = rows.bottom - rows.top;
    const put = (x, y, value) => {
      if (y >= rows.first && y < rows.last) pixels[y * width + x] = value;
    };
    for (let x = low; x <= high; x++) {
      let y = rows.bottom - 1;
      let room = 1; // of the row that is being filled
      let [r, g, b] = [0, 0, 0];
      for (const group of groups) {
        let left = shares[group * width + x] * height;
        if (left <= 0) continue;
        shares[group * width + x] = 0;
        const fill = colour[group];
        if (room < 1) {
          const part = Math.min(left, room);
          r += part * fill.rgb[0];
          g += part * fill.rgb[1];
          b += part * fill.rgb[2];
          room -= part;
          left -= part;
          if (room > 1e-3) continue;
          put(x, y--, (0xff000000 | (b << 16) | (g << 8) | r) >>> 0);
          room = 1;
        }
        for (; left >= 0.999 && y >= rows.top; left--) put(x, y--, fill.pixel);
        if (left > 1e-3) {
          [r, g, b] = [left * fill.rgb[0], left * fill.rgb[1], left * fill.rgb[2]];
          room = 1 - left;
        }
      }
      if (room < 1) {
        [r, g, b] = [r + room * idle[0], g + room * idle[1], b + room * idle[2]];
        put(x, y, (0xff000000 | (b << 16) | (g << 8) | r) >>> 0);
      }
    }
  }

  /** Reductions go on beside the blocks: a bar along the bottom of the lane. */
  _reductions(lane, rows) {
    const { layer } = lane;
    const [from, to] = layer.range(1, lane.rank);
    const [fill] = this.frame.colours.fills(OP.REDUCE_GRAD, [0]);
    const thickness = Math.max(1, Math.round(Math.min(0.24 * (rows.bottom - rows.top), 6 * this.frame.ratio)));
    const bar = { ...rows, first: Math.max(rows.first, rows.bottom - thickness) };
    for (let span = from; span < to; span++) {
      const [left, right] = [this._column(layer.start[span]), this._column(layer.end[span])];
      if (right >= 0 && left < this.width) this._solid(bar, left, Math.max(right, left + 1), fill, Infinity);
    }
  }
}

/** The rows of the upper (1) or lower (2) half of a lane. */
function halfOf({ top, bottom, first, last }, half) {
  const middle = Math.round((top + bottom) / 2);
  return half === 1
    ? { top, bottom: middle, first, last: Math.min(last, middle) }
    : { top: middle, bottom, first: Math.max(first, middle), last };
}
