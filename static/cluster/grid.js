// The devices of a cluster as a grid with one row per node, and operations on rectangles of devices.

/** @import { Rectangle } from "./types" */

import { clamp } from "../kit/numbers.js";

export class Grid {
  /** @param {number} nodes @param {number} columns */
  constructor(nodes, columns) {
    this.nodes = nodes;
    this.columns = columns;
  }

  /** @param {Grid} other */
  equals(other) {
    return this.nodes === other.nodes && this.columns === other.columns;
  }

  /** The node and the column of a device. @param {number} device */
  at(device) {
    return [Math.floor(device / this.columns), device % this.columns];
  }

  /** @param {number} node @param {number} column */
  device(node, column) {
    return node * this.columns + column;
  }

  /**
   * The device that is a number of nodes and columns away from a device, limited to the cluster.
   * @param {number} device @param {number} nodes @param {number} columns
   */
  step(device, nodes, columns) {
    const [node, column] = this.at(device);
    return this.device(clamp(node + nodes, 0, this.nodes - 1), clamp(column + columns, 0, this.columns - 1));
  }

  /** The smallest rectangle around devices. @param {number[]} devices @returns {Rectangle} */
  bounds(devices) {
    let [n0, n1, c0, c1] = [Infinity, -1, Infinity, -1];
    for (const device of devices) {
      const [node, column] = this.at(device);
      [n0, n1] = [Math.min(n0, node), Math.max(n1, node)];
      [c0, c1] = [Math.min(c0, column), Math.max(c1, column)];
    }
    return { n0, n1, c0, c1 };
  }

  /** The rectangle that devices form, or null if they do not form a rectangle. @param {number[]} devices */
  rectangle(devices) {
    const box = this.bounds(devices);
    return (box.n1 - box.n0 + 1) * (box.c1 - box.c0 + 1) === devices.length ? box : null;
  }

  /** The devices of a rectangle, row-major. @param {Rectangle} rectangle */
  devicesIn({ n0, n1, c0, c1 }) {
    const devices = [];
    for (let node = n0; node <= n1; node++) {
      for (let column = c0; column <= c1; column++) devices.push(this.device(node, column));
    }
    return devices;
  }

  /** The devices of the rectangle between two devices. @param {number} a @param {number} b */
  devicesBetween(a, b) {
    return this.devicesIn(this.bounds([a, b]));
  }

  /**
   * Devices moved by nodes and columns, limited to the cluster.
   * @param {number[]} devices @param {number} nodes @param {number} columns
   */
  shift(devices, nodes, columns) {
    const { n0, n1, c0, c1 } = this.bounds(devices);
    const by = this.device(clamp(nodes, -n0, this.nodes - 1 - n1), clamp(columns, -c0, this.columns - 1 - c1));
    return devices.map((device) => device + by);
  }

  /**
   * The devices of a rectangle whose edges named by a handle ("n", "se") are moved to a device.
   * @param {Rectangle} rectangle @param {string} handle @param {number} to
   */
  stretch({ n0, n1, c0, c1 }, handle, to) {
    const [node, column] = this.at(to);
    return this.devicesIn({
      n0: handle.includes("n") ? Math.min(node, n1) : n0,
      n1: handle.includes("s") ? Math.max(node, n0) : n1,
      c0: handle.includes("w") ? Math.min(column, c1) : c0,
      c1: handle.includes("e") ? Math.max(column, c0) : c1,
    });
  }

  /**
   * The devices of a rectangle whose last node and column are moved.
   * @param {Rectangle} rectangle @param {number} nodes @param {number} columns
   */
  grow(rectangle, nodes, columns) {
    return this.devicesIn({
      ...rectangle,
      n1: clamp(rectangle.n1 + nodes, rectangle.n0, this.nodes - 1),
      c1: clamp(rectangle.c1 + columns, rectangle.c0, this.columns - 1),
    });
  }
}
