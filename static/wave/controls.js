// Controls of the wave: schedule, dial, microbatches, options, and how far a computation is.

import { button, h, keepFocus, stepper } from "../kit/canvas.js";
import { count } from "../kit/numbers.js";
import { ScheduleRow } from "../kit/schedule_picture.js";

/** The bar over the wave: schedules, microbatches, options, balance, and a computation that is under way. */
export class Controls {
  /** @param {import("./wave.js").Wave} wave */
  constructor(wave) {
    this.wave = wave;
    const refuse = (reason, element) => reason && wave.sayAt(element, reason);
    this.row = new ScheduleRow({ onchoose: (name) => wave.send("schedule", { name }), onrefuse: refuse });
    this.dialBox = h("span", { class: "mw-dial" });
    this.microbatches = stepper({
      label: "microbatches",
      one: "microbatch",
      onchange: (value) => wave.send("microbatches", { value }),
      onrefuse: refuse,
    });
    this.toggleBox = h("span", { class: "mw-toggles" });
    this.words = h("span", { class: "mw-quiet mw-grow mw-words" });
    this.balance = button("Balance", {
      title: "Share the layers out by their cost",
      onclick: () => wave.send("balance", {}),
    });
    this.balance.refuse = (reason) => wave.sayAt(this.balance, reason);
    this.element = h(
      "div",
      { class: "mw-bar" },
      this.dialBox,
      this.microbatches,
      this.toggleBox,
      this.words,
      this.balance,
    );
    this.computing = h("div", { class: "mw-computing", hidden: true });
  }

  drawControls() {
    const { picture } = this.wave;
    this.drawDial(picture.dial);
    this.microbatches.set(picture.microbatches, { least: 1, most: picture.most_microbatches });
    this.drawToggles(picture.toggles);
    const total = picture.layers.reduce((sum, number) => sum + number, 0);
    const copies = picture.routes.length > 1 ? `, ${picture.routes.length} replicas` : "";
    this.words.textContent = picture.layers.length
      ? `${count(picture.layers.length, "stage")}, ${count(total, "layer")}${copies}`
      : "";
    if (this.words.scrollWidth > this.words.clientWidth) this.words.textContent = ""; // half a word says nothing
    this.balance.allow(
      !picture.balanced,
      picture.balanced ? "The layers are shared out by their cost already" : "Share the layers out by their cost",
    );
  }

  /** How far a computation is, with a button that ends it. */
  drawProgress() {
    keepFocus(this.computing, () => this.drawComputing(), this.row.stop);
  }

  drawComputing() {
    const { state, share = 0, said } = this.wave.model.progress;
    this.computing.hidden = !state;
    if (!state) return;
    if (state !== this.progressState) {
      const again = button("Compute again", { onclick: () => this.wave.send("compute", { do: "again" }) });
      const stop = button("Stop", {
        title: "End the computation; the last good design stays on the page",
        onclick: () => this.wave.send("compute", { do: "stop" }),
      });
      this.progressBar = h(
        "div",
        {
          class: "mw-progress-bar",
          role: "progressbar",
          "aria-label": "computation",
          "aria-valuemin": 0,
          "aria-valuemax": 100,
        },
        h("div"),
      );
      this.progressWords = h("span", { class: "mw-progress-words", role: "status" });
      this.computing.replaceChildren(this.progressWords, ...(state === "runs" ? [this.progressBar, stop] : [again]));
      this.progressState = state;
    }
    this.progressWords.textContent = said;
    this.progressBar.setAttribute("aria-valuenow", Math.round(100 * share));
    this.progressBar.firstChild.style.width = `${100 * share}%`;
    this.wave.none.hidden ||= Boolean(state);
  }

  drawDial(dial) {
    if (dial?.key !== this.dial?.key) {
      const refuse = (reason, element) => reason && this.wave.sayAt(element, reason);
      this.dialStepper =
        dial &&
        stepper({
          label: dial.label,
          one: dial.label.replace(/s$/, ""),
          onchange: (value) => this.wave.send("dial", { value }),
          onrefuse: refuse,
        });
      this.dialBox.replaceChildren(...(dial ? [this.dialStepper] : []));
    }
    this.dial = dial;
    this.dialBox.hidden = !dial;
    this.dialStepper?.set(dial.value, { least: 1, most: dial.most, more: dial.reason ?? undefined });
  }

  /** The switches of options stay what they are while a picture follows the other: a press may begin on one of them and
      end after the next. */
  drawToggles(toggles) {
    const names = JSON.stringify(toggles.map(({ key, words }) => [key, words]));
    if (names !== this.toggleNames) {
      this.toggleNames = names;
      this.toggles = toggles.map(({ key, words }) => this.segments(key, words));
      this.toggleBox.replaceChildren(...this.toggles);
    }
    this.toggleBox.hidden = !toggles.length;
    toggles.forEach((toggle, place) => this.toggles[place].set(toggle));
  }

  segments(key, words) {
    let held = null;
    const buttons = words.map((word) => {
      const segment = button(word, {
        kind: "mw-segment",
        onclick: () => word !== held && this.wave.send("option", { key, value: word }),
      });
      segment.refuse = (text) => this.wave.sayAt(segment, text);
      return segment;
    });
    const element = h("span", { class: "mw-segments", role: "group", "aria-label": key }, ...buttons);
    element.set = ({ value, help, reason }) => {
      held = value;
      buttons.forEach((segment, place) => {
        segment.setAttribute("aria-pressed", String(words[place] === value));
        segment.allow(!reason, reason ?? help);
      });
    };
    return element;
  }
}
