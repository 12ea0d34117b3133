// The meshes of the devices: a column of ranks by device, and the rectangles that each mesh covers.

/** @import { Mesh, Rectangle } from "./types" */
/** @import { Grid } from "./grid.js" */

export class Owners {
  used = 0;
  /** @type {Rectangle[][]} */ #covers = [];
  /** @type {Rectangle[]} */ #bounds = [];

  /** @param {Grid} grid @param {Mesh[]} meshes */
  constructor(grid, meshes) {
    this.grid = grid;
    this.meshes = meshes;
    this.ranks = new Int32Array(grid.nodes * grid.columns).fill(-1);
    meshes.forEach(({ devices }, rank) => devices.forEach((device) => (this.ranks[device] = rank)));
    for (const rank of this.ranks) if (rank >= 0) this.used++;
    this.firsts = meshes.map(({ devices }) => devices.reduce((least, device) => Math.min(least, device), Infinity));
  }

  /** The rank of the mesh that holds a device, -1 for none. @param {number} device */
  rank(device) {
    return this.ranks[device] ?? -1;
  }

  /**
   * The number of devices by rank in a range of devices, with those of no mesh at -1.
   * @param {number} first @param {number} end
   */
  counts(first, end) {
    /** @type {Map<number, number>} */
    const counts = new Map();
    for (const rank of this.ranks.subarray(first, end)) counts.set(rank, (counts.get(rank) ?? 0) + 1);
    return counts;
  }

  /** The smallest rectangle around a mesh. @param {number} rank */
  bounds(rank) {
    this.#bounds[rank] ??= this.grid.bounds(this.meshes[rank].devices);
    return this.#bounds[rank];
  }

  /** @param {number} rank */
  isRectangle(rank) {
    return this.grid.rectangle(this.meshes[rank].devices) !== null;
  }

  /**
   * Rectangles that cover the devices of a mesh: one, or one for each run of devices on a node if they form none.
   * @param {number} rank
   */
  cover(rank) {
    this.#covers[rank] ??= cover(this.grid, this.meshes[rank].devices);
    return this.#covers[rank];
  }
}

/** @param {Grid} grid @param {number[]} devices @returns {Rectangle[]} */
export function cover(grid, devices) {
  const rectangle = grid.rectangle(devices);
  if (rectangle) return [rectangle];
  /** @type {Rectangle[]} */
  const runs = [];
  for (const device of [...devices].sort((a, b) => a - b)) {
    const [node, column] = grid.at(device);
    const last = runs.at(-1);
    if (last && last.n0 === node && last.c1 === column - 1) last.c1 = column;
    else runs.push({ n0: node, n1: node, c0: column, c1: column });
  }
  return runs;
}
