// Numbers of the time axis: their positions and their text.

import { clamp, roundUp } from "../kit/numbers.js";
import { numberFormat } from "./units.js";

const LEAST_DISTANCE = 86; // least distance of two numbers in CSS pixels

/**
 * @typedef {{from: number, scale: number, right: number, x: (tick: number) => number,
 *   tick: (x: number) => number}} Axis
 */

/** @param {Axis} frame @param {{scale: number}} layer */
export function ticks(frame, layer) {
  const step = roundUp((layer.scale / frame.scale) * LEAST_DISTANCE);
  const found = [];
  const last = frame.tick(frame.right) * layer.scale;
  for (let n = Math.max(0, Math.ceil((frame.from * layer.scale) / step)); n * step <= last; n++) {
    found.push({ x: frame.x((n * step) / layer.scale), value: n * step, step });
  }
  return found;
}

/** The unit of an axis of seconds; unit costs have none. @param {number} largest @param {string} unit */
export function axisUnit(largest, unit) {
  if (unit !== "s") return { name: "", factor: 1 };
  if (largest >= 2) return { name: "s", factor: 1 };
  return largest >= 2e-3 ? { name: "ms", factor: 1e3 } : { name: "µs", factor: 1e6 };
}

/** @type {Record<string, Intl.NumberFormat>} */
const FORMATS = {}; // by their number of decimals and their unit

/** @param {number} value @param {number} step @param {{factor: number, name: string}} unit */
export function axisText(value, step, { factor, name }) {
  const digits = clamp(Math.ceil(-Math.log10(step * factor) - 1e-9), 0, 9);
  return (FORMATS[`${digits}${name}`] ??= numberFormat(digits, digits, !name)).format(value * factor);
}
