// The links' timeline: a lane for each host and direction, a bar for each unit task that holds it, and, where a bar
// is wide enough or looked at, every message behind it. Python says when each begins and ends.

import { clamp, count, h, perFrame } from "static/canvas.js";
import { css, ink, mix, rgb } from "static/palette.js";
import { tool } from "static/shell.js";
import { some } from "static/transfer_grid.js";

const NAMES = 116; // CSS pixels of the lanes' names
const AXIS = 20;
const ROW = { least: 13, most: 34 };
const STRIP = 11; // CSS pixels of an opened bar that its name takes, where there is room for it
const WIDE = 120; // CSS pixels of a bar from which on it shows its chunks
const MOST_ASKED = 40; // tasks whose chunks are asked for at once
const DRAG_PX = 4;
const DEEPEST = 1e6; // times the whole
const WAYS = { tx: "sends", rx: "receives", in: "inside" };
const HELP = `A bar is a unit task for as long as it holds the lane, in the colour of the host that sends it; in wide bars, and in the one that is looked at, each message bears the number of its chunk.
Wheel zooms, drag moves, double-click shows all, Alt and wheel scroll the lanes.
Keys: J K to the next task, F fits it, Escape lets it go, W S zoom, A D move, arrows scroll, 0 shows all.`;

export class Lanes {
  constructor(view) {
    this.view = view;
    this.about = h("span", { class: "mw-quiet" });
    this.help = tool("How to read the links", { glyph: "help", tip: HELP, onclick: () => this.view.tips.over(this.help, 0) });
    this.help.setAttribute("aria-description", HELP);
    this.canvas = h("canvas", {});
    this.tip = h("div", { class: "mw-tr-tip", "aria-hidden": "true", hidden: true });
    this.probe = h("span", { class: "mw-tr-probe" });
    this.element = h("div", { class: "mw-tr-stage", tabindex: 0, role: "application", "aria-roledescription": "timeline" }, this.canvas, this.tip, this.probe);
    this.repaint = perFrame(() => this.paint());
    this.from = 0; // parts of the whole that are shown
    this.to = 1;
    this.scroll = 0;
    this.hops = new Map(); // of tasks, as columns
    this.asked = new Set();
    this.sizes = new ResizeObserver(() => this.repaint());
    this.sizes.observe(this.element);
    this.themes = new MutationObserver(() => this.repaint());
    this.themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.scheme.addEventListener("change", this.repaint);
    this.listen();
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
    this.hops = new Map();
    this.asked = new Set();
    this.order = picture.tasks.map((_, task) => task).sort((one, other) => picture.tasks[one].place - picture.tasks[other].place);
    this.bars = picture.held.task.map((_, bar) => bar);
    const { makespan, bound, optimal, strategy, ordering } = picture;
    this.about.textContent = `${strategy}, ${ordering}: ${makespan}${optimal ? "" : `, bound ${bound}`}`;
    this.element.setAttribute("aria-label", `${count(picture.tasks.length, "unit task")} on ${picture.lanes.length} lanes, ${makespan}. J and K walk the tasks, F fits one, Escape lets it go, W and S zoom, A and D move, 0 shows all.`);
    this.tip.hidden = true;
    this.repaint();
  }

  light(tasks, shown) {
    this.lit = tasks;
    this.shownTask = shown?.task;
    this.repaint();
  }

  /** A unit task in a sentence. */
  words(number) {
    const task = this.view.picture.tasks[number];
    const time = task.end_s > task.start_s ? `, ${seconds(task.start_s)} to ${seconds(task.end_s)}` : "";
    const chunks = task.chunks > 1 ? ` in ${task.chunks} chunks` : "";
    const kept = task.keepers.length ? `; kept by ${some(task.keepers)}` : "";
    const way = task.receivers.length ? `rank ${task.sender} (of ${some(task.senders)}) to ${some(task.receivers)}` : "stays where it is";
    return `Task ${number}: [${task.box}] ${task.size}${chunks}, ${way}${kept}${time}`;
  }

  /** The chunks of a task came. */
  learn({ number, task, hops }) {
    if (number !== this.picture?.number) return;
    this.hops.set(task, hops);
    this.repaint();
  }

  /** Why there are no chunks to see. */
  say(words) {
    this.about.textContent = words;
  }

  /** Ask for the chunks of a task, once. */
  ask(task) {
    if (this.asked.has(task) || this.asked.size - this.hops.size >= MOST_ASKED) return;
    this.asked.add(task);
    this.view.send("hops", { number: this.picture.number, task });
  }

  // ── painting ──

  get horizon() {
    return this.picture.makespan_s || 1;
  }

  x(time) {
    return NAMES + ((time / this.horizon - this.from) / (this.to - this.from)) * this.width;
  }

