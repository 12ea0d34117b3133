// Many expert layers as a heat map: one cell per layer, coloured by the fastest schedule or by a speedup.

/** @import { ExpertSchedulesModel, MapAxis, MapData, Ranking } from "./types" */

import { ARROW_MOVES, closest, consume, find, focusedElement, h, setTabStop } from "../kit/dom.js";
import { percent } from "../kit/numbers.js";

const LEADS = [1.02, 1.1, 1.3]; // leads of the fastest schedule at which the colour becomes stronger
const STRENGTHS = [38, 58, 79, 100];

export class ExpertMap {
  measure = "alike"; // name of a ranking or a speedup
  at = 0;
  columns = 1;
  /** @type {HTMLElement[]} */ cells = [];
  /** @type {MapData} */ data;
  description = h("p.mw-em-words", { role: "status" });
  element = h("div.mw-em");

  /**
   * @param {ExpertSchedulesModel["links"]} links clusters @param {(links: string) => void} price ask Python for the map
   */
  constructor(links, price) {
    this.price = price;
    const options = links.map(({ key, text }) => h("option", { value: key, selected: key === "pcie" }, text));
    this.links = h("select.mw-em-links", { onchange: () => this.request() }, ...options);
  }

  request() {
    this.price(this.links.value);
  }

  /** Draw the map, or a message while the map is being computed. @param {ExpertSchedulesModel["map"]} data */
  draw(data) {
    const wasFocused = focusedElement(this.element) === this.links; // a redraw would take the focus away
    const tip = "Links used by the cost model; the fastest schedule depends on them";
    const choice = h("label.mw-em-choice", { "data-tip": tip }, "Links", this.links);
    if (data.rankings) {
      this.data = data;
      this.drawMap(choice);
    } else {
      const words = data.problem ?? "Predicting 1,296 layers with every schedule …";
      const message = h("p.mw-quiet.mw-em-wait", { role: data.problem ? "alert" : "status" }, words);
      this.element.replaceChildren(h("div.mw-em-bar", {}, choice), message);
    }
    if (wasFocused) this.links.focus();
  }

  /** @param {HTMLElement} choice */
  drawMap(choice) {
    const { measures, notes, across, deepspeed } = this.data;
    const segments = measures.map(({ key, text }) => {
      const pressed = { "aria-pressed": String(key === this.measure), onclick: () => this.setMeasure(key) };
      return h("button.mw-segment", { type: "button", ...pressed }, text);
    });
    this.columns = size(this.data, across);
    this.cells = deepspeed.map((_, cell) => this.cell(cell));
    const grid = h(
      "div.mw-em-grid",
      { role: "grid", "aria-label": "Layers", tabindex: -1, style: { "--columns": this.columns } },
      ...this.rows(),
    );
    grid.addEventListener("keydown", (event) => this.key(event));
    grid.addEventListener("pointerover", (event) => {
      const cell = closest(event, "[data-cell]");
      if (cell) this.describe(Number(cell.dataset.cell));
    });
    const colours = h("div.mw-segments", { role: "group", "aria-label": "Colour by" }, ...segments);
    this.element.replaceChildren(
      h("div.mw-em-bar", {}, colours, choice, this.legend()),
      h("div", {}, this.columnHeads(0), this.columnHeads(1)),
      grid,
      this.description,
      h("div.mw-em-notes", {}, ...notes.map((note) => h("p", {}, note))),
    );
    this.describe(this.at);
  }

  /** @param {string} measure */
  setMeasure(measure) {
    this.measure = measure;
    this.draw(this.data);
    find(this.element, '[aria-pressed="true"]')?.focus();
  }

  /** The values of one of the two outer column axes, above their cells. @param {number} depth */
  columnHeads(depth) {
    const { across, axes } = this.data;
    const outer = size(this.data, across.slice(0, depth));
    const axis = axes[across[depth]];
    const heads = Array.from({ length: outer * axis.values.length }, (_, i) =>
      axisLabel(axis, `${axis.word} ${axis.values[i % axis.values.length]}`),
    );
    return h("div.mw-em-head", { "aria-hidden": "true" }, h("span"), h("div.mw-em-heads", {}, ...heads));
  }

  rows() {
    const { axes, down } = this.data;
    const rows = [];
    for (let first = 0; first < this.cells.length; first += this.columns) {
      const labels = down.flatMap((name) => [axisLabel(axes[name], this.valuesOf(first, [name])), " "]);
      const beginsGroup = first > 0 && (first / this.columns) % 4 === 0;
      rows.push(
        h(
          "div.mw-em-row",
          { role: "row", "data-first": beginsGroup },
          h("span.mw-em-name", { role: "rowheader" }, ...labels),
          h("div.mw-em-cells", { role: "presentation" }, ...this.cells.slice(first, first + this.columns)),
        ),
      );
    }
    return rows;
  }

  /** @param {number} cell */
  cell(cell) {
    const { rankings, printed, deepspeed } = this.data;
    const ranking = rankings[this.measure];
    const colour = ranking ? rankColour(ranking, cell) : this.speedupColour(this.speedups[cell]);
    const isBeyond = deepspeed[cell] < printed[0] || deepspeed[cell] > printed[1];
    return h("div.mw-em-cell", {
      role: "gridcell",
      "data-cell": cell,
      "data-beyond": this.measure === "deepspeed" && isBeyond,
      tabindex: cell === this.at ? 0 : -1,
      "aria-label": this.textOf(cell),
      style: { "background-color": colour },
    });
  }

