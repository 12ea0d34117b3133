// The links as planned: a bar for each unit task that holds a lane and, where a bar is wide enough or looked at, every
// message behind it.

import { css } from "../kit/palette.js";
import { bytes, seconds } from "./format.js";

const STRIP = 11; // CSS pixels of an opened bar that its name takes, where there is room for it
const WIDE = 120; // CSS pixels of a bar from which on it shows its chunks
const MOST_ASKED = 40; // tasks whose chunks are asked for at once
const WAYS = { tx: "sends", rx: "receives", in: "inside" };

export class Planned {
  height = { least: 13, most: 34, row: { least: 0, most: 0 } }; // CSS pixels of a lane
  about =
    "A bar is a unit task for as long as it holds the lane, in the colour of the host that sends it; in wide bars, " +
    "and in the one that is looked at, each message bears the number of its chunk.";

  constructor(stage) {
    this.stage = stage; // the timeline that this is painted on
    this.hops = new Map(); // of tasks, as columns
    this.asked = new Set();
  }

  draw(picture) {
    this.picture = picture;
    this.hops = new Map();
    this.asked = new Set();
    this.bars = picture.held.task.map((_, bar) => bar);
    this.lanes = picture.lanes.map(({ host, way, nic }) => ({
      host,
      rows: 1,
      words: `${WAYS[way]}${nic ? ` ${nic + 1}` : ""}`,
    }));
  }

  /** When a task begins and is done. */
  span(task) {
    const { start_s: begun, end_s: done } = this.picture.tasks[task];
    return done > begun ? [begun, done] : null;
  }

  /** The chunks of a task came. */
  learn({ number, task, hops }) {
    if (number === this.picture?.number) this.hops.set(task, hops);
  }

  /** Ask for the chunks of a task, once. */
  ask(task) {
    if (this.asked.has(task) || this.asked.size - this.hops.size >= MOST_ASKED) return;
    this.asked.add(task);
    this.stage.view.send("hops", { number: this.picture.number, task }, this.stage);
  }

  paint(context) {
    for (const bar of this.bars) this.paintBar(context, bar);
    this.paintHops(context);
  }

  paintBar(context, bar) {
    const { stage } = this;
    const { held, tasks } = this.picture;
    const lane = held.lane[bar];
    // whole pixels are filled many times faster
    const [left, right] = [stage.x(held.start_s[bar]), stage.x(held.end_s[bar])].map((x) => Math.round(x));
    if (!stage.isSeen(lane, left, right)) return;
    const task = held.task[bar];
    const isLit = stage.isLit(task);
    if (right - left > WIDE) this.ask(task);
    const opened = this.isOpened(task, right - left);
    const { fill, letters } = stage.shade(
      tasks[task].host,
      opened ? 0.72 : isLit ? 0.1 * (tasks[task].place % 2) : 0.75,
    );
    const [y, width, height] = [stage.top(lane) + 1, Math.max(1, right - left - 1), stage.tall(lane) - 2];
    context.fillStyle = fill;
    context.fillRect(left, y, width, height);
    if (task === stage.shownTask) {
      context.strokeStyle = css(stage.colours.text);
      context.lineWidth = 1.5;
      context.strokeRect(left + 0.75, y + 0.75, width - 1.5, height - 1.5);
    }
    const shown = stage.within(left, right);
    const name = opened && shown[1] - shown[0] > 50 ? `task ${task}` : String(task);
    if (shown[1] - shown[0] < 8 + 7 * name.length || (opened && !this.strip(lane))) return;
    context.fillStyle = opened || !isLit ? css(stage.colours.text) : letters;
    context.textAlign = opened ? "left" : "center";
    context.font = opened ? "600 10px system-ui, sans-serif" : "600 11px system-ui, sans-serif";
    if (opened) context.fillText(name, shown[0] + 4, y + STRIP / 2 + 0.5);
    else context.fillText(name, (shown[0] + shown[1]) / 2, y + height / 2);
  }

  /** Of an opened bar, the room that its name takes. */
  strip(lane) {
    return this.stage.tall(lane) >= 22 ? STRIP : 0;
  }

  isOpened(task, width) {
    return this.hops.has(task) && (width > WIDE || task === this.stage.shownTask);
  }

  paintHops(context) {
    const { stage } = this;
    if (stage.shownTask !== undefined) this.ask(stage.shownTask);
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    for (const [task, hops] of this.hops) {
      const { start_s: begun, end_s: done } = this.picture.tasks[task];
      if (!this.isOpened(task, stage.x(done) - stage.x(begun))) continue;
      const faint = !stage.isLit(task);
      const isCut = hops.last.some(Boolean);
      for (let hop = 0; hop < hops.lane.length; hop++) {
        const lane = hops.lane[hop];
        const [left, right] = [stage.x(hops.start_s[hop]), stage.x(hops.end_s[hop])];
        if (!stage.isSeen(lane, left, right)) continue;
        const { fill, letters } = stage.shade(
          stage.hostOf(hops.source[hop]),
          faint ? 0.7 : 0.22 * (hops.first[hop] % 2),
        );
        const strip = this.strip(lane) || 2;
        const [y, width, height] = [
          stage.top(lane) + strip + 1.5,
          Math.max(0.7, right - left - (right - left > 4 ? 0.8 : 0)),
          stage.tall(lane) - strip - 4,
        ];
        context.fillStyle = fill;
        context.fillRect(left, y, width, height);
        const words =
          hops.first[hop] === hops.last[hop] ? String(hops.first[hop]) : `${hops.first[hop]}–${hops.last[hop]}`;
        if (faint || !isCut || width < 6 + 6.5 * words.length) continue;
        context.fillStyle = letters;
        context.fillText(words, left + width / 2, y + height / 2 + 0.5);
      }
    }
  }

  /** What lies on a lane at a time: a task, and the message of it where those are drawn. */
  find(lane, time) {
    const { held, tasks } = this.picture;
    for (const [task, hops] of this.hops) {
      const { start_s: begun, end_s: done } = tasks[task];
      if (!this.isOpened(task, this.stage.x(done) - this.stage.x(begun))) continue;
      const hop = hops.lane.findIndex(
        (each, place) => each === lane && hops.start_s[place] <= time && time <= hops.end_s[place],
      );
      if (hop >= 0) return { task, hop };
    }
    const bar = this.bars.find(
      (each) => held.lane[each] === lane && held.start_s[each] <= time && time <= held.end_s[each],
    );
    return bar === undefined ? null : { task: held.task[bar], hop: -1 };
  }

  /** @param {{task: number, hop?: number}} found */
  words({ task, hop }) {
    if (hop < 0) return this.stage.words(task);
    const hops = this.hops.get(task);
    const { chunks } = this.picture.tasks[task];
    const [first, last] = [hops.first[hop], hops.last[hop]];
    const which = first === last ? `chunk ${first}` : `chunks ${first} to ${last}`;
    const size = bytes(hops.bytes[hop]);
    return (
      `Task ${task}, ${which}${chunks > 1 ? ` of ${chunks}` : ""}: rank ${hops.source[hop]} to ${hops.target[hop]}, ` +
      `${size}, ${seconds(hops.start_s[hop])} to ${seconds(hops.end_s[hop])}`
    );
  }
}
