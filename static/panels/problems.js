// The list of problems, errors first, and the results of a search for a better order. A press on a problem focuses
// its field; the buttons below a problem apply its fixes.

/** @import { ProblemLine, ProblemsModel } from "./types" */

import { button } from "../kit/controls.js";
import { find, focusedElement, h } from "../kit/dom.js";
import { icon } from "../kit/icons.js";
import { Widget } from "../kit/widget.js";

/** @type {Record<string, string>} */
const SEVERITIES = { error: "Error", launch: "Blocks launch", warning: "Warning", computing: "Computing" };
/** @type {Record<string, string>} */
const GLYPHS = { launch: "warning", computing: "help" };

/** @param {{model: ProblemsModel}} args */
export const render = ({ model }) => new Problems(model).root;

/** @extends {Widget<ProblemsModel>} */
class Problems extends Widget {
  list = h("ul.mw-problem-list");
  none = h(
    "div.mw-none",
    {},
    icon("check"),
    h("div", {}, "No problems"),
    h("div.mw-none-note", {}, "This design can be simulated."),
  );
  findings = h("section.mw-found", { "aria-label": "Search results" });
  better = h("section.mw-found.mw-better", { "aria-label": "Order search", hidden: true });
  live = h("div.mw-sr", { role: "status", "aria-live": "polite" });
  refusal = h("p.mw-dock-refusal", { role: "alert" });

  /** @param {ProblemsModel} model */
  constructor(model) {
    super(model);
    const parts = [this.refusal, this.list, this.none, this.findings, this.better, this.live];
    this.root = h("section.mw-canvas.mw-shell.mw-problems", { "aria-label": "Problems" }, ...parts);
    model.on("problems", () => this.drawProblems());
    model.on("findings", () => this.drawFindings());
    model.on("better", () => this.drawSearch());
    this.drawProblems();
    this.drawFindings();
    this.drawSearch();
  }

  drawProblems() {
    const { problems } = this.model;
    const at = focusedElement(this.root)?.dataset.place;
    this.list.replaceChildren(...problems.map((problem, place) => h("li", {}, ...this.line(problem, place))));
    this.list.hidden = !problems.length;
    this.none.hidden = problems.length > 0;
    if (at !== undefined) find(this.list, `[data-place="${Math.min(Number(at), problems.length - 1)}"]`)?.focus();
    const counts = Object.entries(SEVERITIES).map(([severity, title]) => {
      const number = problems.filter((problem) => problem.severity === severity).length;
      return `${title.toLowerCase()}: ${number}`;
    });
    this.live.textContent = problems.length ? counts.join(", ") : "No problems";
  }

  drawFindings() {
    const { findings } = this.model;
    this.findings.hidden = !findings.length;
    this.findings.replaceChildren(h("h3", {}, "Search results"), ...findings.map((sentence) => h("p", {}, sentence)));
  }

  drawSearch() {
    const { state, words, share, use } = this.model.better;
    this.better.hidden = !state;
    if (!state) return;
    const act = (/** @type {string} */ label, /** @type {string} */ type, kind = "") =>
      button(label, { kind, onclick: () => this.send(type) });
    const parts = {
      open: [
        h("p", {}, "Search for a better order of these stages with Auto, using the costs and memory of this design."),
        act("Search", "search"),
      ],
      runs: [
        h("p", { role: "status" }, words),
        h("div.mw-better-bar", {}, h("div", { style: { width: `${100 * share}%` } })),
        act("Stop", "stop"),
      ],
      found: [h("p", { role: "status" }, words), use ? act("Apply", "use", "mw-primary") : act("Search", "search")],
    }[state];
    const isFocused = this.better.contains(focusedElement(this.root));
    this.better.replaceChildren(h("h3", {}, "Order search"), ...parts);
    if (isFocused) find(this.better, "button")?.focus();
  }

  /** @param {ProblemLine} problem @param {number} place */
  line({ severity, where, code, message, fixes }, place) {
    const head = h("span.mw-problem-head", {}, h("b", {}, SEVERITIES[severity]), where && h("code", {}, where));
    const listeners = { onclick: () => this.send("focus", { where }), onkeydown: focusNextLine };
    const problem = h(
      "button.mw-problem",
      { type: "button", "data-severity": severity, "data-where": where, "data-place": place, ...listeners },
      icon(GLYPHS[severity] ?? severity),
      h("span.mw-problem-body", {}, head, h("span", {}, message)),
    );
    const apply = (/** @type {string} */ fix) =>
      button(fix, { kind: "mw-fix", onclick: () => this.send("fix", { where, code, fix }) });
    return fixes.length ? [problem, h("div.mw-fixes", {}, ...fixes.map(apply))] : [problem];
  }
}

/** Arrow keys go from problem to problem. @param {KeyboardEvent} event */
function focusNextLine(event) {
  const item = /** @type {HTMLElement} */ (/** @type {HTMLElement} */ (event.currentTarget).parentElement);
  const next = { ArrowDown: item.nextElementSibling, ArrowUp: item.previousElementSibling }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  /** @type {HTMLElement | null} */ (next?.firstElementChild ?? null)?.focus();
}
