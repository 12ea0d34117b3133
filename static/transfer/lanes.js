// The links' timeline: a lane for each host and direction; on it, as a person chooses, what holds it as planned
// (planned_lanes.js) or every message as played (simulated_lanes.js). Both have one axis. Python says when each begins
// and ends.

import { h, perFrame } from "../kit/canvas.js";
import { clamp, count, roundUp } from "../kit/numbers.js";
import { css, ink, mix, rgb } from "../kit/palette.js";
import { tool } from "../kit/shell.js";
import { seconds, some } from "./format.js";
import { LanesInput } from "./lanes_input.js";
import { Planned } from "./planned_lanes.js";
import { Played } from "./simulated_lanes.js";

export const NAMES = 116; // CSS pixels of the lanes' names
export const AXIS = 20;
const DEEPEST = 1e6; // times the whole
const CHOICES = {
  planned: [
    "as planned",
    "A unit task holds the NICs of both its ends until it is done; the plans beside tell this time (P turns)",
  ],
  played: [
    "as played",
    "Each message by itself, sharing NICs with others: the price of the transfer; the plans beside tell this time " +
      "(P turns)",
  ],
};

const HELP = `The line across is where the picture ends, the dashed one where the other ends, as planned and as played.
Wheel zooms, drag moves, double-click shows all, Alt and wheel scroll the lanes.
Keys: P as planned or as played, J K to the next task, F fits it, Escape lets it go, W S zoom, A D move, \
arrows scroll, 0 shows all.`;

export class Lanes {
  constructor(view) {
    this.view = view;
    this.about = h("span", { class: "mw-quiet mw-tr-links-about" });
    this.help = tool("How to read the links", { glyph: "help", onclick: () => this.view.tips.over(this.help, 0) });
    this.choices = Object.entries(CHOICES).map(([shows, [text, tip]]) =>
      h(
        "button",
        {
          type: "button",
          class: "mw-segment",
          "data-shows": shows,
          "data-tip": tip,
          onclick: () => this.choose(shows),
        },
        text,
      ),
    );
    this.choice = h(
      "div",
      { class: "mw-segments mw-tr-shows", role: "group", "aria-label": "Time of the links and of the plans" },
      ...this.choices,
    );
    this.note = h("p", { class: "mw-tr-caption mw-tr-note", role: "status", hidden: true });
    this.canvas = h("canvas", {});
    this.tip = h("div", { class: "mw-tr-tip", "aria-hidden": "true", hidden: true });
    this.probe = h("span", { class: "mw-tr-probe" });
    this.element = h(
      "div",
      { class: "mw-tr-stage", tabindex: 0, role: "application", "aria-roledescription": "timeline" },
      this.canvas,
      this.tip,
      this.probe,
    );
    this.repaint = perFrame(() => this.paint());
    this.planned = new Planned(this);
    this.played = new Played(this);
    /** @type {Planned | Played} */
    this.front = this.planned;
    this.from = 0; // parts of the whole that are shown
    this.to = 1;
    this.scroll = 0;
    this.sizes = new ResizeObserver(() => this.repaint());
    this.sizes.observe(this.element);
    this.themes = new MutationObserver(() => this.repaint());
    this.themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.scheme.addEventListener("change", this.repaint);
    this.input = new LanesInput(this);
  }

  remove() {
    this.sizes.disconnect();
    this.themes.disconnect();
    this.scheme.removeEventListener("change", this.repaint);
    this.repaint.cancel();
  }

  focus() {
    this.element.focus({ preventScroll: true });
  }

  draw(picture) {
    this.picture = picture;
    this.order = picture.tasks
      .map((_, task) => task)
      .sort((one, other) => picture.tasks[one].place - picture.tasks[other].place);
    this.planned.draw(picture);
    this.turn();
  }

  /** The messages as played, and of which picture they are. */
  get messages() {
    const { play } = this.view.model;
    if (play !== this.parsed?.from) this.parsed = { from: play, messages: play ? JSON.parse(play) : null };
    return this.parsed.messages;
  }

