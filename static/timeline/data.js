// Timelines as columns, and the questions a view asks of them.

import { Columns, OP, TICKS, firstFrom } from "./columns.js";

const ARRAYS = {
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  float32: Float32Array,
};

/** The layers in a message, or null for an empty one. */
export function decode(buffer) {
  if (!buffer?.byteLength) return null;
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const column = ([type, offset, size]) => new ARRAYS[type](buffer, 4 + length + offset, size);
  const layers = header.layers.map((spec, number) => new Layer(spec, number, header.horizon, column));
  return { horizon: header.horizon, layers, crumbs: header.crumbs ?? [] };
}

/**
 * One timeline. Its spans are numbered: first the blocks (computations and optimizer steps) of rank
 * 0, 1, ... in order, then the gradient reductions, then the transfers, by their sender.
 *
 * The steps inside a block are a timeline too: `labels` are its spans' words, `kinds` what each colour means there.
 */
export class Layer extends Columns {
  _group = null; // these are found when they are asked for
  _skipsFound = null;
  _places = null;
  _busy = null;
  _shortest = null;
  _mean = null;
  _peaks = null;

  /** FLOPs of a computation on a device, or null where the costs know none. */
  flopsOf(span) {
    const [op, stage] = [this.op[span], this.stage[span]];
    if (!this.flops || op > OP.W) return null;
    const rank = this.rankOf(span);
    const copies = this.placement.length; // of all stages in all replicas
    for (let copy = stage; copy < copies; copy += this.stages) {
      if (this.placement[copy] === rank) return this.flops[op * copies + copy];
    }
    return null;
  }

  /** The transfer of what a computation makes, or -1 where it stays on its mesh. */
  sendOf(span) {
    const sends = { [OP.F]: OP.SEND_F, [OP.B]: OP.SEND_B, [OP.I]: OP.SEND_B }[this.op[span]];
    return sends === undefined ? -1 : this.find(sends, this.stage[span], this.microbatch[span]);
  }

  /**
   * The class of each block where blocks are counted and not told apart: F, B, I and W, each down
   * and up (0 to 7), and the optimizer step (8).
   */
  get group() {
    return (this._group ??= this._groups());
  }

  _groups() {
    const group = new Uint8Array(this.blocks);
    for (let rank = 0; rank < this.ranks; rank++) {
      const [from, to] = this.range(0, rank);
      for (let span = from; span < to; span++) {
        group[span] = this.op[span] <= OP.W ? 2 * this.op[span] + (this.shadeOf(span, rank) & 1) : 8;
      }
    }
    return group;
  }

  /** The span of an action, or -1; `other` names the far stage of a message that skips stages. */
  find(op, stage, microbatch, rank = -1, other = -1) {
    if (other >= 0) return this._findSkip(op, stage, microbatch, other);
    if (this.labels) return this._findStep(op, stage, microbatch);
    if (op <= OP.W || op === OP.SEND_F || op === OP.SEND_B) return this._lookUp(op, stage, microbatch);
    const [from, to] = this.range(op === OP.REDUCE_GRAD ? 1 : 0, rank);
    for (let span = to - 1; span >= from; span--) {
      if (this.op[span] === op && this.stage[span] === stage) return span;
    }
    return -1;
  }

  _findSkip(op, stage, microbatch, other) {
    return this.skipsFrom(op, stage, microbatch).find((span) => this.otherOf(span) === other) ?? -1;
  }

  /** The messages of an op that skip stages and leave a stage. */
  skipsFrom(op, stage, microbatch) {
    return this._skips.from.get(skipOf(op, stage, microbatch)) ?? [];
  }

  /** The same that come to a stage. */
  skipsTo(op, stage, microbatch) {
    return this._skips.to.get(skipOf(op, stage, microbatch)) ?? [];
  }

  get _skips() {
    return (this._skipsFound ??= this._indexSkips());
  }

  _indexSkips() {
    const [from, to] = [new Map(), new Map()];
    const put = (map, span, stage) => {
      const key = skipOf(this.op[span], stage, this.microbatch[span]);
      map.set(key, [...(map.get(key) ?? []), span]);
    };
    for (let span = this.sides; span < this.count; span++) {
      if (this.otherOf(span) < 0) continue;
      put(from, span, this.stage[span]);
      put(to, span, this.otherOf(span));
    }
    return { from, to };
  }

