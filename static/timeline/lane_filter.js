// The filter of lanes: a text that names meshes, ranks or stages hides all other lanes and their memory.

/** @import { LaneTest } from "./layout.js" */
/** @import { Chart } from "./timeline.js" */

import { button } from "../kit/controls.js";
import { h } from "../kit/dom.js";

const NUMBERS = /^(rank|stage)s?\s*(\d+)(?:\s*-\s*(\d+))?$/;

export class LaneFilter {
  count = h("span.mw-timeline-filtered", { role: "status" });

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    this.field = h("input", {
      type: "search",
      placeholder: "mesh C, rank 0-3, stage 5",
      spellcheck: "false",
      "aria-label": "Filter lanes",
    });
    const close = button("Clear filter", {
      content: "×",
      kind: "mw-icon",
      title: "Show all lanes (Esc)",
      onclick: () => this.close(),
    });
    this.element = h("div", { hidden: true }, this.field, this.count, close);
    this.field.addEventListener("input", () => this.set(this.field.value));
    this.field.addEventListener("keydown", (event) => this.key(event));
  }

  get text() {
    return this.field.value.trim();
  }

  open() {
    this.element.hidden = false;
    this.field.focus();
    this.field.select();
  }

  close() {
    this.set("");
    this.element.hidden = true;
    this.chart.stage.focus();
  }

  /** Filter by a text; an empty text shows all lanes. @param {string} text */
  set(text) {
    const { chart, field, element } = this;
    if (field.value !== text) field.value = text;
    element.hidden = !text && document.activeElement !== field;
    if (!chart.isDrawn) return;
    this.drawCount();
    chart.rearrange();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    event.stopPropagation();
    if (event.key === "Escape" || (event.key === "Enter" && !this.text)) this.close();
    else if (event.key === "Enter") this.chart.stage.focus();
    else return;
    event.preventDefault();
  }

  /** A test for the lanes to show; a text without matches shows all lanes. @returns {LaneTest} */
  get isShown() {
    return this.matches.includes(true) ? laneTest(this.text) : () => true;
  }

  /** For each lane, true if the text names it. */
  get matches() {
    const isMatch = laneTest(this.text);
    return this.chart.rows.flatMap(([layer]) => layer.meshes.map((_, rank) => isMatch(layer, rank)));
  }

  drawCount() {
    const { matches } = this;
    const found = matches.filter(Boolean).length;
    this.element.toggleAttribute("data-refused", !found);
    const text = found ? `${found} of ${matches.length} lanes` : "no matches";
    this.count.textContent = this.text ? text : "";
  }
}

/**
 * Return a test for the lanes that a text names: terms separated by commas, each one a part of a name, `mesh C`,
 * `rank 3`, `rank 0-3`, `stage 5` or `stage 4-7`. An empty text names all lanes.
 * @param {string} text @returns {LaneTest}
 */
export function laneTest(text) {
  const terms = text
    .toLowerCase()
    .split(",")
    .map((term) => term.trim());
  const tests = terms.filter(Boolean).map(termTest);
  return (layer, rank) => !tests.length || tests.some((isMatch) => isMatch(layer, rank));
}

/** @param {string} term @returns {LaneTest} */
function termTest(term) {
  const [, kind, first, last = first] = NUMBERS.exec(term) ?? [];
  if (kind) {
    const isWithin = (/** @type {number} */ number) => number >= Number(first) && number <= Number(last);
    return (layer, rank) => (kind === "rank" ? [rank] : layer.stagesOf(rank)).some(isWithin);
  }
  if (term.startsWith("mesh ")) return ({ meshes }, rank) => meshes[rank].toLowerCase() === term.slice(5).trim();
  return ({ meshes }, rank) => meshes[rank].toLowerCase().includes(term);
}
