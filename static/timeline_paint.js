// Blocks as pixels: what is thinner than a few pixels goes into a pixel buffer, the rest is drawn with its words.

import { BLACK, WHITE, css, ink, luminance, mix, pixel, rgb } from "static/palette.js";
import { OP, TICKS, firstFrom } from "static/timeline_data.js";

const THIN = 3; // device pixels: a block below is counted into shares of its pixel columns
const WIDE = 9; // CSS pixels: a block from here on has its own shape and, if there is room, words
export const TALL = 9; // CSS pixels: a lane from here on has shapes; lower ones are painted in bands while they are dense
export const TITLE = 19; // CSS pixels of the words above the lanes of a row
const PERIOD = 7; // CSS pixels between the lines of the hatch
const CLASSES = 9; // F, B, I and W, each down and up, and STEP
const MOST_LABELS = 3500;

const SURFACES = ["idle", "hatch", "memory", "warning"]; // from the palette; the others from the style sheet
const VARIABLES = { background: "--bg", raised: "--raised", text: "--text", muted: "--muted", line: "--line", strong: "--line-strong", accent: "--accent" };

/** All colours of a picture, read off the page as it is now. */
export class Colours {
  constructor(probe, palette) {
    const read = (value) => {
      probe.style.color = value;
      return rgb(getComputedStyle(probe).color);
    };
    for (const [name, variable] of Object.entries(VARIABLES)) this[name] = read(`var(${variable})`);
    this.theme = luminance(this.background) < 0.2 ? "dark" : "light";
    for (const name of SURFACES) this[name] = read(`var(--mw-${name}, ${palette.surfaces[this.theme][name]})`);
    this.ops = palette.names.map((name) => read(`var(--mw-op-${name.toLowerCase()}, ${palette.ops[this.theme][name] ?? "#888888"})`));
    this.meshes = palette.meshes.map((colour, place) => read(`var(--mw-mesh-${place}, ${colour})`));
    this.font = getComputedStyle(probe).fontFamily;
    this._fills = new Map();
  }

  mesh(rank) {
    return css(this.meshes[rank % this.meshes.length]);
  }

  /** Colours of an op by shade: as text, as a pixel, its separator, its three numbers, and the ink on it. */
  fills(op, tints) {
    const key = `${op} ${tints}`;
    if (!this._fills.has(key)) this._fills.set(key, tints.map((tint) => this._fill(op, op <= OP.W ? tint : 0)));
    return this._fills.get(key);
  }

  _fill(op, tint) {
    const colour = mix(this.ops[op], WHITE, tint);
    return {
      css: css(colour),
      rgb: colour,
      pixel: pixel(colour),
      edge: pixel(mix(colour, this.background, 0.55)),
      deep: css(mix(colour, BLACK, 0.28)),
      ink: ink(colour),
    };
  }
}

/** What there is to know of a view while its lanes are painted; x in CSS pixels from the left of the lanes. */
export class Frame {
  constructor(view, size, ratio, colours) {
    Object.assign(this, { from: view.from, to: view.to, ratio, colours });
    Object.assign(this, size); // left, top, right, bottom of the lanes in CSS pixels; those that are scrolled begin at split
    this.scale = (this.right - this.left) / (view.to - view.from); // CSS pixels a tick
  }

  x(tick) {
    return this.left + (tick - this.from) * this.scale;
  }

  tick(x) {
    return this.from + (x - this.left) / this.scale;
  }

  isSeen(layer, span) {
    return layer.end[span] >= this.from && layer.start[span] <= this.to;
  }

  /** Whether some of a lane is in view; one that is scrolled goes below those that are kept on top. */
  isLaneSeen({ y, height, kept }) {
    return y + height > (kept ? this.top : this.split) && y < (kept ? this.split : this.bottom);
  }

  /** Whether half of a lane or more is in view. */
  isLaneClear({ y, height, kept }) {
    return kept || (y + height / 2 >= this.split && y + height / 2 <= this.bottom);
  }

  /** The part with the lanes that are kept on top, and the part that is scrolled. */
  get parts() {
    const { left, right, top, split, bottom } = this;
    return [{ left, right, top, bottom: split }, { left, right, top: split, bottom }];
  }
}

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
      else this._solid(half ? halfOf(rows, half) : rows, left, right, fills[op[span]][layer.shadeOf(span, lane.rank)] ?? fills[op[span]][0], this.frame.ratio);
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
  return half === 1 ? { top, bottom: middle, first, last: Math.min(last, middle) } : { top: middle, bottom, first: Math.max(first, middle), last };
}

/** Where a block is drawn: its left, top, width and height in CSS pixels. */
export function box(frame, layer, span, lane) {
  const left = frame.x(layer.start[span]);
  const width = Math.max(1, frame.x(layer.end[span]) - left);
  const half = layer.halfOf(span);
  if (half) return { x: left, y: lane.y + (half - 1) * (lane.height / 2), width, height: lane.height / 2 - (half === 1 && lane.height > 12 ? 1 : 0) };
  if (!layer.isReduction(span)) return { x: left, y: lane.y, width, height: lane.height };
  const height = Math.min(0.24 * lane.height, 6);
  return { x: left, y: lane.y + lane.height - height, width, height };
}

/** Draws blocks as shapes, with their words where there is room. */
export class Shapes {
  constructor(context, colours, names) {
    Object.assign(this, { context, colours, names });
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

  /** The whole action where the shortest block has room for it, else the microbatch, so that a picture is of one kind. */
  _words(layer, span, room, size, shortest) {
    const [op, microbatch] = [layer.op[span], layer.microbatch[span]];
    const whole = op === OP.STEP && !layer.labels ? "step" : layer.notation(span, this.names);
    const width = this._width(whole, size) + 10;
    if (layer.labels) return [whole, whole.split(" ", 1)[0]].map((text) => ({ text, size })).find(({ text }) => this._width(text, size) + 10 <= room) ?? null;
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
    for (const turn of [2.62, -2.62]) context.lineTo(x2 + size * Math.cos(angle + turn), y2 + size * Math.sin(angle + turn));
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

/** The most bytes of a rank in each column of the view, into `columns`. */
export function memoryColumns(layer, rank, frame, columns) {
  const width = columns.fill(0).length;
  const { memory_time: time, memory_bytes: held } = layer;
  const [first, last] = [layer.memory_bounds[rank], layer.memory_bounds[rank + 1]];
  const scale = width / (frame.to - frame.from);
  const to = firstFrom(time, Math.min(TICKS, frame.to), first, last);
  for (let at = Math.max(first, firstFrom(time, Math.max(0, frame.from), first, last) - 1); at < to; at++) {
    const until = at + 1 < last ? time[at + 1] : layer.last;
    const a = Math.max(0, Math.floor((time[at] - frame.from) * scale));
    const b = Math.min(width - 1, Math.floor((until - frame.from) * scale));
    const value = held[at];
    for (let x = a; x <= b; x++) if (value > columns[x]) columns[x] = value;
  }
  return columns;
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
