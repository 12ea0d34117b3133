// The devices of a cluster as the places of a grid, a row a node; and rectangles of them.

import { clamp } from "../kit/numbers.js";

/** @typedef {{n0: number, n1: number, c0: number, c1: number}} Box first and last node and column */

export class Grid {
  /**
   * @param {number} nodes
   * @param {number} columns
   */
  constructor(nodes, columns) {
    this.nodes = nodes;
    this.columns = columns;
  }

  /**
   * The node and the column of a device.
   * @param {number} device
   */
  at(device) {
    return [Math.floor(device / this.columns), device % this.columns];
  }

  /**
   * @param {number} node
   * @param {number} column
   */
  device(node, column) {
    return node * this.columns + column;
  }

  /**
   * The device so many nodes and columns on, or at the edge.
   * @param {number} device
   * @param {number} nodes
   * @param {number} columns
   */
  step(device, nodes, columns) {
    const [node, column] = this.at(device);
    return this.device(clamp(node + nodes, 0, this.nodes - 1), clamp(column + columns, 0, this.columns - 1));
  }

  /**
   * The first and last node and column of devices.
   * @param {number[]} devices
   */
  bounds(devices) {
    const [nodes, columns] = [0, 1].map((axis) => devices.map((device) => this.at(device)[axis]));
    return { n0: Math.min(...nodes), n1: Math.max(...nodes), c0: Math.min(...columns), c1: Math.max(...columns) };
  }

  /**
   * The same, or null where the devices are no rectangle.
   * @param {number[]} devices
   */
  rectangle(devices) {
    const box = this.bounds(devices);
    return (box.n1 - box.n0 + 1) * (box.c1 - box.c0 + 1) === devices.length ? box : null;
  }

  /**
   * Row-major devices of a rectangle.
   * @param {Box} box
   */
  inside({ n0, n1, c0, c1 }) {
    const devices = [];
    for (let node = n0; node <= n1; node++) {
      for (let column = c0; column <= c1; column++) devices.push(this.device(node, column));
    }
    return devices;
  }

  /**
   * Those of the rectangle between two devices.
   * @param {number} a
   * @param {number} b
   */
  between(a, b) {
    return this.inside(this.bounds([a, b]));
  }

  /**
   * Devices moved by nodes and columns, but never out of the cluster.
   * @param {number[]} devices
   * @param {number} nodes
   * @param {number} columns
   */
  shifted(devices, nodes, columns) {
    const { n0, n1, c0, c1 } = this.bounds(devices);
    const by = this.device(clamp(nodes, -n0, this.nodes - 1 - n1), clamp(columns, -c0, this.columns - 1 - c1));
    return devices.map((device) => device + by);
  }

  /**
   * A rectangle with those edges at a device that a handle such as "n" or "se" holds.
   * @param {Box} box
   * @param {string} handle
   * @param {number} to
   */
  stretched({ n0, n1, c0, c1 }, handle, to) {
    const [node, column] = this.at(to);
    return this.inside({
      n0: handle.includes("n") ? Math.min(node, n1) : n0,
      n1: handle.includes("s") ? Math.max(node, n0) : n1,
      c0: handle.includes("w") ? Math.min(column, c1) : c0,
      c1: handle.includes("e") ? Math.max(column, c0) : c1,
    });
  }

  /**
   * A rectangle with its last node and column moved.
   * @param {Box} box
   * @param {number} nodes
   * @param {number} columns
   */
  grown(box, nodes, columns) {
    return this.inside({
      ...box,
      n1: clamp(box.n1 + nodes, box.n0, this.nodes - 1),
      c1: clamp(box.c1 + columns, box.c0, this.columns - 1),
    });
  }
}
