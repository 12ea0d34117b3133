// The links as played: every message on the NIC that it leaves by and on the one that it comes by, or on the links of
// both ranks inside their host. A lane is as high as what can pass there, and messages that share it lie one above the
// other, each as high as its part: what is empty is not used.

import { css } from "../kit/palette.js";
import { bytes, seconds } from "./format.js";

const WAYS = { tx: "sends", rx: "receives" };
const LETTERS = 11; // CSS pixels of height that a number needs
const NEAR = 3; // CSS pixels beside a short message that are still its own
// of the background in every other message of a lane: where they are short, no line is left between them
const OTHER = 0.3;

export class Played {
  // CSS pixels of a lane, and for each message that shares it
  height = { least: 13, most: 34, row: { least: 2, most: 14 } };
  about =
    "A bar is one message, in the colour of the host that sends its unit task and every other one lighter, with the " +
    "number of the task and behind the dot that of its chunk. A lane is as high as what its host's NICs can carry: " +
    "messages that share them lie one above the other, each as high as its part, and what is empty is not used. A " +
    "thin line before a message is its link's latency, in which it holds nothing. A rank's arrow is its link inside " +
    "its host: rank 2 → sends, → rank 2 receives.";

  constructor(stage) {
    this.stage = stage; // the timeline that this is painted on
    this.picture = this.play = null; // drawn at last
  }

  draw(picture, play) {
    this.picture = picture;
    this.play = play;
    const { bars, messages } = play;
    this.lanes = play.lanes.map(({ host, rank, way, rows }) => ({
      host,
      rows,
      words: wordsOf(rank, way),
      leaves: way === "tx" || way === "out",
      bars: [],
    }));
    bars.lane.forEach((lane, bar) => this.lanes[lane].bars.push(bar));
    const ends = messages.end_s;
    for (const lane of this.lanes) {
      const [first, widest] = [new Map(), new Map()]; // of each message
      const area = (bar) => (bars.end_s[bar] - bars.start_s[bar]) * (bars.high[bar] - bars.low[bar]);
      for (const bar of lane.bars) {
        const message = bars.message[bar];
        if (!(bars.start_s[first.get(message)] <= bars.start_s[bar])) first.set(message, bar);
        if (!(area(widest.get(message)) >= area(bar))) widest.set(message, bar);
      }
      Object.assign(lane, { first, widest, isOther: this.alternate(first) });
    }
    this.spans = new Map();
    messages.task.forEach((task, message) => {
      const [begun, done] = this.spans.get(task) ?? [Infinity, 0];
      this.spans.set(task, [Math.min(begun, messages.set_out_s[message]), Math.max(done, ends[message])]);
    });
  }

  /** Every other message of a lane, of those that follow one another at the same height. */
  alternate(first) {
    const { start_s: starts, low } = this.play.bars;
    const isOther = new Map();
    const before = new Map(); // the message before, by height
    for (const [message, bar] of [...first].sort(([, one], [, other]) => starts[one] - starts[other])) {
      isOther.set(message, before.has(low[bar]) && !isOther.get(before.get(low[bar])));
      before.set(low[bar], message);
    }
    return isOther;
  }

  /** When the first message of a task sets out, and when the last one has come. */
  span(task) {
    return this.spans.get(task) ?? null;
  }

  paint(context) {
    const { start_s: starts, end_s: ends } = this.play.bars;
    const [from, to] = this.stage.times;
    context.textAlign = "center";
    context.font = "600 10px system-ui, sans-serif";
    this.lanes.forEach((each, lane) => {
      if (!this.stage.isSeen(lane)) return;
      if (each.leaves) for (const [message, bar] of each.first) this.paintLatency(context, lane, message, bar);
      for (const bar of each.bars) if (ends[bar] >= from && starts[bar] <= to) this.paintBar(context, lane, bar);
      for (const [message, bar] of each.widest)
        if (ends[bar] >= from && starts[bar] <= to) this.paintName(context, lane, message, bar);
    });
  }

