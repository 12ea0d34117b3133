// Pointer and keys on the lanes of links.

import { clamp } from "../kit/numbers.js";
import { AXIS, NAMES } from "./lanes.js";

const DRAG_PX = 4;
const SCROLLED = 24; // CSS pixels of an arrow

/** Zooms, pans and scrolls the lanes, and walks the tasks. */
export class LanesInput {
  /** @param {import("./lanes.js").Lanes} lanes */
  constructor(lanes) {
    this.lanes = lanes;
    this.listen();
  }

  listen() {
    const on = (type, then, options) =>
      this.lanes.element.addEventListener(
        type,
        (event) => this.lanes.picture && this.lanes.width && then.call(this, event),
        options,
      );
    on("wheel", this.wheel, { passive: false });
    on("pointerdown", this.down);
    on("pointermove", this.move);
    on("pointerup", this.up);
    on("pointerleave", this.leave);
    on("dblclick", () => this.lanes.look(0, 1));
    on("keydown", this.key);
  }

  at(event) {
    const { left, top } = this.lanes.element.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  zoom(factor, x = NAMES + this.lanes.width / 2) {
    const part = clamp((x - NAMES) / this.lanes.width, 0, 1);
    const size = (this.lanes.to - this.lanes.from) / factor;
    const middle = this.lanes.from + part * (this.lanes.to - this.lanes.from);
    this.lanes.look(middle - part * size, middle - part * size + size);
  }

  pan(part) {
    const by = part * (this.lanes.to - this.lanes.from);
    this.lanes.look(this.lanes.from + by, this.lanes.to + by);
  }

  wheel(event) {
    event.preventDefault();
    if (event.altKey) {
      this.lanes.scroll += event.deltaY;
      return this.lanes.repaint();
    }
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      return this.pan((event.deltaX || event.deltaY) / this.lanes.width);
    this.zoom(Math.exp(-event.deltaY * 0.0022), this.at(event).x);
  }

  down(event) {
    if (event.button !== 0) return;
    this.lanes.element.setPointerCapture(event.pointerId);
    this.drag = { ...this.at(event), moved: false };
  }

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

  up(event) {
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

  /** What lies under a point. */
  find({ x, y }) {
    const down = y - AXIS + this.lanes.scroll;
    const lane = this.lanes.tops.findLastIndex((top) => top <= down);
    if (x < NAMES || y < AXIS || lane < 0 || lane >= this.lanes.front.lanes.length) return null;
    const time =
      ((x - NAMES) / this.lanes.width) * (this.lanes.to - this.lanes.from) * this.lanes.horizon +
      this.lanes.from * this.lanes.horizon;
    return this.lanes.front.find(lane, time, (down - this.lanes.tops[lane]) / this.lanes.tall(lane));
  }

  point(at) {
    const found = this.find(at);
    this.lanes.view.hover(found ? { task: found.task } : null);
    this.lanes.tip.hidden = !found;
    if (!found) return;
    this.lanes.tip.textContent = this.lanes.front.words(found);
    this.stand(at);
  }

  stand({ x, y }) {
    const { offsetWidth: width, offsetHeight: height } = this.lanes.tip;
    const { clientWidth, clientHeight } = this.lanes.element;
    const left = clamp(x + 14, 4, Math.max(4, clientWidth - width - 4));
    const top = y + 18 + height < clientHeight ? y + 18 : Math.max(2, y - height - 10);
    this.lanes.tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const keys = {
      w: () => this.zoom(1.5), s: () => this.zoom(1 / 1.5), "+": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5),
      a: () => this.pan(-0.15), d: () => this.pan(0.15),
      ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15),
      ArrowDown: () => this.scrollBy(SCROLLED), ArrowUp: () => this.scrollBy(-SCROLLED),
      0: () => this.lanes.look(0, 1), Home: () => this.lanes.look(0, 1), j: () => this.walk(1), k: () => this.walk(-1),
      f: () => this.showPinned(),
      p: () => this.lanes.choose(this.lanes.view.model.shows === "played" ? "planned" : "played"),
    }; // prettier-ignore
    if (event.key === "Escape" && this.lanes.view.pinned) this.lanes.view.pin(null);
    else if (keys[key]) keys[key]();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  scrollBy(by) {
    this.lanes.scroll += by;
    this.lanes.repaint();
  }

  /** To the next task of the plan's order, or the one before. */
  walk(by) {
    const now = this.lanes.view.pinned?.task;
    const at = now === undefined ? (by > 0 ? -1 : this.lanes.order.length) : this.lanes.order.indexOf(now);
    const task = this.lanes.order[clamp(at + by, 0, this.lanes.order.length - 1)];
    if (task === now) return;
    this.lanes.view.pin({ task });
    const [begun, done] = this.lanes.front.span(task) ?? [0, 0];
    const middle = (begun + done) / 2 / this.lanes.horizon;
    const half = (this.lanes.to - this.lanes.from) / 2;
    if (middle < this.lanes.from || middle > this.lanes.to) this.lanes.look(middle - half, middle + half);
    this.lanes.tip.textContent = this.lanes.words(task);
    this.lanes.tip.hidden = false;
    this.stand({ x: clamp(this.lanes.x(begun), NAMES, NAMES + this.lanes.width), y: this.lanes.room / 2 });
  }

  showPinned() {
    const span = this.lanes.view.pinned?.task === undefined ? null : this.lanes.front.span(this.lanes.view.pinned.task);
    if (!span) return;
    const [begun, done] = span;
    const margin = 0.05 * (done - begun);
    this.lanes.look((begun - margin) / this.lanes.horizon, (done + margin) / this.lanes.horizon);
  }
}
