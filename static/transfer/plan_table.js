// The table of plans: the time of each strategy with each ordering, and a mark if the order is proven optimal. A click
// selects a plan.

/** @import { Member, PlanRow } from "./types" */

import { consume, findAll, focusedElement, h, indexByKey, setTabStop } from "../kit/dom.js";
import { icon } from "../kit/icons.js";

/**
 * Text of a cell, by the selected timeline of the links.
 * @type {Record<string, {key: "makespan" | "simulated", about: string}>}
 */
const TIMES = {
  planned: { key: "makespan", about: "planned; ✓ optimal order for the strategy" },
  simulated: { key: "simulated", about: "simulated with shared links" },
};

export class PlanTable {
  about = h("span.mw-quiet");
  element = h("div.mw-tr-plans");

  /** @param {import("./transfer.js").Transfer} view */
  constructor(view) {
    this.view = view;
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  draw() {
    const { strategies, orderings, table, shows } = this.view.model;
    const { rows, done } = table;
    const { about } = TIMES[shows];
    const planned = `${rows.length} of ${strategies.length * orderings.length} planned`;
    this.about.textContent = done ? about : planned;
    const focused = focusedElement(this.element)?.dataset.plan;
    const head = orderings.map(({ title, help }) => h("th", { scope: "col", "data-tip": help }, title));
    const body = strategies.map((strategy) => {
      const cells = orderings.map((ordering) => h("td", {}, this.cell(strategy, ordering)));
      return h("tr", {}, h("th", { scope: "row", "data-tip": strategy.help }, strategy.title), ...cells);
    });
    this.element.replaceChildren(
      h("table", {}, h("thead", {}, h("tr", {}, h("td"), ...head)), h("tbody", {}, ...body)),
      h("div.mw-tr-told", {}, ...this.descriptions()),
    );
    const cells = this.cells();
    setTabStop(cells, cells.find((cell) => cell.ariaPressed === "true") ?? cells[0]);
    if (focused) cells.find((cell) => cell.dataset.plan === focused)?.focus();
  }

  /** The strategy and the ordering of the plan, with their help texts. */
  descriptions() {
    const { picture, model } = this.view;
    const chosen = [
      ...model.strategies.filter(({ name }) => name === picture?.strategy),
      ...model.orderings.filter(({ name }) => name === picture?.ordering),
    ];
    return chosen.map(({ title, help }) => h("p", {}, h("b", {}, `${title}. `), help));
  }

  /** @param {Member} strategy @param {Member} ordering */
  cell(strategy, ordering) {
    const { picture, model } = this.view;
    const { rows } = model.table;
    const row = rows.find((row) => row.strategy === strategy.name && row.ordering === ordering.name);
    if (!row) return h("span.mw-tr-wait", {}, "…");
    const { key } = TIMES[model.shows];
    const times = rows.map((row) => row[`${key}_s`]);
    const shortest = rows[times.indexOf(Math.min(...times))][key]; // times are compared as displayed
    const isBest = row[key] === shortest;
    const isChosen = picture?.strategy === row.strategy && picture.ordering === row.ordering;
    const label = planLabel(strategy, ordering, row) + (isBest ? "; shortest of all plans" : "");
    const names = { strategy: row.strategy, ordering: row.ordering };
    const attributes = {
      type: "button",
      "data-plan": `${row.strategy} ${row.ordering}`,
      "aria-pressed": String(isChosen),
      "aria-label": label,
      "data-tip": label,
      "data-best": isBest,
      style: { "--part": row[`${key}_s`] / Math.max(...times) || 0 },
      onclick: () => this.view.request("choose", names),
    };
    const hasMark = row.optimal && model.shows === "planned";
    return h("button.mw-tr-plan", attributes, h("span", {}, row[key]), hasMark && icon("check"));
  }

  cells() {
    return findAll(this.element, ".mw-tr-plan");
  }

  /** Arrow keys move the focus, Enter chooses. @param {KeyboardEvent} event */
  key(event) {
    const cells = this.cells();
    const at = cells.findIndex((cell) => cell === event.target);
    const index = indexByKey(event.key, at, cells.length, this.view.model.orderings.length);
    if (at < 0 || index === undefined) return;
    consume(event);
    setTabStop(cells, cells[index]);
    cells[index].focus();
  }
}

/** @param {Member} strategy @param {Member} ordering @param {PlanRow} row */
function planLabel(strategy, ordering, row) {
  const proof = row.optimal ? "optimal" : `lower bound ${row.bound}`;
  const name = `${strategy.title}, ${ordering.title}`;
  return `${name}: ${row.makespan} planned (${proof}), ${row.simulated} simulated`;
}
