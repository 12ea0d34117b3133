// Positions of the nodes and devices of the cluster, in CSS pixels.

/** @import { Box, Point } from "../kit/types" */
/** @import { Layout, Measures } from "./types" */

import { clamp } from "../kit/numbers.js";

const TILE = { width: 112, height: 62 }; // at most

/**
 * The panel of each node and the tile of each device: nodes as rows, wrapped into columns if that makes tiles larger.
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
function measure(width, height, nodes, perNode, columns, headed) {
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
  const { rows, columns, gutter, rowGap, columnGap, head, foot, pad, gap, tile, nodes, perNode } = layout;
  const panel = {
    width: perNode * tile.width + (perNode - 1) * gap + 2 * pad,
    height: head + foot + tile.height + 2 * pad,
  };
  const total = {
    width: columns * (gutter + panel.width) + (columns - 1) * columnGap,
    height: rows * panel.height + (rows - 1) * rowGap,
  };
  const left = Math.max(0, (layout.width - total.width) / 2);
  const top = Math.max(columns > 1 ? 6 : 0, (layout.height - total.height) / 2);
  const panels = Array.from({ length: nodes }, (_, node) => ({
    x: left + Math.floor(node / rows) * (gutter + panel.width + columnGap) + gutter,
    y: top + (node % rows) * (panel.height + rowGap),
    ...panel,
  }));
  const tiles = Array.from({ length: nodes * perNode }, (_, device) => {
    const { x, y } = panels[Math.floor(device / perNode)];
    return { x: x + pad + (device % perNode) * (tile.width + gap), y: y + head + pad, ...tile };
  });
  return { ...layout, panels, tiles };
}

/** Amount of text that fits a tile: "full", "some" or "none". @param {Measures} layout */
export function density({ tile }) {
  if (tile.width >= 44 && tile.height >= 36) return "full";
  return tile.width >= 18 && tile.height >= 13 ? "some" : "none";
}

/** The device nearest to a point, and whether the point is on its tile. @param {Layout} layout @param {Point} point */
export function nearestTile({ tiles, gap }, { x, y }) {
  let best = { device: 0, distance: Infinity };
  tiles.forEach((tile, device) => {
    const dx = Math.max(tile.x - x, 0, x - tile.x - tile.width);
    const dy = Math.max(tile.y - y, 0, y - tile.y - tile.height);
    if (dx * dx + dy * dy < best.distance) best = { device, distance: dx * dx + dy * dy };
  });
  return { ...best, inside: best.distance <= (gap + 2) ** 2 };
}

// ── boxes ───────────────────────────────────────────────────────────────────────────────────

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
