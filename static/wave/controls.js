// Controls of the wave canvas: schedule, number of waves or chunks, microbatches, options, and the progress of a
// computation.

/** @import { Dial, Toggle } from "./types" */

import { button, stepper } from "../kit/controls.js";
import { h, keepFocus } from "../kit/dom.js";
import { count } from "../kit/numbers.js";
import { ScheduleRow } from "../kit/schedule_picture.js";

const BALANCE = "Balance the layers by cost";

export class Controls {
  /** @type {ReturnType<Controls["segments"]>[]} */ toggles = [];
  /** @type {Dial | null} */ dial = null;
  /** @type {ReturnType<typeof stepper> | null} */ dialStepper = null;
  /** @type {string | undefined} */ progressState;
  toggleNames = "";

  /** @param {import("./wave.js").Wave} wave */
  constructor(wave) {
    this.wave = wave;
    this.onblocked = (/** @type {string} */ reason, /** @type {HTMLElement} */ element) =>
      reason && wave.announceAt(element, reason);
    this.row = new ScheduleRow({
      onchoose: (name) => wave.send("schedule", { name }),
      onblocked: this.onblocked,
    });
    this.dialBox = h("span.mw-dial");
    this.microbatches = stepper({
      label: "microbatches",
      onchange: (value) => wave.send("microbatches", { value }),
      onblocked: this.onblocked,
    });
    this.toggleBox = h("span.mw-toggles");
    this.summary = h("span.mw-quiet.mw-grow.mw-words");
    this.balance = button("Balance", { title: BALANCE, onclick: () => wave.send("balance") });
    this.balance.onblocked = this.onblocked;
    const parts = [this.dialBox, this.microbatches, this.toggleBox, this.summary, this.balance];
    this.element = h("div.mw-bar", {}, ...parts);
    this.computing = h("div.mw-computing", { hidden: true });
    this.progressText = h("span.mw-progress-words", { role: "status" });
    const range = { "aria-valuemin": 0, "aria-valuemax": 100 };
    this.progressFill = h("div");
    this.progressBar = h(
      "div.mw-progress-bar",
      { role: "progressbar", "aria-label": "Computation", ...range },
      this.progressFill,
    );
  }

  draw() {
    const { picture } = this.wave;
    this.drawDial(picture.dial);
    this.microbatches.set(picture.microbatches, { least: 1, most: picture.most_microbatches });
    this.drawToggles(picture.toggles);
    const layers = count(
      picture.layers.reduce((sum, number) => sum + number, 0),
      "layer",
    );
    const replicas = picture.routes.length > 1 ? `, ${picture.routes.length} replicas` : "";
    const stages = picture.layers.length;
    this.summary.textContent = stages ? `${count(stages, "stage")}, ${layers}${replicas}` : "";
    if (this.summary.scrollWidth > this.summary.clientWidth) this.summary.textContent = ""; // the label does not fit
    this.balance.enable(!picture.balanced, picture.balanced ? "The layers are balanced by cost already" : BALANCE);
  }

  /** Show the progress of a computation, with a button to stop it. */
  drawProgress() {
    keepFocus(this.computing, () => this.drawComputing(), this.row.tabStop);
  }

  drawComputing() {
    const { state, share = 0, said = "" } = this.wave.model.progress;
    this.computing.hidden = !state;
    if (!state) return;
    if (state !== this.progressState) {
      const compute = (/** @type {string} */ does) => () => this.wave.send("compute", { do: does });
      const stop = button("Stop", {
        title: "Stop the computation; the last valid design stays on the page",
        onclick: compute("stop"),
      });
      const buttons =
        state === "runs" ? [this.progressBar, stop] : [button("Compute again", { onclick: compute("again") })];
      this.computing.replaceChildren(this.progressText, ...buttons);
      this.progressState = state;
    }
    this.progressText.textContent = said;
    this.progressBar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    this.progressFill.style.width = `${100 * share}%`;
    this.wave.none.hidden = true;
  }

  /** @param {Dial | null} dial */
  drawDial(dial) {
    if (dial?.key !== this.dial?.key) {
      const onchange = (/** @type {number} */ value) => this.wave.send("dial", { value });
      this.dialStepper = dial && stepper({ label: dial.label, onchange, onblocked: this.onblocked });
      this.dialBox.replaceChildren(this.dialStepper ?? "");
    }
    this.dial = dial;
    this.dialBox.hidden = !dial;
    if (dial) this.dialStepper?.set(dial.value, { least: 1, most: dial.most, more: dial.reason ?? undefined });
  }

  /**
   * Update the switches of options in place, since a press may begin before a redraw and end after it.
   * @param {Toggle[]} toggles
   */
  drawToggles(toggles) {
    const names = JSON.stringify(toggles.map(({ key, words }) => [key, words]));
    if (names !== this.toggleNames) {
      this.toggleNames = names;
      this.toggles = toggles.map((toggle) => this.segments(toggle));
      this.toggleBox.replaceChildren(...this.toggles.map(({ element }) => element));
    }
    this.toggleBox.hidden = !toggles.length;
    toggles.forEach((toggle, i) => this.toggles[i].set(toggle));
  }

  /** @param {Toggle} toggle */
  segments({ key, words, labels }) {
    let held = "";
    const buttons = words.map((word, i) => {
      const onclick = () => word !== held && this.wave.send("option", { key, value: word });
      return Object.assign(button(labels[i], { kind: "mw-segment", onclick }), { onblocked: this.onblocked });
    });
    const element = h("span.mw-segments", { role: "group", "aria-label": key }, ...buttons);
    const set = (/** @type {Toggle} */ { value, help, reason }) => {
      held = value;
      buttons.forEach((segment, i) => {
        segment.setAttribute("aria-pressed", String(words[i] === value));
        segment.enable(!reason, reason ?? help);
      });
    };
    return { element, set };
  }
}
