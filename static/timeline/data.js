// Timelines as columns, with queries for the chart.

/** @import { Data } from "./types" */

import { Columns, OP, TICKS, lowerBound } from "./columns.js";

/** @type {Record<string, new (buffer: ArrayBuffer, offset: number, length: number) => ArrayLike<number>>} */
const ARRAYS = {
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  float32: Float32Array,
};

const MICROBATCH_OPS = new Set([OP.F, OP.B, OP.I, OP.W, OP.SEND_F, OP.SEND_B]);

/** Decode the layers of a message; an empty message has no layers. @param {ArrayBuffer} [buffer] @returns {Data} */
export function decode(buffer) {
  if (!buffer?.byteLength) return { horizon: 1, layers: [], crumbs: [], choices: [] };
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const column = (/** @type {[string, number, number]} */ [type, offset, size]) =>
    new ARRAYS[type](buffer, 4 + length + offset, size);
  const layers = header.layers.map(
    (/** @type {any} */ layer, /** @type {number} */ number) => new Layer(layer, number, header.horizon, column),
  );
  return { horizon: header.horizon, layers, crumbs: header.crumbs ?? [], choices: header.choices ?? [] };
}

/**
 * Key of a message that skips stages, for an index.
 * @param {number} op @param {number} stage @param {number} microbatch
 */
const skipKey = (op, stage, microbatch) => `${op} ${stage} ${microbatch}`;

/**
 * One timeline. Its spans are numbered: first the blocks (computations and optimizer steps) of rank 0, 1, ... in order,
 * then the collectives (gradient reductions and weight gathers), then the transfers, by their sender. The inside of a
 * block is a timeline, too.
 */
export class Layer extends Columns {
  /** @type {Map<string, any>} */ cache = new Map();

  /** A value that is computed on first use. @template T @param {string} name @param {() => T} compute @returns {T} */
  once(name, compute) {
    if (!this.cache.has(name)) this.cache.set(name, compute());
    return this.cache.get(name);
  }

  /** FLOPs of a computation on a device, or null if the costs have none. @param {number} span */
  flopsOf(span) {
    const [op, stage] = [this.op[span], this.stage[span]];
    if (!this.flops || op > OP.W) return null;
    const rank = this.rankOf(span);
    const copies = this.placement.length; // FLOPs of all stages in all replicas
    for (let copy = stage; copy < copies; copy += this.stages) {
      if (this.placement[copy] === rank) return this.flops[op * copies + copy];
    }
    return null;
  }

  /** The stages whose blocks a rank runs. @param {number} rank */
  stagesOf(rank) {
    return this.stagesByRank[rank];
  }

  get stagesByRank() {
    return this.once("stagesByRank", () =>
      this.meshes.map((_, rank) => [...new Set(this.stage.slice(...this.range(0, rank)))]),
    );
  }

  /** The transfer of the result of a computation, or -1 if it stays on its mesh. @param {number} span */
  sendOf(span) {
    const sends = { [OP.F]: OP.SEND_F, [OP.B]: OP.SEND_B, [OP.I]: OP.SEND_B }[this.op[span]];
    return sends === undefined ? -1 : this.find(sends, this.stage[span], this.microbatch[span]);
  }

  /**
   * The class of each block in dense pictures: F, B, I and W, each for the way down and for the return (0 to 7), and
   * the optimizer step (8).
   */
  get group() {
    return this.once("group", () => {
      const group = new Uint8Array(this.blocks);
      for (let rank = 0; rank < this.ranks; rank++) {
        const [from, to] = this.range(0, rank);
        for (let span = from; span < to; span++)
          group[span] = this.op[span] <= OP.W ? 2 * this.op[span] + (this.shadeOf(span, rank) & 1) : 8;
      }
      return group;
    });
  }

  // ── actions ──

