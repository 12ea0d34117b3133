// Events of wheel, pointer and keys; each calls one method of the chart or its view.

/** @import { Point } from "../kit/types" */
/** @import { Chart } from "./timeline.js" */
/** @import { Place } from "./types" */

import { pointIn } from "../kit/canvas.js";
import { consume, listenWhile } from "../kit/dom.js";
import { receiveKeys } from "../kit/key_targets.js";
import { clamp } from "../kit/numbers.js";
import { Fingers, wheelMove } from "../kit/zooming.js";
import { contextMenu } from "./context_menu.js";
import { AXIS } from "./layout.js";
import { keepLane, keepLaneHere } from "./pinned_lanes.js";
import { laneAt, placeAt } from "./place.js";

const DRAG_PX = 4; // a press that moves by fewer CSS pixels is a click
const DOUBLE_MS = 500; // longest time between the presses of a double click

export class Input {
  /** @type {(Point & {moved: boolean, selects: boolean}) | null} */ drag = null;
  fingers = new Fingers();
  openedAt = -Infinity; // time of the last press on an arrow

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    this.keys = keyActions(chart);
    receiveKeys("Timeline", () => chart.stage);
    chart.root.append(contextMenu(chart));
    listenWhile(
      chart.stage,
      () => chart.isDrawn,
      {
        wheel: (event) => this.wheel(event),
        pointerdown: (event) => this.press(event),
        pointermove: (event) => this.move(event),
        pointerup: (event) => this.release(event),
        pointercancel: (event) => this.endDrag(event),
        pointerleave: () => chart.point(null),
        dblclick: (event) => this.doubleClick(event),
        keydown: (event) => this.key(event),
        focus: () => chart.setFocused(chart.stage.matches(":focus-visible")),
        blur: () => chart.setFocused(false),
      },
      { passive: false },
    );
  }

  get isDragging() {
    return Boolean(this.drag);
  }

  /** @param {MouseEvent} event */
  at(event) {
    return pointIn(event, this.chart.stage);
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    const { view, frame } = this.chart;
    event.preventDefault();
    view.stop();
    const { x, y } = this.at(event);
    const move = wheelMove(event);
    if ("factor" in move) view.zoom(move.factor, clamp(x, frame.left, frame.right), y);
    else view.pan(move.dx, move.dy);
    this.chart.point({ x, y });
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0) return;
    this.chart.stage.setPointerCapture(event.pointerId);
    this.fingers.press(event, this.at(event));
    this.drag = { ...this.at(event), moved: false, selects: event.shiftKey || this.chart.selection.isMode };
  }

  /** @param {PointerEvent} event */
  move(event) {
    const { chart, drag } = this;
    const at = this.at(event);
    if (!drag) return chart.point(at);
    if (this.fingers.isPinch) return this.pinch(event, at);
    const [dx, dy] = [drag.x - at.x, drag.y - at.y];
    if (!drag.moved && Math.hypot(dx, dy) < DRAG_PX) return;
    drag.moved = true;
    chart.tooltip.hide();
    if (drag.selects) return chart.selection.selectBetween(drag, at);
    chart.stage.dataset.dragging = "";
    chart.view.pan(dx, dy);
    Object.assign(drag, at);
  }

  /** Zoom by the distance of two fingers, around their middle. @param {PointerEvent} event @param {Point} at */
  pinch(event, at) {
    const { view, frame } = this.chart;
    if (this.drag) this.drag.moved = true;
    const { factor, x, y } = this.fingers.pinch(event, at);
    view.zoom(factor, clamp(x, frame.left, frame.right), y);
  }

  /** @param {PointerEvent} event */
  release(event) {
    const { drag } = this;
    this.endDrag(event);
    if (drag && !drag.moved) this.click(this.at(event), event.timeStamp);
  }

  /** @param {PointerEvent} event */
  endDrag(event) {
    this.fingers.release(event);
    this.drag = null;
    delete this.chart.stage.dataset.dragging;
    this.chart.overpaint();
  }

  /**
   * Handle a click: set a mark on the axis, collapse lanes on their title, pin a lane on its name, else pin the block.
   * @param {Point} at @param {number} time
   */
  click(at, time) {
    const { chart } = this;
    const { frame } = chart;
    const lane = laneAt(chart, at);
    const title = chart.collapse.titleAt(at);
    if (at.y < AXIS && at.x >= frame.left && at.x <= frame.right) chart.marks.toggle(frame.tick(at.x));
    else if (title) chart.collapse.turn(title);
    else if (at.x < frame.left && lane) keepLane(chart, lane);
    else this.pin(placeAt(chart, at), time);
  }

  /**
   * Pin a place. An arrow also opens its transfer, at the first press of a double click.
   * @param {Place | null} place @param {number} time
   */
  pin(place, time) {
    const { chart } = this;
    const opens = isTransfer(place) && chart.depth.canOpen(place);
    const { pinned } = chart;
    const isPinned = pinned && pinned.layer === place?.layer && pinned.span === place.span;
    if (!opens || !isPinned) chart.pin(place);
    if (!place || !opens || time - this.openedAt <= DOUBLE_MS) return;
    this.openedAt = time;
    chart.depth.open(place);
  }

  /** @param {MouseEvent} event */
  doubleClick(event) {
    const { chart } = this;
    const place = placeAt(chart, this.at(event));
    if (isTransfer(place)) return; // the first click opened the transfer
    if (place && chart.depth.canOpen(place)) chart.depth.open(place);
    else if (place && place.span >= 0) chart.view.show(place);
    else chart.view.fit();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const act = (event.shiftKey && this.keys[`Shift${key}`]) || this.keys[key];
    if (!act) return;
    consume(event);
    act();
  }
}

