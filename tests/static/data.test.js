import assert from "node:assert/strict";
import { test } from "node:test";

import { OP, firstFrom } from "../../static/timeline/columns.js";
import { decode } from "../../static/timeline/data.js";
import { spansOf } from "../../static/timeline/query.js";
import { SPANS, layer, tick } from "./columns.js";

const names = ["F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "REDUCE_GRAD", "STEP"];
const said = (found, spans) => spans.map((span) => found.notation(span, names));

test("an empty message holds no timeline", () => {
  assert.equal(decode(new ArrayBuffer(0)), null);
  assert.equal(decode(undefined), null);
});

test("columns are decoded with their types and every span belongs to the mesh that runs it", () => {
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

test("the critical path is read from the op column, which is clean afterwards", () => {
  const flags = SPANS.map(({ op }, span) => (span % 2 ? op | 0x80 : op));
  const found = layer({ critical: true, columns: { op: ["uint8", flags] } });
  assert.deepEqual(
    [...found.op],
    SPANS.map(({ op }) => op),
  );
  assert.deepEqual(found.criticalSpans, [1, 3, 5, 7, 9, 11]);
});

test("a span is found by its action, and what is not there is -1", () => {
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

test("the first value not below another is found in every interval", () => {
  const values = [1, 3, 3, 5, 9];
  for (let value = 0; value <= 10; value++) {
    const expected = values.findIndex((each) => each >= value);
    assert.equal(firstFrom(values, value, 0, 5), expected < 0 ? 5 : expected);
  }
});

test("a point hits the block under it, and the nearest within the tolerance", () => {
  const found = layer();
  assert.equal(found.at(0, tick(0.5)), 0);
  assert.equal(found.at(0, tick(3)), -1); // the mesh waits
  assert.equal(found.at(0, tick(3.9), tick(0.2)), 2);
  assert.equal(found.at(1, tick(8)), -1);
  assert.equal(found.next(1, tick(2.5)), 6);
  assert.equal(found.next(1, tick(6)), -1);
});

test("of a slot of two the first half is hit", () => {
  const found = layer({ columns: { half: ["uint8", [0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0]] } });
  assert.equal(found.at(0, tick(8)), 2);
});

test("what a block needs and what it makes follow the messages", () => {
  const found = layer();
  const [forward, backward] = [found.find(OP.F, 1, 0), found.find(OP.B, 0, 0)];
  assert.deepEqual(said(found, found.inputs(forward)), ["0F0", "0SEND_F0"]);
  assert.deepEqual(said(found, found.effects(forward)), ["1B0"]);
  assert.deepEqual(said(found, found.inputs(backward)), ["1B0", "1SEND_B0", "0F0"]);
});

test("a wait names the span that ended it", () => {
  const found = layer();
  const waited = found.waited(2);
  assert.ok(Math.abs(waited.ticks - tick(2)) <= 2);
  assert.equal(waited.cause, 10);
  assert.deepEqual(found.waited(1), { ticks: 0, cause: -1 });
});

test("busy is the part of the step in which a mesh computes", () => {
  const [a, b] = layer().busy;
  assert.ok(Math.abs(a - 6 / 9) < 1e-6 && Math.abs(b - 6 / 9) < 1e-6);
});

test("memory holds its last change until the next one", () => {
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

test("a search finds spans by op, stage, microbatch and mesh, by their start", () => {
  const found = layer();
  const every = { ops: [], stage: null, microbatch: null, rank: null };
  assert.deepEqual(said(found, spansOf(found, { ...every, ops: [OP.B] })), ["1B0", "0B0", "1B1", "0B1"]);
  assert.deepEqual(said(found, spansOf(found, { ...every, stage: 0, microbatch: 1 })), ["0F1", "0B1"]);
  assert.deepEqual(said(found, spansOf(found, { ...every, rank: 1 })), ["1F0", "1B0", "1F1", "1B1"]);
  assert.deepEqual(said(found, spansOf(found, { ...every, ops: [OP.SEND_F], rank: 1 })), ["0SEND_F0", "0SEND_F1"]);
});