  get speedups() {
    return this.data[/** @type {"deepspeed" | "a2a-allgather"} */ (this.measure)];
  }

  /** The colour of a speedup: blue if faster, orange if slower. @param {number} speedup */
  speedupColour(speedup) {
    const most = this.measure === "deepspeed" ? this.data.printed[1] : 1.5;
    const isFaster = speedup >= 1;
    const part = Math.min(1, isFaster ? (speedup - 1) / (most - 1) : 1.4 * (1 - speedup));
    const colour = isFaster ? "--em-faster" : "--em-slower";
    return `color-mix(in oklab, var(${colour}) ${(8 + 92 * part).toFixed(0)}%, var(--bg))`;
  }

  legend() {
    const { rankings, printed } = this.data;
    const ranking = rankings[this.measure];
    const swatch = (/** @type {string} */ colour, /** @type {(Node | string)[]} */ ...text) =>
      h("span", {}, h("i", { style: { background: colour } }), ...text);
    if (ranking) {
      const entries = ranking.schedules.map(({ name, title, wins }) =>
        wins
          ? swatch(`var(--schedule-${name})`, `${title} `, h("b", {}, wins.toLocaleString("en-US")))
          : h("span.mw-em-never", {}, `${title} 0`),
      );
      return h(
        "div.mw-legend",
        {},
        ...entries,
        h("span", {}, "pale: less than 2% faster than the second-fastest schedule"),
      );
    }
    const isDeepspeed = this.measure === "deepspeed";
    const steps = isDeepspeed ? [0.9, 1, printed[0], 2, 3, 4, printed[1]] : [0.3, 0.5, 0.75, 0.9, 1, 1.1, 1.2, 1.5];
    const swatches = steps.map((speedup) => swatch(this.speedupColour(speedup), `${speedup}×`));
    const beyond = h("i.mw-em-cell", { "data-beyond": true });
    const range = `paper: ${printed[0]}× to ${printed[1]}×`;
    return h(
      "div.mw-legend",
      {},
      ...swatches,
      isDeepspeed && h("span.mw-em-paper", {}, range, beyond, "outside this range"),
    );
  }

  // ── words ──

  /** @param {number} cell @param {string[]} names of axes */
  valuesOf(cell, names) {
    const { axes, across, down } = this.data;
    let rest = cell;
    /** @type {Record<string, string>} */
    const values = {};
    for (const name of [...down, ...across].reverse()) {
      const { word, values: all } = axes[name];
      values[name] = `${word} ${all[rest % all.length]}`;
      rest = Math.floor(rest / all.length);
    }
    return names.map((name) => values[name]).join(" ");
  }

  /** @param {number} cell */
  textOf(cell) {
    const { rankings, down, across, deepspeed, "a2a-allgather": allToAll } = this.data;
    const winner = (/** @type {Ranking} */ { best, lead, schedules }) => {
      return `${schedules[best[cell]].title} is the fastest, by ${percent(lead[cell] - 1)}`;
    };
    const [alike, fitting] = [winner(rankings.alike), winner(rankings.fitting)];
    const fastest = `at equal memory, ${alike}; among all schedules that fit, ${fitting}`;
    const speedups =
      `Parm's choice is ${deepspeed[cell].toFixed(2)}× as fast as the DeepSpeed-MoE schedule and ` +
      `${allToAll[cell].toFixed(2)}× as fast as all-to-all + all-gather`;
    return `${this.valuesOf(cell, [...down, ...across])}: ${fastest}; ${speedups}`;
  }

  /** @param {number} cell */
  describe(cell) {
    this.description.textContent = this.textOf(cell);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const step = ARROW_MOVES[event.key];
    const cell = Number(closest(event, "[data-cell]")?.dataset.cell);
    if (!step || Number.isNaN(cell)) return;
    const [row, column] = [Math.floor(cell / this.columns) + step[1], (cell % this.columns) + step[0]];
    consume(event);
    if (row < 0 || column < 0 || column >= this.columns || row * this.columns >= this.cells.length) return;
    const last = this.cells[this.at];
    this.at = row * this.columns + column;
    setTabStop([last, this.cells[this.at]], this.cells[this.at]);
    this.cells[this.at].focus();
    this.describe(this.at);
  }
}

/**
 * The colour of the fastest schedule, which is stronger for a larger lead.
 * @param {Ranking} ranking @param {number} cell
 */
function rankColour({ best, lead, schedules }, cell) {
  const strength = STRENGTHS[LEADS.filter((least) => lead[cell] >= least).length];
  return `color-mix(in oklab, var(--schedule-${schedules[best[cell]].name}) ${strength}%, var(--bg))`;
}

/** @param {MapAxis} axis @param {string} text */
const axisLabel = ({ word, help }, text) => h("span", { "data-tip": `${word}: ${help}` }, text);

/** @param {MapData} data @param {string[]} names */
const size = ({ axes }, names) => names.reduce((product, name) => product * axes[name].values.length, 1);