  _findStep(op, stage, microbatch) {
    const [from, to] = stage >= 0 && stage < this.ranks ? this.range(0, stage) : [0, 0];
    for (let span = from; span < to; span++)
      if (this.op[span] === op && this.microbatch[span] === microbatch) return span;
    return -1;
  }

  _lookUp(op, stage, microbatch) {
    if (stage < 0 || stage >= this.stages || microbatch < 0 || microbatch >= this.microbatches) return -1;
    this._places ??= this._indexPlaces();
    return this._places[(op * this.stages + stage) * this.microbatches + microbatch];
  }

  _indexPlaces() {
    const { op, stage, microbatch, stages, microbatches } = this;
    const places = new Int32Array((OP.SEND_B + 1) * stages * microbatches).fill(-1);
    for (let span = 0; span < op.length; span++) {
      if (op[span] <= OP.SEND_B && this.otherOf(span) < 0)
        places[(op[span] * stages + stage[span]) * microbatches + microbatch[span]] = span;
    }
    return places;
  }

  _backward(stage, microbatch) {
    const whole = this.find(OP.B, stage, microbatch);
    return whole >= 0 ? whole : this.find(OP.I, stage, microbatch);
  }

  /** What a span computes with, as spans, and the transfers that bring it. */
  inputs(span) {
    if (this.labels) return this.cause[span] < 0 ? [] : [this.cause[span]];
    const [op, stage, mb] = [this.op[span], this.stage[span], this.microbatch[span]];
    const skipped = (sends, made) => this.skipsTo(sends, stage, mb).flatMap((each) => [made(this.stage[each]), each]);
    const forward = (of) => this.find(OP.F, of, mb);
    const backward = (of) => this._backward(of, mb);
    const found = {
      [OP.F]: () => [forward(stage - 1), this.find(OP.SEND_F, stage - 1, mb), ...skipped(OP.SEND_F, forward)],
      [OP.B]: () => [
        backward(stage + 1),
        this.find(OP.SEND_B, stage + 1, mb),
        ...skipped(OP.SEND_B, backward),
        forward(stage),
      ],
      [OP.W]: () => [this.find(OP.I, stage, mb)],
      [OP.SEND_F]: () => [forward(stage)],
      [OP.SEND_B]: () => [backward(stage)],
    };
    found[OP.I] = found[OP.B];
    return (found[op]?.() ?? []).filter((other) => other >= 0);
  }

  /** What needs a span, or was held up by it. */
  effects(span) {
    const [op, stage, mb, other] = [this.op[span], this.stage[span], this.microbatch[span], this.otherOf(span)];
    const skipped = (sends, taken) =>
      this.skipsFrom(sends, stage, mb).flatMap((each) => [each, taken(this.otherOf(each))]);
    const forward = (of) => this.find(OP.F, of, mb);
    const backward = (of) => this._backward(of, mb);
    const found = {
      [OP.F]: () => [
        this.find(OP.SEND_F, stage, mb),
        forward(stage + 1),
        ...skipped(OP.SEND_F, forward),
        backward(stage),
      ],
      [OP.B]: () => [
        this.find(OP.SEND_B, stage, mb),
        backward(stage - 1),
        ...skipped(OP.SEND_B, backward),
        this.find(OP.W, stage, mb),
      ],
      [OP.SEND_F]: () => [forward(other < 0 ? stage + 1 : other)],
      [OP.SEND_B]: () => [backward(other < 0 ? stage - 1 : other)],
    };
    found[OP.I] = found[OP.B];
    const needed = this.labels ? [] : (found[op]?.() ?? []).filter((other) => other >= 0);
    const held = [];
    for (let at = this.cause.indexOf(span); at >= 0; at = this.cause.indexOf(span, at + 1)) held.push(at);
    return [...new Set([...needed, ...held])];
  }

  /** How long the rank of a block stood still before it, in ticks, and the span it waited for or -1. */
  waited(span) {
    const [first] = this.range(0, this.rankOf(span));
    const slot = this.halfOf(span) === 2 ? span - 1 : span;
    const free = slot > first ? this.end[slot - 1] : 0;
    const ticks = this.start[slot] - free;
    const cause = this.cause[slot];
    return { ticks: Math.max(0, ticks), cause: cause === slot - 1 ? -1 : cause };
  }

