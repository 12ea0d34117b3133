// The shown run and its progress, and the training text, initial weights and emulated network of the next launch.

/** @import { Message } from "../kit/types" */
/** @import { RunsModel } from "./types" */

import { filePicker, sizeProblem } from "../kit/bars.js";
import { button } from "../kit/controls.js";
import { h, keepFocus } from "../kit/dom.js";
import { keepNames } from "../kit/language.js";
import { Widget } from "../kit/widget.js";
import { stateBadge } from "./tables.js";

/** @param {{model: RunsModel}} args */
export const render = ({ model }) => new Runs(model).root;

/** @extends {Widget<RunsModel>} */
class Runs extends Widget {
  head = h("div.mw-run-part");
  overlay = h("input", { type: "checkbox" });
  notes = h("div.mw-run-part");
  refusal = h("div.mw-dock-refusal", { role: "alert" });

  /** @param {RunsModel} model */
  constructor(model) {
    super(model);
    this.overlay.addEventListener("change", () => this.send("overlay", { on: this.overlay.checked }));
    this.overlayLabel = h("label.mw-check", {}, this.overlay, "Overlay measured timeline");
    this.hiddenReason = h("div.mw-quiet", { role: "status" });
    this.calibrate = button("Calibrate from this run", {
      title: "Save the measurements of this run as a calibration profile and use it for the open design",
      onclick: () => this.send("use_measured"),
    });
    const actions = h("div.mw-run-actions", {}, this.overlayLabel, this.calibrate, this.hiddenReason);
    this.run = h("section.mw-run", { "aria-label": "Selected run" }, this.head, actions, this.refusal, this.notes);
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
    this.weights = /** @type {HTMLSelectElement} */ (h("select.mw-input", { id: "mw-initial-weights" }));
    this.weights.addEventListener("change", () => this.send("weights", { name: this.weights.value }));
    this.weightsHint = h(
      "div.mw-quiet",
      {},
      "Hugging Face checkpoints in the folder “checkpoints” of the data folder appear here.",
    );
    const weightsLabel = h("label", { for: "mw-initial-weights" }, "Initial weights");
    this.weightsRow = h("section.mw-weights", { "aria-label": "Initial weights" }, weightsLabel, this.weights);
    this.weightsRow.append(this.weightsHint);
    this.emulate = h("input", { type: "checkbox" });
    this.emulate.addEventListener("change", () => this.send("hosts", { on: this.emulate.checked }));
    this.emulateLabel = h("span");
    const emulation =
      "The processes of each node run in one network namespace, whose bandwidth the kernel " +
      "limits to that of the design. Without emulation all processes communicate over the loopback interface.";
    this.emulateRow = h("label.mw-check", { title: emulation }, this.emulate, this.emulateLabel);
    this.root = h("div.mw-canvas.mw-runs", {}, this.textRow, this.weightsRow, this.emulateRow, this.run);
    model.on(["run", "measured", "is_editing_order"], () => this.drawRun());
    model.on("text", () => this.drawText());
    model.on("weights", () => this.drawWeights());
    model.on("hosts", () => this.drawEmulation());
    this.drawText();
    this.drawWeights();
    this.drawEmulation();
    this.drawRun();
    window.meshwaveRuns = { model, root: this.root };
  }

  /** @param {Message} message */
  receive({ type, gesture, refused }) {
    if (type !== "answered") return;
    const problem = gesture?.endsWith("_text") ? this.textProblem : this.refusal;
    problem.textContent = refused ?? "";
  }

  // ── the training text ──

  drawText() {
    const { name } = this.model.text;
    if (name) keepNames([name]);
    this.textName.textContent = `Training text: ${name ?? "default"}`;
    this.textName.title = name ?? "";
    keepFocus(this.textRow, () => (this.defaultText.hidden = !name));
    this.textProblem.textContent = "";
  }

  /** @param {File} file */
  async uploadText(file) {
    keepNames([file.name]);
    this.textProblem.textContent = sizeProblem(file, this.model.text.largest);
    if (this.textProblem.textContent) return;
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      this.send("bring_text", { name: file.name, text });
    } catch {
      this.textProblem.textContent = `${file.name} is not a UTF-8 text file.`;
    }
  }

  drawWeights() {
    const { names, name } = this.model.weights;
    const options = names.map((each) => h("option", { value: each, translate: "no" }, each));
    this.weights.replaceChildren(h("option", { value: "" }, "Random"), ...options);
    this.weights.value = name;
    this.weightsHint.hidden = names.length > 0;
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
        h("span.mw-run-name", { translate: "no", title: `${run.name} (${run.id})` }, run.name),
        stateBadge(run.state),
      ),
      h(
        "div.mw-progress",
        { role: "progressbar", ...progress, "aria-label": "Completed steps" },
        h("div", { style: { width: `${100 * share}%` } }),
      ),
      h("div.mw-run-figures", {}, ...figures),
      hasReason ? h("div.mw-run-reason", { role: "alert", "data-state": run.state }, run.reason) : "",
    );
    const wraps = { style: { "white-space": "normal" } };
    this.notes.replaceChildren(...(run.notes ?? []).map((note) => h("div.mw-quiet", wraps, note)));
    const { same, overlaid, calibrates } = this.model.measured;
    this.overlay.checked = Boolean(overlaid);
    const isHidden = overlaid && this.model.is_editing_order;
    this.hiddenReason.textContent = isHidden ? "Hidden while “Edit order” is on" : "";
    keepFocus(this.run, () => {
      this.overlayLabel.hidden = !same;
      this.calibrate.hidden = !calibrates;
    });
  }
}