  paint() {
    const { clientWidth, clientHeight } = this.element;
    if (!this.picture || clientWidth < NAMES + 20 || clientHeight < 30) return;
    const ratio = window.devicePixelRatio || 1;
    const [wide, tall] = [Math.round(clientWidth * ratio), Math.round(clientHeight * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== tall) Object.assign(this.canvas, { width: wide, height: tall });
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, clientWidth, clientHeight);
    this.width = clientWidth - NAMES - 12;
    this.colours = this.readColours();
    this.shades = new Map();
    const lanes = this.picture.lanes.length || 1;
    this.row = clamp(Math.floor((clientHeight - AXIS - 4) / lanes), ROW.least, ROW.most);
    this.room = clientHeight - AXIS;
    this.scroll = clamp(this.scroll, 0, Math.max(0, lanes * this.row - this.room));
    this.paintLanes(context);
    if (!this.picture.lanes.length) return this.paintNothing(context, clientWidth, clientHeight);
    context.save();
    context.beginPath();
    context.rect(NAMES, AXIS, this.width + 12, this.room);
    context.clip();
    for (const bar of this.bars) this.paintBar(context, bar);
    this.paintHops(context);
    context.restore();
    this.paintAxis(context, clientWidth);
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
    this.hosts ??= new Map();
    if (this.hosts.of !== this.picture) {
      this.hosts = new Map();
      this.hosts.of = this.picture;
      for (const side of [this.picture.source, this.picture.destination]) side.ranks.forEach((each, place) => this.hosts.set(each, side.hosts[place]));
    }
    return this.hosts.get(rank);
  }

  top(lane) {
    return AXIS + lane * this.row - this.scroll;
  }

  isSeen(lane) {
    const top = this.top(lane);
    return top + this.row > AXIS && top < AXIS + this.room;
  }

  paintLanes(context) {
    const { lanes } = this.picture;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    lanes.forEach(({ host, way, nic }, lane) => {
      if (!this.isSeen(lane)) return;
      const y = this.top(lane);
      const first = lane === 0 || lanes[lane - 1].host !== host;
      context.fillStyle = css(mix(this.colours.background, this.colours.text, 0.045));
      context.fillRect(NAMES, y + 1, this.width, this.row - 2);
      context.fillStyle = css(this.colour(host));
      context.fillRect(2, y + 1, 4, this.row - 2);
      context.fillStyle = css(first ? this.colours.text : this.colours.muted);
      const name = first ? `${this.view.model.host_word} ${host} ` : "";
      context.fillText(name, 11, y + this.row / 2);
      context.fillStyle = css(this.colours.muted);
      context.textAlign = "right";
      context.fillText(`${WAYS[way]}${nic ? ` ${nic + 1}` : ""}`, NAMES - 6, y + this.row / 2);
      context.textAlign = "left";
    });
  }

  paintBar(context, bar) {
    const { held, tasks } = this.picture;
    const lane = held.lane[bar];
    const [left, right] = [this.x(held.start_s[bar]), this.x(held.end_s[bar])].map((x) => Math.round(x)); // whole pixels are filled many times faster
    if (right < NAMES || left > NAMES + this.width + 12 || !this.isSeen(lane)) return;
    const task = held.task[bar];
    const isLit = !this.lit || this.lit.has(task);
    if (right - left > WIDE) this.ask(task);
    const opened = this.isOpened(task, right - left);
    const { fill, letters } = this.shade(tasks[task].host, opened ? 0.72 : isLit ? 0.1 * (tasks[task].place % 2) : 0.75);
    const [y, width] = [this.top(lane) + 1, Math.max(1, right - left - 1)];
    context.fillStyle = fill;
    context.fillRect(left, y, width, this.row - 2);
    if (task === this.shownTask) {
      context.strokeStyle = css(this.colours.text);
      context.lineWidth = 1.5;
      context.strokeRect(left + 0.75, y + 0.75, width - 1.5, this.row - 3.5);
    }
    const shown = [Math.max(left, NAMES), Math.min(right, NAMES + this.width)];
    const name = opened && shown[1] - shown[0] > 50 ? `task ${task}` : String(task);
    if (shown[1] - shown[0] < 8 + 7 * name.length || (opened && !this.strip)) return;
    context.fillStyle = opened || !isLit ? css(this.colours.text) : letters;
    context.textAlign = opened ? "left" : "center";
    context.font = opened ? "600 10px system-ui, sans-serif" : "600 11px system-ui, sans-serif";
    if (opened) context.fillText(name, shown[0] + 4, y + STRIP / 2 + 0.5);
    else context.fillText(name, (shown[0] + shown[1]) / 2, y + this.row / 2 - 1);
  }

  /** Of an opened bar, the room that its name takes. */
  get strip() {
    return this.row >= 22 ? STRIP : 0;
  }

