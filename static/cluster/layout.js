// Positions of the nodes and devices of the cluster, in CSS pixels. All are computed from a few measures, so that a
// cluster of any size costs what is visible of it.

/** @import { Box, Point } from "../kit/types" */
/** @import { Layout, Measures, Rectangle } from "./types" */

import { clamp } from "../kit/numbers.js";

const TILE = { width: 112, height: 62 }; // at most

/**
 * A layout that shows the whole cluster: nodes as rows, wrapped into columns if that makes tiles larger.
 * @param {number} width @param {number} height @param {number} nodes @param {number} perNode
 */
export function layOut(width, height, nodes, perNode) {
  const options = Array.from({ length: nodes }, (_, i) => i + 1).flatMap((columns) => [
    measure(width, height, nodes, perNode, columns, true),
    measure(width, height, nodes, perNode, columns, false),
  ]);
  return place(options.reduce((best, option) => (option.score > best.score ? option : best)));
}

/**
 * @param {number} width @param {number} height @param {number} nodes @param {number} perNode @param {number} columns
 * @param {boolean} headed whether panels have a head with the name of the node @returns {Measures}
 */
export function measure(width, height, nodes, perNode, columns, headed) {
  const rows = Math.ceil(nodes / columns);
  const columnGap = 12;
  if (columns > 1) height -= 6; // room for the line that joins the columns
  const columnWidth = (width - (columns - 1) * columnGap) / columns;
  const gutter = nodes > 1 ? 24 : headed ? 0 : 14;
  const rowGap = clamp(height / rows / 8, 2, 12);
  const head = headed ? 18 : 0;
  const foot = headed ? 9 : 0;
  const room = { x: (columnWidth - gutter) / perNode, y: height / rows - rowGap - head - foot };
  const pad = clamp(Math.min(room.x, room.y) / 6, 1, 8);
  const gap = clamp(Math.min(room.x, room.y) / 8, 1, 6);
  const tile = {
    width: Math.min(TILE.width, (columnWidth - gutter - 2 * pad - (perNode - 1) * gap) / perNode),
    height: Math.min(TILE.height, (height - (rows - 1) * rowGap) / rows - head - foot - 2 * pad),
  };
  const cramped = headed && (tile.height < 24 || tile.width * perNode < 110);
  // tiles stay nearly square
  const [wide, high] = [Math.min(tile.width, 2.2 * tile.height), Math.min(tile.height, 1.4 * tile.width)];
  const worth = Math.max(0, wide) * Math.max(0, high) * Math.min(1, wide / 8, high / 8);
  const score = worth * (headed ? 1.5 : 1) * (cramped ? 0 : 1) * 0.9 ** columns;
  return {
    score,
    rows,
    columns,
    columnGap,
    gutter,
    rowGap,
    head,
    foot,
    pad,
    gap,
    tile,
    headed,
    nodes,
    perNode,
    width,
    height,
  };
}

/** @param {Measures} layout @returns {Layout} */
function place(layout) {
  const { rows, columns, rowGap, columnGap } = layout;
  const { panel, pitch } = sizes(layout);
  const left = Math.max(0, (layout.width - columns * pitch.x + columnGap) / 2);
  const top = Math.max(columns > 1 ? 6 : 0, (layout.height - rows * pitch.y + rowGap) / 2);
  return { ...layout, panel, pitch, left, top, fold: 0 };
}

/** The size of a panel, and the distances of columns and rows of panels. @param {Measures} layout */
export function sizes({ gutter, rowGap, columnGap, head, foot, pad, gap, tile, perNode }) {
  const panel = {
    width: perNode * tile.width + (perNode - 1) * gap + 2 * pad,
    height: head + foot + tile.height + 2 * pad,
  };
  return { panel, pitch: { x: gutter + panel.width + columnGap, y: panel.height + rowGap } };
}

/** Amount of text that fits a tile: "full", "some" or "none"; "folded" if nodes are. @param {Layout} layout */
export function density({ tile, fold }) {
  if (fold) return "folded";
  if (tile.width >= 44 && tile.height >= 36) return "full";
  return tile.width >= 18 && tile.height >= 13 ? "some" : "none";
}

