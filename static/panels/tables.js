// Parts of tables.

import { h } from "../kit/dom.js";

/** @param {string[]} row the header of the row, then its cells */
export const tableRow = ([name, ...cells]) =>
  h("tr", {}, h("th", { scope: "row" }, name), ...cells.map((cell) => h("td", {}, cell)));

/** The state of a run. @param {string} state */
export const stateBadge = (state) => h("span.mw-state", { "data-state": state }, state.toLowerCase());
