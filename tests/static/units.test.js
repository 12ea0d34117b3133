import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { clamp, count, percent, roundUp } from "../../static/kit/numbers.js";
import { ink, luminance, mix, pixel, rgb } from "../../static/kit/palette.js";
import { axisText, axisUnit, ticks } from "../../static/timeline/ticks.js";
import { amount, bytes, flops, timeText } from "../../static/timeline/units.js";
import { bytes as linkBytes, listRanks, seconds } from "../../static/transfer/format.js";

const CASES = JSON.parse(readFileSync(new URL("percentages.json", import.meta.url), "utf8"));
const plain = (text) => text.replaceAll("\u2009", " ");

test("seconds and bytes have three digits and the unit that fits", () => {
  assert.deepEqual(
    [0, 1.2e-6, 0.00123, 12.34].map((value) => plain(amount(value, "s"))),
    ["0 s", "1.2 µs", "1.23 ms", "12.3 s"],
  );
  assert.equal(amount(1234.5, ""), "1,235");
  assert.equal(plain(amount(340506, "s")), "340506 s"); // as in the strip of numbers, which Python writes
  assert.equal(plain(bytes(5e19)), "50000 PB");
  assert.deepEqual(
    [512, 2e3, 8.05e10].map((value) => plain(bytes(value))),
    ["512 B", "2 kB", "80.5 GB"],
  );
  assert.equal(plain(flops(3.12e14)), "312 TFLOP");
});

test("a time in unit costs has its unit as a word, in the singular for one", () => {
  assert.deepEqual([timeText(1, "units"), timeText(24.77, "units")], ["1 unit", "24.8 units"]);
  assert.equal(plain(timeText(0.0124, "s")), "12.4 ms");
});

test("a share reads the same as Python writes it", () => {
  for (const [part, text] of CASES) assert.equal(percent(part), text);
});

test("times of links have four digits and never round into the next unit", () => {
  assert.deepEqual([0, 3e-9, 0.00099996, 0.99996, 2].map(seconds), ["0", "3 ns", "1 ms", "1 s", "2 s"]);
  assert.deepEqual([12, 1500, 2.5e9].map(linkBytes), ["12 B", "1.5 kB", "2.5 GB"]);
});

test("long lists of ranks are shortened", () => {
  assert.equal(listRanks([]), "none");
  assert.equal(listRanks([0, 1]), "0, 1");
  assert.equal(listRanks([...Array(12).keys()]), "0, 1, 2, 3, 4, 5, 6, 7 and 4 more");
});

test("a count has a plural unless it is one", () => {
  assert.deepEqual(
    [0, 1, 2].map((number) => count(number, "stage")),
    ["0 stages", "1 stage", "2 stages"],
  );
  assert.equal(count(2, "mesh", "meshes"), "2 meshes");
  assert.deepEqual(
    [-1, 0.5, 9].map((value) => clamp(value, 0, 1)),
    [0, 0.5, 1],
  );
});

test("steps of an axis are 1, 2 or 5 times a power of ten, and no larger than needed", () => {
  for (let value = 1e-9; value < 1e6; value *= 1.37) {
    const step = roundUp(value);
    const digit = step / 10 ** Math.floor(Math.log10(step) + 1e-9);
    assert.ok(
      [1, 2, 5].some((each) => Math.abs(each - digit) < 1e-6),
      `${step} for ${value}`,
    );
    assert.ok(step >= value * 0.9999 && step < 2.6 * value);
  }
});

test("ticks of an axis are apart, in view, and multiples of their step", () => {
  for (const [from, to] of [
    [0, 1e9],
    [2.5e8, 2.6e8],
    [4.1e9, 4.2e9],
  ]) {
    const [left, right] = [100, 900];
    const scale = (right - left) / (to - from);
    const frame = {
      from,
      scale,
      right,
      x: (tick) => left + (tick - from) * scale,
      tick: (x) => from + (x - left) / scale,
    };
    const found = ticks(frame, { scale: 1e-9 });
    assert.ok(found.length > 2);
    for (const { x, value, step } of found) {
      assert.ok(x >= left - 1e-6 && x <= right + 1e-6);
      assert.ok(Math.abs(value / step - Math.round(value / step)) < 1e-6);
    }
    for (let at = 1; at < found.length; at++) assert.ok(found[at].x - found[at - 1].x >= 85);
  }
});

test("numbers of an axis have the unit of the largest one", () => {
  assert.deepEqual(
    [3, 0.5, 1e-4].map((largest) => axisUnit(largest, "s").name),
    ["s", "ms", "µs"],
  );
  assert.equal(axisUnit(3, "").name, "");
  assert.equal(axisText(0.0125, 0.0005, { factor: 1e3, name: "ms" }), "12.5");
  assert.equal(axisText(300000, 1e5, axisUnit(4e5, "s")), "300000");
  assert.equal(axisText(300000, 1e5, axisUnit(4e5, "")), "300,000");
});

test("colours are read in the notations of style sheets and browsers", () => {
  assert.deepEqual(["#0a141e", "rgb(10 20 30)", "rgb(10, 20, 30)"].map(rgb), Array(3).fill([10, 20, 30]));
  assert.deepEqual(mix([0, 0, 0], [255, 255, 255], 0.5), [127.5, 127.5, 127.5]);
  assert.equal(pixel([1, 2, 3]), 0xff030201);
});

test("ink has a contrast of at least 4.5 to 1 on every fill", () => {
  for (let red = 0; red < 256; red += 15)
    for (let green = 0; green < 256; green += 15)
      for (let blue = 0; blue < 256; blue += 15) {
        const [fill, text] = [luminance([red, green, blue]), luminance(rgb(ink([red, green, blue])))];
        assert.ok((Math.max(fill, text) + 0.05) / (Math.min(fill, text) + 0.05) >= 4.5, `${red} ${green} ${blue}`);
      }
});
