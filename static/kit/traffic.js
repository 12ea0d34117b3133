// A dialog with the traffic between devices: a table of the bytes that each row sends to each column, as a heat map.

/** @import { TrafficData } from "./types" */

import { consume, findAll, h, indexByKey, setTabStop } from "./dom.js";
import { Modal, tool } from "./shell.js";

export class TrafficDialog {
  title = h("h2");
  about = h("p.mw-dialog-about");
  legend = h("div.mw-legend");
  table = h("table.mw-traffic-table", { role: "grid" });

  constructor() {
    const close = tool("Close", { glyph: "close", tip: "Close (Esc)", onclick: () => this.modal.close() });
    const header = h("header", {}, h("div", {}, this.title, this.about), h("span.mw-grow"), close);
    const scroll = h("div.mw-traffic-scroll", {}, this.table);
    this.element = h("dialog.mw-dialog.mw-traffic", { "aria-label": "Traffic" }, header, this.legend, scroll);
    this.element.addEventListener("keydown", (event) => event.stopPropagation()); // keep keys from the page below
    this.table.addEventListener("keydown", (event) => this.key(event));
    this.modal = new Modal(this.element);
  }

  /** @param {TrafficData} data */
  open(data) {
    this.columns = data.numbers.length;
    this.title.textContent = data.title;
    this.about.textContent = data.about;
    this.legend.replaceChildren(...legend(data));
    this.table.setAttribute("aria-label", `${data.title}: rows send, columns receive`);
    this.table.replaceChildren(...head(data), ...data.numbers.map((_, row) => bodyRow(data, row)), foot(data));
    setTabStop(this.cells, this.cells[0]);
    this.modal.open();
    this.cells[0].focus();
  }

  get cells() {
    return findAll(this.table, ".mw-traffic-cell");
  }

  /** Arrow keys, Home and End move between cells. @param {KeyboardEvent} event */
  key(event) {
    const { cells } = this;
    const at = cells.findIndex((cell) => cell === event.target);
    const index = indexByKey(event.key, at, cells.length, this.columns);
    if (at < 0 || index === undefined) return;
    consume(event);
    setTabStop(cells, cells[index]);
    cells[index].focus();
  }
}

/** @param {TrafficData} data */
function legend({ node_word: node }) {
  const entry = (/** @type {string} */ reach, /** @type {string} */ words) =>
    h("span", {}, h("i", { "data-reach": reach, style: { "--share": 0.7 } }), words);
  const entries = [entry("inside", `inside a ${node}`), entry("between", `between ${node}s (hatched)`)];
  return [...entries, h("span.mw-quiet", {}, "rows send, columns receive; stronger colour: more bytes")];
}

/** The heads of the columns, below those of their nodes. @param {TrafficData} data */
function head({ word, node_word: node, numbers, nodes }) {
  const columns = numbers.map((number, column) =>
    h("th", { scope: "col", "data-first": isFirst(nodes, column) }, String(number)),
  );
  const row = h("tr", {}, h("th", {}, `from ${word} ↓ to →`), ...columns, h("th", { scope: "col" }, "sends"));
  if (word === node) return [row];
  const starts = nodes.flatMap((_, column) => (isFirst(nodes, column) ? [column] : []));
  const groups = starts.map((start, n) => {
    const colspan = (starts[n + 1] ?? nodes.length) - start;
    return h("th", { colspan, "data-first": true }, `${node} ${nodes[start]}`);
  });
  return [h("tr", {}, h("th"), ...groups, h("th")), row];
}

/** @param {TrafficData} data @param {number} row */
function bodyRow({ word, node_word: node, numbers, nodes, texts, shares, sends }, row) {
  const cells = numbers.map((number, column) => {
    const isInside = nodes[row] === nodes[column];
    const reach = isInside ? `inside ${node} ${nodes[row]}` : `${node} ${nodes[row]} to ${node} ${nodes[column]}`;
    const attributes = {
      role: "gridcell",
      tabindex: -1,
      "data-reach": isInside ? "inside" : "between",
      "data-first": isFirst(nodes, column),
      "aria-label": `${word} ${numbers[row]} to ${word} ${number}: ${texts[row][column]}, ${reach}`,
      style: { "--share": shares[row][column] },
    };
    return h("td.mw-traffic-cell", attributes, texts[row][column]);
  });
  const name = h("th", { scope: "row" }, String(numbers[row]));
  return h("tr", { "data-first": isFirst(nodes, row) }, name, ...cells, h("td.mw-traffic-sum", {}, sends[row]));
}

/** @param {TrafficData} data */
function foot({ receives }) {
  const sums = receives.map((text) => h("td.mw-traffic-sum", {}, text));
  return h("tr", { "data-first": true }, h("th", { scope: "row" }, "receives"), ...sums, h("td"));
}

/** True for the first row or column of a node. @param {number[]} nodes @param {number} place */
const isFirst = (nodes, place) => nodes[place] !== nodes[place - 1];