  /**
   * The span of an action, or -1; `other` is the stage at the other end of a message that skips stages.
   * @param {number} op @param {number} stage @param {number} microbatch @param {number} [rank] @param {number} [other]
   */
  find(op, stage, microbatch, rank = -1, other = -1) {
    if (other >= 0) return this.skipsFrom(op, stage, microbatch).find((span) => this.otherOf(span) === other) ?? -1;
    if (this.labels) return this.findStep(op, stage, microbatch);
    if (MICROBATCH_OPS.has(op)) return this.lookUp(op, stage, microbatch);
    return this.findOfRank(op, stage, rank, microbatch);
  }

  /**
   * The last span of an op without microbatches on a rank; a reduction may be of one bucket of gradients.
   * @param {number} op @param {number} stage @param {number} rank @param {number} bucket
   */
  findOfRank(op, stage, rank, bucket) {
    const [from, to] = this.range(op === OP.REDUCE_GRAD || op === OP.UNSHARD ? 1 : 0, rank);
    for (let span = to - 1; span >= from; span--) {
      if (this.op[span] === op && this.stage[span] === stage && this.microbatch[span] === bucket) return span;
    }
    return -1;
  }

  /** The microbatch of a span, or -1: a reduction has the number of its bucket instead. @param {number} span */
  microbatchOf(span) {
    return this.op[span] === OP.REDUCE_GRAD && !this.labels ? -1 : this.microbatch[span];
  }

  /** @param {number} op @param {number} lane @param {number} number */
  findStep(op, lane, number) {
    const [from, to] = lane >= 0 && lane < this.ranks ? this.range(0, lane) : [0, 0];
    for (let span = from; span < to; span++) if (this.op[span] === op && this.microbatch[span] === number) return span;
    return -1;
  }

  /** @param {number} op @param {number} stage @param {number} microbatch */
  lookUp(op, stage, microbatch) {
    if (stage < 0 || stage >= this.stages || microbatch < 0 || microbatch >= this.microbatches) return -1;
    return this.actionIndex[(op * this.stages + stage) * this.microbatches + microbatch];
  }

  get actionIndex() {
    return this.once("actionIndex", () => {
      const { op, stage, microbatch, stages, microbatches } = this;
      const index = new Int32Array((OP.SEND_B + 1) * stages * microbatches).fill(-1);
      for (let span = 0; span < op.length; span++) {
        if (op[span] <= OP.SEND_B && this.otherOf(span) < 0)
          index[(op[span] * stages + stage[span]) * microbatches + microbatch[span]] = span;
      }
      return index;
    });
  }

  /**
   * The messages of an op that skip stages and leave a stage.
   * @param {number} op @param {number} stage @param {number} microbatch
   */
  skipsFrom(op, stage, microbatch) {
    return this.skips.from.get(skipKey(op, stage, microbatch)) ?? [];
  }

  /**
   * The messages of an op that skip stages and reach a stage.
   * @param {number} op @param {number} stage @param {number} microbatch
   */
  skipsTo(op, stage, microbatch) {
    return this.skips.to.get(skipKey(op, stage, microbatch)) ?? [];
  }

  get skips() {
    return this.once("skips", () => {
      /** @type {Map<string, number[]>[]} */
      const [from, to] = [new Map(), new Map()];
      const add = (
        /** @type {Map<string, number[]>} */ map,
        /** @type {number} */ span,
        /** @type {number} */ stage,
      ) => {
        const key = skipKey(this.op[span], stage, this.microbatch[span]);
        map.set(key, [...(map.get(key) ?? []), span]);
      };
      for (let span = this.sides; span < this.count; span++) {
        if (this.otherOf(span) < 0) continue;
        add(from, span, this.stage[span]);
        add(to, span, this.otherOf(span));
      }
      return { from, to };
    });
  }

  // ── dependencies ──

  /** @param {number} stage @param {number} microbatch */
  forward(stage, microbatch) {
    return this.find(OP.F, stage, microbatch);
  }

  /** @param {number} stage @param {number} microbatch */
  backward(stage, microbatch) {
    const full = this.find(OP.B, stage, microbatch);
    return full >= 0 ? full : this.find(OP.I, stage, microbatch);
  }

