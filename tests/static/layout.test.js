import assert from "node:assert/strict";
import { test } from "node:test";

import { arrange as arrangeExperts, headForm } from "../../static/experts/layout.js";
import { Frame } from "../../static/timeline/frame.js";
import { TICKS } from "../../static/timeline/columns.js";
import { busyShares } from "../../static/timeline/collapse.js";
import { laneTest } from "../../static/timeline/lane_filter.js";
import { arrange as arrangeLanes, rowsOf } from "../../static/timeline/layout.js";
import { readLink } from "../../static/timeline/permalink.js";
import { laneAt, placeAt } from "../../static/timeline/place.js";
import { groupKey, laneKey } from "../../static/timeline/sections.js";
import { arcLevels, arcMargin, arcOf, distanceTo } from "../../static/wave/arcs.js";
import { arrange as arrangeWave, moveLayers } from "../../static/wave/layout.js";
import { layer, tick } from "./columns.js";

const WHOLE = { from: 0, to: TICKS, scroll: 0 };
const SIZES = [
  [300, 120],
  [900, 400],
  [1600, 900],
];

test("places of experts fit the board, and chips shrink before they overflow", () => {
  for (const [width, height] of SIZES)
    for (const [nodes, places, fullest] of [
      [1, 4, 2],
      [2, 8, 8],
      [4, 8, 32],
    ]) {
      const found = arrangeExperts(width, height, nodes, places, fullest);
      assert.ok(
        found.columns * found.nodeColumns * found.width <= Math.max(width, 34 * found.columns * found.nodeColumns),
      );
      assert.ok(found.size >= 6 && found.size <= 64);
    }
});

test("the head of a place names its devices only where they are not clipped", () => {
  const places = [{ devices: [12], load: "0.592×" }];
  const form = (width, of = places) => headForm({ headed: true, width, edge: 6 }, of);
  assert.deepEqual(
    [160, 90, 60].map((width) => form(width)),
    ["names", "numbers", "load"],
  );
  assert.equal(form(160, [{ devices: [0, 1], load: "1×" }]), "numbers");
  assert.equal(headForm({ headed: false, width: 160, edge: 6 }, places), "none");
});

const wave = (routes, skips = []) => ({
  meshes: [{ name: "A" }, { name: "B" }],
  routes,
  shares: [0.1, 0.4, 0.4, 0.1],
  skips,
  groups: [],
  equal: false,
});

test("slots of the wave are adjacent, and stages with more layers have wider ones", () => {
  const { slots, edge, y } = arrangeWave(wave([[0, 1, 1, 0]]), [1, 4, 4, 1], 800, 200);
  assert.equal(slots[0].x, edge.left);
  for (let at = 1; at < slots.length; at++)
    assert.ok(Math.abs(slots[at].x - slots[at - 1].x - slots[at - 1].size) < 1e-9);
  assert.ok(Math.abs(slots.at(-1).x + slots.at(-1).size - (800 - edge.right)) < 1e-6);
  assert.ok(slots[1].size > slots[0].size && slots[1].height > slots[0].height);
  assert.ok(y(0) < y(1) && y(1) < 200 - edge.bottom);
});

test("labels of all stages have one form", () => {
  const routes = [[0, 1, 1, 0]];
  const label = (layers, width, height) => arrangeWave(wave(routes), layers, width, height).label;
  assert.equal(label([1, 4, 4, 1], 800, 200), "layers and share");
  assert.equal(label([1, 9, 9, 1], 420, 200), "number");
  assert.equal(label([4, 4, 4, 4], 420, 200), "number and share");
  assert.equal(label([4, 4, 4, 4], 110, 200), "none");
});

test("a pane that is too small for the wave has no box of negative size", () => {
  for (const [width, height] of [
    [0, 0],
    [40, 20],
    [90, 300],
  ])
    for (const { width: box, height: tall } of arrangeWave(wave([[0, 1, 1, 0]]), [1, 4, 4, 1], width, height).slots)
      assert.ok(box >= 0 && tall >= 0, `${box} x ${tall}`);
});

