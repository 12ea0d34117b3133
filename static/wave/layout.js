// Geometry of the wave canvas: slots, boxes and lanes, and the curves between them.

/** @import { Layout, Picture } from "./types" */

import { clamp } from "../kit/numbers.js";
import { arcMargin, round } from "./arcs.js";

const EQUAL = 0.4; // part of the width that is divided equally among the stages; the rest is divided by their layers
const BOX = { part: 0.62, width: 112, height: 44 }; // part of the slot's width; largest size in CSS pixels
const TWO_LINES = 27; // least height in CSS pixels of a box that shows its share below its layers

/**
 * Arrange slots, boxes and lanes in a box of px.
 * @param {Picture} picture @param {number[]} layers @param {number} width @param {number} height @returns {Layout}
 */
export function arrange(picture, layers, width, height) {
  const { meshes, routes, shares } = picture;
  const stages = layers.length;
  const { margin, step } = arcMargin(picture.skips, routes);
  const longestName = Math.max(...meshes.map(({ name }) => name.length));
  const edge = {
    left: clamp(34 + 7 * longestName, 46, 110),
    right: 10,
    top: (picture.groups.length || picture.equal ? 15 : 3) + margin,
    bottom: 16,
  };
  const lane = Math.max(0, height - edge.top - edge.bottom) / meshes.length;
  const total = layers.reduce((sum, number) => sum + number, 0) || 1;
  const span = Math.max(0, width - edge.left - edge.right);
  const perLayer = ((1 - EQUAL) * span) / total;
  const most = Math.max(...shares, 1e-12);
  const tallest = clamp(lane * 0.8, 2, BOX.height);
  const leastHeight = tallest < TWO_LINES ? 16 : TWO_LINES; // room for the label
  const leastPart = Math.min(1, leastHeight / tallest);
  let x = edge.left;
  const slots = layers.map((number, stage) => {
    const size = (EQUAL * span) / stages + perLayer * number;
    const height = tallest * clamp(shares[stage] / most, leastPart, 1);
    const slot = { x, size, middle: x + size / 2, width: Math.min(BOX.width, size * BOX.part), height };
    x += size;
    return slot;
  });
  const y = (/** @type {number} */ mesh) => edge.top + (mesh + 0.5) * lane;
  const label = labelForm(slots, layers);
  return { edge, lane, perLayer, slots, y, width, height, routes, pitch: span / stages, tallest, step, label };
}

/**
 * The longest form of label that fits the boxes of all stages, so that all labels have the same form.
 * @param {{width: number, height: number}[]} slots @param {number[]} layers @returns {Layout["label"]}
 */
function labelForm(slots, layers) {
  const width = Math.min(...slots.map((slot) => slot.width));
  const height = Math.min(...slots.map((slot) => slot.height));
  const digits = Math.max(...layers.map((number) => String(number).length));
  if (width < 7 + 6.5 * digits || height < 12) return "none";
  if (width < 40 || height < TWO_LINES) return "number";
  return width < 62 ? "number and share" : "layers and share";
}

/**
 * The path from a stage to the next stage: a curve between lanes, or a small arc if both stages are on the same mesh.
 * @param {Layout} layout @param {number[]} route @param {number} stage
 */
export function hopPath(layout, route, stage) {
  const [a, b] = [layout.slots[stage], layout.slots[stage + 1]];
  const [ya, yb] = [layout.y(route[stage]), layout.y(route[stage + 1])];
  const [xa, xb] = [a.middle + a.width / 2, b.middle - b.width / 2];
  const middle = (xa + xb) / 2;
  const start = `M${round(xa)} ${round(ya)}C`;
  if (ya !== yb)
    return `${start}${round(middle + 2)} ${round(ya)} ${round(middle - 2)} ${round(yb)} ${round(xb)} ${round(yb)}`;
  const direction = stage > 0 ? Math.sign(route[stage] - route[stage - 1]) || 1 : 1;
  const crest = round(ya + direction * Math.min(layout.lane * 0.3, 11));
  const inset = (xb - xa) * 0.2;
  return `${start}${round(xa + inset)} ${crest} ${round(xb - inset)} ${crest} ${round(xb)} ${round(ya)}`;
}

/** Set numeric attributes of a shape. @param {Element} shape @param {Record<string, number>} numbers */
export function place(shape, numbers) {
  for (const [name, number] of Object.entries(numbers)) shape.setAttribute(name, String(round(number)));
}

/**
 * The layers per stage after `moved` of them crossed a boundary to the right, or to the left if negative.
 * @param {number[]} layers @param {number} boundary @param {number} moved
 */
export const moveLayers = (layers, boundary, moved) =>
  layers.map((number, stage) => number + (stage === boundary ? -moved : stage === boundary + 1 ? moved : 0));