  isOpened(task, width) {
    return this.hops.has(task) && (width > WIDE || task === this.shownTask);
  }

  paintHops(context) {
    const { tasks } = this.picture;
    if (this.shownTask !== undefined) this.ask(this.shownTask);
    context.font = "10px system-ui, sans-serif";
    for (const [task, hops] of this.hops) {
      const { start_s: begun, end_s: done } = tasks[task];
      if (!this.isOpened(task, this.x(done) - this.x(begun))) continue;
      const faint = this.lit && !this.lit.has(task);
      const isCut = hops.last.some(Boolean);
      for (let hop = 0; hop < hops.lane.length; hop++) {
        const lane = hops.lane[hop];
        const [left, right] = [this.x(hops.start_s[hop]), this.x(hops.end_s[hop])];
        if (lane < 0 || right < NAMES || left > NAMES + this.width || !this.isSeen(lane)) continue;
        const { fill, letters } = this.shade(this.hostOf(hops.source[hop]), faint ? 0.7 : 0.22 * (hops.first[hop] % 2));
        const strip = this.strip || 2;
        const [y, width] = [this.top(lane) + strip + 1.5, Math.max(0.7, right - left - (right - left > 4 ? 0.8 : 0))];
        context.fillStyle = fill;
        context.fillRect(left, y, width, this.row - strip - 4);
        const words = hops.first[hop] === hops.last[hop] ? String(hops.first[hop]) : `${hops.first[hop]}–${hops.last[hop]}`;
        if (faint || !isCut || width < 6 + 6.5 * words.length) continue;
        context.fillStyle = letters;
        context.textAlign = "center";
        context.fillText(words, left + width / 2, y + (this.row - strip - 4) / 2 + 0.5);
      }
    }
  }

  paintAxis(context, width) {
    context.fillStyle = css(this.colours.background);
    context.fillRect(0, 0, width, AXIS);
    const span = (this.to - this.from) * this.horizon;
    const step = niceStep((span * 90) / this.width);
    const first = Math.ceil((this.from * this.horizon) / step) * step;
    context.textAlign = "center";
    context.font = "11px system-ui, sans-serif";
    for (let time = first, number = 0; time <= this.to * this.horizon * (1 + 1e-9) && number < 60; time += step, number++) {
      const x = this.x(time);
      context.fillStyle = css(this.colours.line);
      context.fillRect(x, AXIS - 4, 1, 4);
      context.fillStyle = css(this.colours.muted);
      context.fillText(seconds(time), clamp(x, NAMES + 12, NAMES + this.width - 10), 8);
    }
  }

  // ── pointer and keys ──

  listen() {
    const on = (type, then, options) => this.element.addEventListener(type, (event) => this.picture && this.width && then.call(this, event), options);
    on("wheel", this.wheel, { passive: false });
    on("pointerdown", this.down);
    on("pointermove", this.move);
    on("pointerup", this.up);
    on("pointerleave", this.leave);
    on("dblclick", () => this.look(0, 1));
    on("keydown", this.key);
  }

  at(event) {
    const { left, top } = this.element.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  look(from, to) {
    const size = clamp(to - from, 1 / DEEPEST, 1);
    this.from = clamp(from, 0, 1 - size);
    this.to = this.from + size;
    this.tip.hidden = true;
    this.repaint();
  }

  zoom(factor, x = NAMES + this.width / 2) {
    const part = clamp((x - NAMES) / this.width, 0, 1);
    const size = (this.to - this.from) / factor;
    const middle = this.from + part * (this.to - this.from);
    this.look(middle - part * size, middle - part * size + size);
  }

  pan(part) {
    const by = part * (this.to - this.from);
    this.look(this.from + by, this.to + by);
  }

  wheel(event) {
    event.preventDefault();
    if (event.altKey) {
      this.scroll += event.deltaY;
      return this.repaint();
    }
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return this.pan((event.deltaX || event.deltaY) / this.width);
    this.zoom(Math.exp(-event.deltaY * 0.0022), this.at(event).x);
  }

  down(event) {
    if (event.button !== 0) return;
    this.element.setPointerCapture(event.pointerId);
    this.drag = { ...this.at(event), moved: false };
  }

  move(event) {
    const at = this.at(event);
    const { drag } = this;
    if (!drag) return this.point(at);
    const [dx, dy] = [drag.x - at.x, drag.y - at.y];
    if (!drag.moved && Math.hypot(dx, dy) < DRAG_PX) return;
    this.pan(dx / this.width);
    this.scroll += dy;
    this.drag = { ...at, moved: true };
  }

  up(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag || drag.moved) return;
    const found = this.find(this.at(event));
    this.view.pin(found ? { task: found.task } : null);
  }

