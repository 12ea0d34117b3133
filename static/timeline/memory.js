// Memory of a device of each mesh, below the lanes and on their axis.

import { css, mix, pixel } from "../kit/palette.js";
import { TICKS, firstFrom } from "./columns.js";
import { TALL } from "./frame.js";
import { TITLE } from "./paint.js";
import { line, shorten } from "./shapes.js";
import { bytes } from "./units.js";

const NEAR = 0.7; // of the capacity: below, the curves have the room for themselves
const DASHES = [[], [5, 3], [1.5, 2]]; // of the lines of other designs

/** Paints the strips of a plan: areas of steps, or where they are too low for that, rows of pixels. */
export class MemoryStrips {
  constructor(context, frame, plan) {
    this.context = context;
    this.frame = frame;
    this.plan = plan;
    this.colours = frame.colours;
  }

  paint() {
    const { plan } = this;
    for (const strip of plan.strips) {
      if (strip.rank < 0) this._title(strip);
      else if (strip.height >= TALL) this._area(strip);
    }
    const flat = plan.strips.filter((strip) => strip.rank >= 0 && strip.height < TALL);
    for (const layer of new Set(flat.map((strip) => strip.layer)))
      this._heat(
        layer,
        flat.filter((strip) => strip.layer === layer),
      );
  }

  _title({ layer, others, y }) {
    const { context, colours, plan } = this;
    context.strokeStyle = css(colours.line);
    line(context, 0, Math.round(y) + 0.5, plan.width, Math.round(y) + 0.5);
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.font = `600 11px ${colours.font}`;
    context.fillStyle = css(colours.text);
    context.fillText("Memory", 10, y + TITLE / 2 + 1);
    const x = 10 + context.measureText("Memory").width + 6;
    context.font = `11px ${colours.font}`;
    context.fillStyle = css(colours.muted);
    const most = Math.max(...layer.peaks);
    const over = layer.capacity && most > layer.capacity;
    const limit = layer.capacity ? ` of ${bytes(layer.capacity)}` : "";
    const several = plan.strips.filter((strip) => strip.rank < 0).length > 1;
    const whose = several || others.length ? `${layer.label}: ` : "";
    const words = `${whose}at most ${bytes(most)}${limit} on a device${over ? ", it does not fit" : ""}`;
    if (over) context.fillStyle = css(colours.warning);
    context.fillText(words, x, y + TITLE / 2 + 1);
    this._others(others, x + context.measureText(words).width + 16, y + TITLE / 2 + 1);
  }

  /** Whose the lines in the strips are. */
  _others(others, x, y) {
    const { context, colours, frame } = this;
    others.forEach((layer, place) => {
      const words = `${layer.label}: at most ${bytes(Math.max(...layer.peaks))}`;
      if (x + 26 + context.measureText(words).width > frame.right) return;
      this._asLine(place, () => line(context, x, y, x + 20, y));
      context.fillStyle = css(colours.muted);
      context.fillText(words, x + 26, y);
      x += 26 + context.measureText(words).width + 16;
    });
  }

  /** Draw with the pen of one of the designs that are compared with. */
  _asLine(place, draw) {
    const { context, colours } = this;
    context.strokeStyle = css(colours.text, 0.85);
    context.lineWidth = 1.2;
    context.setLineDash(DASHES[place % DASHES.length]);
    draw();
    context.setLineDash([]);
    context.lineWidth = 1;
  }

  _area(strip) {
    const { context, frame, colours } = this;
    const { layer, others, rank } = strip;
    const { top, limit } = scaleOf(layer, ...others);
    const width = Math.round(frame.right - frame.left);
    const columns = memoryColumns(layer, rank, frame, new Float32Array(width));
    const bottom = Math.round(strip.y + strip.height) - 0.5;
    const tall = strip.height - 3;
    const y = (value) => bottom - (value / top) * tall;
    const area = stepPath(columns, frame.left, bottom, y);
    context.save();
    context.beginPath();
    context.rect(frame.left, strip.y, width, strip.height);
    context.clip();
    context.fillStyle = css(colours.idle);
    const [a, b] = [frame.x(0), frame.x(layer.last)];
    context.fillRect(a, limit ? y(limit) : strip.y + 1, b - a, bottom - (limit ? y(limit) : strip.y + 1));
    context.fillStyle = css(colours.memory, 0.7);
    context.fill(area);
    context.strokeStyle = css(colours.memory);
    context.lineWidth = 1;
    context.stroke(area);
    if (limit) this._capacity(area, strip, y(limit), layer.peaks[rank] > limit);
    others.forEach((other, place) => {
      memoryColumns(other, rank, frame, columns);
      this._asLine(place, () => context.stroke(stepPath(columns, frame.left, bottom, y)));
    });
    context.restore();
    context.strokeStyle = css(colours.line);
    line(context, frame.left, bottom + 0.5, frame.right, bottom + 0.5);
    context.fillStyle = colours.mesh(rank);
    context.fillRect(frame.left - 7, strip.y + 1, 3, strip.height - 2);
    this._name(strip, limit && layer.peaks[rank] > limit);
  }