  /**
   * Where a bar is in whole pixels, which are filled many times faster than parts of them: left, right, top, height.
   */
  place(lane, bar) {
    const { start_s: starts, end_s: ends, low, high } = this.play.bars;
    const { stage } = this;
    const [bottom, tall] = [stage.top(lane) + stage.tall(lane) - 1, stage.tall(lane) - 2];
    const [from, to] = [Math.round(tall * low[bar]), Math.round(tall * high[bar])];
    const gap = to - from > 3 && low[bar] > 0 ? 1 : 0; // above the message below
    return [
      Math.round(stage.x(starts[bar])),
      Math.round(stage.x(ends[bar])),
      bottom - to,
      Math.max(1, to - from - gap),
    ];
  }

  shade(lane, message) {
    const task = this.play.messages.task[message];
    const { host } = this.picture.tasks[task];
    const isOther = this.lanes[lane].isOther.get(message);
    return this.stage.shade(host, this.stage.isLit(task) ? OTHER * isOther : 0.75 + 0.1 * isOther);
  }

  paintLatency(context, lane, message, bar) {
    const { stage } = this;
    const { set_out_s: out, start_s: starts } = this.play.messages;
    const [left, right] = [Math.round(stage.x(out[message])), Math.round(stage.x(starts[message]))];
    if (right - left < 2 || !stage.isSeen(lane, left, right)) return;
    const [, , top, height] = this.place(lane, bar);
    context.fillStyle = this.shade(lane, message).fill;
    context.fillRect(left, Math.round(top + height / 2 - 0.5), right - left, 1);
  }

  paintBar(context, lane, bar) {
    const { bars, messages } = this.play;
    const [left, right, top, height] = this.place(lane, bar);
    if (!this.stage.isSeen(lane, left, right)) return;
    const message = bars.message[bar];
    const isLast = bars.end_s[bar] >= messages.end_s[message];
    const gap = isLast && right - left > 2 ? 1 : 0; // before the next message
    // of a message something is seen, of its parts not all
    const least = this.lanes[lane].first.get(message) === bar ? 1 : 0;
    if (right - left < 1 && !least) return;
    context.fillStyle = this.shade(lane, message).fill;
    context.fillRect(left, top, Math.max(least, right - left - gap), height);
  }

  paintName(context, lane, message, bar) {
    const { stage } = this;
    const [left, right, top, height] = this.place(lane, bar);
    if (height < LETTERS || right - left < 12 || !stage.isSeen(lane, left, right)) return;
    const shown = stage.within(left, right);
    const room = shown[1] - shown[0];
    const task = this.play.messages.task[message];
    const both = `${task} · ${this.play.messages.chunk[message]}`;
    const name = this.picture.tasks[task].chunks > 1 && room > 6 + 6 * both.length ? both : String(task);
    if (room < 6 + 6 * name.length) return;
    context.fillStyle = stage.isLit(task) ? this.shade(lane, message).letters : css(stage.colours.text);
    context.fillText(name, (shown[0] + shown[1]) / 2, top + height / 2 + 0.5);
  }

  /** The message on a lane at a time, at `part` (0 to 1) of the lane down, or the nearest to that. */
  find(lane, time, part) {
    const { start_s: starts, end_s: ends, low, high, message } = this.play.bars;
    const near = NEAR * this.stage.pixel;
    const up = 1 - part;
    let [best, distance] = [null, Infinity];
    for (const bar of this.lanes[lane].bars) {
      const beside = Math.max(starts[bar] - time, time - ends[bar], 0);
      if (beside > near) continue;
      const away = Math.max(low[bar] - up, up - high[bar], 0) + beside / near;
      if (away < distance) [best, distance] = [message[bar], away];
    }
    return best === null ? null : { task: this.play.messages.task[best], message: best };
  }

  /** @param {{task: number, message?: number}} found */
  words({ task, message }) {
    const { messages } = this.play;
    const { chunks } = this.picture.tasks[task];
    const of = (name) => messages[name][message];
    const which = chunks > 1 ? `, chunk ${of("chunk")} of ${chunks}` : "";
    const share =
      of("share") === null ? "" : `, ${Number((100 * of("share")).toPrecision(3))} % of its link's rate on average`;
    return (
      `Task ${task}${which}: rank ${of("source")} to ${of("target")}, ${bytes(of("bytes"))}, ` +
      `${seconds(of("start_s"))} to ${seconds(of("end_s"))}${share}`
    );
  }
}

const wordsOf = (rank, way) => (rank === null ? WAYS[way] : way === "out" ? `rank ${rank} →` : `→ rank ${rank}`);
