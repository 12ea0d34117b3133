// Geometry of the wave: slots, boxes and lanes, and the curves between them.

import { clamp } from "../kit/numbers.js";
import { r, roomOver } from "./arcs.js";

const EQUAL = 0.4; // part of the width that stages share equally; the rest goes by layers
const BOX = { part: 0.62, width: 112, height: 44 }; // of its slot; px at most

/** Slots, boxes and lanes of a picture in a box of px. */
export function arrange(picture, layers, width, height) {
  const { meshes, routes, shares } = picture;
  const stages = layers.length;
  const { room, step } = roomOver(picture.skips, routes);
  const named = Math.max(...meshes.map(({ name }) => name.length));
  const edge = {
    left: clamp(34 + 7 * named, 46, 110),
    right: 10,
    top: picture.groups.length || picture.equal ? 15 : 3,
    bottom: 16,
  };
  edge.top += room;
  const lane = (height - edge.top - edge.bottom) / meshes.length;
  const total = layers.reduce((sum, number) => sum + number, 0) || 1;
  const span = width - edge.left - edge.right;
  const perLayer = ((1 - EQUAL) * span) / total;
  const most = Math.max(...shares, 1e-12);
  const tallest = clamp(lane * 0.8, 2, BOX.height);
  const slots = [];
  let x = edge.left;
  layers.forEach((number, stage) => {
    const size = (EQUAL * span) / stages + perLayer * number;
    // low ones still hold their number
    const height = tallest * clamp(shares[stage] / most, Math.min(1, 16 / tallest), 1);
    slots.push({ x, size, middle: x + size / 2, width: Math.min(BOX.width, size * BOX.part), height });
    x += size;
  });
  const y = (mesh) => edge.top + (mesh + 0.5) * lane;
  return { edge, lane, perLayer, slots, y, width, height, routes, pitch: span / stages, tallest, step };
}

/** From stage to stage: a curve between lanes, a small crest where the mesh stays the same. */
export function hop(layout, route, stage) {
  const [a, b] = [layout.slots[stage], layout.slots[stage + 1]];
  const [ya, yb] = [layout.y(route[stage]), layout.y(route[stage + 1])];
  const [xa, xb] = [a.middle + a.width / 2, b.middle - b.width / 2];
  const middle = (xa + xb) / 2;
  if (ya !== yb) return `M${r(xa)} ${r(ya)}C${r(middle + 2)} ${r(ya)} ${r(middle - 2)} ${r(yb)} ${r(xb)} ${r(yb)}`;
  const came = stage > 0 ? Math.sign(route[stage] - route[stage - 1]) : 0;
  const out = (came || 1) * Math.min(layout.lane * 0.3, 11);
  return (
    `M${r(xa)} ${r(ya)}C${r(xa + (xb - xa) * 0.2)} ${r(ya + out)} ${r(xb - (xb - xa) * 0.2)} ${r(ya + out)} ` +
    `${r(xb)} ${r(ya)}`
  );
}

/** Give a shape its place, by attributes that are numbers. */
export function place(shape, numbers) {
  for (const [name, number] of Object.entries(numbers)) shape.setAttribute(name, r(number));
}

/** Layers after `moved` of them went over a boundary to the right (to the left if negative). */
export function shifted(layers, boundary, moved) {
  return layers.map((number, stage) => number + (stage === boundary ? -moved : stage === boundary + 1 ? moved : 0));
}

export const percent = (share) => `${(100 * share).toFixed(share >= 0.0995 ? 0 : 1)} %`;
