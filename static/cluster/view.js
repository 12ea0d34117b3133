// The view of a cluster that is too large to draw each device: zoom, pan, and the groups into which nodes fold.

/** @import { Point } from "../kit/types" */
/** @import { Layout, Measures } from "./types" */

import { clamp } from "../kit/numbers.js";
import { measure, panelBox, sizes, tileBox } from "./layout.js";

const WHOLE_DEVICES = 256; // a cluster of more devices is zoomed and folded
const UNFOLDED_TILES = 800; // nodes unfold if at most so many tiles fill the board
const LEAST_TILE = { width: 9, height: 11 };
const GROUP = { width: 44, height: 26 }; // smallest box of a group of nodes, which has room for its text
const BOX = { width: 36, height: 26 }; // smallest box of a single node, which has room for the label of its mesh
const NODE_ASPECT = 64; // width of a node by its height, in the view of the whole cluster
const HEADED_PX = 75; // smallest height of a node that shows its name and links
const MOST = { width: 118, height: 117 }; // largest tile with its gap, and node with its head

/** @param {number} nodes @param {number} perNode */
export const isLarge = (nodes, perNode) => nodes * perNode > WHOLE_DEVICES;

/** The part of a large cluster that is shown: a scale, 1 for the whole, and the column and row at the top left. */
export class View {
  scale = 1;
  column = 0;
  row = 0;

  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
  }

  get layout() {
    const { board, model } = this.cluster;
    return layOutPart(board.clientWidth, board.clientHeight, model.nodes, model.devices_per_node, this);
  }

  /** Zoom and keep the node at a point in place. @param {number} factor @param {Point} point */
  zoom(factor, { x, y }) {
    const { left, top, pitch, mostScale = 1 } = this.cluster.layout;
    const at = { column: (x - left) / pitch.x, row: (y - top) / pitch.y };
    this.scale = clamp(this.scale * factor, 1, mostScale);
    const after = this.layout.pitch;
    this.show(at.column - x / after.x, at.row - y / after.y);
  }

  /** Zoom around the tile with the focus, and bring it into view. @param {number} factor */
  zoomToFocus(factor) {
    const { cluster } = this;
    const { x, y, height } = panelBox(cluster.layout, cluster.grid.at(cluster.focus)[0]);
    this.zoom(factor, { x: x + cluster.layout.panel.width / 2, y: y + height / 2 });
    this.reveal(cluster.focus);
  }

  /** @param {number} dx @param {number} dy in CSS pixels */
  pan(dx, dy) {
    const { left, top, pitch } = this.cluster.layout;
    this.show((dx - left) / pitch.x, (dy - top) / pitch.y);
  }

  /** Zoom in at a point until the devices of nodes are shown. @param {Point} point */
  unfold(point) {
    const { mostScale = 1 } = this.cluster.layout;
    while (this.cluster.layout.fold && this.scale < mostScale) this.zoom(1.2, point);
  }

  /** Show the whole cluster. */
  fit() {
    this.scale = 1;
    this.show(0, 0);
  }

  /** Pan by the smallest amount that brings a device into view, or its group. @param {number} device */
  reveal(device) {
    const { grid, groups, layout } = this.cluster;
    const [node] = grid.at(device);
    const [first, last] = layout.fold ? groups.range(node) : [node, node];
    const box = layout.fold ? panelBox(layout, first) : tileBox(layout, device);
    const end = panelBox(layout, last);
    const along = (/** @type {number} */ start, /** @type {number} */ stop, /** @type {number} */ size) =>
      Math.min(0, start) || Math.max(0, Math.min(stop - size, start));
    const dx = along(box.x - layout.gutter, box.x + box.width + 4, layout.width);
    const dy = along(panelBox(layout, first).y - 4, end.y + end.height + 4, layout.height);
    if (dx || dy) this.pan(dx, dy);
  }

  /** @param {number} column @param {number} row */
  show(column, row) {
    Object.assign(this, { column, row });
    this.cluster.layout = this.layout;
    this.cluster.redraw();
  }
}

/**
 * The layout of a part of a large cluster. Nodes fold into groups if their devices would be too small or too many.
 * @param {number} width @param {number} height @param {number} nodes @param {number} perNode
 * @param {{scale: number, column: number, row: number}} view @returns {Layout}
 */