  /** Another timeline is chosen, or its messages came. */
  turn() {
    const { picture } = this;
    const { shows } = this.view.model;
    for (const each of this.choices) each.ariaPressed = String(each.dataset.shows === shows);
    if (!picture) return;
    const isPlayed = shows === "played" && this.messages?.number === picture.number; // else its own are on their way
    if (isPlayed && this.played.picture !== picture) this.played.draw(picture, this.messages);
    this.front = isPlayed ? this.played : this.planned;
    const { makespan, played, bound, optimal, strategy, ordering, unplayed } = picture;
    const took = isPlayed ? `${played} as played` : `${makespan}${optimal ? "" : `, bound ${bound}`}`;
    this.about.textContent = `${strategy}, ${ordering}: ${took}`;
    this.note.textContent = shows === "played" ? unplayed : "";
    this.note.hidden = !this.note.textContent;
    this.about.dataset.tip = this.about.textContent; // where the card is too narrow for it
    this.help.dataset.tip = `${this.front.about}\n${HELP}`;
    this.help.setAttribute("aria-description", this.help.dataset.tip);
    this.element.setAttribute(
      "aria-label",
      `${count(picture.tasks.length, "unit task")} on ${this.front.lanes.length} lanes, ` +
        `${isPlayed ? `${played} as played` : `${makespan} as planned`}. J and K walk the tasks, F fits one, Escape ` +
        "lets it go, P turns between planned and played, W and S zoom, A and D move, 0 shows all.",
    );
    this.tip.hidden = true;
    this.repaint();
  }

  choose(shows) {
    if (shows !== this.view.model.shows) this.view.send("look", { shows });
  }

  light(tasks, shown) {
    this.lit = tasks;
    this.shownTask = shown?.task;
    this.repaint();
  }

  /** A unit task in a sentence. */
  words(number) {
    const task = this.view.picture.tasks[number];
    const span = this.front.span(number);
    const time = span ? `, ${seconds(span[0])} to ${seconds(span[1])}` : "";
    const chunks = task.chunks > 1 ? ` in ${task.chunks} chunks` : "";
    const kept = task.keepers.length ? `; kept by ${some(task.keepers)}` : "";
    const sum = task.addends.length ? `, which sums the addends of ${some(task.addends)},` : "";
    const way = task.receivers.length
      ? `rank ${task.sender} (of ${some(task.senders)})${sum} to ${some(task.receivers)}`
      : "stays where it is";
    return `Task ${number}: [${task.box}] ${task.size}${chunks}, ${way}${kept}${time}`;
  }

  learn(message) {
    this.planned.learn(message);
    this.repaint();
  }

  /** Why there are no chunks to see, where they were asked for in vain. */
  answered(refused) {
    if (refused) this.about.textContent = refused;
  }

  // ── painting ──

  /** Seconds of the whole, as planned or as played, whichever is longer: so that one can be held against the other. */
  get horizon() {
    return Math.max(this.picture.makespan_s, this.picture.played_s) || 1;
  }

  /** From when to when is shown. */
  get times() {
    return [this.from * this.horizon, this.to * this.horizon];
  }

  /** Seconds of a pixel. */
  get pixel() {
    return ((this.to - this.from) * this.horizon) / this.width;
  }

  x(time) {
    return NAMES + ((time / this.horizon - this.from) / (this.to - this.from)) * this.width;
  }

  paint() {
    const { clientWidth, clientHeight } = this.element;
    if (!this.picture || clientWidth < NAMES + 20 || clientHeight < 30) return;
    const ratio = window.devicePixelRatio || 1;
    const [wide, tall] = [Math.round(clientWidth * ratio), Math.round(clientHeight * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== tall)
      Object.assign(this.canvas, { width: wide, height: tall });
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, clientWidth, clientHeight);
    this.width = clientWidth - NAMES - 12;
    this.colours = this.readColours();
    this.shades = new Map();
    this.room = clientHeight - AXIS;
    this.measure();
    this.scroll = clamp(this.scroll, 0, Math.max(0, this.tops.at(-1) - this.room));
    this.paintLanes(context);
    if (!this.front.lanes.length) return this.paintNothing(context, clientWidth, clientHeight);
    context.save();
    context.beginPath();
    context.rect(NAMES, AXIS, this.width + 12, this.room);
    context.clip();
    this.front.paint(context);
    this.paintEnds(context);
    context.restore();
    this.paintAxis(context, clientWidth);
  }

  /** Where each lane begins: a lane of several rows is higher, and all grow into the room that there is. */
  measure() {
    const { lanes, height } = this.front;
    const of = (end) =>
      lanes.map(({ rows }) => (rows > 1 ? Math.max(height[end], rows * height.row[end]) : height[end]));
    const [least, most] = [of("least"), of("most")];
    const sum = (heights) => heights.reduce((all, each) => all + each, 0);
    const part = clamp((this.room - 4 - sum(least)) / (sum(most) - sum(least)), 0, 1);
    this.tops = [0];
    least.forEach((each, lane) => this.tops.push(this.tops[lane] + Math.floor(each + part * (most[lane] - each))));
  }

  paintNothing(context, width, height) {
    context.fillStyle = css(this.colours.muted);
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText("Nothing crosses a link: every rank has what it needs.", width / 2, height / 2);
  }

