import assert from "node:assert/strict";
import { test } from "node:test";

import { Grid } from "../../static/cluster/grid.js";
import { Groups } from "../../static/cluster/groups.js";
import {
  around,
  boxesOf,
  layOut,
  nearestTile,
  panelBox,
  tileBox,
  visibleNodes,
  visibleTiles,
} from "../../static/cluster/layout.js";
import { Owners } from "../../static/cluster/owners.js";
import { layOutPart } from "../../static/cluster/view.js";

const SIZES = [
  [300, 120],
  [900, 400],
  [1600, 900],
];

test("tiles of a cluster are inside the box and do not overlap", () => {
  for (const [width, height] of SIZES)
    for (const [nodes, perNode] of [
      [1, 8],
      [4, 8],
      [32, 8],
    ]) {
      const layout = layOut(width, height, nodes, perNode);
      const tiles = Array.from({ length: nodes * perNode }, (_, device) => tileBox(layout, device));
      assert.equal(visibleNodes(layout).length, nodes);
      const box = around(tiles);
      assert.ok(box.x >= 0 && box.y >= 0 && box.x + box.width <= width + 1 && box.y + box.height <= height + 1);
      const corners = new Set(tiles.map(({ x, y }) => `${x.toFixed(3)} ${y.toFixed(3)}`));
      assert.equal(corners.size, tiles.length);
    }
});

test("the nearest tile to the middle of a tile is that tile", () => {
  const layout = layOut(900, 400, 4, 8);
  for (let device = 0; device < 32; device++) {
    const { x, y, width, height } = tileBox(layout, device);
    const found = nearestTile(layout, { x: x + width / 2, y: y + height / 2 });
    assert.deepEqual([found.device, found.inside], [device, true]);
  }
  assert.equal(nearestTile(layout, { x: -500, y: -500 }).inside, false);
});

const LARGE = [
  [2048, 8],
  [1024, 16],
  [4096, 4],
  [16, 1024],
  [300, 7],
  [257, 1],
];
const ZOOMS = Array.from({ length: 30 }, (_, i) => 1.3 ** i);

/** Call `check` with layouts of parts of large clusters. */
function forEachPart(check) {
  for (const [width, height] of SIZES)
    for (const [nodes, perNode] of LARGE)
      for (const scale of ZOOMS)
        check(layOutPart(width, height, nodes, perNode, { scale, column: 0.4, row: nodes / 9 }));
}

test("a large cluster draws a bounded number of tiles at every zoom, and unfolds at the largest", () => {
  forEachPart((layout) => {
    const tiles = visibleTiles(layout).length;
    assert.ok(tiles > 0 && tiles < 1500, String(tiles));
    if (layout.fold) assert.equal(layout.rows % layout.fold, 0); // no group continues in the next column
  });
  for (const [nodes, perNode] of LARGE) {
    const whole = layOutPart(900, 400, nodes, perNode, { scale: 1, column: 0, row: 0 });
    const shown = visibleNodes(whole).map((first) => Math.min(whole.fold || 1, nodes - first));
    assert.equal(
      shown.reduce((sum, size) => sum + size, 0),
      nodes,
    );
    const largest = layOutPart(900, 400, nodes, perNode, { scale: whole.mostScale ?? 1, column: 0, row: 0 });
    assert.equal(largest.fold, 0);
  }
});

test("the hit test finds each visible tile of a large cluster at its middle", () => {
  forEachPart((layout) => {
    for (const node of visibleNodes(layout)) {
      const device = node * layout.perNode + (node % layout.perNode);
      const { x, y, width, height } = tileBox(layout, device);
      assert.equal(nearestTile(layout, { x: x + width / 2, y: y + height / 2 }).device, device);
    }
  });
});

test("the boxes of a rectangle cover its nodes in each column of a layout", () => {
  const layout = layOutPart(900, 400, 2048, 8, { scale: 1, column: 0, row: 0 });
  const boxes = boxesOf(layout, { n0: 10, n1: 2 * layout.rows, c0: 0, c1: 7 });
  assert.equal(boxes.length, 3);
  assert.deepEqual(
    boxes.map(({ y }) => y),
    [panelBox(layout, 10).y, panelBox(layout, layout.rows).y, panelBox(layout, 2 * layout.rows).y],
  );
});

