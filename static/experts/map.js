// Many expert layers as a heat map: a cell a layer, coloured by the fastest schedule or by a gain.

import { h } from "../kit/canvas.js";

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const MARGINS = [1.02, 1.1, 1.3]; // of the fastest before the next: from here the colour is stronger
const STRENGTHS = [38, 58, 79, 100];

export class ExpertMap {
  /** `links` are the clusters to choose from; `price` asks Python for the map on one of them. */
  constructor(links, price) {
    this.price = price;
    const options = links.map(({ key, text }) => h("option", { value: key, selected: key === "pcie" }, text));
    this.links = h("select", { class: "mw-em-links", onchange: () => this.ask() }, ...options);
    this.measure = "alike"; // a ranking, or a gain
    this.at = 0;
    this.words = h("p", { class: "mw-em-words", role: "status" });
    this.element = h("div", { class: "mw-em" });
  }

  ask() {
    this.price(this.links.value);
  }

  /** Draw what Python found; `found` is empty while it is still counting. */
  draw(found) {
    this.found = found;
    // before it moves, which takes the keyboard from it
    const focused = this.element.getRootNode().activeElement === this.links;
    const choice = h(
      "label",
      {
        class: "mw-em-choice",
        "data-tip": "The links that the layers are priced on; which schedule is the fastest depends on them",
      },
      "Links",
      this.links,
    );
    const show = (...parts) => {
      this.element.replaceChildren(...parts);
      if (focused) this.links.focus();
    };
    if (!found.rankings)
      return show(
        h("div", { class: "mw-em-bar" }, choice),
        h("p", { class: "mw-quiet mw-em-wait", role: "status" }, "Pricing 1,296 layers under every schedule …"),
      );
    const { measures, notes } = found;
    const segments = measures.map(({ key, text }) =>
      h(
        "button",
        {
          type: "button",
          class: "mw-segment",
          "aria-pressed": String(key === this.measure),
          onclick: () => this.turn(key),
        },
        text,
      ),
    );
    this.columns = size(found, found.across);
    this.cells = found.deepspeed.map((_, cell) => this.cell(cell));
    this.grid = h(
      "div",
      {
        class: "mw-em-grid",
        role: "grid",
        "aria-label": "Layers: arrows walk",
        tabindex: -1,
        style: { "--columns": this.columns },
      },
      ...this.rows(),
    );
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.grid.addEventListener(
      "pointerover",
      (event) => event.target.dataset.cell && this.tell(Number(event.target.dataset.cell)),
    );
    const bar = h(
      "div",
      { class: "mw-em-bar" },
      h("div", { class: "mw-segments", role: "group", "aria-label": "Colour by" }, ...segments),
      choice,
      this.legend(),
    );
    show(
      bar,
      this.head(),
      this.grid,
      this.words,
      h("div", { class: "mw-em-notes" }, ...notes.map((note) => h("p", {}, note))),
    );
    this.tell(this.at);
  }

  turn(measure) {
    this.measure = measure;
    this.draw(this.found);
    this.element.querySelector('[aria-pressed="true"]').focus();
  }

  /** Values of the outer two axes of the columns, over the cells that have them. */
  head() {
    const { across, axes } = this.found;
    const named = (depth) => {
      const outer = size(this.found, across.slice(0, depth));
      const { word, help, values } = axes[across[depth]];
      return Array.from({ length: outer * values.length }, (_, at) =>
        h("span", { "data-tip": `${word}: ${help}` }, `${word} ${values[at % values.length]}`),
      );
    };
    const line = (depth) =>
      h(
        "div",
        { class: "mw-em-head", "aria-hidden": "true" },
        h("span", {}),
        h("div", { class: "mw-em-heads" }, ...named(depth)),
      );
    return h("div", {}, line(0), line(1));
  }

  rows() {
    const rows = [];
    for (let first = 0; first < this.cells.length; first += this.columns) {
      const named = this.found.down.flatMap((name) => [
        h(
          "span",
          { "data-tip": `${this.found.axes[name].word}: ${this.found.axes[name].help}` },
          this.axisWords(first, [name]),
        ),
        " ",
      ]);
      rows.push(
        h(
          "div",
          { class: "mw-em-row", role: "row", "data-first": first && (first / this.columns) % 4 === 0 ? "" : null },
          h("span", { class: "mw-em-name", role: "rowheader" }, ...named),
          h("div", { class: "mw-em-cells", role: "presentation" }, ...this.cells.slice(first, first + this.columns)),
        ),
      );
    }
    return rows;
  }

