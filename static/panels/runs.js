// Runs: follow one live, compare it with the prediction, open earlier ones.

/** @import { Message } from "../kit/types" */
/** @import { Outcome, RunComparison, RunsModel } from "./types" */

import { filePicker, sizeProblem } from "../kit/bars.js";
import { button } from "../kit/controls.js";
import { focusedElement, h, keepFocus } from "../kit/dom.js";
import { Widget } from "../kit/widget.js";
import { LossChart } from "./loss_chart.js";
import { tableRow } from "./tables.js";

/** @param {{model: RunsModel}} args */
export const render = ({ model }) => new Runs(model).root;

/** @extends {Widget<RunsModel>} */
class Runs extends Widget {
  head = h("div.mw-run-part");
  loss = new LossChart();
  comparison = h("div.mw-run-part");
  history = h("div.mw-run-part");
  notes = h("div.mw-run-part");
  /** @type {Set<string>} */ unfolded = new Set(); // titles of parts of the comparison
  followsLog = true; // keep its end in view

  /** @param {RunsModel} model */
  constructor(model) {
    super(model);
    this.log = h("pre.mw-log", { tabindex: 0, role: "log", "aria-label": "Run log" });
    this.log.addEventListener("scroll", () => {
      this.followsLog = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 4;
    });
    this.sizes = new ResizeObserver(() => this.scrollLog()); // also when it is attached to the page
    this.sizes.observe(this.log);
    const parts = [this.head, this.loss.element, this.comparison, this.history, this.notes, this.log];
    this.run = h("section.mw-run", { "aria-label": "Selected run" }, ...parts);
    this.list = h("div.mw-runs-list", { role: "group", "aria-label": "Runs" });
    this.picker = filePicker("Training text", "text/*,.txt,.md,.csv,.json", (file) => this.uploadText(file));
    this.textName = h("span.mw-text-name");
    this.textProblem = h("div.mw-run-reason", { role: "alert" });
    this.defaultText = button("Use default text", {
      title: "Train on the text included with Meshwave",
      onclick: () => this.send("default_text"),
    });
    this.textRow = h(
      "section.mw-text",
      { "aria-label": "Training text" },
      this.textName,
      button("Choose training text …", { onclick: () => this.picker.click() }),
      this.defaultText,
      this.picker,
      this.textProblem,
    );
    this.emulate = h("input", { type: "checkbox" });
    this.emulate.addEventListener("change", () => this.send("hosts", { on: this.emulate.checked }));
    this.emulateLabel = h("span");
    const emulation =
      "The processes of each node run in one network namespace, whose bandwidth the kernel " +
      "limits to that of the design. Without emulation all processes communicate over the loopback interface.";
    this.emulateRow = h("label.mw-check", { title: emulation }, this.emulate, this.emulateLabel);
    const heading = h("h3", {}, "Runs");
    this.root = h("div.mw-canvas.mw-runs", {}, this.textRow, this.emulateRow, this.run, heading, this.list);
    model.on("run", () => this.drawRun());
    model.on(["run", "losses"], () => this.loss.draw(model));
    model.on("comparison", () => keepFocus(this.comparison, () => this.drawComparison()));
    model.on("outcomes", () => this.drawHistory());
    model.on("log", () => this.drawLog());
    model.on("runs", () => this.drawList());
    model.on("text", () => this.drawText());
    model.on("hosts", () => this.drawEmulation());
    this.draw();
    window.meshwaveRuns = { model, root: this.root };
  }

  remove() {
    this.sizes.disconnect();
  }

  /** @param {Message} message */
  receive({ type, gesture, refused }) {
    if (type === "answered" && gesture?.endsWith("_text")) this.textProblem.textContent = refused ?? "";
  }

  draw() {
    this.drawText();
    this.drawEmulation();
    this.drawRun();
    this.loss.draw(this.model);
    this.drawComparison();
    this.drawHistory();
    this.drawLog();
    this.drawList();
  }

  // ── the training text ──

  drawText() {
    const { name } = this.model.text;
    this.textName.textContent = `Training text: ${name ?? "default"}`;
    this.textName.title = name ?? "";
    keepFocus(this.textRow, () => (this.defaultText.hidden = !name));
    this.textProblem.textContent = "";
  }

