// Playback of the step: a playhead moves through time, later spans are covered, and messages move between the lanes.

/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */

import { button } from "../kit/controls.js";
import { consume, h } from "../kit/dom.js";
import { clamp } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { stripTitles } from "./collapse.js";
import { OP, lowerBound } from "./columns.js";
import { paintTitles } from "./gutter.js";
import { AXIS } from "./layout.js";
import { TITLE } from "./paint.js";
import { clipped } from "./shapes.js";
import { timeText } from "./units.js";

const VIEW_MS = 10_000; // duration of playing the visible part
const EVENT_MS = 700; // interval of events if the user prefers reduced motion
const SPEEDS = [0.25, 0.5, 1, 2, 4];
const MESSAGE_PX = 5; // radius of a message in CSS pixels

export class Play {
  /** The time of the playhead; null while nothing is played. @type {number | null} */ tick = null;
  isMoving = false;
  speed = 1;
  frame = 0;
  before = 0; // time of the previous frame, or of the last event with reduced motion

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    const tool = (/** @type {string} */ label, /** @type {string} */ text, /** @type {() => void} */ onclick) =>
      button(label, { content: text, title: label, kind: "mw-icon", onclick });
    this.pause = tool("Pause (Space)", "❚❚", () => this.toggle());
    this.time = h("output.mw-timeline-time", { "aria-live": "off" }); // a screen reader would read each frame
    const speeds = SPEEDS.map((speed) => h("option", { value: speed, selected: speed === 1 }, `${speed}×`));
    const speed = h("select", { "aria-label": "Speed" }, ...speeds);
    speed.addEventListener("change", () => (this.speed = Number(speed.value)));
    this.element = h(
      "div.mw-timeline-play",
      { role: "toolbar", "aria-label": "Play the step", hidden: true },
      tool("Previous event (,)", "◂", () => this.step(-1)),
      this.pause,
      tool("Next event (.)", "▸", () => this.step(1)),
      speed,
      this.time,
      tool("Stop playing (Esc)", "×", () => this.stop()),
    );
    /** @type {Record<string, () => void>} */
    const keys = { ",": () => this.step(-1), ".": () => this.step(1), Escape: () => this.stop() };
    this.element.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act) return;
      consume(event);
      act();
    });
  }

  get isOn() {
    return this.tick !== null;
  }

  /** Play from the playhead, or pause. */
  toggle() {
    if (!this.chart.isDrawn) return;
    this.isMoving = !this.isMoving;
    if (this.isMoving && (this.tick === null || this.tick >= this.last)) this.tick = Math.max(0, this.chart.view.from);
    this.show();
    cancelAnimationFrame(this.frame);
    this.before = performance.now();
    if (this.isMoving) this.frame = requestAnimationFrame((now) => this.advance(now));
  }

  stop() {
    if (this.element.matches(":focus-within")) this.chart.stage.focus(); // the toolbar disappears
    this.isMoving = false;
    this.tick = null;
    cancelAnimationFrame(this.frame);
    this.show();
  }

  /** Stay at the same time after a change of the design. @param {number} ratio of the axes */
  keep(ratio) {
    if (this.tick === null) return;
    if (!this.chart.hasData) return this.stop();
    this.tick = Math.min(this.tick * ratio, this.last);
    this.show();
  }

  /** Move to the next or previous start or end of a block. @param {number} direction 1 or -1 */
  step(direction) {
    if (!this.chart.isDrawn) return;
    this.isMoving = false;
    this.moveTo(this.event(this.tick ?? Math.max(0, this.chart.view.from), direction));
    this.chart.live.textContent = this.time.textContent;
  }

  get last() {
    return Math.max(...this.chart.data.layers.map((layer) => layer.last));
  }

  /** @param {number} now */
  advance(now) {
    if (!this.isMoving || this.tick === null) return;
    const { view } = this.chart;
    const elapsed = (now - this.before) * this.speed;
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.before = now;
      this.moveTo(this.tick + (elapsed * (view.to - view.from)) / VIEW_MS);
    } else if (elapsed >= EVENT_MS) {
      this.before = now;
      this.moveTo(this.event(this.tick, 1));
    }
    if (this.tick >= this.last) this.isMoving = false;
    else this.frame = requestAnimationFrame((time) => this.advance(time));
    this.show();
  }

  /** @param {number} tick */
  moveTo(tick) {
    const { view, frame } = this.chart;
    this.tick = clamp(tick, 0, this.last);
    const x = frame.x(this.tick);
    if (x < frame.left || x > frame.right) view.pan(x - frame.left - 0.1 * (frame.right - frame.left));
    this.show();
  }

  show() {
    const { chart, tick } = this;
    this.element.hidden = tick === null;
    this.pause.textContent = this.isMoving ? "❚❚" : "▶";
    this.pause.setAttribute("aria-label", this.isMoving ? "Pause (Space)" : "Play (Space)");
    const [layer] = chart.data.layers;
    this.time.textContent = tick === null || !layer ? "" : timeText(tick * layer.scale, layer.unit);
    chart.toolbar.refresh();
    chart.overpaint();
  }

  /** The nearest start or end of a block after or before a tick. @param {number} tick @param {number} direction */
  event(tick, direction) {
    const times = this.chart.rows.flat().flatMap((layer) =>
      layer.meshes.flatMap((_, rank) => {
        const [from, to] = layer.range(0, rank);
        return [layer.start, layer.end].map((column) => {
          const at = lowerBound(column, direction > 0 ? tick + 1 : tick, from, to) - (direction > 0 ? 0 : 1);
          return at >= from && at < to ? column[at] : direction * Infinity;
        });
      }),
    );
    return direction > 0 ? Math.min(...times) : Math.max(...times);
  }

  /** Cover later spans, and draw the messages in progress. @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { chart, tick } = this;
    if (tick === null) return;
    const { frame, plan, colours } = chart;
    const x = clamp(frame.x(tick), frame.left, frame.right);
    context.fillStyle = css(colours.background, 0.93);
    const cover = (/** @type {number} */ top, /** @type {number} */ bottom) =>
      context.fillRect(x, top, frame.right - x, bottom - top);
    cover(AXIS, frame.bottom);
    clipped(context, { left: x, right: plan.width, top: AXIS, bottom: frame.bottom }, () =>
      paintTitles(context, chart),
    );
    let below = frame.bottom;
    for (const { y } of stripTitles(plan)) {
      cover(below, y);
      below = y + TITLE;
    }
    cover(below, plan.height);
    for (const layer of chart.rows.flat()) this.paintMessages(context, layer, tick, x);
  }

  /** @param {CanvasRenderingContext2D} context @param {Layer} layer @param {number} tick @param {number} x */
  paintMessages(context, layer, tick, x) {
    const { frame, plan, colours } = this.chart;
    for (const span of layer.transfersAt(tick)) {
      const [from, to] = [layer.rankOf(span), layer.peerOf(span)].map((rank) => plan.laneOf(layer, rank));
      if (!from?.height || !to?.height || !(frame.isLaneClear(from) || frame.isLaneClear(to))) continue;
      const [start, end] = [from, to].map(({ y, height }) => y + height / 2);
      const part = (tick - layer.start[span]) / (layer.end[span] - layer.start[span]);
      context.beginPath();
      context.arc(x, start + (end - start) * part, MESSAGE_PX, 0, 2 * Math.PI);
      context.fillStyle = css(colours.ops[layer.op[span] === OP.SEND_F ? OP.SEND_F : OP.SEND_B]);
      context.fill();
      context.strokeStyle = css(colours.text);
      context.lineWidth = 1;
      context.stroke();
    }
  }
}
