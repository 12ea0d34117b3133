// Every strategy with every ordering: how long each takes, which is the shortest, what is proven. A click takes one.

import { h } from "../kit/canvas.js";
import { icon } from "../kit/shell.js";

/** What a cell tells, by what the links show, and what is said of it once all are there. */
const TIMES = {
  planned: { key: "makespan", about: "as planned; ✓ no order of this strategy is shorter" },
  played: { key: "played", about: "as played, messages one by one" },
};

export class Table {
  constructor(view) {
    this.view = view;
    this.about = h("span", { class: "mw-quiet" });
    this.element = h("div", { class: "mw-tr-plans" });
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  draw() {
    const { model } = this.view;
    const { rows, done } = model.table;
    const { key: time, about } = TIMES[model.shows];
    const found = new Map(rows.map((row) => [`${row.strategy} ${row.ordering}`, row]));
    const most = Math.max(...rows.map((row) => row[`${time}_s`]));
    // as a person reads it
    const least = rows.toSorted((one, other) => one[`${time}_s`] - other[`${time}_s`])[0]?.[time];
    this.about.textContent = done
      ? about
      : `${rows.length} of ${model.strategies.length * model.orderings.length} planned`;
    const focused = this.element.getRootNode().activeElement?.dataset?.plan;
    const head = h(
      "tr",
      {},
      h("td", {}),
      ...model.orderings.map(({ title, help }) => h("th", { scope: "col", "data-tip": help }, title)),
    );
    const body = model.strategies.map(({ name, title, help }) => {
      const cells = model.orderings.map((ordering) =>
        h("td", {}, this.cell(found.get(`${name} ${ordering.name}`), { title, ordering }, least, most)),
      );
      return h("tr", {}, h("th", { scope: "row", "data-tip": help }, title), ...cells);
    });
    const { strategy, ordering } = this.view.picture ?? {};
    const told = [
      [model.strategies, strategy],
      [model.orderings, ordering],
    ].flatMap(([of, name]) => of.filter((each) => each.name === name));
    const words = told.map(({ title, help }) => h("p", {}, h("b", {}, `${title}. `), help));
    this.element.replaceChildren(
      h("table", {}, h("thead", {}, head), h("tbody", {}, ...body)),
      h("div", { class: "mw-tr-told" }, ...words),
    );
    const cells = this.cells();
    const chosen = cells.find((cell) => cell.ariaPressed === "true") ?? cells[0];
    for (const cell of cells) cell.tabIndex = cell === chosen ? 0 : -1;
    if (focused) cells.find((cell) => cell.dataset.plan === focused)?.focus();
  }

  cell(row, { title, ordering }, least, most) {
    if (!row) return h("span", { class: "mw-tr-wait" }, "…");
    const { picture } = this.view;
    const { shows } = this.view.model;
    const time = TIMES[shows].key;
    const isChosen = picture?.strategy === row.strategy && picture.ordering === row.ordering;
    const isBest = row[time] === least;
    const proof = row.optimal ? "no order is shorter" : `bound ${row.bound}`;
    const words =
      `${title}, ${ordering.title.toLowerCase()}: ${row.makespan} planned (${proof}), ${row.played} ` +
      `played${isBest ? `; of all the shortest ${shows}` : ""}`;
    const cell = h("button", {
      type: "button",
      class: "mw-tr-plan",
      "data-plan": `${row.strategy} ${row.ordering}`,
      "aria-pressed": String(isChosen),
      "aria-label": words,
      "data-tip": words,
      "data-best": isBest,
    });
    cell.style.setProperty("--part", most ? row[`${time}_s`] / most : 0);
    cell.append(h("span", {}, row[time]), row.optimal && shows === "planned" ? icon("check") : "");
    cell.addEventListener("click", () => this.view.send("choose", { strategy: row.strategy, ordering: row.ordering }));
    return cell;
  }

  cells() {
    return [...this.element.querySelectorAll(".mw-tr-plan")];
  }

  /** Arrows walk, Enter takes. */
  key(event) {
    const cells = this.cells();
    const at = cells.indexOf(event.target);
    const step = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: this.view.model.orderings.length,
      ArrowUp: -this.view.model.orderings.length,
    }[event.key];
    const next = cells[at + step];
    if (at < 0 || step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    if (!next) return;
    for (const cell of cells) cell.tabIndex = cell === next ? 0 : -1;
    next.focus();
  }
}