  /** The spans that provide the inputs of a span, and the transfers of these inputs. @param {number} span */
  inputs(span) {
    if (this.labels) return this.cause[span] < 0 ? [] : [this.cause[span]];
    const [op, stage, mb] = [this.op[span], this.stage[span], this.microbatch[span]];
    /** @type {number[]} */
    let found = [];
    if (op === OP.F) {
      const skips = this.skipsTo(OP.SEND_F, stage, mb).flatMap((each) => [this.forward(this.stage[each], mb), each]);
      found = [this.forward(stage - 1, mb), this.find(OP.SEND_F, stage - 1, mb), ...skips];
    } else if (op === OP.B || op === OP.I) {
      const skips = this.skipsTo(OP.SEND_B, stage, mb).flatMap((each) => [this.backward(this.stage[each], mb), each]);
      const backward = [this.backward(stage + 1, mb), this.find(OP.SEND_B, stage + 1, mb), ...skips];
      found = [...backward, this.forward(stage, mb)];
    } else if (op === OP.W) found = [this.find(OP.I, stage, mb)];
    else if (op === OP.SEND_F) found = [this.forward(stage, mb)];
    else if (op === OP.SEND_B) found = [this.backward(stage, mb)];
    return found.filter((each) => each >= 0);
  }

  /** The spans that need the result of a span. @param {number} span */
  consumers(span) {
    const [op, stage, mb, other] = [this.op[span], this.stage[span], this.microbatch[span], this.otherOf(span)];
    if (this.labels) return [];
    if (op === OP.SEND_F) return [this.forward(other < 0 ? stage + 1 : other, mb)];
    if (op === OP.SEND_B) return [this.backward(other < 0 ? stage - 1 : other, mb)];
    if (op === OP.F) {
      const skips = this.skipsFrom(OP.SEND_F, stage, mb).flatMap((each) => [
        each,
        this.forward(this.otherOf(each), mb),
      ]);
      const forward = [this.find(OP.SEND_F, stage, mb), this.forward(stage + 1, mb), ...skips];
      return [...forward, this.backward(stage, mb)];
    }
    if (op !== OP.B && op !== OP.I) return [];
    const skips = this.skipsFrom(OP.SEND_B, stage, mb).flatMap((each) => [each, this.backward(this.otherOf(each), mb)]);
    const backward = [this.find(OP.SEND_B, stage, mb), this.backward(stage - 1, mb), ...skips];
    return [...backward, this.find(OP.W, stage, mb)];
  }

  /** The spans that need the result of a span or waited for the span. @param {number} span */
  effects(span) {
    const waiting = [];
    for (let at = this.cause.indexOf(span); at >= 0; at = this.cause.indexOf(span, at + 1)) waiting.push(at);
    return [...new Set([...this.consumers(span).filter((each) => each >= 0), ...waiting])];
  }

  /** The idle ticks of the rank before a block, and the span for which it waited, or -1. @param {number} span */
  waited(span) {
    const [first] = this.range(0, this.rankOf(span));
    const slot = this.halfOf(span) === 2 ? span - 1 : span;
    const free = slot > first ? this.end[slot - 1] : 0;
    const cause = this.cause[slot];
    return { ticks: Math.max(0, this.start[slot] - free), cause: cause === slot - 1 ? -1 : cause };
  }

  // ── times ──

  /**
   * The block of a rank at a tick, or the nearest block within `tolerance`, or -1. For a shared slot, its first
   * block.
   * @param {number} rank @param {number} tick @param {number} [tolerance]
   */
  at(rank, tick, tolerance = 0) {
    const [from, to] = this.range(0, rank);
    const after = lowerBound(this.end, tick, from, to);
    let [best, distance] = [-1, tolerance];
    for (const span of [after - 1, after]) {
      if (span < from || span >= to) continue;
      const away = Math.max(this.start[span] - tick, tick - this.end[span], 0);
      if (away <= distance) [best, distance] = [span, away];
    }
    return this.halfOf(best) === 2 ? best - 1 : best;
  }

  /** The collective of a rank at a tick, or -1. @param {number} rank @param {number} tick */
  collectiveAt(rank, tick) {
    const [from, to] = this.range(1, rank);
    for (let span = from; span < to; span++) {
      if (this.start[span] <= tick && tick <= this.end[span]) return span;
    }
    return -1;
  }

