// The plan on the links: a bar for each unit task on a lane, with its messages if the bar is wide enough or selected.

/** @import { Found, Hops, Lane, LinkTimeline, Picture } from "./types" */

import { FONT } from "../kit/font.js";
import { translate } from "../kit/language.js";
import { css } from "../kit/palette.js";
import { bytes, seconds } from "./format.js";

const STRIP = 11; // height of the name in an open bar, in CSS pixels
const WIDE = 120; // width in CSS pixels from which a bar shows its chunks
const MOST_REQUESTS = 40; // tasks whose chunks are requested at once
/** @type {Record<string, string>} */
const DIRECTIONS = { tx: "send", rx: "receive", in: "inside" };

/** @implements {LinkTimeline} */
export class PlannedLanes {
  height = { least: 13, most: 34, row: { least: 0, most: 0 } }; // CSS pixels of a lane
  about =
    "A bar is a unit task: its length is the time for which it occupies the lane, its colour the host that sends it. " +
    "Wide bars and the selected bar show their messages, each with the number of its chunk.";
  /** @type {Picture} */ picture;
  /** @type {Lane[]} */ lanes = [];
  /** @type {Map<number, Hops>} */ hops = new Map(); // by task
  /** @type {Set<number>} */ requested = new Set();

  /** @param {import("./lanes.js").Lanes} chart */
  constructor(chart) {
    this.chart = chart;
  }

  /** @param {Picture} picture */
  draw(picture) {
    this.picture = picture;
    this.hops = new Map();
    this.requested = new Set();
    this.lanes = picture.lanes.map(({ host, way, nic }) => ({
      host,
      rows: 1,
      words: `${DIRECTIONS[way]}${nic ? ` ${nic + 1}` : ""}`,
    }));
  }

  /**
   * The start and the end of a task, or null if it takes no time.
   * @param {number} task @returns {[number, number] | null}
   */
  span(task) {
    const { start_s: start, end_s: end } = this.picture.tasks[task];
    return end > start ? [start, end] : null;
  }

  /** @param {{number: number, task: number, hops: Hops}} message */
  receiveHops({ number, task, hops }) {
    if (number === this.picture?.number) this.hops.set(task, hops);
  }

  /** Request the chunks of a task, once. @param {number} task */
  request(task) {
    if (this.requested.has(task) || this.requested.size - this.hops.size >= MOST_REQUESTS) return;
    this.requested.add(task);
    this.chart.view.request("hops", { number: this.picture.number, task }, this.chart);
  }

  /** @param {number} task @param {number} width */
  isOpen(task, width) {
    return this.hops.has(task) && (width > WIDE || task === this.chart.shownTask);
  }

  /** The CSS pixels at the top of an open bar for its name. @param {number} lane */
  strip(lane) {
    return this.chart.laneHeight(lane) >= 22 ? STRIP : 0;
  }

