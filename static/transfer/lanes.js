// The timeline of the links: a lane for each host and direction. It shows the plan (planned_lanes.js) or the
// simulated messages (simulated_lanes.js) on the same axis. Python computes all times.

/** @import { LinkTimeline, Picture, Place, Simulation } from "./types" */

import { h } from "../kit/dom.js";
import { FONT } from "../kit/font.js";
import { translate } from "../kit/language.js";
import { clamp, count, roundUp } from "../kit/numbers.js";
import { css, ink, mix, rgb } from "../kit/palette.js";
import { tool } from "../kit/shell.js";
import { oncePerFrame } from "../kit/widget.js";
import { pixelRatio } from "../kit/zoom.js";
import { listRanks, seconds } from "./format.js";
import { LanesInput } from "./lanes_input.js";
import { PlannedLanes } from "./planned_lanes.js";
import { SimulatedLanes } from "./simulated_lanes.js";

export const NAMES = 116; // width of the names of lanes in CSS pixels
export const AXIS = 20;
const MOST_ZOOM = 1e6;
/** @type {Record<string, [string, string]>} */
const CHOICES = {
  planned: [
    "Planned",
    "Planner's estimate: each unit task occupies the NICs of its sender and its receivers until it is done. " +
      "The table of plans shows it too; press P to switch",
  ],
  simulated: [
    "Simulated",
    "Transfer time, simulated message by message on shared links. The table of plans shows it too; press P to switch",
  ],
};

const HELP = `The solid line marks the end of this timeline, the dashed line the end of the other one.
Wheel: zoom. Drag: pan. Double-click: show all. Alt+wheel: scroll the lanes.
Keys: P switches between planned and simulated, J and K go to the next and previous task, F fits it, Escape clears the \
selection, W and S zoom, A and D pan, arrow keys scroll, 0 shows all.`;

export class Lanes {
  /** @type {Picture} */ picture;
  /** The unit tasks in the order of the plan. @type {number[]} */ order = [];
  /** @type {{from: string, simulation: Simulation | null} | undefined} */ parsed;
  /** @type {Set<number> | null} */ highlighted = null;
  /** @type {number | undefined} */ shownTask;
  /** @type {Map<number, number>} */ hosts = new Map(); // by rank
  /** @type {Map<string, {fill: string, ink: string}>} */ shades = new Map();
  /** Upper edges of the lanes, and the lower edge of the last one, in CSS pixels. @type {number[]} */ tops = [0];
  /** @type {ReturnType<Lanes["readColours"]>} */ colours;
  from = 0; // visible part of the axis
  to = 1;
  scroll = 0;
  width = 0; // size of the lanes in CSS pixels
  room = 0;

