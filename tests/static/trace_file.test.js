import assert from "node:assert/strict";
import test from "node:test";
import { readFile, withoutBulk } from "../../static/panels/trace_file.js";

const RANGE = { ph: "X", cat: "gpu_user_annotation", name: "PP:0F0", ts: 1, dur: 2, pid: 0 };
const OPERATORS = Array.from({ length: 50 }, (_, ts) => ({ ph: "X", cat: "cpu_op", name: "aten::mm", ts, dur: 1 }));
const trace = JSON.stringify({ distributedInfo: { rank: 3 }, traceEvents: [...OPERATORS, RANGE, { ph: "M" }] });

test("a trace is made smaller without its operators", () => {
  assert.deepEqual(JSON.parse(withoutBulk(trace)), { distributedInfo: { rank: 3 }, traceEvents: [RANGE] });
});

test("a file that is not a trace stays as it is", () => {
  assert.equal(withoutBulk('{"format": "meshwave/1"}'), '{"format": "meshwave/1"}');
  assert.equal(withoutBulk("no JSON"), "no JSON");
});

test("only files above the limit are made smaller", async () => {
  const file = new File([trace], "rank0.json");
  assert.equal(await readFile(file, trace.length), trace);
  assert.equal(await readFile(file, 1000), withoutBulk(trace));
  assert.equal(await readFile(new File([trace], "a.csv"), 1000), null);
});
