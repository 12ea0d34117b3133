// The simulated messages on the links: each message on the NICs that it uses, or on the links of both ranks inside a
// host. The height of a lane is its capacity; messages that share a lane are stacked, each as high as its share.

/** @import { Found, Lane, LinkTimeline, Picture, Simulation } from "./types" */

import { FONT } from "../kit/font.js";
import { css } from "../kit/palette.js";
import { bytes, seconds } from "./format.js";

/** @type {Record<string, string>} */
const DIRECTIONS = { tx: "send", rx: "receive" };
const LETTERS = 11; // height of a number in CSS pixels
const NEAR = 3; // CSS pixels within which the pointer hits a short message
const ALTERNATE = 0.3; // part of the background in every second message of a lane, which separates short messages

/**
 * A lane with its bars, and for each message its first bar, its largest bar and true if the message is painted
 * lighter.
 * @typedef {Lane & {isSender: boolean, bars: number[], first: Map<number, number>, largest: Map<number, number>,
 *   isLighter: Map<number, boolean>}} MessageLane
 */

/** @implements {LinkTimeline} */
export class SimulatedLanes {
  // CSS pixels of a lane, and for each message that shares it
  height = { least: 13, most: 34, row: { least: 2, most: 14 } };
  about =
    "Each bar is one message. Its colour is that of the host that sends its unit task, its label gives the numbers " +
    "of the task and of the chunk, and every second message is lighter. The height of a lane is the capacity of the " +
    "NICs of its host: messages that share them are stacked, each as high as its share, and empty space is unused " +
    "capacity. A thin line before a message is the latency of its link, which uses no capacity. Lanes with an arrow " +
    "are links inside a host: rank 2 → sends, → rank 2 receives.";
  /** @type {Picture | null} */ picture = null;
  /** @type {Simulation} */ data;
  /** @type {MessageLane[]} */ lanes = [];
  /** @type {Map<number, [number, number]>} */ spans = new Map(); // by task

  /** @param {import("./lanes.js").Lanes} chart */
  constructor(chart) {
    this.chart = chart;
  }

  /** @param {Picture} picture @param {Simulation} data */
  draw(picture, data) {
    this.picture = picture;
    this.data = data;
    const { bars, messages } = data;
    this.lanes = data.lanes.map(({ host, rank, way, rows }) => ({
      host,
      rows,
      words: laneName(rank, way),
      isSender: way === "tx" || way === "out",
      bars: [],
      first: new Map(),
      largest: new Map(),
      isLighter: new Map(),
    }));
    bars.lane.forEach((lane, bar) => this.lanes[lane].bars.push(bar));
    for (const lane of this.lanes) this.indexMessages(lane);
    this.spans = new Map();
    messages.task.forEach((task, message) => {
      const [start, end] = this.spans.get(task) ?? [Infinity, 0];
      this.spans.set(task, [Math.min(start, messages.set_out_s[message]), Math.max(end, messages.end_s[message])]);
    });
  }

  /** @param {MessageLane} lane */
  indexMessages(lane) {
    const { message: messages, start_s: starts, end_s: ends, low, high } = this.data.bars;
    const area = (/** @type {number} */ bar) => (ends[bar] - starts[bar]) * (high[bar] - low[bar]);
    for (const bar of lane.bars) {
      const message = messages[bar];
      const [first, largest] = [lane.first.get(message), lane.largest.get(message)];
      if (first === undefined || starts[bar] < starts[first]) lane.first.set(message, bar);
      if (largest === undefined || area(bar) > area(largest)) lane.largest.set(message, bar);
    }
    const before = new Map(); // the previous message by height
    for (const [message, bar] of [...lane.first].sort(([, a], [, b]) => starts[a] - starts[b])) {
      lane.isLighter.set(message, before.has(low[bar]) && !lane.isLighter.get(before.get(low[bar])));
      before.set(low[bar], message);
    }
  }

  /** The start of the first message and the end of the last message of a task. @param {number} task */
  span(task) {
    return this.spans.get(task) ?? null;
  }