  /** @param {import("./transfer.js").Transfer} view */
  constructor(view) {
    this.view = view;
    this.summary = h("span.mw-quiet.mw-tr-links-about");
    this.help = tool("About the timeline", { glyph: "help", onclick: () => view.tips.schedule(this.help, 0) });
    this.choices = Object.entries(CHOICES).map(([shows, [text, tip]]) => {
      const attributes = { type: "button", "data-shows": shows, "data-tip": tip };
      return h("button.mw-segment", { ...attributes, onclick: () => this.choose(shows) }, text);
    });
    const label = { role: "group", "aria-label": "Timeline of the links" };
    this.choice = h("div.mw-segments.mw-tr-shows", label, ...this.choices);
    this.note = h("p.mw-tr-caption.mw-tr-note", { role: "status", hidden: true });
    this.canvas = h("canvas");
    this.tip = h("div.mw-tr-tip", { "aria-hidden": "true", hidden: true });
    this.probe = h("span.mw-tr-probe");
    const role = { tabindex: 0, role: "application", "aria-roledescription": "timeline" };
    this.element = h("div.mw-tr-stage", role, this.canvas, this.tip, this.probe);
    this.repaint = oncePerFrame(() => this.paint());
    this.planned = new PlannedLanes(this);
    this.simulated = new SimulatedLanes(this);
    /** @type {LinkTimeline} */
    this.front = this.planned;
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

  /** @param {Picture} picture */
  draw(picture) {
    this.picture = picture;
    const { tasks, source, destination } = picture;
    this.order = [...tasks.keys()].sort((a, b) => tasks[a].place - tasks[b].place);
    const sides = [source, destination];
    this.hosts = new Map(sides.flatMap(({ ranks, hosts }) => ranks.map((rank, place) => [rank, hosts[place]])));
    this.planned.draw(picture);
    this.update();
  }

  /** The simulated messages, and the number of the picture to which they belong. */
  get simulation() {
    const { play } = this.view.model;
    if (play !== this.parsed?.from) this.parsed = { from: play, simulation: play ? JSON.parse(play) : null };
    return this.parsed?.simulation ?? null;
  }

  /** Show the selected timeline; the simulated timeline is shown after its messages have arrived. */
  update() {
    const { picture, simulation } = this;
    const { shows } = this.view.model;
    for (const each of this.choices) each.ariaPressed = String(each.dataset.shows === shows);
    if (!picture) return;
    const isSimulated = shows === "simulated" && simulation?.number === picture.number;
    if (isSimulated && this.simulated.picture !== picture) this.simulated.draw(picture, simulation);
    this.front = isSimulated ? this.simulated : this.planned;
    this.note.textContent = shows === "simulated" ? picture.unsimulated : "";
    this.note.hidden = !this.note.textContent;
    this.tip.hidden = true;
    this.describe(picture, isSimulated);
    this.repaint();
  }

  /** @param {Picture} picture @param {boolean} isSimulated */
  describe({ tasks, makespan, simulated, bound, optimal, strategy, ordering }, isSimulated) {
    const time = isSimulated ? `${simulated} simulated` : `${makespan} planned`;
    const limit = isSimulated || optimal ? "" : `, lower bound ${bound}`;
    this.summary.textContent = `${strategy}, ${ordering}: ${time}${limit}`;
    this.summary.dataset.tip = this.summary.textContent; // the card may be too narrow for the text
    this.help.dataset.tip = `${this.front.about}\n${HELP}`;
    this.help.setAttribute("aria-description", this.help.dataset.tip);
    const size = `${count(tasks.length, "unit task")} on ${count(this.front.lanes.length, "lane")}`;
    const keys = "J and K go to the next and previous task, F fits it, P switches between planned and simulated";
    this.element.setAttribute("aria-label", `${size}, ${time}. ${keys}, W and S zoom, A and D pan, 0 shows all.`);
  }

  /** @param {string} shows */
  choose(shows) {
    if (shows !== this.view.model.shows) this.view.request("look", { shows });
  }

  /** @param {Set<number> | null} tasks @param {Place | null} place */
  highlight(tasks, place) {
    this.highlighted = tasks;
    this.shownTask = place?.task;
    this.repaint();
  }

  /** @param {number} number of a unit task */
  describeTask(number) {
    const task = this.picture.tasks[number];
    const span = this.front.span(number);
    const time = span ? `, ${seconds(span[0])} to ${seconds(span[1])}` : "";
    const chunks = task.chunks > 1 ? ` in ${task.chunks} chunks` : "";
    const kept = task.keepers.length ? `; stays on ranks ${listRanks(task.keepers)}` : "";
    const sum = task.addends.length ? ` (adds the partial sums of ${listRanks(task.addends)})` : "";
    const sender = `rank ${task.sender} (of ${listRanks(task.senders)})${sum}`;
    const route = task.receivers.length ? `${sender} to ${listRanks(task.receivers)}` : "stays in place";
    return `Task ${number}: [${task.box}] ${task.size}${chunks}, ${route}${kept}${time}`;
  }

  /** Show why the chunks of a task are not available. @param {string | null} refused */
  acknowledge(refused) {
    if (refused) this.summary.textContent = refused;
  }

  // ── geometry ──

  /** Length of the axis in seconds: the longer of the planned and the simulated time, so that both can be compared. */
  get horizon() {
    return Math.max(this.picture.makespan_s, this.picture.simulated_s) || 1;
  }

  /** The first and the last second in view. */
  get window() {
    return [this.from * this.horizon, this.to * this.horizon];
  }

  get secondsPerPixel() {
    return ((this.to - this.from) * this.horizon) / this.width;
  }

  /** @param {number} time */
  x(time) {
    return NAMES + ((time / this.horizon - this.from) / (this.to - this.from)) * this.width;
  }

  /** @param {number} x */
  time(x) {
    return (this.from + ((x - NAMES) / this.width) * (this.to - this.from)) * this.horizon;
  }

  /** @param {number} lane */
  top(lane) {
    return AXIS + this.tops[lane] - this.scroll;
  }

  /** @param {number} lane */
  laneHeight(lane) {
    return this.tops[lane + 1] - this.tops[lane];
  }

  /** True if the part of a lane between two x is in view. @param {number} lane */
  isVisible(lane, left = NAMES, right = left) {
    if (lane < 0 || right < NAMES || left > NAMES + this.width + 12) return false;
    const top = this.top(lane);
    return top + this.laneHeight(lane) > AXIS && top < AXIS + this.room;
  }

  /** The visible part of an interval of x. @param {number} left @param {number} right */
  clip(left, right) {
    return [Math.max(left, NAMES), Math.min(right, NAMES + this.width)];
  }

  /** @param {number} task */
  isHighlighted(task) {
    return !this.highlighted || this.highlighted.has(task);
  }

  /** @param {number} from @param {number} to */
  look(from, to) {
    const size = clamp(to - from, 1 / MOST_ZOOM, 1);
    this.from = clamp(from, 0, 1 - size);
    this.to = this.from + size;
    this.tip.hidden = true;
    this.repaint();
  }

  // ── painting ──

  paint() {
    const { clientWidth, clientHeight } = this.element;
    const context = this.canvas.getContext("2d");
    if (!this.picture || clientWidth < NAMES + 20 || clientHeight < 30 || !context) return;
    const ratio = pixelRatio();
    const [width, height] = [Math.round(clientWidth * ratio), Math.round(clientHeight * ratio)];
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, clientWidth, clientHeight);
    this.width = clientWidth - NAMES - 12;
    this.colours = this.readColours();
    this.shades = new Map();
    this.room = clientHeight - AXIS;
    this.placeLanes();
    this.scroll = clamp(this.scroll, 0, Math.max(0, this.tops[this.tops.length - 1] - this.room));
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

  /** Compute the upper edge of each lane. Lanes with several rows are higher, and all lanes grow with the available
   * height. */
  placeLanes() {
    const { lanes, height } = this.front;
    const heights = (/** @type {"least" | "most"} */ end) =>
      lanes.map(({ rows }) => (rows > 1 ? Math.max(height[end], rows * height.row[end]) : height[end]));
    const [least, most] = [heights("least"), heights("most")];
    const sum = (/** @type {number[]} */ values) => values.reduce((total, value) => total + value, 0);
    const part = clamp((this.room - 4 - sum(least)) / (sum(most) - sum(least)), 0, 1);
    this.tops = [0];
    least.forEach((low, lane) => this.tops.push(this.tops[lane] + Math.floor(low + part * (most[lane] - low))));
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
  paintNothing(context, width, height) {
    context.fillStyle = css(this.colours.muted);
    context.font = `12px ${FONT}`;
    context.textAlign = "center";
    const text = "No message is sent: every rank already holds its part of the tensor.";
    context.fillText(translate(text), width / 2, height / 2);
  }

  readColours() {
    const read = (/** @type {string} */ name) => {
      this.probe.style.color = `var(${name})`;
      return rgb(getComputedStyle(this.probe).color);
    };
    return { background: read("--bg"), text: read("--text"), muted: read("--muted"), line: read("--line") };
  }

  /** @param {number} host */
  colour(host) {
    const { palette } = this.view.model;
    return rgb(palette[this.picture.hosts.indexOf(host) % palette.length]);
  }

  /**
   * The colour of a host mixed with a part of the background, and the ink on it; computed once per paint.
   * @param {number} host @param {number} part
   */
  shade(host, part) {
    const key = `${host} ${part}`;
    const known = this.shades.get(key);
    if (known) return known;
    const colour = mix(this.colour(host), this.colours.background, part);
    const shade = { fill: css(colour), ink: ink(colour) };
    this.shades.set(key, shade);
    return shade;
  }

  /** @param {CanvasRenderingContext2D} context */
  paintLanes(context) {
    const { lanes } = this.front;
    const { background, text, muted } = this.colours;
    context.font = `11px ${FONT}`;
    context.textBaseline = "middle";
    lanes.forEach(({ host, words }, lane) => {
      if (!this.isVisible(lane)) return;
      const [y, height] = [this.top(lane), this.laneHeight(lane)];
      const isFirst = lanes[lane - 1]?.host !== host;
      context.fillStyle = css(mix(background, text, 0.045));
      context.fillRect(NAMES, y + 1, this.width, height - 2);
      context.fillStyle = css(this.colour(host));
      context.fillRect(2, y + 1, 4, height - 2);
      context.textAlign = "left";
      context.fillStyle = css(text);
      if (isFirst) context.fillText(translate(`${this.view.model.host_word} ${host} `), 11, y + height / 2);
      context.textAlign = "right";
      context.fillStyle = css(muted);
      context.fillText(translate(words), NAMES - 6, y + height / 2);
    });
    context.textAlign = "left";
  }

  /**
   * Mark the end of this timeline with a solid line, and the end of the other timeline with a dashed line.
   * @param {CanvasRenderingContext2D} context
   */
  paintEnds(context) {
    const { makespan_s: planned, simulated_s: simulated } = this.picture;
    const isSimulated = this.front === this.simulated;
    const bottom = Math.min(AXIS + this.room, this.top(this.front.lanes.length));
    const mark = (/** @type {number} */ time, /** @type {number[]} */ dash) => {
      const x = Math.round(this.x(time)) + 0.5;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(x, AXIS);
      context.lineTo(x, bottom);
      context.stroke();
    };
    context.strokeStyle = css(this.colours.text, 0.55);
    context.lineWidth = 1;
    mark(isSimulated ? planned : simulated, [3, 3]);
    mark(isSimulated ? simulated : planned, []);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width */
  paintAxis(context, width) {
    context.fillStyle = css(this.colours.background);
    context.fillRect(0, 0, width, AXIS);
    const [from, to] = this.window;
    const step = roundUp(((to - from) * 90) / this.width);
    const first = Math.ceil(from / step);
    const last = Math.min(first + 59, Math.floor((to * (1 + 1e-9)) / step));
    context.textAlign = "center";
    context.font = `11px ${FONT}`;
    for (let tick = first; tick <= last; tick++) {
      const x = this.x(tick * step);
      context.fillStyle = css(this.colours.line);
      context.fillRect(x, AXIS - 4, 1, 4);
      context.fillStyle = css(this.colours.muted);
      context.fillText(seconds(tick * step), clamp(x, NAMES + 12, NAMES + this.width - 10), 8);
    }
  }
}