test("the number of layers stays the same when a boundary moves", () => {
  assert.deepEqual(moveLayers([4, 4, 4], 0, 2), [2, 6, 4]);
  assert.deepEqual(moveLayers([4, 4, 4], 1, -3), [4, 7, 1]);
});

test("inner arcs are lower, and points of an arc have no distance from it", () => {
  const skips = [
    { from: 0, to: 3, replica: 0 },
    { from: 1, to: 2, replica: 0 },
  ];
  const routes = [[0, 1, 1, 0]];
  const [outer, inner] = arcLevels(skips, routes);
  assert.deepEqual([outer.lane, inner.lane], [0, 1]);
  assert.ok(arcMargin(skips, routes).margin > 0);
  assert.deepEqual(arcMargin([], routes), { margin: 0, step: 0 });
  const layout = arrangeWave(wave(routes, skips), [1, 4, 4, 1], 800, 200);
  const arc = arcOf(layout, skips[0], outer, routes);
  for (const at of [arc.a, arc.b, arc.crown]) assert.ok(distanceTo(arc, at) < 1e-3);
  assert.ok(distanceTo(arc, { x: arc.crown.x, y: arc.crown.y + 40 }) > 5);
  assert.equal(distanceTo(arc, { x: -100, y: 0 }), Infinity);
});

/** The parts of a chart that geometry needs. */
function chart(layers, { filter = "", collapsed = [], view = WHOLE, ...others } = {}) {
  const rows = rowsOf({ layers }, false, false);
  const usual = { held: [], linked: null, kept: new Set(), grouping: "", width: 1000, height: 300 };
  const contents = { ...usual, rows, isShown: laneTest(filter), ...others };
  const plan = arrangeLanes({ ...contents, collapsed: new Set(collapsed), view });
  return { plan, frame: new Frame(view, plan.size, 1, null), arrows: [] };
}

test("the gutter has room for long names beside the words of an overlaid run, except on narrow screens", () => {
  const gutter = (meshes, width, words = 0) => chart([layer({ meshes })], { width, words }).plan.gutter;
  assert.equal(gutter(["A", "B"], 960), 100);
  assert.equal(gutter(["encoder", "head"], 960), 150);
  assert.equal(gutter(["encoder", "head"], 390), 60);
  assert.equal(gutter(["A", "B"], 960, 52), 100, "measured");
  assert.equal(gutter(["A", "B"], 960, 66), 150, "vorhergesagt");
});

test("lanes are below one another and inside the canvas", () => {
  for (const height of [60, 300, 900]) {
    const { plan } = chart([layer()], { height });
    const [first, second] = plan.lanes;
    assert.ok(first.y + first.height <= second.y && second.y + second.height <= height);
    assert.equal(plan.laneOf(first.layer, 1), second);
  }
});

test("few lanes grow into free room, up to a limit, and then memory does", () => {
  const lanes = layer();
  const pitch = (/** @type {number} */ height) => chart([lanes], { height, held: [lanes] }).plan.pitch;
  assert.ok(pitch(200) <= 48 && pitch(300) > 48 && pitch(300) < 96);
  assert.equal(pitch(900), 96);
  const { strips } = chart([lanes], { height: 900, held: [lanes] }).plan;
  assert.ok(strips.length > 2 && strips[1].height > 60);
});

test("a lane kept on top is above the lanes that scroll", () => {
  const found = layer();
  const { plan } = chart([found], { kept: new Set([laneKey(found, 1)]) });
  const [top, scrolled] = [plan.laneOf(found, 1), plan.laneOf(found, 0)];
  assert.ok(top.kept && top.y + top.height <= plan.split && scrolled.y >= plan.split);
});

