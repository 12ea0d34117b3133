// The loss of a run as a line.

import { h, s } from "../kit/canvas.js";
import { count } from "../kit/numbers.js";

const CHART = { width: 300, height: 96, pad: 6 };

function extremes(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** The runs of numbers between nulls, each a list of [place, value]. */
function stretches(values) {
  const found = [[]];
  values.forEach((value, place) => {
    if (value !== null) found.at(-1).push([place, value]);
    else if (found.at(-1).length) found.push([]);
  });
  return found.filter((points) => points.length);
}

/** The loss over the steps of a run. */
export class LossChart {
  /** @param {import("./runs.js").Runs} runs */
  constructor(runs) {
    this.runs = runs;
    this.element = h("div", { class: "mw-loss-box" });
  }

  draw() {
    const { losses, run } = this.runs.model;
    const known = losses.filter((loss) => loss !== null);
    this.element.hidden = known.length < 2;
    if (known.length < 2) return;
    const { width, height, pad } = CHART;
    const [low, high] = extremes(known);
    const x = (place) => (place / (losses.length - 1)) * width;
    const y = (loss) => pad + (1 - (loss - low) / (high - low || 1)) * (height - 2 * pad);
    const lines = stretches(losses).map((points) =>
      points.map(([place, loss]) => `${x(place).toFixed(1)},${y(loss).toFixed(1)}`).join(" "),
    );
    const last = losses.at(-1)?.toFixed(3) ?? "not a number";
    const words = `Loss over ${count(run.done, "step")}: from ${known[0].toFixed(3)} to ${last}`;
    this.element.replaceChildren(
      s(
        "svg",
        {
          class: "mw-loss",
          viewBox: `0 0 ${width} ${height}`,
          preserveAspectRatio: "none",
          role: "img",
          "aria-label": words,
        },
        ...[low, (low + high) / 2, high].map((loss) =>
          s("line", { class: "mw-loss-grid", x1: 0, x2: width, y1: y(loss), y2: y(loss) }),
        ),
        ...lines.map((points) => s("polyline", { class: "mw-loss-line", points })),
      ),
      h("span", { class: "mw-loss-top" }, `loss ${high.toFixed(2)}`),
      h("span", { class: "mw-loss-low" }, low.toFixed(2)),
      h("span", { class: "mw-loss-last" }, count(run.done, "step")),
    );
  }
}