  readColours() {
    const of = (name) => {
      this.probe.style.color = `var(${name})`;
      return rgb(getComputedStyle(this.probe).color);
    };
    return { background: of("--bg"), text: of("--text"), muted: of("--muted"), line: of("--line") };
  }

  colour(host) {
    const { palette } = this.view.model;
    return rgb(palette[this.picture.hosts.indexOf(host) % palette.length]);
  }

  /** The colour of a host with a part of the background, and what reads on it; worked out once a paint. */
  shade(host, part) {
    const key = `${host} ${part}`;
    if (!this.shades.has(key)) {
      const colour = mix(this.colour(host), this.colours.background, part);
      this.shades.set(key, { fill: css(colour), letters: ink(colour) });
    }
    return this.shades.get(key);
  }

  hostOf(rank) {
    if (this.hostsPicture !== this.picture) {
      this.hosts = new Map();
      this.hostsPicture = this.picture;
      for (const side of [this.picture.source, this.picture.destination])
        side.ranks.forEach((each, place) => this.hosts.set(each, side.hosts[place]));
    }
    return this.hosts.get(rank);
  }

  top(lane) {
    return AXIS + this.tops[lane] - this.scroll;
  }

  tall(lane) {
    return this.tops[lane + 1] - this.tops[lane];
  }

  /** Whether a lane is in sight, and of it what lies from `left` to `right`. */
  isSeen(lane, left = NAMES, right = left) {
    if (lane < 0 || right < NAMES || left > NAMES + this.width + 12) return false;
    const top = this.top(lane);
    return top + this.tall(lane) > AXIS && top < AXIS + this.room;
  }

  /** What is seen from `left` to `right`. */
  within(left, right) {
    return [Math.max(left, NAMES), Math.min(right, NAMES + this.width)];
  }

  isLit(task) {
    return !this.lit || this.lit.has(task);
  }

  paintLanes(context) {
    const { lanes } = this.front;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    lanes.forEach(({ host, words }, lane) => {
      if (!this.isSeen(lane)) return;
      const [y, tall] = [this.top(lane), this.tall(lane)];
      const first = lane === 0 || lanes[lane - 1].host !== host;
      context.fillStyle = css(mix(this.colours.background, this.colours.text, 0.045));
      context.fillRect(NAMES, y + 1, this.width, tall - 2);
      context.fillStyle = css(this.colour(host));
      context.fillRect(2, y + 1, 4, tall - 2);
      context.fillStyle = css(first ? this.colours.text : this.colours.muted);
      const name = first ? `${this.view.model.host_word} ${host} ` : "";
      context.fillText(name, 11, y + tall / 2);
      context.fillStyle = css(this.colours.muted);
      context.textAlign = "right";
      context.fillText(words, NAMES - 6, y + tall / 2);
      context.textAlign = "left";
    });
  }

  /** Where the picture ends, and dashed where the other one does. */
  paintEnds(context) {
    const { makespan_s: planned, played_s: played } = this.picture;
    const [own, other] = this.front === this.played ? [played, planned] : [planned, played];
    const bottom = Math.min(AXIS + this.room, this.top(this.front.lanes.length));
    context.strokeStyle = css(this.colours.text, 0.55);
    context.lineWidth = 1;
    for (const [time, dash] of [
      [other, [3, 3]],
      [own, []],
    ]) {
      const x = Math.round(this.x(time)) + 0.5;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(x, AXIS);
      context.lineTo(x, bottom);
      context.stroke();
    }
    context.setLineDash([]);
  }

  paintAxis(context, width) {
    context.fillStyle = css(this.colours.background);
    context.fillRect(0, 0, width, AXIS);
    const span = (this.to - this.from) * this.horizon;
    const step = roundUp((span * 90) / this.width);
    const first = Math.ceil((this.from * this.horizon) / step) * step;
    context.textAlign = "center";
    context.font = "11px system-ui, sans-serif";
    for (
      let time = first, number = 0;
      time <= this.to * this.horizon * (1 + 1e-9) && number < 60;
      time += step, number++
    ) {
      const x = this.x(time);
      context.fillStyle = css(this.colours.line);
      context.fillRect(x, AXIS - 4, 1, 4);
      context.fillStyle = css(this.colours.muted);
      context.fillText(seconds(time), clamp(x, NAMES + 12, NAMES + this.width - 10), 8);
    }
  }

  look(from, to) {
    const size = clamp(to - from, 1 / DEEPEST, 1);
    this.from = clamp(from, 0, 1 - size);
    this.to = this.from + size;
    this.tip.hidden = true;
    this.repaint();
  }
}