  /** The block of a rank at a tick, or the nearest within `tolerance`, or -1; of a slot of two, the first. */
  at(rank, tick, tolerance = 0) {
    const [from, to] = this.range(0, rank);
    const after = firstFrom(this.end, tick, from, to);
    let best = -1;
    let distance = tolerance;
    for (const span of [after - 1, after]) {
      if (span < from || span >= to) continue;
      const away = Math.max(this.start[span] - tick, tick - this.end[span], 0);
      if (away <= distance) [best, distance] = [span, away];
    }
    return this.halfOf(best) === 2 ? best - 1 : best;
  }

  /** The reduction of a rank at a tick, or -1. */
  reductionAt(rank, tick) {
    const [from, to] = this.range(1, rank);
    for (let span = from; span < to; span++) {
      if (this.start[span] <= tick && tick <= this.end[span]) return span;
    }
    return -1;
  }

  /** The block of a rank that starts next at or after a tick, or -1. */
  next(rank, tick) {
    const [from, to] = this.range(0, rank);
    const span = firstFrom(this.start, tick, from, to);
    return span < to ? span : -1;
  }

  /** Whether any span of an op takes time. */
  takes(op) {
    return this.op.some((other, span) => other === op && this.end[span] > this.start[span]);
  }

  /** The share of the step in which each rank computes. */
  get busy() {
    return (this._busy ??= this.meshes.map((_, rank) => {
      const [from, to] = this.range(0, rank);
      let ticks = 0;
      for (let span = from; span < to; span++) if (this.halfOf(span) < 2) ticks += this.end[span] - this.start[span];
      return this.last ? ticks / this.last : 0;
    }));
  }

  /** The shortest computation in ticks: as far in as a view needs to go. */
  get shortest() {
    if (this._shortest === null) {
      let shortest = TICKS;
      for (let span = 0; span < this.blocks; span++) {
        const ticks = this.end[span] - this.start[span];
        if (ticks > 0 && ticks < shortest && this.op[span] <= OP.W) shortest = ticks;
      }
      this._shortest = shortest;
    }
    return this._shortest;
  }

  /** The mean length of a block in ticks. */
  get mean() {
    return (this._mean ??= (this.busy.reduce((sum, share) => sum + share, 0) * this.last) / Math.max(1, this.blocks));
  }

  get hasMemory() {
    return Boolean(this.memory_bounds);
  }

  /** Bytes on a device of a rank at a tick. */
  memoryAt(rank, tick) {
    const [from, to] = [this.memory_bounds[rank], this.memory_bounds[rank + 1]];
    const after = firstFrom(this.memory_time, tick + 1, from, to);
    return this.memory_bytes[Math.max(from, after - 1)];
  }

  /** The most bytes on a device of each rank. */
  get peaks() {
    return (this._peaks ??= this.meshes.map((_, rank) => {
      let most = 0;
      for (let at = this.memory_bounds[rank]; at < this.memory_bounds[rank + 1]; at++) {
        most = Math.max(most, this.memory_bytes[at]);
      }
      return most;
    }));
  }

  /** "2F5", "0SEND_F5TO3" */
  notation(span, names) {
    if (this.labels) return this.labels[this.text[span]];
    const [stage, mb, other] = [this.stage[span], this.microbatch[span], this.otherOf(span)];
    return `${stage >= 0 ? stage : ""}${names[this.op[span]]}${mb >= 0 ? mb : ""}${other >= 0 ? `TO${other}` : ""}`;
  }

  /** The layers of a stage as a person would name them, or null. */
  layersOf(stage) {
    if (!this.stages_layers || stage < 0) return null;
    const first = this.stages_layers.slice(0, stage).reduce((sum, layers) => sum + layers, 0);
    const layers = this.stages_layers[stage];
    if (!layers) return "no layers";
    return layers === 1 ? `layer ${first}` : `layers ${first} to ${first + layers - 1}`;
  }
}

/** What messages that skip stages are found by: of one op and microbatch, at one stage. */
const skipOf = (op, stage, microbatch) => `${op} ${stage} ${microbatch}`;
