// The comparison of a run with its prediction, and the prediction errors of the runs of its design.

/** @import { BreakdownModel, Outcome, RunComparison, WaterfallBar } from "./types" */

import { h, keepFocus } from "../kit/dom.js";
import { Widget } from "../kit/widget.js";
import { tableRow } from "./tables.js";

/** @param {{model: BreakdownModel}} args */
export const render = ({ model }) => new Breakdown(model).root;

/** @extends {Widget<BreakdownModel>} */
class Breakdown extends Widget {
  comparison = h("div.mw-breakdown-part");
  history = h("div.mw-breakdown-part");
  empty = h("p.mw-dock-empty", {}, "No measured step. Launch the design, or choose a run in the Runs tab.");
  /** @type {Set<string>} */ unfolded = new Set(); // titles of parts of the comparison

  /** @param {BreakdownModel} model */
  constructor(model) {
    super(model);
    this.root = h("div.mw-canvas.mw-breakdown", {}, this.empty, this.comparison, this.history);
    model.on("comparison", () => keepFocus(this.comparison, () => this.drawComparison()));
    model.on("outcomes", () => this.drawHistory());
    this.drawComparison();
    this.drawHistory();
  }

  drawComparison() {
    const { comparison } = this.model;
    this.empty.hidden = Boolean(comparison.rows?.length);
    this.comparison.replaceChildren(...(comparison.rows?.length ? this.comparisonParts(comparison) : []));
  }

  /** @param {RunComparison} comparison */
  comparisonParts({ rows, parts = [], waterfall, spread, cause, label, clocks, whose }) {
    const text = (/** @type {string} */ words, kind = "mw-quiet") =>
      words && h("div", { class: `mw-told ${kind}` }, words);
    const summary = h(
      "div",
      {},
      text(label, "mw-rehearsed"),
      text(cause, "mw-cause"),
      waterfall.length > 0 && waterfallTable(waterfall),
      text(spread),
      text(clocks),
    );
    const tables = h(
      "div",
      {},
      comparisonTable("mw-compare", rows, { caption: `Measured vs. predicted${whose}` }),
      ...parts.map((part) => this.foldedPart(part)),
    );
    return [summary, tables];
  }

  /**
   * A part of the comparison. It stays unfolded while a run progresses.
   * @param {{title: string, rows: string[][]}} part
   */
  foldedPart({ title, rows }) {
    const table = comparisonTable("mw-beside", rows, { label: title });
    const part = h("details.mw-compared-part", { "aria-label": title }, h("summary", {}, title), table);
    part.open = this.unfolded.has(title);
    part.addEventListener("toggle", () => this.unfolded[part.open ? "add" : "delete"](title));
    return part;
  }

  drawHistory() {
    const { outcomes } = this.model;
    const caption = h("caption", {}, "Prediction errors of earlier runs of this design");
    const rows = h("tbody", {}, ...outcomes.map(outcomeRow));
    this.history.replaceChildren(...(outcomes.length ? [h("table.mw-beside.mw-past", {}, caption, rows)] : []));
  }
}

/** From the predicted to the measured step time, the largest part of the error first. @param {WaterfallBar[]} bars */
function waterfallTable(bars) {
  const rows = bars.map(({ name, from, to, text, kind }) => {
    const style = { left: `${100 * from}%`, width: `${100 * (to - from)}%` };
    const bar = h("span.mw-waterfall-bar", { style });
    return h(
      "tr",
      { "data-kind": kind },
      h("th", { scope: "row" }, name),
      h("td.mw-waterfall-axis", {}, bar),
      h("td", {}, text),
    );
  });
  const caption = h("caption", {}, "Step time: predicted vs. measured");
  return h("table.mw-waterfall", {}, caption, h("tbody", {}, ...rows));
}

/** An error as a bar from the middle, to the right if the run took longer than predicted. @param {Outcome} outcome */
function outcomeRow({ run, shown, share, error, words }) {
  const style = { left: `${50 + 50 * Math.min(share, 0)}%`, width: `${50 * Math.abs(share)}%` };
  return h(
    "tr",
    { "aria-current": String(shown), title: run },
    h("td", {}, words),
    h("td.mw-past-axis", {}, h("span.mw-past-bar", { style })),
    h("td", {}, error),
  );
}

/** @param {string} kind @param {string[][]} rows @param {{caption?: string, label?: string}} names */
function comparisonTable(kind, rows, { caption, label }) {
  const columns = ["", "predicted", "measured", "error"].map((name) => h("th", { scope: "col" }, name));
  return h(
    "table",
    { class: kind, "aria-label": label },
    caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, ...columns)),
    h("tbody", {}, ...rows.map(tableRow)),
  );
}