/** Groups of 4 nodes of 2 devices, with meshes on nodes. @param {number[][]} meshes first and last node */
function groupsWith(meshes) {
  const grid = new Grid(16, 2);
  const whole = ([n0, n1]) => grid.devicesIn({ n0, n1, c0: 0, c1: 1 });
  const meshList = meshes.map((nodes, rank) => ({ name: "ABC"[rank], devices: whole(nodes) }));
  const owners = new Owners(grid, meshList);
  const groups = new Groups({ grid, owners, meshList, layout: { fold: 4 }, model: { nodes: 16 } });
  const nodesOf = (devices) => {
    const { n0, n1 } = grid.bounds(devices);
    assert.deepEqual(devices, whole([n0, n1])); // always whole nodes
    return [n0, n1];
  };
  return { grid, groups, nodesOf };
}

test("gestures on folded nodes snap to groups and to the meshes in them", () => {
  const { grid, groups, nodesOf } = groupsWith([
    [0, 1],
    [8, 11],
  ]);
  const at = (node) => grid.device(node, 0);
  assert.deepEqual(nodesOf(groups.devicesBetween(at(13), at(13))), [12, 15]);
  assert.deepEqual(nodesOf(groups.devicesBetween(at(6), at(3))), [2, 7]); // beside the mesh on nodes 0 and 1
  assert.deepEqual(nodesOf(groups.devicesBetween(at(9), at(9))), [8, 11]); // used as a whole, so Python refuses it
  assert.deepEqual(nodesOf(groups.devicesBetween(at(9), at(13))), [8, 15]); // begins with a used group
  assert.deepEqual(nodesOf(groups.stretch(grid.bounds([0, 3]), "s", at(5), 0)), [0, 7]);
  assert.deepEqual(nodesOf(groups.stretch({ n0: 8, n1: 11, c0: 0, c1: 1 }, "n", at(2), 1)), [2, 11]);
  assert.deepEqual(nodesOf(groups.stretch({ n0: 8, n1: 11, c0: 0, c1: 1 }, "s", at(8), 1)), [8, 11]);
  assert.deepEqual(nodesOf(groups.shift(1, at(9), at(13))), [12, 15]);
  assert.deepEqual(nodesOf(groups.shift(1, at(11), at(6))), [4, 7]);
  assert.deepEqual(nodesOf(groups.shift(1, at(9), at(3))), [2, 5]); // beside the mesh on nodes 0 and 1
  assert.deepEqual(nodesOf(groups.shift(0, at(1), at(15))), [14, 15]);
});

test("a group tells its nodes and counts what it holds", () => {
  const { groups } = groupsWith([
    [0, 1],
    [2, 2],
  ]);
  assert.equal(groups.describe(0), "Nodes 0 to 3, mesh A: 4, mesh B: 2, 2 unused");
  assert.deepEqual(
    [200, 60, 24].map((width) => groups.text(0, width)),
    ["0–3 · 2 meshes", "0–3", "0"],
  );
  assert.equal(groups.text(8, 200), "4–7 · 8 unused");
});

test("rectangles of devices are recognized, shifted and stretched within the cluster", () => {
  const grid = new Grid(3, 4);
  assert.deepEqual(grid.rectangle([1, 2, 5, 6]), { n0: 0, n1: 1, c0: 1, c1: 2 });
  assert.equal(grid.rectangle([1, 2, 5]), null);
  assert.deepEqual(grid.devicesBetween(6, 1), [1, 2, 5, 6]);
  assert.deepEqual(grid.shift([1, 2, 5, 6], 9, 9), [6, 7, 10, 11]);
  assert.deepEqual(grid.stretch({ n0: 0, n1: 1, c0: 1, c1: 2 }, "se", 11), [1, 2, 3, 5, 6, 7, 9, 10, 11]);
  assert.equal(grid.step(0, -1, -1), 0);
});

test("each node of a cluster is a box if it has room for its text", () => {
  for (const [width, height] of [
    [300, 138],
    [407, 165],
  ]) {
    const layout = layOutPart(width, height, 35, 8, { scale: 1, column: 0, row: 0 });
    assert.equal(layout.fold, 1);
    const boxes = visibleNodes(layout).map((node) => panelBox(layout, node));
    assert.equal(boxes.length, 35);
    for (const box of boxes) {
      assert.ok(box.width >= 33 && box.height >= 26, JSON.stringify(box));
      assert.ok(box.x >= 0 && box.x + box.width <= width && box.y + box.height <= height + 0.01);
    }
  }
});
