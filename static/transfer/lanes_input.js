// Pointer and keyboard control of the timeline of the links.

/** @import { Point } from "../kit/types" */

import { beside, pointIn } from "../kit/canvas.js";
import { consume, listenWhile } from "../kit/dom.js";
import { clamp } from "../kit/numbers.js";
import { AXIS, NAMES } from "./lanes.js";

const DRAG_PX = 4;
const SCROLL_PX = 24; // CSS pixels per press of an arrow key

export class LanesInput {
  /** @type {(Point & {moved: boolean}) | null} */ drag = null;

  /** @param {import("./lanes.js").Lanes} lanes */
  constructor(lanes) {
    this.lanes = lanes;
    listenWhile(
      lanes.element,
      () => lanes.picture && lanes.width,
      {
        wheel: (event) => this.wheel(event),
        pointerdown: (event) => this.press(event),
        pointermove: (event) => this.move(event),
        pointerup: (event) => this.release(event),
        pointerleave: () => this.leave(),
        dblclick: () => lanes.look(0, 1),
        keydown: (event) => this.key(event),
      },
      { passive: false },
    );
  }

  /** @param {MouseEvent} event */
  at(event) {
    return pointIn(event, this.lanes.element);
  }

  /** @param {number} factor @param {number} [x] */
  zoom(factor, x = NAMES + this.lanes.width / 2) {
    const { from, to, width } = this.lanes;
    const part = clamp((x - NAMES) / width, 0, 1);
    const size = (to - from) / factor;
    const middle = from + part * (to - from);
    this.lanes.look(middle - part * size, middle - part * size + size);
  }

  /** @param {number} part of what is in view */
  pan(part) {
    const { from, to } = this.lanes;
    const by = part * (to - from);
    this.lanes.look(from + by, to + by);
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    event.preventDefault();
    if (event.altKey) this.scrollBy(event.deltaY);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      this.pan((event.deltaX || event.deltaY) / this.lanes.width);
    else this.zoom(Math.exp(-event.deltaY * 0.0022), this.at(event).x);
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0) return;
    this.lanes.element.setPointerCapture(event.pointerId);
    this.drag = { ...this.at(event), moved: false };
  }

  /** @param {PointerEvent} event */
  move(event) {
    const at = this.at(event);
    const { drag } = this;
    if (!drag) return this.point(at);
    const [dx, dy] = [drag.x - at.x, drag.y - at.y];
    if (!drag.moved && Math.hypot(dx, dy) < DRAG_PX) return;
    this.pan(dx / this.lanes.width);
    this.lanes.scroll += dy;
    this.drag = { ...at, moved: true };
  }

  /** @param {PointerEvent} event */
  release(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag || drag.moved) return;
    const found = this.find(this.at(event));
    this.lanes.view.pin(found ? { task: found.task } : null);
  }

  leave() {
    this.lanes.tip.hidden = true;
    this.lanes.view.hover(null);
  }

  /** The place at a point of the lanes. @param {Point} point */
  find({ x, y }) {
    const { lanes } = this;
    const down = y - AXIS + lanes.scroll;
    const lane = lanes.tops.findLastIndex((top) => top <= down);
    if (x < NAMES || y < AXIS || lane < 0 || lane >= lanes.front.lanes.length) return null;
    return lanes.front.find(lane, lanes.time(x), (down - lanes.tops[lane]) / lanes.laneHeight(lane));
  }

  /** @param {Point} at */
  point(at) {
    const { tip, view, front } = this.lanes;
    const found = this.find(at);
    view.hover(found ? { task: found.task } : null);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = front.describe(found);
    this.placeTip(at);
  }

  /** @param {Point} at */
  placeTip(at) {
    const { left, top } = beside(at, this.lanes.tip, this.lanes.element);
    this.lanes.tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { lanes } = this;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    /** @type {Record<string, () => void>} */
    const actions = {
      w: () => this.zoom(1.5), s: () => this.zoom(1 / 1.5), "+": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5),
      a: () => this.pan(-0.15), d: () => this.pan(0.15),
      ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15),
      ArrowDown: () => this.scrollBy(SCROLL_PX), ArrowUp: () => this.scrollBy(-SCROLL_PX),
      0: () => lanes.look(0, 1), Home: () => lanes.look(0, 1), j: () => this.step(1), k: () => this.step(-1),
      f: () => this.fitPinned(),
      p: () => lanes.choose(lanes.view.model.shows === "simulated" ? "planned" : "simulated"),
    }; // prettier-ignore
    if (event.key === "Escape" && lanes.view.pinned) lanes.view.pin(null);
    else if (actions[key]) actions[key]();
    else return;
    consume(event);
  }

  /** @param {number} by */
  scrollBy(by) {
    this.lanes.scroll += by;
    this.lanes.repaint();
  }

  /** Go to the next or the previous task in the order of the plan. @param {number} by */
  step(by) {
    const { lanes } = this;
    const { order, from, to, horizon, tip, view } = lanes;
    const now = view.pinned?.task;
    const at = now === undefined ? (by > 0 ? -1 : order.length) : order.indexOf(now);
    const task = order[clamp(at + by, 0, order.length - 1)];
    if (task === now) return;
    view.pin({ task });
    const [start, end] = lanes.front.span(task) ?? [0, 0];
    const middle = (start + end) / 2 / horizon;
    const half = (to - from) / 2;
    if (middle < from || middle > to) lanes.look(middle - half, middle + half);
    tip.textContent = lanes.describeTask(task);
    tip.hidden = false;
    this.placeTip({ x: clamp(lanes.x(start), NAMES, NAMES + lanes.width), y: lanes.room / 2 });
  }

  fitPinned() {
    const { pinned } = this.lanes.view;
    const span = pinned?.task === undefined ? null : this.lanes.front.span(pinned.task);
    if (!span) return;
    const [start, end] = span;
    const margin = 0.05 * (end - start);
    this.lanes.look((start - margin) / this.lanes.horizon, (end + margin) / this.lanes.horizon);
  }
}
