import assert from "node:assert/strict";
import { test } from "node:test";

import { entryOf, referenceOf } from "../../static/kit/help.js";

test("a label leads to the entry of its longest term", () => {
  const entries = {
    Iteration: "iteration",
    Bubble: "bubble-ratio",
    MFU: "MFU",
    "Peak memory": "peak-memory",
    "8 microbatches": "microbatch",
    "B backward": "backward",
    "4 meshes, all used": "mesh",
    "top k 2": "top-k",
  };
  for (const [label, term] of Object.entries(entries)) assert.equal(entryOf(label), `glossary.html#term-${term}`);
});

test("a word that only contains a term, and a sentence, lead nowhere", () => {
  assert.equal(entryOf("Tilephone"), undefined);
  assert.equal(entryOf("rankings"), undefined);
  assert.equal(entryOf("The time of one training step, from the first start to the last end on any mesh."), undefined);
});

test("a field leads to its key in the reference", () => {
  assert.equal(referenceOf("pipeline.waves"), "reference/document.html#confval-pipeline.waves");
});
