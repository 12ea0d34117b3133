// Geometry of the arcs of skip connections.

import { clamp } from "../kit/numbers.js";

const STEP = 6; // px from an arc to the next one over it, at most
const ROOM = { least: 9, most: 30 }; // px over the lanes for arcs that pass over all of them
export const NEAR = 5; // px from which an arc is pointed at

/** What arcs need over the lanes: px, and from one to the next. */
export function roomOver(skips, routes) {
  if (!skips.length) return { room: 0, step: 0 };
  const most = Math.max(...stack(skips, routes).map(({ lane, number }) => (lane === 0 ? number : 0)));
  const room = clamp(most * STEP, ROOM.least, ROOM.most);
  return { room, step: Math.min(STEP, room / Math.max(1, most)) };
}

/**
 * Of each arc the highest lane that it passes over, and its number over that lane, counted from it: inner ones are
 * lower.
 */
export function stack(skips, routes) {
  const placed = [];
  const order = [...skips.keys()].sort((a, b) => skips[a].to - skips[a].from - (skips[b].to - skips[b].from) || a - b);
  for (const at of order) {
    const { from, to } = skips[at];
    const lane = Math.min(...routes.flatMap((route) => route.slice(from, to + 1)));
    const inside = placed.filter((other) => other.lane === lane && other.from >= from && other.to <= to);
    placed[at] = { from, to, lane, number: 1 + Math.max(0, ...inside.map(({ number }) => number)) };
  }
  return placed;
}

/** Two quarters of ellipses that meet over the middle of the ends. */
export function bow({ slots, y, tallest, step }, { from, to, replica }, { lane, number }, routes) {
  const end = (stage) => ({ x: slots[stage].middle, y: y(routes[replica][stage]) - slots[stage].height / 2 });
  const [a, b] = [end(from), end(to)];
  return {
    a,
    b,
    crown: { x: (a.x + b.x) / 2, y: Math.max(1, Math.min(a.y, b.y, y(lane) - tallest / 2) - 2 - step * number) },
  };
}

const quarter = ({ x, y }, crown) => ({ rx: Math.abs(crown.x - x), ry: Math.max(0.1, y - crown.y) });

export function outline({ a, b, crown }) {
  const turn = (to, { rx, ry }) => `A${r(rx)} ${r(ry)} 0 0 1 ${r(to.x)} ${r(to.y)}`;
  return `M${r(a.x)} ${r(a.y)}${turn(crown, quarter(a, crown))}${turn(b, quarter(b, crown))}`;
}

/** How far a point is from an arc, in px to a side, up or down. */
export function away({ a, b, crown }, { x, y }) {
  if (x < a.x - NEAR || x > b.x + NEAR) return Infinity;
  const end = x < crown.x ? a : b;
  const { rx, ry } = quarter(end, crown);
  const [across, up] = [(x - crown.x) / rx, (y - end.y) / ry];
  const below = Math.abs(across) <= 1 ? Math.abs(end.y - ry * Math.sqrt(1 - across ** 2) - y) : Infinity;
  const beside = up <= 0 && up >= -1 ? Math.abs(rx * Math.sqrt(1 - up ** 2) - Math.abs(x - crown.x)) : Infinity;
  return Math.min(below, beside);
}

export const r = (number) => Math.round(number * 10) / 10;