  _capacity(area, strip, y, over) {
    const { context, frame, colours } = this;
    if (over) {
      context.save();
      context.beginPath();
      context.rect(frame.left, strip.y, frame.right - frame.left, Math.max(0, y - strip.y));
      context.clip();
      context.fillStyle = css(colours.warning);
      context.fill(area);
      context.restore();
    }
    context.strokeStyle = css(over ? colours.warning : colours.hatch);
    line(context, frame.x(0), Math.round(y) + 0.5, frame.x(strip.layer.last), Math.round(y) + 0.5);
  }

  _name({ layer, rank, y, height }, over) {
    const { context, frame, colours, plan } = this;
    if (height < 11) return;
    const middle = y + height / 2 + 0.5;
    context.textBaseline = "middle";
    const most = plan.gutter > 80 ? bytes(layer.peaks[rank]) : "";
    context.font = `${over ? "600 " : ""}10px ${colours.font}`;
    const room = plan.gutter - 18 - context.measureText(most).width;
    context.textAlign = "right";
    context.fillStyle = css(over ? colours.warning : colours.muted);
    context.fillText(most, frame.left - 11, middle);
    context.font = `600 10.5px ${colours.font}`;
    context.textAlign = "left";
    context.fillStyle = css(colours.text);
    context.fillText(shorten(context, layer.meshes[rank], room - 10), 10, middle);
  }

  /** Many meshes: a row of pixels each, the darker the fuller; warning where it does not fit. */
  _heat(layer, strips) {
    const { context, frame, colours, plan } = this;
    const { top, limit } = scaleOf(layer);
    const width = Math.max(1, Math.round((frame.right - frame.left) * frame.ratio));
    const above = Math.round(strips[0].y * frame.ratio);
    const height = Math.max(1, Math.round((strips.at(-1).y + strips.at(-1).height) * frame.ratio) - above - 1);
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const empty = mix(colours.background, colours.memory, 0.06);
    const ramp = Array.from({ length: 65 }, (_, step) => pixel(mix(empty, colours.memory, (step / 64) ** 1.5)));
    const [warning, part] = [pixel(colours.warning), 1 / top];
    const columns = new Float32Array(width);
    for (const { rank, y, height: deep } of strips) {
      memoryColumns(layer, rank, frame, columns);
      const first = Math.round(y * frame.ratio) - above;
      const after = Math.min(height, Math.max(first + 1, Math.round((y + deep) * frame.ratio) - above));
      if (after <= first) continue;
      const row = first * width;
      for (let x = 0; x < width; x++) {
        pixels[row + x] = limit && columns[x] > limit ? warning : ramp[(64 * columns[x] * part) | 0];
      }
      for (let at = first + 1; at < after; at++) pixels.copyWithin(at * width, row, row + width);
    }
    context.putImageData(image, Math.round(frame.left * frame.ratio), above);
    let free = -Infinity;
    for (const strip of strips) {
      context.fillStyle = colours.mesh(strip.rank);
      context.fillRect(frame.left - 7, strip.y, 3, strip.height);
      if (strip.y < free || strip.y + 10 > plan.height) continue;
      free = strip.y + 12;
      this._name({ ...strip, y: strip.y - 1, height: 12 }, limit && layer.peaks[strip.rank] > limit);
    }
  }
}

/** The top of the strips of some layers in bytes: the capacity where that is near, else the most of them. */
function scaleOf(layer, ...others) {
  const most = Math.max(1, ...[layer, ...others].flatMap(({ peaks }) => peaks));
  const near = layer.capacity && most > NEAR * layer.capacity;
  return { top: (near ? Math.max(most, layer.capacity) : most) * 1.08, limit: near ? layer.capacity : null };
}

/** The outline of columns of values, left to right, as steps. */
function stepPath(columns, left, bottom, y) {
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
