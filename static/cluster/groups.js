// Groups of nodes, into which the nodes of a large cluster fold: how gestures snap to them, and their texts.

/** @import { Rectangle } from "./types" */

import { count } from "../kit/numbers.js";

const CHARACTER_PX = 5.6;
const TOLD_MESHES = 4; // meshes that the description of a group names

export class Groups {
  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
  }

  get size() {
    return this.cluster.layout.fold;
  }

  /** What the tiles are: devices, nodes or groups of nodes. */
  get level() {
    if (this.size > 1) return `groups of ${this.size} nodes`;
    return this.size ? "nodes" : "devices";
  }

  /** The first and the last node of the group of a node. @param {number} node */
  range(node) {
    const first = node - (node % this.size);
    return [first, Math.min(first + this.size, this.cluster.model.nodes) - 1];
  }

  /** The ranks of the meshes of a group in the order of its devices. @param {number} device */
  ranks(device) {
    return [...this.counts(device).keys()].filter((rank) => rank >= 0);
  }

  /** The number of devices by rank of a group, with those of no mesh at -1. @param {number} device */
  counts(device) {
    const { grid, owners } = this.cluster;
    const [n0, n1] = this.range(grid.at(device)[0]);
    return owners.counts(grid.device(n0, 0), grid.device(n1 + 1, 0));
  }

  // ── gestures: a mesh begins and ends with a group, or beside another mesh in it ──

  /**
   * The devices of the groups between two devices, without used nodes at both ends.
   * @param {number} a @param {number} b
   */
  devicesBetween(a, b) {
    const { grid } = this.cluster;
    const nodes = [a, b].map((device) => grid.at(device)[0]);
    const [first, end] = this.range(Math.min(...nodes));
    const [start, last] = this.range(Math.max(...nodes));
    let [n0, n1] = [first, last];
    while (n0 <= end && this.isUsed(n0)) n0++;
    while (n1 >= start && this.isUsed(n1)) n1--;
    const free = n0 > end || n1 < start ? { n0: first, n1: last } : { n0, n1 };
    return grid.devicesIn({ ...free, c0: 0, c1: grid.columns - 1 });
  }

  /**
   * The devices of a rectangle whose first or last node is moved to the end of a group.
   * @param {Rectangle} rectangle @param {string} handle @param {number} to @param {number} rank
   */
  stretch(rectangle, handle, to, rank) {
    const { grid } = this.cluster;
    const [first, last] = this.range(grid.at(to)[0]);
    let { n0, n1 } = rectangle;
    if (handle.includes("n")) {
      for (n0 = Math.min(first, n1); n0 < Math.min(rectangle.n0, last + 1) && this.isUsed(n0, rank);) n0++;
    } else {
      for (n1 = Math.max(last, n0); n1 > Math.max(rectangle.n1, first - 1) && this.isUsed(n1, rank);) n1--;
    }
    return grid.devicesIn({ ...rectangle, n0, n1 });
  }

  /**
   * The devices of a mesh moved by the nodes between two devices, to the nearest place at which it begins as before in
   * a group, begins or ends with a group, or is beside another mesh.
   * @param {number} rank @param {number} from @param {number} to
   */
  shift(rank, from, to) {
    const { grid, meshList, owners } = this.cluster;
    const { n0, n1 } = owners.bounds(rank);
    const wanted = n0 + grid.at(to)[0] - grid.at(from)[0];
    const [begin] = this.range(Math.max(0, wanted));
    const places = [begin, begin + this.size].flatMap((start) => [start, start + (n0 % this.size) - this.size]);
    places.push(begin + this.size + (n0 % this.size), begin + this.size - (n1 - n0) - 1);
    for (let other = 0; other < meshList.length; other++) {
      const { n0: start, n1: end } = owners.bounds(other);
      if (other !== rank) places.push(end + 1, start - (n1 - n0) - 1);
    }
    const nearest = places.reduce((best, place) => (Math.abs(place - wanted) < Math.abs(best - wanted) ? place : best));
    return grid.shift(meshList[rank].devices, nearest - n0, 0);
  }

  /** True if another mesh than one of a rank has devices on a node. @param {number} node @param {number} [rank] */
  isUsed(node, rank = -1) {
    const { grid, owners } = this.cluster;
    const held = owners.ranks.subarray(grid.device(node, 0), grid.device(node + 1, 0));
    return held.some((other) => other >= 0 && other !== rank);
  }

  // ── texts ──

  /**
   * The nodes of a group and a count of what it holds, as far as there is room.
   * @param {number} device @param {number} width
   */
  text(device, width) {
    const [n0, n1] = this.range(this.cluster.grid.at(device)[0]);
    const counts = this.counts(device);
    const unused = counts.get(-1) ?? 0;
    const meshes = counts.size - (unused ? 1 : 0);
    const nodes = n0 === n1 ? String(n0) : `${n0}–${n1}`;
    const whole = meshes > 1 ? count(meshes, "mesh", "meshes") : count(counts.values().next().value ?? 0, "device");
    const held = meshes < 2 && unused ? `${unused} unused` : whole;
    const room = (width - 8) / CHARACTER_PX;
    const text = `${nodes} · ${held}`;
    return [text, nodes].find(({ length }) => length <= room) ?? String(n0);
  }

  /** @param {number} device */
  describe(device) {
    const { grid, meshList } = this.cluster;
    const [n0, n1] = this.range(grid.at(device)[0]);
    const counts = [...this.counts(device)];
    const used = counts.filter(([rank]) => rank >= 0);
    const unused = counts.filter(([rank]) => rank < 0).map(([, devices]) => `${devices} unused`);
    const named = used.slice(0, TOLD_MESHES).map(([rank, devices]) => `mesh ${meshList[rank].name}: ${devices}`);
    const more = used.length > TOLD_MESHES ? [count(used.length - TOLD_MESHES, "more mesh", "more meshes")] : [];
    const nodes = n0 === n1 ? `Node ${n0}` : `Nodes ${n0} to ${n1}`;
    return `${nodes}, ${[...named, ...more, ...unused].join(", ")}`;
  }
}