test("a filter names lanes by a part of the name, mesh, rank or stage", () => {
  const found = layer({ meshes: ["A", "BA"] }); // a stage each
  const ranks = (/** @type {string} */ text) => [0, 1].filter((rank) => laneTest(text)(found, rank));
  assert.deepEqual([ranks(""), ranks("a"), ranks("mesh a"), ranks("b")], [[0, 1], [0, 1], [0], [1]]);
  assert.deepEqual([ranks("rank 1"), ranks("ranks 1-7"), ranks("rank 2")], [[1], [1], []]);
  assert.deepEqual([ranks("stage 0"), ranks("stages 1-2"), ranks("stage 1, rank 0")], [[0], [1], [0, 1]]);
});

test("a lane that the filter hides has no height, and no memory strip; a pinned lane stays", () => {
  const found = layer();
  const { plan, frame } = chart([found], { filter: "mesh b", held: [found] });
  assert.deepEqual([plan.lanes.map(({ rank }) => rank), plan.strips.map(({ rank }) => rank)], [[1], [-1, 1]]);
  const hidden = plan.laneOf(found, 0);
  assert.ok(hidden.height === 0 && !frame.isLaneVisible(hidden) && !frame.isLaneClear(hidden));
  const { lanes } = chart([found], { filter: "mesh b", kept: new Set([laneKey(found, 0)]) }).plan;
  assert.deepEqual(
    lanes.map(({ rank, kept = false }) => [rank, kept]),
    [
      [0, true],
      [1, false],
    ],
  );
});

test("a collapsed row is thin and has no lanes but the pinned ones, and other rows get its room", () => {
  const [first, second] = [layer(), Object.assign(layer(), { number: 1 })];
  const open = chart([first, second]).plan;
  const { plan } = chart([first, second], { collapsed: ["0"], kept: new Set([laneKey(first, 1)]) });
  assert.deepEqual(
    plan.lanes.map(({ layer: { number }, rank }) => [number, rank]),
    [
      [0, 1],
      [1, 0],
      [1, 1],
    ],
  );
  assert.equal(plan.laneOf(first, 0).height, 0);
  assert.ok(plan.titles[0].height < open.titles[0].height / 2 && plan.titles[1].height > open.titles[1].height / 2);
  assert.equal(chart([first], { collapsed: ["0"] }).plan.lanes.length, 0);
});

const byNode = { groups: { node: { names: ["node 0", "node 1"], of: [1, 0] } } };

test("groups have a title each, in the order of their names, and a collapsed group is a thin row", () => {
  const found = layer(byNode);
  const open = chart([found], { grouping: "node" }).plan;
  assert.deepEqual(
    open.titles.map(({ name, ranks }) => [name, ranks]),
    [
      [undefined, []],
      ["node 0", [1]],
      ["node 1", [0]],
    ],
  );
  assert.ok(open.laneOf(found, 1).y < open.laneOf(found, 0).y);
  const key = groupKey([found], "node", 0);
  const { plan } = chart([found], { grouping: "node", collapsed: [key] });
  assert.deepEqual([plan.laneOf(found, 0).height, plan.titles[2].height], [0, 18]);
  assert.deepEqual(plan.titles[2].members, [0]);
  assert.equal(chart([found], { grouping: "node", collapsed: ["0"] }).plan.titles.length, 1);
  assert.equal(chart([found], { grouping: "other" }).plan.titles.length, 1);
});

test("the filter leaves out groups without lanes, and pinned lanes count in their group", () => {
  const found = layer(byNode);
  const names = (options) => chart([found], { grouping: "node", ...options }).plan.titles.map(({ name }) => name);
  assert.deepEqual(names({ filter: "mesh b" }), [undefined, "node 0"]);
  const kept = new Set([laneKey(found, 0)]);
  assert.deepEqual(names({ filter: "mesh b", kept }), [undefined, "node 0", "node 1"]);
});