/** The device nearest to a point, and whether the point is on its tile. @param {Layout} layout @param {Point} point */
export function nearestTile(layout, { x, y }) {
  const { rows, columns, nodes, perNode, left, top, gutter, head, pad, gap, tile, panel, pitch } = layout;
  const column = nearestIndex(x - left - gutter - panel.width / 2, pitch.x, columns);
  const row = nearestIndex(y - top - head - pad - tile.height / 2, pitch.y, rows);
  const node = Math.min(column * rows + row, nodes - 1);
  const { x: start } = panelBox(layout, node);
  const device = node * perNode + nearestIndex(x - start - pad - tile.width / 2, tile.width + gap, perNode);
  const box = tileBox(layout, device);
  const dx = Math.max(box.x - x, 0, x - box.x - box.width);
  const dy = Math.max(box.y - y, 0, y - box.y - box.height);
  return { device, inside: dx * dx + dy * dy <= (gap + 2) ** 2 };
}

/** @param {number} at @param {number} pitch @param {number} count */
const nearestIndex = (at, pitch, count) => clamp(Math.round(at / pitch), 0, count - 1);

/** The first nodes of the groups that are at least partly visible; unfolded, each node. @param {Layout} layout */
export function visibleNodes({ fold, rows, columns, nodes, left, top, pitch, width, height }) {
  const step = fold || 1;
  const index = (/** @type {number} */ at, /** @type {number} */ pitch, /** @type {number} */ count) =>
    clamp(Math.floor(at / pitch), 0, count - 1);
  const [r0, r1] = [index(-top, pitch.y, rows), index(height - top, pitch.y, rows)];
  const found = [];
  for (let column = index(-left, pitch.x, columns); column <= index(width - left, pitch.x, columns); column++)
    for (let row = r0 - (r0 % step); row <= r1 && column * rows + row < nodes; row += step)
      found.push(column * rows + row);
  return found;
}

/** The first devices of the tiles that are at least partly visible. @param {Layout} layout */
export function visibleTiles(layout) {
  const { fold, perNode, width, gutter, pad, gap, tile } = layout;
  const nodes = visibleNodes(layout);
  if (fold) return nodes.map((node) => node * perNode);
  return nodes.flatMap((node) => {
    const start = panelBox(layout, node).x + pad;
    const column = (/** @type {number} */ x) => clamp(Math.floor((x - start) / (tile.width + gap)), 0, perNode - 1);
    const [first, last] = [column(0), column(width + gutter)];
    return Array.from({ length: last - first + 1 }, (_, i) => node * perNode + first + i);
  });
}

// ── boxes ───────────────────────────────────────────────────────────────────────────────────

/** @param {Layout} layout @param {number} node @returns {Box} */
export function panelBox({ rows, left, top, gutter, panel, pitch }, node) {
  return { x: left + Math.floor(node / rows) * pitch.x + gutter, y: top + (node % rows) * pitch.y, ...panel };
}

/** @param {Layout} layout @param {number} device @returns {Box} */
export function tileBox(layout, device) {
  const { perNode, head, pad, gap, tile } = layout;
  const { x, y } = panelBox(layout, Math.floor(device / perNode));
  return { x: x + pad + (device % perNode) * (tile.width + gap), y: y + head + pad, ...tile };
}

/**
 * Boxes of a rectangle of devices: one for each column of nodes that it is on.
 * @param {Layout} layout @param {Rectangle} rectangle @returns {Box[]}
 */
export function boxesOf(layout, { n0, n1, c0, c1 }) {
  const { rows, perNode } = layout;
  const boxes = [];
  for (let from = n0; from <= n1; from = (Math.floor(from / rows) + 1) * rows) {
    const to = Math.min(n1, (Math.floor(from / rows) + 1) * rows - 1);
    boxes.push(around([tileBox(layout, from * perNode + c0), tileBox(layout, to * perNode + c1)]));
  }
  return boxes;
}

/** True if a box is at least partly visible. @param {Layout} layout @param {Box} box */
export const isVisible = ({ width, height }, box) =>
  box.x < width && box.y < height && box.x + box.width > 0 && box.y + box.height > 0;

/** @param {Box} box */
export const px = ({ x, y, width, height }) => ({
  left: `${x}px`,
  top: `${y}px`,
  width: `${width}px`,
  height: `${height}px`,
});

/** @param {Box} box @param {number} by */
export const grow = ({ x, y, width, height }, by) => ({
  x: x - by,
  y: y - by,
  width: width + 2 * by,
  height: height + 2 * by,
});

/** The smallest box around a list of boxes. @param {Box[]} boxes */
export function around(boxes) {
  const x = Math.min(...boxes.map((box) => box.x));
  const y = Math.min(...boxes.map((box) => box.y));
  const [right, bottom] = [
    Math.max(...boxes.map((box) => box.x + box.width)),
    Math.max(...boxes.map((box) => box.y + box.height)),
  ];
  return { x, y, width: right - x, height: bottom - y };
}
