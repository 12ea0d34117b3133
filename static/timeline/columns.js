// Columns of a timeline, as designer/views/timeline.py packs them.

export const TICKS = 2 ** 32 - 1; // the whole axis: starts and ends are unsigned parts of it
export const OP = { F: 0, B: 1, I: 2, W: 3, SEND_F: 4, RECV_F: 5, SEND_B: 6, RECV_B: 7, REDUCE_GRAD: 8, STEP: 9 };
const CRITICAL = 0x80;

/**
 * The first place in `from..to` whose value is not below `value`; the values ascend.
 * @param {ArrayLike<number>} values
 * @param {number} value
 * @param {number} from
 * @param {number} to
 */
export function firstFrom(values, value, from, to) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** @typedef {Int8Array | Int16Array | Int32Array} Integers */

/** Spans as columns, each by its number. */
export class Columns {
  // what Python says of it (designer/views/timeline.py)
  /** @type {string} */ label;
  /** @type {string} */ source;
  /** @type {string} */ unit;
  /** @type {boolean} */ over;
  /** @type {number} */ makespan;
  /** @type {string[]} */ meshes;
  /** @type {number} */ stages;
  /** @type {number} */ microbatches;
  /** @type {Integers} */ placement;
  /** @type {Uint8Array} */ shade;
  /** @type {Float32Array | undefined} */ flops;
  /** @type {string[] | undefined} */ labels;
  /** @type {number[] | undefined} */ tones;
  /** @type {number[] | undefined} */ stages_layers;
  /** @type {boolean | undefined} */ critical;

  // columns by span; starts and ends in ticks
  /** @type {Uint32Array} */ start;
  /** @type {Uint32Array} */ end;
  /** @type {Uint8Array} */ op;
  /** @type {Integers} */ stage;
  /** @type {Integers} */ microbatch;
  /** @type {Int32Array} */ cause;
  /** @type {Int32Array} */ bounds;
  /** @type {Int32Array | undefined} */ text;
  /** @type {Uint8Array | undefined} */ half;

  /** @type {number[]} */ criticalSpans = [];

  // columns by transfer
  /** @type {Integers} */ peer;
  /** @type {Integers | undefined} */ other;
  /** @type {Float32Array | undefined} */ bytes;

  // columns by change of a mesh's memory
  /** @type {Int32Array | undefined} */ memory_bounds;
  /** @type {Uint32Array | undefined} */ memory_time;
  /** @type {Float32Array | undefined} */ memory_bytes;

  /**
   * @param {any} spec
   * @param {number} number
   * @param {number} horizon
   * @param {(place: [string, number, number]) => ArrayLike<number>} column
   */
  constructor(spec, number, horizon, column) {
    Object.assign(this, spec);
    this.number = number;
    this.scale = horizon / TICKS; // seconds (or units) a tick
    this.ranks = spec.meshes.length;
    for (const [name, place] of Object.entries(spec.columns))
      /** @type {Record<string, any>} */ (this)[name] = column(place);
    this.blocks = this.bounds[this.ranks];
    this.sides = this.bounds[2 * this.ranks];
    this.count = this.start.length;
    this.last = Math.round(Math.min(TICKS, spec.makespan / this.scale));
    this._readCritical();
  }

  _readCritical() {
    const flagged = this.op;
    this.op = flagged.map((op) => op & ~CRITICAL);
    if (this.critical) flagged.forEach((op, span) => op & CRITICAL && this.criticalSpans.push(span));
  }

  /** @param {number} span */
  isTransfer(span) {
    return span >= this.sides;
  }

  /** @param {number} span */
  isReduction(span) {
    return span >= this.blocks && span < this.sides;
  }

  /**
   * The spans of a rank: kind 0 for blocks, 1 for reductions, 2 for transfers.
   * @param {number} kind
   * @param {number} rank
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

  /**
   * The stage at the other end of a message that skips stages, else -1.
   * @param {number} span
   */
  otherOf(span) {
    return this.other && this.isTransfer(span) ? this.other[span - this.sides] : -1;
  }

  /** @param {number} transfer */
  bytesOf(transfer) {
    return this.bytes?.[transfer - this.sides] ?? null;
  }

  /**
   * 1 for the first and 2 for the second of two blocks that share a slot, 0 for all others.
   * @param {number} span
   */
  halfOf(span) {
    return this.half?.[span] ?? 0;
  }

  /**
   * @param {number} span
   * @param {number} rank
   */
  shadeOf(span, rank) {
    const stage = this.stage[span];
    return stage < 0 ? 0 : this.shade[rank * this.stages + stage];
  }

  /** @param {number} span */
  duration(span) {
    return (this.end[span] - this.start[span]) * this.scale;
  }

  /**
   * The number of a lane's colour: lanes of one device have one colour.
   * @param {number} rank
   */
  toneOf(rank) {
    return this.tones?.[rank] ?? rank;
  }
}
