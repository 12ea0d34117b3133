// Zooming by the wheel and by two fingers: of canvases with a view that zooms and pans, and of boards that scroll.

/** @import { Point } from "./types" */

import { pointIn } from "./canvas.js";
import { clamp } from "./numbers.js";
import { boxOf } from "./zoom.js";

const STEP = 1.5; // factor of a key
const MOST_SCALE = 8;
const DELTA_PX = [1, 16, 400]; // CSS pixels by delta mode of the wheel: pixels, lines, pages

/**
 * The movement of a view by a wheel: a factor, or a distance in CSS pixels. Shift and a sideways wheel pan along x,
 * Alt pans along y.
 * @param {WheelEvent} event @returns {{factor: number} | {dx: number, dy: number}}
 */
export function wheelMove({ deltaX, deltaY, deltaMode, shiftKey, altKey, ctrlKey }) {
  const pixels = DELTA_PX[deltaMode] ?? 1;
  const [dx, dy] = [deltaX * pixels, deltaY * pixels];
  if (shiftKey) return { dx: dx || dy, dy: 0 };
  if (Math.abs(dx) > Math.abs(dy)) return { dx, dy: 0 };
  if (altKey) return { dx: 0, dy };
  return { factor: Math.exp(-dy * (ctrlKey ? 0.01 : 0.0022)) };
}

/** The fingers on a canvas; two of them pinch. */
export class Fingers {
  /** Positions by pointer. @type {Map<number, Point>} */ points = new Map();

  get isPinch() {
    return this.points.size > 1;
  }

  /** @param {PointerEvent} event @param {Point} at */
  press({ pointerId, pointerType }, at) {
    if (pointerType === "touch") this.points.set(pointerId, at);
  }

  /** @param {PointerEvent} event */
  release({ pointerId }) {
    this.points.delete(pointerId);
  }

  /**
   * Move a finger of a pinch: the factor of the distance of the fingers, and the movement and place of their middle.
   * @param {PointerEvent} event @param {Point} at
   */
  pinch({ pointerId }, at) {
    const [before, from] = this.#spread();
    this.points.set(pointerId, at);
    const [distance, { x, y }] = this.#spread();
    return { factor: distance / before, x, y, dx: x - from.x, dy: y - from.y };
  }

  /** The distance of the fingers and their middle. @returns {[number, Point]} */
  #spread() {
    const [one, other] = this.points.values();
    const middle = { x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 };
    return [Math.max(1, Math.hypot(one.x - other.x, one.y - other.y)), middle];
  }
}

/**
 * The zoom of a board that scrolls: Ctrl and the wheel, two fingers, and the keys W, S and 0. What the board shows is
 * drawn for a board that is `scale` times as wide and as high.
 */
export class ScrolledZoom {
  scale = 1;
  fingers = new Fingers();

  /**
   * @param {HTMLElement} board
   * @param {{draw: () => void, cancel: () => void}} actions `draw` draws at once; `cancel` ends a gesture of one finger
   */
  constructor(board, { draw, cancel }) {
    this.board = board;
    this.draw = draw;
    this.cancel = cancel;
    board.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    board.addEventListener("pointerdown", (event) => this.press(event), true);
    board.addEventListener("pointermove", (event) => this.move(event), true);
    for (const type of /** @type {const} */ (["pointerup", "pointercancel"]))
      board.addEventListener(type, (event) => this.fingers.release(event), true);
  }

  /** The size for which the board is drawn, in CSS pixels. */
  get size() {
    const { clientWidth, clientHeight } = this.board;
    return { width: Math.round(clientWidth * this.scale), height: Math.round(clientHeight * this.scale) };
  }

  /** Zoom and keep a point of the board in place. @param {number} factor @param {Point} point */
  zoom(factor, { x, y }) {
    const { board } = this;
    const scale = clamp(this.scale * factor, 1, MOST_SCALE);
    if (scale === this.scale) return;
    const [left, top] = [(board.scrollLeft + x) / board.scrollWidth, (board.scrollTop + y) / board.scrollHeight];
    this.scale = scale;
    board.toggleAttribute("data-zoomed", scale > 1);
    this.draw();
    board.scrollTo(left * board.scrollWidth - x, top * board.scrollHeight - y);
  }

  /** The action of a key, which zooms around an element. @param {KeyboardEvent} event @param {Element} element */
  keyAction({ key, ctrlKey, metaKey, altKey }, element) {
    const factor = { w: STEP, s: 1 / STEP, 0: 1 / this.scale }[key.toLowerCase()];
    if (!factor || ctrlKey || metaKey || altKey) return null;
    return () => {
      const [board, { x, y, width, height }] = [boxOf(this.board), boxOf(element)];
      this.zoom(factor, { x: x + width / 2 - board.x, y: y + height / 2 - board.y });
    };
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    const move = wheelMove(event);
    if (!event.ctrlKey || !("factor" in move)) return;
    event.preventDefault();
    this.zoom(move.factor, pointIn(event, this.board));
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.isPrimary) this.fingers.points.clear(); // an end may be missed if its element was redrawn
    this.fingers.press(event, pointIn(event, this.board));
    if (!this.fingers.isPinch) return;
    event.stopPropagation();
    this.cancel();
    // the elements under the fingers are drawn again
    for (const pointer of this.fingers.points.keys()) this.board.setPointerCapture(pointer);
  }

  /** @param {PointerEvent} event */
  move(event) {
    if (!this.fingers.isPinch || !this.fingers.points.has(event.pointerId)) return;
    event.stopPropagation();
    const { factor, x, y, dx, dy } = this.fingers.pinch(event, pointIn(event, this.board));
    this.zoom(factor, { x, y });
    this.board.scrollBy(-dx, -dy);
  }
}