/** @param {Place | null} place */
const isTransfer = (place) => Boolean(place && place.span >= 0 && place.layer.isTransfer(place.span));

/** @param {Chart} chart @returns {Record<string, () => void>} */
function keyActions(chart) {
  const { view } = chart;
  const pan = (/** @type {number} */ part) => () => view.stepAlong(part);
  const zoom = (/** @type {number} */ factor) => () => view.stepZoom(factor);
  const scroll = (/** @type {number} */ part) => () => view.stepAcross(part);
  const walk =
    (/** @type {number} */ along, across = 0) =>
    () =>
      chart.moveFocus(along, across);
  const toggle = (/** @type {import("./toolbar.js").Switch} */ name) => () => chart.toggle(name);
  const inIteration = (/** @type {() => void} */ act) => () =>
    chart.depth.isDeep
      ? chart.announce("Only available in the view of the whole step; press Backspace to go back")
      : act();
  const ifPinned = (/** @type {() => void} */ act, /** @type {() => void} */ otherwise) => () =>
    chart.pinned ? act() : otherwise();
  return {
    a: pan(-0.15), d: pan(0.15),
    ArrowLeft: ifPinned(() => chart.pinBar.stepToCause(), pan(-0.15)),
    ArrowRight: ifPinned(() => chart.pinBar.stepToEffect(), pan(0.15)),
    ArrowUp: ifPinned(() => chart.pinBar.stepBeside(-1), scroll(-0.3)),
    ArrowDown: ifPinned(() => chart.pinBar.stepBeside(1), scroll(0.3)),
    w: zoom(1.5), s: zoom(1 / 1.5), "+": zoom(1.5), "=": zoom(1.5), "-": zoom(1 / 1.5), _: zoom(1 / 1.5),
    0: () => view.fit(), Home: () => view.fit(),
    j: walk(1), k: walk(-1),
    ShiftArrowRight: walk(1), ShiftArrowLeft: walk(-1), ShiftArrowDown: walk(0, 1), ShiftArrowUp: walk(0, -1),
    Enter: () => chart.enter(), Backspace: () => chart.depth.isDeep && chart.depth.back(),
    f: () => chart.showSelected(),
    b: () => chart.pinBar.nextFlow(), r: inIteration(() => chart.selection.start()), u: () => keepLaneHere(chart),
    x: () => chart.marks.toggleHere(), Shiftx: () => chart.marks.clear(),
    "/": inIteration(() => chart.search.open()), g: () => chart.filter.open(), Shiftg: () => chart.toolbar.openGroups(),
    n: () => chart.search.step(1), Shiftn: () => chart.search.step(-1),
    c: toggle("show_critical"), m: toggle("show_memory"), t: toggle("show_transfers"),
    l: inIteration(toggle("show_links")), Shiftl: inIteration(toggle("show_device_links")),
    " ": () => chart.toolbar.play.toggle(),
    ",": () => chart.toolbar.play.step(-1), ".": () => chart.toolbar.play.step(1),
    "?": () => chart.help.toggle(),
    Escape: () => chart.escape(),
  }; // prettier-ignore
}
