import assert from "node:assert/strict";
import { test } from "node:test";

import { LinkLanes } from "../../static/timeline/link_lanes.js";

test("the names of low lanes of links overlap neither the title nor each other", () => {
  const written = [];
  const context = { measureText: () => ({ width: 10 }), fillText: (text, _, y) => written.push([text, y]) };
  const colours = { text: [0, 0, 0], muted: [0, 0, 0], font: "sans-serif" };
  const lanes = Array.from({ length: 8 }, (_, lane) => ({
    port: { label: `lane ${lane}`, share: 0 },
    y: 119 + 3 * lane,
    height: 3,
  }));
  const plan = { links: { layer: {}, y: 100, lanes }, gutter: 100 };
  const strips = new LinkLanes(context, { colours }, plan);
  strips.writeTitle = () => {};
  strips.paintLane = () => {};

  strips.paint();

  const names = written.filter(([text]) => text.startsWith("lane"));
  assert.deepEqual(names[0], ["lane 1", 124]); // below the text of the title, which ends at 116.5
  assert.deepEqual(names[1][0], "lane 5");
});