  leave() {
    this.tip.hidden = true;
    this.view.hover(null);
  }

  /** The bar under a point, and the message in it where those are drawn. */
  find({ x, y }) {
    const { held } = this.picture;
    const lane = Math.floor((y - AXIS + this.scroll) / this.row);
    const time = ((x - NAMES) / this.width) * (this.to - this.from) * this.horizon + this.from * this.horizon;
    if (x < NAMES || y < AXIS) return null;
    for (const [task, hops] of this.hops) {
      const { start_s: begun, end_s: done } = this.picture.tasks[task];
      if (!this.isOpened(task, this.x(done) - this.x(begun))) continue;
      const hop = hops.lane.findIndex((each, place) => each === lane && hops.start_s[place] <= time && time <= hops.end_s[place]);
      if (hop >= 0) return { task, hop };
    }
    const bar = this.bars.find((each) => held.lane[each] === lane && held.start_s[each] <= time && time <= held.end_s[each]);
    return bar === undefined ? null : { task: held.task[bar], hop: -1 };
  }

  point(at) {
    const found = this.find(at);
    this.view.hover(found ? { task: found.task } : null);
    this.tip.hidden = !found;
    if (!found) return;
    this.tip.textContent = found.hop >= 0 ? this.hopWords(found) : this.words(found.task);
    this.stand(at);
  }

  hopWords({ task, hop }) {
    const hops = this.hops.get(task);
    const { chunks } = this.picture.tasks[task];
    const [first, last] = [hops.first[hop], hops.last[hop]];
    const which = first === last ? `chunk ${first}` : `chunks ${first} to ${last}`;
    const size = bytes(hops.bytes[hop]);
    return `Task ${task}, ${which}${chunks > 1 ? ` of ${chunks}` : ""}: rank ${hops.source[hop]} to ${hops.target[hop]}, ${size}, ${seconds(hops.start_s[hop])} to ${seconds(hops.end_s[hop])}`;
  }

  stand({ x, y }) {
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const { clientWidth, clientHeight } = this.element;
    const left = clamp(x + 14, 4, Math.max(4, clientWidth - width - 4));
    const top = y + 18 + height < clientHeight ? y + 18 : Math.max(2, y - height - 10);
    this.tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const keys = {
      w: () => this.zoom(1.5), s: () => this.zoom(1 / 1.5), "+": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5),
      a: () => this.pan(-0.15), d: () => this.pan(0.15), ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15),
      ArrowDown: () => this.scrollBy(this.row), ArrowUp: () => this.scrollBy(-this.row),
      0: () => this.look(0, 1), Home: () => this.look(0, 1), j: () => this.walk(1), k: () => this.walk(-1),
      f: () => this.showPinned(),
    }; // prettier-ignore
    if (event.key === "Escape" && this.view.pinned) this.view.pin(null);
    else if (keys[key]) keys[key]();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  scrollBy(by) {
    this.scroll += by;
    this.repaint();
  }

  /** To the next task of the plan's order, or the one before. */
  walk(by) {
    const now = this.view.pinned?.task;
    const at = now === undefined ? (by > 0 ? -1 : this.order.length) : this.order.indexOf(now);
    const task = this.order[clamp(at + by, 0, this.order.length - 1)];
    if (task === now) return;
    this.view.pin({ task });
    const { start_s: begun, end_s: done } = this.picture.tasks[task];
    const middle = (begun + done) / 2 / this.horizon;
    const half = (this.to - this.from) / 2;
    if (middle < this.from || middle > this.to) this.look(middle - half, middle + half);
    this.tip.textContent = this.words(task);
    this.tip.hidden = false;
    this.stand({ x: clamp(this.x(begun), NAMES, NAMES + this.width), y: this.room / 2 });
  }

  showPinned() {
    const task = this.view.pinned?.task;
    if (task === undefined) return;
    const { start_s: begun, end_s: done } = this.picture.tasks[task];
    const margin = 0.05 * (done - begun);
    this.look((begun - margin) / this.horizon, (done + margin) / this.horizon);
  }
}

/** 1, 2 or 5 of a power of ten, at least `least`. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((each) => each * power >= least);
}

export function seconds(value) {
  if (!value) return "0";
  const [scale, unit] = value >= 0.9995 ? [1, "s"] : value >= 0.9995e-3 ? [1e3, "ms"] : value >= 0.9995e-6 ? [1e6, "µs"] : [1e9, "ns"];
  return `${Number((value * scale).toPrecision(4))} ${unit}`;
}

function bytes(value) {
  const [scale, unit] = value >= 1e9 ? [1e9, "GB"] : value >= 1e6 ? [1e6, "MB"] : value >= 1e3 ? [1e3, "kB"] : [1, "B"];
  return `${Number((value / scale).toPrecision(3))} ${unit}`;
}
