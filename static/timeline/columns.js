// Columns of a timeline, as designer/views/timeline_columns.py packs them.

/** @import { LaneGroups, Links } from "./types" */

export const TICKS = 2 ** 32 - 1; // ticks of the whole axis, of which starts and ends are unsigned integer parts
const SIDES = { SEND_F: 4, RECV_F: 5, SEND_B: 6, RECV_B: 7, REDUCE_GRAD: 8, UNSHARD: 10 };
/** @type {Record<"F" | "B" | "I" | "W" | "STEP" | keyof typeof SIDES, number>} */
export const OP = { F: 0, B: 1, I: 2, W: 3, STEP: 9, ...SIDES };
const CRITICAL = 0x80;

/**
 * The first index in `from..to` with a value of at least `value`; the values ascend.
 * @param {ArrayLike<number>} values @param {number} value @param {number} from @param {number} to
 */
export function lowerBound(values, value, from, to) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** @typedef {Int8Array | Int16Array | Int32Array} Integers */

/** The spans of a timeline as columns, indexed by the number of the span. */
export class Columns {
  // the header
  /** @type {string} */ label;
  /** @type {string} */ source;
  /** @type {string} */ unit;
  /** @type {boolean} */ over;
  /** @type {string} */ digest;
  /** @type {number} */ makespan;
  /** @type {string[]} */ meshes;
  /** @type {LaneGroups | undefined} */ groups;
  /** @type {number} */ stages;
  /** @type {number} */ microbatches;
  /** @type {number[]} */ tints;
  /** @type {number | null} */ capacity;
  /** Categories of memory, from the bottom; empty if there are many meshes. @type {string[]} */ memory_kinds;
  /** @type {boolean} */ opens;
  /** @type {boolean} */ crosses;
  /** @type {boolean | undefined} */ critical;
  /** @type {Links | null} */ links;
  /** @type {number[] | undefined} */ stages_layers;
  // for the inside of a block: names of the steps, meanings of the colours, colours of the lanes
  /** @type {string[] | undefined} */ labels;
  /** @type {Record<string, string> | undefined} */ kinds;
  /** @type {number[] | undefined} */ tones;

  // columns by span; starts and ends in ticks
  /** @type {Uint32Array} */ start;
  /** @type {Uint32Array} */ end;
  /** @type {Uint8Array} */ op;
  /** @type {Integers} */ stage;
  /** @type {Integers} */ microbatch;
  /** @type {Int32Array} */ cause;
  /** @type {Int32Array} */ bounds;
  /** @type {Int32Array | undefined} */ text;
  /** @type {Float32Array | undefined} */ carried;
  /** @type {Uint8Array | undefined} */ half;
  /** 1 for blocks that never run, in an order with a deadlock. @type {Uint8Array | undefined} */ blocked;

  /** @type {number[]} */ criticalSpans = [];

  // columns by stage
  /** @type {Integers} */ placement;
  /** @type {Uint8Array} */ shade;
  /** @type {Float32Array | undefined} */ flops;

  // columns by transfer
  /** @type {Integers} */ peer;
  /** @type {Integers | undefined} */ other;
  /** @type {Float32Array | undefined} */ bytes;

  // columns indexed by change of a mesh's memory; only if `hasMemory`
  /** @type {Int32Array} */ memory_bounds;
  /** @type {Uint32Array} */ memory_time;
  /** @type {Float32Array} */ memory_bytes;
  /** The bytes of each of `memory_kinds`. @type {Float32Array[]} */ memoryParts;

  // columns indexed by share of a port, and by flow; only if there are `links`
  /** @type {Int32Array} */ link_bounds;
  /** @type {Int32Array} */ link_flow;
  /** @type {Uint32Array} */ link_start;
  /** @type {Uint32Array} */ link_end;
  /** @type {Float32Array} */ link_low;
  /** @type {Float32Array} */ link_high;
  /** @type {Float32Array} */ link_rate;
  /** @type {Float32Array} */ link_bytes;
  /** @type {Int32Array} */ flow_span;
  /** @type {Int32Array} */ flow_part;
  /** 1 for gathers and scatters of sharded state. @type {Uint8Array} */ flow_is_beside;

  /**
   * @param {any} header @param {number} number @param {number} horizon
   * @param {(place: [string, number, number]) => ArrayLike<number>} column
   */
  constructor(header, number, horizon, column) {
    Object.assign(this, header);
    this.number = number;
    this.scale = horizon / TICKS; // seconds (or units) per tick
    this.ranks = header.meshes.length;
    for (const [name, place] of Object.entries(header.columns)) Object.assign(this, { [name]: column(place) });
    const columns = /** @type {any} */ (this);
    this.memoryParts = (header.memory_kinds ?? []).map(
      (/** @type {string} */ _, /** @type {number} */ at) => columns[`memory_part_${at}`],
    );
    this.blocks = this.bounds[this.ranks];
    this.sides = this.bounds[2 * this.ranks];
    this.count = this.start.length;
    this.last = Math.round(Math.min(TICKS, header.makespan / this.scale));
    const flagged = this.op;
    this.op = flagged.map((op) => op & ~CRITICAL);
    if (this.critical) flagged.forEach((op, span) => op & CRITICAL && this.criticalSpans.push(span));
  }

  /** @param {number} span */
  isTransfer(span) {
    return span >= this.sides;
  }

  /** @param {number} span */
  isCollective(span) {
    return span >= this.blocks && span < this.sides;
  }

  /**
   * True if the lower half of a lane shows a measured timeline that was scaled, whose times have no unit.
   */
  get isUntimed() {
    return this.over && this.unit !== "s";
  }

  /**
   * The spans of a rank: kind 0 for blocks, 1 for collectives, 2 for transfers.
   * @param {number} kind @param {number} rank
   */
  range(kind, rank) {
    const place = kind * this.ranks + rank;
    return [this.bounds[place], this.bounds[place + 1]];
  }

  /** @param {number} span */
  rankOf(span) {
    const kind = span < this.blocks ? 0 : span < this.sides ? 1 : 2;
    let low = kind * this.ranks;
    let high = low + this.ranks;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.bounds[middle + 1] <= span) low = middle + 1;
      else high = middle;
    }
    return low - kind * this.ranks;
  }

  /** @param {number} transfer */
  peerOf(transfer) {
    return this.peer[transfer - this.sides];
  }

  /** The stage at the other end of a message that skips stages; -1 for other spans. @param {number} span */
  otherOf(span) {
    return this.other && this.isTransfer(span) ? this.other[span - this.sides] : -1;
  }

  /** @param {number} transfer */
  bytesOf(transfer) {
    return this.bytes?.[transfer - this.sides] ?? null;
  }

  /** 1 for the first and 2 for the second of two blocks that share a slot, 0 for all others. @param {number} span */
  halfOf(span) {
    return this.half?.[span] ?? 0;
  }

  /** @param {number} span */
  isBlocked(span) {
    return this.blocked?.[span] === 1;
  }

  /** @param {number} span @param {number} rank */
  shadeOf(span, rank) {
    const stage = this.stage[span];
    return stage < 0 ? 0 : this.shade[rank * this.stages + stage];
  }

  /** @param {number} span */
  duration(span) {
    return (this.end[span] - this.start[span]) * this.scale;
  }

  /** The index of the colour of a lane; lanes of one device have the same colour. @param {number} rank */
  toneOf(rank) {
    return this.tones?.[rank] ?? rank;
  }
}