  // ── painting ──

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { start_s: starts, end_s: ends } = this.data.bars;
    const [from, to] = this.chart.window;
    const isVisible = (/** @type {number} */ bar) => ends[bar] >= from && starts[bar] <= to;
    context.textAlign = "center";
    context.font = `600 11px ${FONT}`;
    this.lanes.forEach(({ isSender, first, bars, largest }, lane) => {
      if (!this.chart.isVisible(lane)) return;
      if (isSender) for (const [message, bar] of first) this.paintLatency(context, lane, message, bar);
      for (const bar of bars) if (isVisible(bar)) this.paintBar(context, lane, bar);
      for (const [message, bar] of largest) if (isVisible(bar)) this.paintName(context, lane, message, bar);
    });
  }

  /**
   * The box of a bar in whole pixels, which are filled many times faster than fractional pixels.
   * @param {number} lane @param {number} bar
   */
  boxOf(lane, bar) {
    const { start_s: starts, end_s: ends, low, high } = this.data.bars;
    const { chart } = this;
    const [bottom, room] = [chart.top(lane) + chart.laneHeight(lane) - 1, chart.laneHeight(lane) - 2];
    const [from, to] = [Math.round(room * low[bar]), Math.round(room * high[bar])];
    const gap = to - from > 3 && low[bar] > 0 ? 1 : 0; // above the message below
    return {
      left: Math.round(chart.x(starts[bar])),
      right: Math.round(chart.x(ends[bar])),
      top: bottom - to,
      height: Math.max(1, to - from - gap),
    };
  }

  /** @param {number} lane @param {number} message */
  shade(lane, message) {
    const task = this.data.messages.task[message];
    const host = this.picture?.tasks[task].host ?? 0;
    const isLighter = Number(this.lanes[lane].isLighter.get(message));
    return this.chart.shade(host, this.chart.isHighlighted(task) ? ALTERNATE * isLighter : 0.75 + 0.1 * isLighter);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} lane @param {number} message @param {number} bar */
  paintLatency(context, lane, message, bar) {
    const { chart } = this;
    const { set_out_s: departures, start_s: starts } = this.data.messages;
    const [left, right] = [Math.round(chart.x(departures[message])), Math.round(chart.x(starts[message]))];
    if (right - left < 2 || !chart.isVisible(lane, left, right)) return;
    const { top, height } = this.boxOf(lane, bar);
    context.fillStyle = this.shade(lane, message).fill;
    context.fillRect(left, Math.round(top + height / 2 - 0.5), right - left, 1);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} lane @param {number} bar */
  paintBar(context, lane, bar) {
    const { bars, messages } = this.data;
    const { left, right, top, height } = this.boxOf(lane, bar);
    if (!this.chart.isVisible(lane, left, right)) return;
    const message = bars.message[bar];
    const isLast = bars.end_s[bar] >= messages.end_s[message];
    const gap = isLast && right - left > 2 ? 1 : 0; // before the next message
    const least = this.lanes[lane].first.get(message) === bar ? 1 : 0; // each message has at least one pixel
    if (right - left < 1 && !least) return;
    context.fillStyle = this.shade(lane, message).fill;
    context.fillRect(left, top, Math.max(least, right - left - gap), height);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} lane @param {number} message @param {number} bar */
  paintName(context, lane, message, bar) {
    const { chart } = this;
    const { left, right, top, height } = this.boxOf(lane, bar);
    if (height < LETTERS || right - left < 12 || !chart.isVisible(lane, left, right)) return;
    const [from, to] = chart.clip(left, right);
    const task = this.data.messages.task[message];
    const full = `${task} · ${this.data.messages.chunk[message]}`;
    const hasChunks = (this.picture?.tasks[task].chunks ?? 1) > 1;
    const name = hasChunks && to - from > 6 + 6 * full.length ? full : String(task);
    if (to - from < 6 + 6 * name.length) return;
    context.fillStyle = chart.isHighlighted(task) ? this.shade(lane, message).ink : css(chart.colours.text);
    context.fillText(name, (from + to) / 2, top + height / 2 + 0.5);
  }

  // ── messages at a place ──

  /**
   * The message on a lane at a time, nearest to `part` (0 to 1) of the lane from its top.
   * @param {number} lane @param {number} time @param {number} part
   */
  find(lane, time, part) {
    const { start_s: starts, end_s: ends, low, high, message } = this.data.bars;
    const near = NEAR * this.chart.secondsPerPixel;
    const up = 1 - part;
    let [best, distance] = [-1, Infinity];
    for (const bar of this.lanes[lane].bars) {
      const beside = Math.max(starts[bar] - time, time - ends[bar], 0);
      if (beside > near) continue;
      const away = Math.max(low[bar] - up, up - high[bar], 0) + beside / near;
      if (away < distance) [best, distance] = [message[bar], away];
    }
    return best < 0 ? null : { task: this.data.messages.task[best], message: best };
  }

  /** @param {Found} found */
  describe({ task, message = 0 }) {
    const { chunk, source, target, bytes: sizes, start_s: starts, end_s: ends, share } = this.data.messages;
    const chunks = this.picture?.tasks[task].chunks ?? 1;
    const which = chunks > 1 ? `, chunk ${chunk[message]} of ${chunks}` : "";
    const part = share[message];
    const rate = part === null ? "" : `, on average ${Number((100 * part).toPrecision(3))}% of the link rate`;
    const route = `rank ${source[message]} to ${target[message]}`;
    const time = `${seconds(starts[message])} to ${seconds(ends[message])}`;
    return `Task ${task}${which}: ${route}, ${bytes(sizes[message])}, ${time}${rate}`;
  }
}

/** @param {number | null} rank @param {string} way */
function laneName(rank, way) {
  if (rank === null) return DIRECTIONS[way];
  return way === "out" ? `rank ${rank} →` : `→ rank ${rank}`;
}