test("the summary of a collapsed row is the share of ranks that compute", () => {
  const shares = busyShares(layer(), [0, 1], WHOLE, new Float32Array(10));
  assert.deepEqual(
    [...shares].map((share) => Number(share.toFixed(3))),
    [0.5, 1, 0.5, 0.5, 1, 1, 0.5, 0.5, 0.5, 0],
  );
});

test("a measured timeline shares the row of the one before, unless that is alone", () => {
  const [below, over] = [layer(), Object.assign(layer(), { over: true })];
  assert.deepEqual(rowsOf({ layers: [below, over] }, false, false), [[below, over]]);
  assert.deepEqual(rowsOf({ layers: [below, over] }, true, true), [[below]]);
  assert.deepEqual(rowsOf({ layers: [below, over] }, false, true), [[below], [over]]);
});

test("a point hits a block, idle time, or the name of a lane", () => {
  const found = layer();
  const drawn = chart([found]);
  const lane = drawn.plan.laneOf(found, 0);
  const at = (seconds) => placeAt(drawn, { x: drawn.frame.x(tick(seconds)), y: lane.y + lane.height / 2 });
  assert.equal(at(0.5).span, 0);
  assert.equal(at(5).span, 2);
  assert.deepEqual([at(3).span, at(3).rank], [-1, 0]);
  assert.equal(placeAt(drawn, { x: drawn.frame.left - 5, y: lane.y + 1 }), null);
  assert.equal(laneAt(drawn, { x: 5, y: lane.y + 1 }), lane);
});

test("invalid values of a link are left out", () => {
  const read = readLink(
    "#timeline?window=1~2&pin=0~1~B~3~4&marks=5~x~1&lanes=0:1~evil&show=memory&scroll=0.5&collapsed=0~1:node 2~x",
  );
  assert.deepEqual(read.window, [1, 2]);
  assert.deepEqual(read.pin, { layer: 0, rank: 1, op: 1, stage: 3, mb: 4 });
  assert.deepEqual([read.marks, read.lanes, read.show, read.scroll], [[1, 5], ["0:1"], ["memory"], 0.5]);
  assert.deepEqual(read.collapsed, ["0", "1:node 2"]);
  assert.equal(readLink("#timeline?pin=0~0~X~0~0&window=1").pin, null);
  assert.equal(readLink("#other"), null);
});

test("memory strips and link lanes of a collapsed group are one summary, which a group's lanes share", () => {
  const found = layer({ groups: { node: { names: ["node 0", "node 1"], of: [0, 1] } } });
  const port = (/** @type {string} */ label, share) => ({
    name: label,
    label,
    share,
    busy_s: share,
    bytes: 8,
    rows: 1,
  });
  found.links = {
    lanes: [port("NIC 0 out", 0.2), port("NIC 0 in", 0.4), port("NIC 1 in", 1)],
    words: "",
    groups: { node: [0, 0, 1] },
  };
  const at = (/** @type {Record<string, any>} */ options) =>
    chart([found], { held: [found], linked: found, height: 600, grouping: "node", ...options }).plan;
  const names = (/** @type {ReturnType<typeof at>} */ { strips, links }) => [
    strips.map(({ ranks, name }) => [ranks.join(), name]),
    links.lanes.map(({ port: { label, share } }) => [label, share]),
  ];

  assert.deepEqual(names(at({ collapsed: ["0:node 0"] })), [
    [
      ["", ""],
      ["0", "node 0"],
      ["1", found.meshes[1]],
    ],
    [
      ["node 0", 0.30000000000000004],
      ["NIC 1 in", 1],
    ],
  ]);
  const { strips, links } = at({ collapsed: ["0:memory", "0:links"] });
  assert.deepEqual(
    [strips.map(({ ranks }) => ranks.join()), links.lanes.map(({ port: { label } }) => label)],
    [["", "0,1"], ["3 ports"]],
  );
  const below = strips[1].y + strips[1].height;
  assert.ok(links.lanes[0].y + links.lanes[0].height <= strips[0].y && below <= 600 && strips[1].height === 18);
});
