import assert from "node:assert/strict";
import { test } from "node:test";

import { OP, lowerBound } from "../../static/timeline/columns.js";
import { decode } from "../../static/timeline/data.js";
import { areaCsv } from "../../static/timeline/csv.js";
import { durationStatistics, matchingSpans, sortSpans } from "../../static/timeline/query.js";
import { SPANS, layer, tick } from "./columns.js";

const names = ["F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "REDUCE_GRAD", "STEP"];
const notations = (found, spans) => spans.map((span) => found.notation(span, names));

test("an empty message has no timelines", () => {
  assert.deepEqual(decode(new ArrayBuffer(0)).layers, []);
  assert.deepEqual(decode(undefined).layers, []);
});

test("columns are decoded with their types, and each span belongs to the mesh that runs it", () => {
  const found = layer();
  assert.deepEqual(
    [...found.op],
    SPANS.map(({ op }) => op),
  );
  assert.deepEqual(
    SPANS.map((_, span) => found.rankOf(span)),
    [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1],
  );
  assert.deepEqual([found.blocks, found.sides, found.count], [8, 8, 12]);
  assert.ok(Math.abs(found.duration(2) - 2) < 1e-6);
});

test("an area is written as CSV, with times in seconds and texts quoted where they need it", () => {
  const found = layer({ meshes: ['A, "left"', "B"] });
  const palette = { names, words: { F: "forward" } };
  const lines = areaCsv({ layer: found, from: tick(0.5), to: tick(1.5), ranks: [0] }, palette).split("\r\n");

  assert.equal(lines[0], "mesh,action,kind,stage,microbatch,to,start [s],end [s],duration [s]");
  assert.equal(lines.length, 5); // two forwards, a transfer of no length, and the end of the file
  const [mesh, rest] = lines[1].split('",');
  assert.equal(mesh, '"A, ""left""');
  assert.equal(rest, "0F0,forward,0,0,,0,1,1"); // not 0.999999999, although times are rounded to ticks
});

test("the CSV of an area names cost units, and no spreadsheet reads the name of a mesh as a formula", () => {
  const found = layer({ unit: "units", meshes: ["=1+2", "-2"] });
  const [head, ...lines] = areaCsv({ layer: found, from: 0, to: tick(9), ranks: [0, 1] }, { names, words: {} }).split(
    "\r\n",
  );

  assert.ok(head.endsWith("start [units],end [units],duration [units]"));
  assert.deepEqual(new Set(lines.map((line) => line.split(",")[0])), new Set(["'=1+2", "-2", ""]));
  for (const name of ["+1+1", "-1+1", "@SUM(1)", "\tA"])
    assert.match(
      areaCsv({ layer: layer({ meshes: [name, "B"] }), from: 0, to: tick(9), ranks: [0] }, { names, words: {} }),
      /\n'[-+@\t]/,
    );
});

test("the CSV of an area has the transfers from and to its meshes, as its metrics count them", () => {
  const lines = areaCsv({ layer: layer(), from: tick(0.5), to: tick(9), ranks: [1] }, { names, words: {} }).split(
    "\r\n",
  );
  const transfers = lines.filter((line) => line.includes("SEND")).map((line) => line.split(",").slice(0, 6));

  assert.deepEqual(
    transfers.map(([mesh, action, , , , to]) => [mesh, action, to]),
    [
      ["A", "0SEND_F0", "B"],
      ["A", "0SEND_F1", "B"],
      ["B", "1SEND_B0", "A"],
      ["B", "1SEND_B1", "A"],
    ],
  );
});

test("the transfers under way at a time are found", () => {
  const ends = SPANS.map(({ end, op }) => tick(op === OP.SEND_F ? end + 0.5 : end));
  const found = layer({ columns: { end: ["uint32", ends] } });

  assert.deepEqual(found.transfersAt(tick(1.2)), [8]);
  assert.deepEqual(found.transfersAt(tick(1.6)), []);
  assert.deepEqual(found.transfersAt(tick(2.4)), [9]);
});

test("the critical path is read from the op column and removed from it", () => {
  const flags = SPANS.map(({ op }, span) => (span % 2 ? op | 0x80 : op));
  const found = layer({ critical: true, columns: { op: ["uint8", flags] } });
  assert.deepEqual(
    [...found.op],
    SPANS.map(({ op }) => op),
  );
  assert.deepEqual(found.criticalSpans, [1, 3, 5, 7, 9, 11]);
});

test("spans are found by their actions, and missing ones are -1", () => {
  const found = layer();
  SPANS.forEach(({ op, stage, mb }, span) => assert.equal(found.find(op, stage, mb), span));
  for (const [op, stage, mb] of [
    [OP.W, 0, 0],
    [OP.F, 2, 0],
    [OP.F, 0, 2],
    [OP.F, -1, 0],
    [OP.STEP, 0, -1],
  ])
    assert.equal(found.find(op, stage, mb, 0), -1);
});

test("a reduction of a bucket has no microbatch and is found by its number", () => {
  const found = layer();
  const [first, second] = [found.find(OP.F, 0, 0), found.find(OP.F, 0, 1)];
  [first, second].forEach((span, bucket) => {
    found.op[span] = OP.REDUCE_GRAD;
    found.microbatch[span] = bucket;
  });
  assert.deepEqual(
    [first, second].map((span) => found.microbatchOf(span)),
    [-1, -1],
  );
  assert.equal(matchingSpans(found, { ops: [OP.REDUCE_GRAD], stage: null, microbatch: 0, rank: null }).length, 0);
  found.range = () => [0, found.blocks];
  assert.equal(found.findOfRank(OP.REDUCE_GRAD, 0, 0, 1), second);
});

test("the lower bound is the first value that is not smaller", () => {
  const values = [1, 3, 3, 5, 9];
  for (let value = 0; value <= 10; value++) {
    const expected = values.findIndex((each) => each >= value);
    assert.equal(lowerBound(values, value, 0, 5), expected < 0 ? 5 : expected);
  }
});

test("a tick hits the block at it, or the nearest within the tolerance", () => {
  const found = layer();
  assert.equal(found.at(0, tick(0.5)), 0);
  assert.equal(found.at(0, tick(3)), -1); // the mesh is idle
  assert.equal(found.at(0, tick(3.9), tick(0.2)), 2);
  assert.equal(found.at(1, tick(8)), -1);
  assert.equal(found.next(1, tick(2.5)), 6);
  assert.equal(found.next(1, tick(6)), -1);
});

test("a tick in a shared slot hits its first block", () => {
  const found = layer({ columns: { half: ["uint8", [0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0]] } });
  assert.equal(found.at(0, tick(8)), 2);
});

test("inputs and effects of a block include transfers", () => {
  const found = layer();
  const [forward, backward] = [found.find(OP.F, 1, 0), found.find(OP.B, 0, 0)];
  assert.deepEqual(notations(found, found.inputs(forward)), ["0F0", "0SEND_F0"]);
  assert.deepEqual(notations(found, found.effects(forward)), ["1B0"]);
  assert.deepEqual(notations(found, found.inputs(backward)), ["1B0", "1SEND_B0", "0F0"]);
});

test("the wait of a block has its length and its cause", () => {
  const found = layer();
  const waited = found.waited(2);
  assert.ok(Math.abs(waited.ticks - tick(2)) <= 2);
  assert.equal(waited.cause, 10);
  assert.deepEqual(found.waited(1), { ticks: 0, cause: -1 });
});

test("busy is the share of the step in which a mesh computes", () => {
  const [a, b] = layer().busy;
  assert.ok(Math.abs(a - 6 / 9) < 1e-6 && Math.abs(b - 6 / 9) < 1e-6);
});

test("memory is constant between its changes", () => {
  const columns = {
    memory_bounds: ["int32", [0, 3, 4]],
    memory_time: ["uint32", [0, tick(2), tick(6), 0]],
    memory_bytes: ["float32", [8, 24, 16, 4]],
  };
  const found = layer({ columns });
  assert.deepEqual(
    [0, 1.9, 2, 5, 6, 9].map((time) => found.memoryAt(0, tick(time))),
    [8, 8, 24, 24, 16, 16],
  );
  assert.deepEqual(found.peaks, [24, 4]);
});

test("a search finds spans by op, stage, microbatch and mesh, in the order of their starts", () => {
  const found = layer();
  const every = { ops: [], stage: null, microbatch: null, rank: null };
  assert.deepEqual(notations(found, matchingSpans(found, { ...every, ops: [OP.B] })), ["1B0", "0B0", "1B1", "0B1"]);
  assert.deepEqual(notations(found, matchingSpans(found, { ...every, stage: 0, microbatch: 1 })), ["0F1", "0B1"]);
  assert.deepEqual(notations(found, matchingSpans(found, { ...every, rank: 1 })), ["1F0", "1B0", "1F1", "1B1"]);
  assert.deepEqual(notations(found, matchingSpans(found, { ...every, ops: [OP.SEND_F], rank: 1 })), [
    "0SEND_F0",
    "0SEND_F1",
  ]);
});

test("statistics of durations count each span once, relative to the step time of all meshes", () => {
  const found = layer({ makespan: 9 });
  const { share, ...times } = durationStatistics(found, [0, 2, 5]); // 0F0, 0B0 and 1B0

  const expected = { sum: 5, mean: 5 / 3, min: 1, max: 2 };
  for (const [name, value] of Object.entries(expected)) assert.ok(Math.abs(times[name] - value) < 1e-6, name);
  assert.ok(Math.abs(share - 5 / 18) < 1e-6);
});

test("spans with equal keys keep their order in both directions", () => {
  const isOdd = (span) => span % 2;

  assert.deepEqual(sortSpans([4, 1, 3, 2], isOdd, false), [4, 2, 1, 3]);
  assert.deepEqual(sortSpans([4, 1, 3, 2], isOdd, true), [1, 3, 4, 2]);
});
