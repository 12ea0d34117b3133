// Numbers of the time axis: where they stand and how they are written.

import { clamp, roundUp } from "../kit/numbers.js";
import { numbers } from "./units.js";

const APART = 86; // CSS pixels between two numbers, at least

/**
 * @param {{from: number, scale: number, right: number, x: (tick: number) => number, tick: (x: number) => number}} frame
 * @param {{scale: number}} layer
 */
export function ticks(frame, layer) {
  const step = roundUp((layer.scale / frame.scale) * APART);
  const found = [];
  const last = frame.tick(frame.right) * layer.scale;
  for (let n = Math.max(0, Math.ceil((frame.from * layer.scale) / step)); n * step <= last; n++) {
    found.push({ x: frame.x((n * step) / layer.scale), value: n * step, step });
  }
  return found;
}

/**
 * Seconds of an axis as s, ms or µs; unit costs have no unit.
 * @param {number} largest
 * @param {string} unit
 */
export function axisUnit(largest, unit) {
  if (unit !== "s") return { name: "", factor: 1 };
  if (largest >= 2) return { name: "s", factor: 1 };
  return largest >= 2e-3 ? { name: "ms", factor: 1e3 } : { name: "µs", factor: 1e6 };
}

/** @type {Intl.NumberFormat[]} */
const AXIS_NUMBERS = []; // by how many digits they show

/**
 * @param {number} value
 * @param {number} step
 * @param {{factor: number}} unit
 */
export function onAxis(value, step, { factor }) {
  const digits = clamp(Math.ceil(-Math.log10(step * factor) - 1e-9), 0, 9);
  return (AXIS_NUMBERS[digits] ??= numbers(digits, digits)).format(value * factor);
}
