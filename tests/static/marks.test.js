import assert from "node:assert/strict";
import { test } from "node:test";

import { Marks } from "../../static/timeline/marks.js";

test("a note snaps to a mark near the pointer, and otherwise has the time of the pointer", () => {
  const frame = { x: (tick) => 100 + tick, tick: (x) => x - 100, scale: 1 };
  const chart = { frame, data: { layers: [{ scale: 0.5 }] }, plan: { lanes: [] }, isDrawn: false };
  const marks = new Marks(chart);
  marks.times = [10, 40]; // seconds: ticks 20 and 80

  assert.equal(marks.snapToMark({ x: 184, y: 5 }), 80);
  assert.equal(marks.snapToMark({ x: 150, y: 5 }), 50);
});
