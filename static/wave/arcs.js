// Geometry of the arcs of skip connections.

/** @import { Point } from "../kit/types" */
/** @import { Arc, ArcLevel, Layout, Skip } from "./types" */

import { clamp } from "../kit/numbers.js";

const MOST_STEP = 6; // largest distance of an arc from the next arc above it, in CSS pixels
const MARGIN = { least: 9, most: 30 }; // room for the arcs above the lanes, in CSS pixels
export const NEAR = 5; // CSS pixels within which the pointer hits an arc

/**
 * The height of the arcs above the lanes and the distance of adjacent arcs, in CSS pixels.
 * @param {Skip[]} skips @param {number[][]} routes
 */
export function arcMargin(skips, routes) {
  if (!skips.length) return { margin: 0, step: 0 };
  const most = Math.max(...arcLevels(skips, routes).map(({ lane, number }) => (lane === 0 ? number : 0)));
  const margin = clamp(most * MOST_STEP, MARGIN.least, MARGIN.most);
  return { margin, step: Math.min(MOST_STEP, margin / Math.max(1, most)) };
}

/**
 * The level of each arc; inner arcs are lower.
 * @param {Skip[]} skips @param {number[][]} routes @returns {ArcLevel[]}
 */
export function arcLevels(skips, routes) {
  /** @type {(ArcLevel & {from: number, to: number})[]} */
  const placed = [];
  const order = [...skips.keys()].sort((a, b) => skips[a].to - skips[a].from - (skips[b].to - skips[b].from) || a - b);
  for (const at of order) {
    const { from, to } = skips[at];
    const lane = Math.min(...routes.flatMap((route) => route.slice(from, to + 1)));
    const inner = placed.filter((other) => other.lane === lane && other.from >= from && other.to <= to);
    placed[at] = { from, to, lane, number: 1 + Math.max(0, ...inner.map(({ number }) => number)) };
  }
  return placed;
}

/**
 * An arc of two quarter ellipses that meet above the middle of its ends.
 * @param {Layout} layout @param {Skip} skip @param {ArcLevel} level @param {number[][]} routes @returns {Arc}
 */
export function arcOf({ slots, y, tallest, step }, { from, to, replica }, { lane, number }, routes) {
  const end = (/** @type {number} */ stage) => {
    const { middle, height } = slots[stage];
    return { x: middle, y: y(routes[replica][stage]) - height / 2 };
  };
  const [a, b] = [end(from), end(to)];
  const top = Math.max(1, Math.min(a.y, b.y, y(lane) - tallest / 2) - 2 - step * number);
  return { a, b, crown: { x: (a.x + b.x) / 2, y: top } };
}

/** @param {Point} end @param {Point} crown */
const radii = ({ x, y }, crown) => ({ rx: Math.abs(crown.x - x), ry: Math.max(0.1, y - crown.y) });

/** The path of an arc. @param {Arc} arc */
export function arcPath({ a, b, crown }) {
  const quarter = (/** @type {Point} */ to, /** @type {Point} */ end) => {
    const { rx, ry } = radii(end, crown);
    return `A${round(rx)} ${round(ry)} 0 0 1 ${round(to.x)} ${round(to.y)}`;
  };
  return `M${round(a.x)} ${round(a.y)}${quarter(crown, a)}${quarter(b, b)}`;
}

/** The distance of a point from an arc in px, horizontally or vertically. @param {Arc} arc @param {Point} point */
export function distanceTo({ a, b, crown }, { x, y }) {
  if (x < a.x - NEAR || x > b.x + NEAR) return Infinity;
  const end = x < crown.x ? a : b;
  const { rx, ry } = radii(end, crown);
  const [across, up] = [(x - crown.x) / rx, (y - end.y) / ry];
  const vertical = Math.abs(across) <= 1 ? Math.abs(end.y - ry * Math.sqrt(1 - across ** 2) - y) : Infinity;
  const horizontal = up <= 0 && up >= -1 ? Math.abs(rx * Math.sqrt(1 - up ** 2) - Math.abs(x - crown.x)) : Infinity;
  return Math.min(vertical, horizontal);
}

export const round = (/** @type {number} */ number) => Math.round(number * 10) / 10;
