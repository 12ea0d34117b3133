// The log of a run: the lines of one process or of all processes, which scroll as the log grows, and a search.

/** @import { RunLogModel } from "./types" */

import { h } from "../kit/dom.js";
import { count } from "../kit/numbers.js";
import { Widget, plainData } from "../kit/widget.js";

const SEARCH_DELAY_MS = 200;
const MOST_CHOICES = 256; // largest number of processes in the list

/** @param {{model: RunLogModel}} args */
export const render = ({ model }) => new RunLog(model).root;

/** @extends {Widget<RunLogModel>} */
class RunLog extends Widget {
  followsEnd = true;
  timer = 0;
  /** How each line of the log is drawn. @type {string[]} */ looks = [];

  /** @param {RunLogModel} model */
  constructor(model) {
    super(model);
    this.process = h("select.mw-log-process", { "aria-label": "Process" });
    this.process.addEventListener("change", () => {
      this.followsEnd = true;
      this.send("choose", { process: this.process.value ? Number(this.process.value) : null });
    });
    this.search = h("input.mw-dock-search", { type: "search", placeholder: "Search log", "aria-label": "Search log" });
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.send("search", { query: this.search.value.trim() }), SEARCH_DELAY_MS);
    });
    this.found = h("span.mw-quiet", { role: "status" });
    this.toEnd = h(
      "button.mw-button",
      {
        type: "button",
        onclick: () => {
          this.followsEnd = true;
          this.scrollToEnd();
        },
      },
      "Follow",
    );
    this.log = h("pre.mw-log", { tabindex: 0, role: "log", "aria-label": "Run log" });
    this.log.addEventListener("scroll", () => {
      this.followsEnd = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 4;
      this.toEnd.hidden = this.followsEnd;
    });
    this.sizes = new ResizeObserver(() => this.followsEnd && this.scrollToEnd()); // also when the element is attached
    this.sizes.observe(this.log);
    const grow = h("span.mw-grow");
    this.bar = h("div.mw-dock-bar", {}, this.process, this.search, this.found, grow, this.toEnd);
    this.empty = h("p.mw-dock-empty", {}, "No log. Launch the design, or choose a run in the Runs tab.");
    this.root = h("div.mw-canvas.mw-run-log", {}, this.bar, this.empty, this.log);
    model.on(["run", "processes", "process"], () => this.drawProcesses());
    model.on("lines", () => this.drawLines());
    this.drawProcesses();
    this.drawLines();
  }

  remove() {
    this.sizes.disconnect();
    clearTimeout(this.timer);
  }

  drawProcesses() {
    const { processes, process } = this.model;
    const listed = Array.from({ length: Math.min(processes, MOST_CHOICES) }, (_, number) => number);
    this.process.replaceChildren(
      h("option", { value: "" }, "All processes"),
      ...listed.map((number) => h("option", { value: number }, `Process ${number}`)),
    );
    this.process.value = process === null ? "" : String(process);
  }

  drawLines() {
    /** @type {[number, string][]} */
    const lines = plainData(this.model, "lines");
    const query = this.search.value.trim();
    this.bar.hidden = !this.model.run;
    this.log.hidden = !lines.length;
    this.empty.hidden = Boolean(lines.length || this.model.run);
    this.found.textContent = query ? count(lines.length, "line") : "";
    const isOfAll = this.model.process === null;
    const looks = lines.map(([process, text]) => JSON.stringify([isOfAll ? process : "", text, query]));
    const [from, to] = changedLines(this.looks, looks);
    for (const line of [...this.log.children].slice(from, to)) line.remove();
    const added = lines.slice(from + this.looks.length - to);
    const prefix = (/** @type {number} */ process) => (isOfAll ? `[${process}] ` : "");
    this.log.append(
      ...added.map(([process, text]) => h("span", {}, prefix(process), ...markMatches(text, query), "\n")),
    );
    this.looks = looks;
    if (this.followsEnd) this.scrollToEnd();
  }

  scrollToEnd() {
    this.log.scrollTop = this.log.scrollHeight;
    this.toEnd.hidden = true;
  }
}

/**
 * The range of drawn lines to remove, from its first line to the line after its last one. All lines of `after` beyond
 * those that stay are to be appended. Lines that stay are not drawn again, so that selected text stays selected.
 * @param {string[]} before @param {string[]} after
 */
function changedLines(before, after) {
  let from = 0;
  while (from < before.length && before[from] === after[from]) from++;
  let to = from;
  while (!before.slice(to).every((line, at) => line === after[from + at])) to++;
  return [from, to];
}

/** A line with each occurrence of `query` marked. @param {string} text @param {string} query */
function markMatches(text, query) {
  const [lower, wanted] = [text.toLowerCase(), query.toLowerCase()];
  const parts = [];
  let from = 0;
  for (let at = lower.indexOf(wanted); wanted && at >= 0; at = lower.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), h("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}
