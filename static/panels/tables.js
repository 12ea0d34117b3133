// Parts of tables.

import { h } from "../kit/dom.js";

/** @param {string[]} row the header of the row, then its cells */
export const tableRow = ([name, ...cells]) =>
  h("tr", {}, h("th", { scope: "row" }, name), ...cells.map((cell) => h("td", {}, cell)));

/** Words of states that no other text of the page has. @type {Record<string, string>} */
const WORDS = { SUCCEEDED: "succeeded" };

/** The state of a run. @param {string} state */
export const stateBadge = (state) => h("span.mw-state", { "data-state": state }, WORDS[state] ?? state.toLowerCase());
