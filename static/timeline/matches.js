// The matches of a search as a sortable table in the side panel, with statistics of their durations.

/** @import { Layer } from "./data.js" */
/** @import { Search } from "./search.js" */

import { closest, find, findAll, h, keepFocus } from "../kit/dom.js";
import { count, percent } from "../kit/numbers.js";
import { pairs } from "./panel.js";
import { durationStatistics, sortSpans } from "./query.js";
import { amount } from "./units.js";

const MOST_ROWS = 500;

/** @typedef {(layer: Layer, span: number) => number} SortKey */
/** @type {[title: string, key: SortKey][]} */
const COLUMNS = [
  ["Block", (layer, span) => layer.op[span]],
  ["Mesh", (layer, span) => layer.rankOf(span)],
  ["Stage", (layer, span) => layer.stage[span]],
  ["Microbatch", (layer, span) => layer.microbatchOf(span)],
  ["Start", (layer, span) => layer.start[span]],
  ["Duration", (layer, span) => layer.end[span] - layer.start[span]],
];
const START = 4;

export class Matches {
  column = START; // index of the column that orders the rows
  isDescending = false;

  /** @param {Search} search */
  constructor(search) {
    this.search = search;
  }

  get panel() {
    return this.search.chart.panel;
  }

  get isOpen() {
    return this.panel.shown === "matches";
  }

  toggle() {
    if (this.isOpen) this.close();
    else this.show();
  }

  close() {
    if (this.isOpen) this.panel.close();
  }

  /** Update the table after the matches changed, if it is shown. */
  refresh() {
    if (this.isOpen) this.show();
  }

  show() {
    const { hits, layer } = this.search;
    if (hits.length) this.panel.show("matches", "Matches", ...this.statistics(layer, hits), this.table(layer, hits));
    else this.panel.show("matches", "Matches", h("p", {}, "no matches"));
    this.markCurrent();
  }

  /** @param {Layer} layer @param {number[]} spans */
  statistics(layer, spans) {
    const { sum, mean, min, max, share } = durationStatistics(layer, spans);
    const write = (/** @type {number} */ value) => amount(value, layer.unit);
    const title = "Sum of the durations ÷ (meshes × step time)";
    const found = `${count(spans.length, "match", "matches")}: ${percent(share)} of the time of all meshes`;
    /** @type {[string, string][]} */
    const lines = [
      ["sum of durations", write(sum)],
      ["mean duration", write(mean)],
      ["shortest duration", write(min)],
      ["longest duration", write(max)],
    ];
    const cut = `The table lists the first ${MOST_ROWS} of ${spans.length} matches in the chosen order.`;
    return [
      h("p.mw-timeline-headline", { title }, found),
      pairs(lines),
      layer.unit !== "s" && h("p.mw-timeline-note", {}, "Times are in units of the unit costs, not in seconds."),
      spans.length > MOST_ROWS && h("p.mw-timeline-note", {}, cut),
    ];
  }

  /** @param {Layer} layer @param {number[]} spans */
  table(layer, spans) {
    const [, key] = COLUMNS[this.column];
    const sorted = sortSpans(spans, (span) => key(layer, span), this.isDescending).slice(0, MOST_ROWS);
    const head = h("tr", {}, ...COLUMNS.map(([title], column) => this.columnHead(title, column)));
    const body = h("tbody", {}, ...sorted.map((span) => this.row(layer, span)));
    body.addEventListener("click", (event) => this.search.choose(Number(closest(event, "tr")?.dataset.span)));
    return h("table.mw-timeline-matches", { "aria-label": "Matches" }, h("thead", {}, head), body);
  }

  /** @param {string} title @param {number} column */
  columnHead(title, column) {
    const isSorted = column === this.column;
    const order = isSorted && (this.isDescending ? "descending" : "ascending");
    const onclick = () => this.sortBy(column);
    const sorter = h("button.mw-timeline-link", { type: "button", title: "Sort by this column", onclick }, title);
    return h("th", { scope: "col", "aria-sort": order }, sorter);
  }

  /** @param {Layer} layer @param {number} span */
  row(layer, span) {
    const { names } = this.search.chart.model.palette;
    const block = h("button.mw-timeline-link", { type: "button" }, layer.notation(span, names));
    const swatch = h("i", { "data-kind": names[layer.op[span]] });
    const integers = [layer.stage[span], layer.microbatchOf(span)].map((each) => (each < 0 ? "" : String(each)));
    const times = [layer.start[span] * layer.scale, layer.duration(span)].map((each) => amount(each, layer.unit));
    const cells = [layer.meshes[layer.rankOf(span)], ...integers, ...times];
    return h(
      "tr",
      { "data-span": span },
      h("th", { scope: "row" }, swatch, block),
      ...cells.map((text) => h("td", {}, text)),
    );
  }

  /** Sort by a column; a second time, in descending order. @param {number} column */
  sortBy(column) {
    this.isDescending = column === this.column && !this.isDescending;
    this.column = column;
    keepFocus(this.panel.element, () => this.show());
  }

  /** Highlight the row of the current match. */
  markCurrent() {
    const { hits, at } = this.search;
    const { body } = this.panel;
    if (!this.isOpen) return;
    for (const row of findAll(body, "tr[aria-current]")) row.removeAttribute("aria-current");
    const row = find(body, `tr[data-span="${hits[at]}"]`);
    row?.setAttribute("aria-current", "true");
    row?.scrollIntoView({ block: "nearest" });
  }
}
