// Wheel, pointer and keys: each turned into one call of the chart or its view.

import { clamp } from "../kit/numbers.js";
import { AXIS } from "./layout.js";
import { laneAt, placeAt } from "./place.js";

const DRAG_PX = 4; // a press that moves less is a click
const DOUBLE_MS = 500; // between the presses of a double click
const LINE_PX = 16; // what a wheel that counts in lines scrolls by
const PAGE_PX = 400;

export class Input {
  constructor(chart) {
    this.chart = chart;
    this.opened = -Infinity; // when an arrow was pressed last
    this.keys = keysOf(chart);
    const listen = (type, then, options) =>
      chart.stage.addEventListener(type, (event) => chart.isDrawn && then.call(this, event), options);
    listen("wheel", this._wheel, { passive: false });
    listen("pointerdown", this._down);
    listen("pointermove", this._move);
    listen("pointerup", this._up);
    listen("pointercancel", this._stopDrag);
    listen("pointerleave", this._leave);
    listen("dblclick", this._double);
    listen("keydown", this._key);
    listen("focus", () => chart.setFocused(chart.stage.matches(":focus-visible")));
    listen("blur", () => chart.setFocused(false));
  }

  get isDragging() {
    return Boolean(this.drag);
  }

  _at(event) {
    const area = this.chart.stage.getBoundingClientRect();
    return { x: event.clientX - area.left, y: event.clientY - area.top };
  }

  _wheel(event) {
    const { view, frame } = this.chart;
    event.preventDefault();
    view.stop();
    const size = event.deltaMode === 1 ? LINE_PX : event.deltaMode === 2 ? PAGE_PX : 1;
    const { x, y } = this._at(event);
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      view.pan((event.shiftKey ? event.deltaX || event.deltaY : event.deltaX) * size);
    } else if (event.altKey) {
      view.pan(0, event.deltaY * size);
    } else {
      view.zoom(Math.exp(-event.deltaY * size * (event.ctrlKey ? 0.01 : 0.0022)), clamp(x, frame.left, frame.right), y);
    }
    this.chart.point({ x, y });
  }

  _down(event) {
    if (event.button !== 0) return;
    this.chart.stage.setPointerCapture(event.pointerId);
    this.drag = { ...this._at(event), moved: false, selects: event.shiftKey || this.chart.area.mode };
  }

  _move(event) {
    const { chart, drag } = this;
    const at = this._at(event);
    if (!drag) return chart.point(at);
    const [dx, dy] = [drag.x - at.x, drag.y - at.y];
    if (!drag.moved && Math.hypot(dx, dy) < DRAG_PX) return;
    drag.moved = true;
    chart.tip.hide();
    if (drag.selects) return chart.area.between(drag, at);
    chart.stage.dataset.dragging = "";
    chart.view.pan(dx, dy);
    Object.assign(drag, at);
  }

  _up(event) {
    const { drag } = this;
    this._stopDrag();
    if (drag && !drag.moved) this._click(this._at(event), event.timeStamp);
  }

  /** A press that did not move: a mark on the axis, a lane to keep by its name, else a pin. */
  _click(at, when) {
    const { chart } = this;
    const { frame } = chart;
    const lane = laneAt(chart, at);
    if (at.y < AXIS && at.x >= frame.left && at.x <= frame.right) chart.marks.toggle(frame.tick(at.x));
    else if (at.x < frame.left && lane) chart.keep(lane);
    else this._choose(placeAt(chart, at), when);
  }

  /** Pin a place; an arrow opens its transfer too, at the first press of a double click. */
  _choose(place, when) {
    const { chart } = this;
    const opens = place?.span >= 0 && place.layer.isTransfer(place.span) && chart.depth.canOpen(place);
    if (!opens || !isAt(chart.pinned, place)) chart.pin(place);
    if (opens && when - this.opened > DOUBLE_MS) {
      this.opened = when;
      chart.depth.open(place);
    }
  }

  _stopDrag() {
    this.drag = null;
    delete this.chart.stage.dataset.dragging;
    this.chart.overpaint();
  }

  _leave() {
    this.chart.point(null);
  }

  _double(event) {
    const found = placeAt(this.chart, this._at(event));
    if (found?.span >= 0 && found.layer.isTransfer(found.span)) return; // its first click opened it
    if (this.chart.depth.canOpen(found)) this.chart.depth.open(found);
    else if (found?.span >= 0) this.chart.view.show(found);
    else this.chart.view.fit();
  }

  _key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const act = (event.shiftKey && this.keys[`Shift${key}`]) || this.keys[key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }
}

const isAt = (pinned, { layer, span }) => pinned?.layer === layer && pinned.span === span;

function keysOf(chart) {
  const { view } = chart;
  const pan = (part) => () => view.stepAlong(part);
  const zoom = (factor) => () => view.stepZoom(factor);
  const scroll = (part) => () => view.stepAcross(part);
  const walk =
    (along, across = 0) =>
    () =>
      chart.walk(along, across);
  const toggle = (name) => () => chart.toggle(name);
  const outer = (act) => () =>
    chart.depth.isDeep ? chart.say("That is for the iteration: Backspace leads back to it.") : act();
  const pinned = (step, otherwise) => () => (chart.pinned ? step() : otherwise());
  return {
    a: pan(-0.15), d: pan(0.15),
    ArrowLeft: pinned(() => chart.pinbar.stepTo("cause"), pan(-0.15)),
    ArrowRight: pinned(() => chart.pinbar.stepTo("effect"), pan(0.15)),
    ArrowUp: pinned(() => chart.pinbar.stepBeside(-1), scroll(-0.3)),
    ArrowDown: pinned(() => chart.pinbar.stepBeside(1), scroll(0.3)),
    w: zoom(1.5), s: zoom(1 / 1.5), "+": zoom(1.5), "=": zoom(1.5), "-": zoom(1 / 1.5), _: zoom(1 / 1.5),
    0: () => view.fit(), Home: () => view.fit(),
    j: walk(1), k: walk(-1),
    ShiftArrowRight: walk(1), ShiftArrowLeft: walk(-1), ShiftArrowDown: walk(0, 1), ShiftArrowUp: walk(0, -1),
    Enter: () => chart.enter(), Backspace: () => chart.depth.isDeep && chart.depth.back(),
    f: () => chart.showChosen(),
    b: () => chart.pinbar.turnFlow(), r: outer(() => chart.area.start()), u: () => chart.keepHere(),
    x: () => chart.marks.toggleHere(), Shiftx: () => chart.marks.clear(),
    "/": outer(() => chart.search.open()), n: () => chart.search.step(1), Shiftn: () => chart.search.step(-1),
    c: toggle("show_critical"), m: toggle("show_memory"), t: toggle("show_transfers"),
    l: outer(toggle("show_links")), Shiftl: outer(toggle("show_device_links")),
    "?": () => chart.help.toggle(),
    Escape: () => chart.escape(),
  }; // prettier-ignore
}
