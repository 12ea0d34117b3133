// Zooming by the wheel and by two fingers, for canvases with a view that zooms and pans.

/** @import { Point } from "./types" */

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