  cell(cell) {
    const ranking = this.found.rankings[this.measure];
    const colour = ranking ? this.won(ranking, cell) : this.gained(this.found[this.measure][cell]);
    const beyond =
      this.measure === "deepspeed" &&
      (this.found.deepspeed[cell] < this.found.printed[0] || this.found.deepspeed[cell] > this.found.printed[1]);
    return h("div", {
      class: "mw-em-cell",
      role: "gridcell",
      "data-cell": cell,
      "data-beyond": beyond ? "" : null,
      tabindex: cell === this.at ? 0 : -1,
      "aria-label": this.about(cell),
      style: { "background-color": colour },
    });
  }

  won({ best, lead, schedules }, cell) {
    const strength = STRENGTHS[MARGINS.filter((least) => lead[cell] >= least).length];
    return `color-mix(in oklab, var(--schedule-${schedules[best[cell]].name}) ${strength}%, var(--bg))`;
  }

  /** Faster is blue, slower orange, the stronger the more. */
  gained(gain) {
    const { printed } = this.found;
    const most = this.measure === "deepspeed" ? printed[1] : 1.5;
    const part = gain >= 1 ? Math.min(1, (gain - 1) / (most - 1)) : Math.min(1, 1.4 * (1 - gain));
    return (
      `color-mix(in oklab, var(${gain >= 1 ? "--em-faster" : "--em-slower"}) ${(8 + 92 * part).toFixed(0)}%, ` +
      "var(--bg))"
    );
  }

  legend() {
    const { rankings, printed } = this.found;
    const ranking = rankings[this.measure];
    const swatch = (colour, words, ...more) => h("span", {}, h("i", { style: { background: colour } }), words, ...more);
    const won = ({ name, title, wins }) =>
      wins
        ? swatch(`var(--schedule-${name})`, `${title} `, h("b", {}, wins.toLocaleString("en-US")))
        : h("span", { class: "mw-em-never" }, `${title} 0`);
    if (ranking)
      return h("div", { class: "mw-legend" }, ...ranking.schedules.map(won), h("span", {}, "pale: by less than 2 %"));
    const steps =
      this.measure === "deepspeed"
        ? [0.9, 1, printed[0], 2, 3, 4, printed[1]]
        : [0.3, 0.5, 0.75, 0.9, 1, 1.1, 1.2, 1.5];
    const paper =
      this.measure === "deepspeed"
        ? h(
            "span",
            { class: "mw-em-paper" },
            `the paper's: ${printed[0]}× to ${printed[1]}×`,
            h("i", { class: "mw-em-cell", "data-beyond": "" }),
            "beyond it",
          )
        : null;
    return h("div", { class: "mw-legend" }, ...steps.map((gain) => swatch(this.gained(gain), `${gain}×`)), paper);
  }

  // ── words ──

  axisWords(cell, names) {
    const { axes, across, down } = this.found;
    let rest = cell;
    const values = {};
    for (const name of [...down, ...across].reverse()) {
      const { word, values: all } = axes[name];
      values[name] = `${word} ${all[rest % all.length]}`;
      rest = Math.floor(rest / all.length);
    }
    return names.map((name) => values[name]).join(" ");
  }

  about(cell) {
    const { rankings, down, across } = this.found;
    const first = ({ best, lead, schedules }) =>
      `${schedules[best[cell]].title} by ${((lead[cell] - 1) * 100).toFixed(lead[cell] < 1.1 ? 1 : 0)} %`;
    const fastest = `fastest for the same memory ${first(rankings.alike)}, of all that fit ${first(rankings.fitting)}`;
    const gains =
      `Parm's choice ${this.found.deepspeed[cell].toFixed(2)}× DeepSpeed-MoE, ` +
      `${this.found["a2a-allgather"][cell].toFixed(2)}× all-to-all, then all-gather`;
    return `${this.axisWords(cell, [...down, ...across])}: ${fastest}; ${gains}`;
  }

  tell(cell) {
    this.words.textContent = this.about(cell);
  }

  key(event) {
    const step = ARROWS[event.key];
    const cell = Number(event.target.dataset?.cell);
    if (!step || Number.isNaN(cell)) return;
    const [row, column] = [Math.floor(cell / this.columns) + step[0], (cell % this.columns) + step[1]];
    event.preventDefault();
    event.stopPropagation();
    if (row < 0 || column < 0 || column >= this.columns || row * this.columns >= this.cells.length) return;
    this.cells[this.at].tabIndex = -1;
    this.at = row * this.columns + column;
    this.cells[this.at].tabIndex = 0;
    this.cells[this.at].focus();
    this.tell(this.at);
  }
}

const size = ({ axes }, names) => names.reduce((product, name) => product * axes[name].values.length, 1);