  // ── painting ──

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    for (const bar of this.picture.held.task.keys()) this.paintBar(context, bar);
    if (this.chart.shownTask !== undefined) this.request(this.chart.shownTask);
    context.font = `11px ${FONT}`;
    context.textAlign = "center";
    for (const [task, hops] of this.hops) this.paintHops(context, task, hops);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} bar */
  paintBar(context, bar) {
    const { chart } = this;
    const { held, tasks } = this.picture;
    const [lane, task] = [held.lane[bar], held.task[bar]];
    // whole pixels are filled many times faster than fractional pixels
    const [left, right] = [Math.round(chart.x(held.start_s[bar])), Math.round(chart.x(held.end_s[bar]))];
    if (!chart.isVisible(lane, left, right)) return;
    if (right - left > WIDE) this.request(task);
    const isOpen = this.isOpen(task, right - left);
    const pale = chart.isHighlighted(task) ? 0.1 * (tasks[task].place % 2) : 0.75;
    const shade = chart.shade(tasks[task].host, isOpen ? 0.72 : pale);
    const [y, width, height] = [chart.top(lane) + 1, Math.max(1, right - left - 1), chart.laneHeight(lane) - 2];
    context.fillStyle = shade.fill;
    context.fillRect(left, y, width, height);
    if (task === chart.shownTask) {
      context.strokeStyle = css(chart.colours.text);
      context.lineWidth = 1.5;
      context.strokeRect(left + 0.75, y + 0.75, width - 1.5, height - 1.5);
    }
    const [from, to] = chart.clip(left, right);
    if (isOpen) this.writeOpen(context, task, from, to, lane);
    else this.writeNumber(context, task, from, to, y + height / 2, shade.ink);
  }

  /**
   * @param {CanvasRenderingContext2D} context @param {number} task @param {number} from @param {number} to
   * @param {number} lane
   */
  writeOpen(context, task, from, to, lane) {
    const name = to - from > 50 ? translate(`task ${task}`) : String(task);
    if (to - from < 8 + 7 * name.length || !this.strip(lane)) return;
    context.fillStyle = css(this.chart.colours.text);
    context.textAlign = "left";
    context.font = `600 11px ${FONT}`;
    context.fillText(name, from + 4, this.chart.top(lane) + 1.5 + STRIP / 2);
  }

  /**
   * @param {CanvasRenderingContext2D} context @param {number} task @param {number} from @param {number} to
   * @param {number} y @param {string} ink
   */
  writeNumber(context, task, from, to, y, ink) {
    const name = String(task);
    if (to - from < 8 + 7 * name.length) return;
    context.fillStyle = this.chart.isHighlighted(task) ? ink : css(this.chart.colours.text);
    context.textAlign = "center";
    context.font = `600 11px ${FONT}`;
    context.fillText(name, (from + to) / 2, y);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} task @param {Hops} hops */
  paintHops(context, task, hops) {
    const { chart } = this;
    const { start_s: start, end_s: end } = this.picture.tasks[task];
    if (!this.isOpen(task, chart.x(end) - chart.x(start))) return;
    const isFaint = !chart.isHighlighted(task);
    const hasNames = !isFaint && hops.last.some(Boolean);
    hops.lane.forEach((lane, hop) => {
      const [left, right] = [chart.x(hops.start_s[hop]), chart.x(hops.end_s[hop])];
      if (!chart.isVisible(lane, left, right)) return;
      const host = chart.hosts.get(hops.source[hop]) ?? 0;
      const { fill, ink } = chart.shade(host, isFaint ? 0.7 : 0.22 * (hops.first[hop] % 2));
      const strip = this.strip(lane) || 2;
      const [y, height] = [chart.top(lane) + strip + 1.5, chart.laneHeight(lane) - strip - 4];
      const width = Math.max(0.7, right - left - (right - left > 4 ? 0.8 : 0));
      context.fillStyle = fill;
      context.fillRect(left, y, width, height);
      const name = rangeOf(hops.first[hop], hops.last[hop], "–");
      if (!hasNames || width < 6 + 6.5 * name.length) return;
      context.fillStyle = ink;
      context.fillText(name, left + width / 2, y + height / 2 + 0.5);
    });
  }

  // ── tasks and messages at a place ──

  /** The task on a lane at a time, and its message if messages are drawn. @param {number} lane @param {number} time */
  find(lane, time) {
    const { held, tasks } = this.picture;
    for (const [task, hops] of this.hops) {
      const { start_s: start, end_s: end } = tasks[task];
      if (!this.isOpen(task, this.chart.x(end) - this.chart.x(start))) continue;
      const hop = indexAt(hops, lane, time);
      if (hop >= 0) return { task, hop };
    }
    const bar = indexAt(held, lane, time);
    return bar < 0 ? null : { task: held.task[bar], hop: -1 };
  }

  /** @param {Found} found */
  describe({ task, hop = -1 }) {
    const hops = this.hops.get(task);
    if (hop < 0 || !hops) return this.chart.describeTask(task);
    const { chunks } = this.picture.tasks[task];
    const [first, last] = [hops.first[hop], hops.last[hop]];
    const which = `chunk${first === last ? "" : "s"} ${rangeOf(first, last, " to ")}`;
    const route = `rank ${hops.source[hop]} to ${hops.target[hop]}`;
    const time = `${seconds(hops.start_s[hop])} to ${seconds(hops.end_s[hop])}`;
    return `Task ${task}, ${which}${chunks > 1 ? ` of ${chunks}` : ""}: ${route}, ${bytes(hops.bytes[hop])}, ${time}`;
  }
}

/** @param {number} first @param {number} last @param {string} joint */
const rangeOf = (first, last, joint) => (first === last ? String(first) : `${first}${joint}${last}`);

/**
 * The entry of columns that is on a lane at a time, or -1.
 * @param {{lane: number[], start_s: number[], end_s: number[]}} columns @param {number} lane @param {number} time
 */
const indexAt = (columns, lane, time) =>
  columns.lane.findIndex((each, i) => each === lane && columns.start_s[i] <= time && time <= columns.end_s[i]);