export function layOutPart(width, height, nodes, perNode, { scale, column, row }) {
  const { rows, columns } = wrap(width, height, nodes);
  const fit = { x: width / columns, y: height / rows };
  const wide = Math.max(Math.min(width, perNode * MOST.width + 44), perNode * 28 + 44);
  const most = { x: Math.max(fit.x, wide), y: Math.max(fit.y, MOST.height) };
  const cell = { x: Math.min(fit.x * scale, most.x), y: Math.min(fit.y * scale, most.y) };
  const measures = {
    ...(unfold(width, height, perNode, rows, columns, cell) ?? fold(perNode, rows, columns, cell)),
    ...{ nodes, width, height },
  };
  const { panel, pitch } = sizes(measures);
  const start = (/** @type {number} */ at, /** @type {number} */ step, count = 0, size = 0) =>
    count * step <= size ? (size - count * step) / 2 : clamp(-at * step, size - count * step, 0);
  return {
    ...measures,
    panel,
    pitch,
    left: start(column, pitch.x, columns, width),
    top: start(row, pitch.y, rows, height),
    mostScale: Math.max(most.x / fit.x, most.y / fit.y),
  };
}

/**
 * The numbers of rows and columns of nodes: a grid of boxes if each node has room for its text, otherwise those at
 * which a node is closest to its aspect. Several columns have a power of two of rows, so that groups of nodes do not
 * continue in the next column.
 * @param {number} width @param {number} height @param {number} nodes
 */
function wrap(width, height, nodes) {
  const grid = wrapBoxes(width, height, nodes);
  if (grid) return grid;
  let best = { rows: nodes, columns: 1, error: Math.abs(Math.log((width * nodes) / height / NODE_ASPECT)) };
  for (let rows = 1; rows < nodes; rows *= 2) {
    const columns = Math.ceil(nodes / rows);
    const error = Math.abs(Math.log((width * rows) / columns / height / NODE_ASPECT));
    if (width / columns >= GROUP.width && error < best.error) best = { rows, columns, error };
  }
  return best;
}

/**
 * The grid in which a box of a node is closest to twice as wide as high, if there is one.
 * @param {number} width @param {number} height @param {number} nodes
 */
function wrapBoxes(width, height, nodes) {
  const fits = Array.from({ length: nodes }, (_, i) => ({ columns: i + 1, rows: Math.ceil(nodes / (i + 1)) })).filter(
    ({ columns, rows }) => width / columns >= BOX.width && height / rows >= BOX.height,
  );
  const error = (/** @type {{columns: number, rows: number}} */ { columns, rows }) =>
    Math.abs(Math.log((width * rows) / columns / height / 2));
  return fits.reduce((best, each) => (best && error(best) <= error(each) ? best : each), fits[0]);
}

/**
 * @param {number} width @param {number} height @param {number} perNode @param {number} rows @param {number} columns
 * @param {Point} cell the size of a node with the gaps around it
 */
function unfold(width, height, perNode, rows, columns, cell) {
  const [totalWidth, totalHeight] = [columns * cell.x - 12, rows * cell.y + (columns > 1 ? 6 : 0)];
  const measures = measure(totalWidth, totalHeight, rows * columns, perNode, columns, cell.y >= HEADED_PX);
  const { tile } = measures;
  const tiles = (width * perNode * height) / cell.x / cell.y;
  const isLegible = tile.width >= LEAST_TILE.width && tile.height >= LEAST_TILE.height;
  return isLegible && tiles <= UNFOLDED_TILES ? { ...measures, fold: 0 } : null;
}

/**
 * @param {number} perNode @param {number} rows @param {number} columns @param {Point} cell
 * @returns {Measures & {fold: number}}
 */
function fold(perNode, rows, columns, cell) {
  const sizes = Array.from({ length: rows }, (_, i) => i + 1).filter((size) => rows % size === 0);
  const tile = { width: (cell.x - 3) / perNode, height: cell.y };
  return {
    ...{ score: 0, rows, columns, columnGap: 3, gutter: 0, rowGap: 0, head: 0, foot: 0, pad: 0, gap: 0, tile },
    ...{ headed: false, nodes: rows * columns, perNode, width: 0, height: 0 },
    fold: sizes.find((size) => size * cell.y >= GROUP.height) ?? rows,
  };
}