  /** The next block of a rank that starts at or after a tick, or -1. @param {number} rank @param {number} tick */
  next(rank, tick) {
    const [from, to] = this.range(0, rank);
    const span = lowerBound(this.start, tick, from, to);
    return span < to ? span : -1;
  }

  /** The fraction of the step in which each rank computes. */
  get busy() {
    return this.once("busy", () =>
      this.meshes.map((_, rank) => {
        const [from, to] = this.range(0, rank);
        let ticks = 0;
        for (let span = from; span < to; span++) if (this.halfOf(span) < 2) ticks += this.end[span] - this.start[span];
        return this.last ? ticks / this.last : 0;
      }),
    );
  }

  /** The shortest computation in ticks, which limits how far a view zooms in. */
  get shortest() {
    return this.once("shortest", () => {
      let shortest = TICKS;
      for (let span = 0; span < this.blocks; span++) {
        const ticks = this.end[span] - this.start[span];
        if (ticks > 0 && ticks < shortest && this.op[span] <= OP.W) shortest = ticks;
      }
      return shortest;
    });
  }

  /** The mean length of a block in ticks. */
  get mean() {
    return this.once(
      "mean",
      () => (this.busy.reduce((sum, share) => sum + share, 0) * this.last) / Math.max(1, this.blocks),
    );
  }

  /** The length of the longest transfer in ticks. */
  get longestTransfer() {
    return this.once("longestTransfer", () => {
      let longest = 0;
      for (let span = this.sides; span < this.count; span++)
        longest = Math.max(longest, this.end[span] - this.start[span]);
      return longest;
    });
  }

  /** The transfers in progress at a tick. @param {number} tick */
  transfersAt(tick) {
    const found = [];
    for (let rank = 0; rank < this.ranks; rank++) {
      const [from, to] = this.range(2, rank);
      const first = lowerBound(this.start, tick - this.longestTransfer, from, to);
      for (let span = first; span < to && this.start[span] <= tick; span++) if (this.end[span] > tick) found.push(span);
    }
    return found;
  }

  // ── memory ──

  get hasMemory() {
    return Boolean(this.memory_bounds);
  }

  /** Bytes on a device of a rank at a tick. @param {number} rank @param {number} tick */
  memoryAt(rank, tick) {
    return this.memory_bytes[this.memoryChange(rank, tick)];
  }

  /** The last change of a rank's memory at or before a tick. @param {number} rank @param {number} tick */
  memoryChange(rank, tick) {
    const [from, to] = [this.memory_bounds[rank], this.memory_bounds[rank + 1]];
    return Math.max(from, lowerBound(this.memory_time, tick + 1, from, to) - 1);
  }

  /** The peak bytes on a device of each rank. */
  get peaks() {
    return this.once("peaks", () =>
      this.meshes.map((_, rank) => {
        let most = 0;
        for (let at = this.memory_bounds[rank]; at < this.memory_bounds[rank + 1]; at++)
          most = Math.max(most, this.memory_bytes[at]);
        return most;
      }),
    );
  }

  // ── words ──

  /**
   * An action in notation: "2F5", "0SEND_F5TO3"; or the name of a step.
   * @param {number} span @param {string[]} names
   */
  notation(span, names) {
    if (this.labels && this.text) return this.labels[this.text[span]];
    const [stage, mb, other] = [this.stage[span], this.microbatch[span], this.otherOf(span)];
    return `${stage >= 0 ? stage : ""}${names[this.op[span]]}${mb >= 0 ? mb : ""}${other >= 0 ? `TO${other}` : ""}`;
  }

  /** A description of the layers of a stage, or null. @param {number} stage */
  layersOf(stage) {
    if (!this.stages_layers || stage < 0) return null;
    const first = this.stages_layers.slice(0, stage).reduce((sum, layers) => sum + layers, 0);
    const layers = this.stages_layers[stage];
    if (!layers) return "no layers";
    return layers === 1 ? `layer ${first}` : `layers ${first} to ${first + layers - 1}`;
  }
}