  /** @param {File} file */
  async uploadText(file) {
    this.textProblem.textContent = sizeProblem(file, this.model.text.largest);
    if (this.textProblem.textContent) return;
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      this.send("bring_text", { name: file.name, text });
    } catch {
      this.textProblem.textContent = `${file.name} is not a UTF-8 text file.`;
    }
  }

  // ── the emulated network ──

  drawEmulation() {
    const { on, words } = this.model.hosts;
    this.emulateRow.hidden = !words;
    this.emulate.checked = Boolean(on);
    this.emulateLabel.textContent = `Emulate the network of the design: ${words}`;
  }

  // ── the run ──

  drawRun() {
    const { run } = this.model;
    this.run.hidden = !run.id;
    if (!run.id) return;
    const share = run.total ? run.done / run.total : 0;
    const progress = { "aria-valuenow": run.done, "aria-valuemin": 0, "aria-valuemax": run.total };
    const figures = run.figures.map(([value, name]) => h("div.mw-figure", {}, h("b", {}, value), h("span", {}, name)));
    const hasReason = run.reason && run.state !== "SUCCEEDED" && run.state !== "RUNNING";
    this.head.replaceChildren(
      h(
        "div.mw-run-head",
        {},
        h("span.mw-run-name", { title: `${run.name} (${run.id})` }, run.name),
        stateBadge(run.state),
      ),
      h(
        "div.mw-progress",
        { role: "progressbar", ...progress, "aria-label": "Completed steps" },
        h("div", { style: { width: `${100 * share}%` } }),
      ),
      h("div.mw-run-figures", {}, ...figures),
      hasReason ? h("div.mw-run-reason", { role: "alert" }, run.reason) : "",
    );
    const wraps = { style: { "white-space": "normal" } };
    this.notes.replaceChildren(...(run.notes ?? []).map((note) => h("div.mw-quiet", wraps, note)));
  }

  drawComparison() {
    const { comparison } = this.model;
    this.comparison.replaceChildren(...(comparison.rows?.length ? this.comparisonParts(comparison) : []));
  }

  /** @param {RunComparison} comparison */
  comparisonParts({ rows, parts = [], spread, cause, label, clocks, laid, same, whose, usable }) {
    const text = (/** @type {string} */ words, kind = "mw-quiet") =>
      words && h("div", { class: `mw-told ${kind}` }, words);
    const box = h("input", { type: "checkbox" });
    box.checked = laid;
    box.addEventListener("change", () => this.send("overlay", { on: box.checked }));
    const calibrate = button("Calibrate from this run", {
      title: "Save the measurements of this run as a calibration profile and use it for the open design",
      onclick: () => this.send("use_measured"),
    });
    const found = h(
      "div",
      {},
      text(label, "mw-rehearsed"),
      comparisonTable("mw-compare", rows, { caption: `Measured vs. predicted${whose}` }),
      text(spread),
      text(cause, "mw-cause"),
      ...parts.map((part) => this.foldedPart(part)),
      text(clocks),
      same && h("label.mw-check", {}, box, "Overlay measured timeline"),
      usable && calibrate,
    );
    return [found];
  }

  /**
   * A part of the comparison. It stays unfolded while a run progresses.
   * @param {{title: string, rows: string[][]}} part
   */
  foldedPart({ title, rows }) {
    const table = comparisonTable("mw-beside", rows, { label: title });
    const part = h("details.mw-compared-part", { "aria-label": title }, h("summary", {}, title), table);
    part.open = this.unfolded.has(title);
    part.addEventListener("toggle", () => this.unfolded[part.open ? "add" : "delete"](title));
    return part;
  }

  // ── earlier runs of the design ──

  drawHistory() {
    const { outcomes } = this.model;
    const caption = h("caption", {}, "Prediction errors of earlier runs of this design");
    const rows = h("tbody", {}, ...outcomes.map(outcomeRow));
    this.history.replaceChildren(...(outcomes.length ? [h("table.mw-beside.mw-past", {}, caption, rows)] : []));
  }

  drawLog() {
    const text = this.model.log;
    if (this.log.textContent !== text) this.log.textContent = text;
    this.log.hidden = !text;
    this.followsLog ||= !text; // another run begins
    this.scrollLog();
  }

  /** Keep the end of the log in view, unless a person scrolled up to read. */
  scrollLog() {
    if (this.followsLog) this.log.scrollTop = this.log.scrollHeight;
  }

  drawList() {
    const focused = focusedElement(this.root);
    const at = [...this.list.children].findIndex((row) => row === focused);
    const rows = this.model.runs.map(({ id, name, state, words, shown }) =>
      h(
        "button.mw-runs-row",
        { type: "button", "aria-current": String(shown), title: id, onclick: () => this.send("open", { run: id }) },
        h("span", {}, name),
        stateBadge(state),
        h("span.mw-quiet", {}, words),
      ),
    );
    this.list.replaceChildren(...(rows.length ? rows : [h("div.mw-quiet", {}, "No runs yet; press Launch")]));
    if (at >= 0) rows[Math.min(at, rows.length - 1)]?.focus();
  }
}

/** @param {string} state */
const stateBadge = (state) => h("span.mw-state", { "data-state": state }, state.toLowerCase());

/** An error as a bar from the middle, to the right if the run took longer than predicted. @param {Outcome} outcome */
function outcomeRow({ run, shown, share, error, words }) {
  const style = { left: `${50 + 50 * Math.min(share, 0)}%`, width: `${50 * Math.abs(share)}%` };
  return h(
    "tr",
    { "aria-current": String(shown), title: run },
    h("td", {}, words),
    h("td.mw-past-axis", {}, h("span.mw-past-bar", { style })),
    h("td", {}, error),
  );
}

/** @param {string} kind @param {string[][]} rows @param {{caption?: string, label?: string}} names */
function comparisonTable(kind, rows, { caption, label }) {
  const columns = ["", "predicted", "measured", "error"].map((name) => h("th", { scope: "col" }, name));
  return h(
    "table",
    { class: kind, "aria-label": label },
    caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, ...columns)),
    h("tbody", {}, ...rows.map(tableRow)),
  );
}
