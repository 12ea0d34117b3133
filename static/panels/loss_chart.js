// The loss of a run as a line.

/** @import { RunsModel, RunSummary } from "./types" */

import { h, s } from "../kit/dom.js";
import { count } from "../kit/numbers.js";

const CHART = { width: 300, height: 96, pad: 6 };

/** The least and the greatest value. @param {number[]} values */
function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** The consecutive numbers between nulls, each list as [index, value]. @param {(number | null)[]} values */
function segments(values) {
  /** @type {[number, number][][]} */
  const found = [[]];
  values.forEach((value, index) => {
    if (value !== null) found[found.length - 1].push([index, value]);
    else if (found[found.length - 1].length) found.push([]);
  });
  return found.filter((points) => points.length);
}

export class LossChart {
  element = h("div.mw-loss-box");

  /** @param {RunsModel} model */
  draw({ losses, run }) {
    const known = losses.filter((loss) => loss !== null);
    this.element.hidden = known.length < 2;
    if (known.length < 2) return;
    const { width, height, pad } = CHART;
    const [low, high] = extent(known);
    const x = (/** @type {number} */ index) => (index / (losses.length - 1)) * width;
    const y = (/** @type {number} */ loss) => pad + (1 - (loss - low) / (high - low || 1)) * (height - 2 * pad);
    const lines = segments(losses).map((points) =>
      points.map(([index, loss]) => `${x(index).toFixed(1)},${y(loss).toFixed(1)}`).join(" "),
    );
    const last = losses.at(-1)?.toFixed(3) ?? "NaN";
    const steps = count(/** @type {RunSummary} */ (run).done, "step");
    const label = `Loss over ${steps}: from ${known[0].toFixed(3)} to ${last}`;
    this.element.replaceChildren(
      s(
        "svg.mw-loss",
        { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
        ...[low, (low + high) / 2, high].map((loss) =>
          s("line.mw-loss-grid", { x1: 0, x2: width, y1: y(loss), y2: y(loss) }),
        ),
        ...lines.map((points) => s("polyline.mw-loss-line", { points })),
      ),
      h("span.mw-loss-top", {}, `loss ${high.toFixed(2)}`),
      h("span.mw-loss-low", {}, low.toFixed(2)),
      h("span.mw-loss-last", {}, steps),
    );
  }
}
