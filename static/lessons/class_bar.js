// The bar of a workshop: the teacher's message, the step of the class, challenges, and a cover during a pause.

/** @import { Challenge, ClassBarModel } from "./types" */

import { button } from "../kit/controls.js";
import { h, keepFocus } from "../kit/dom.js";
import { keepNames } from "../kit/language.js";
import { dropdown } from "../kit/shell.js";
import { Widget } from "../kit/widget.js";
import { leaderboard } from "./leaderboard.js";

const PARAMETERS = ["name_shown", "message", "class_step", "paused", "challenges"];

/** @param {{model: ClassBarModel}} args */
export const render = ({ model }) => new ClassBar(model).root;

/** @extends {Widget<ClassBarModel>} */
class ClassBar extends Widget {
  bar = h("div.mw-class-strip", { role: "region", "aria-label": "Workshop" });
  cover = h(
    "dialog.mw-class-cover",
    { role: "alertdialog", "aria-labelledby": "mw-class-paused", tabindex: -1 },
    h("p", { id: "mw-class-paused" }, "The teacher paused the workshop."),
  );
  refusal = h("span.mw-class-refused", { role: "alert" });
  live = h("div.mw-sr", { role: "status", "aria-live": "polite", translate: "no" });

  opener = button("Challenges");
  leaving = new AbortController(); // removes the listener outside the page
  size = new ResizeObserver(() => this.resize()); // called when the bar is added to the page too

  /** @param {ClassBarModel} model */
  constructor(model) {
    super(model);
    this.list = dropdown(this.opener, "Challenges", () => this.cards());
    this.list.classList.add("mw-class-list");
    this.root = h("div.mw-canvas.mw-shell.mw-class", {}, this.bar, this.list, this.cover, this.live);
    this.size.observe(this.bar);
    this.cover.addEventListener("cancel", (event) => event.preventDefault());
    window.addEventListener("keydown", (event) => this.hold(event), { capture: true, signal: this.leaving.signal });
    model.on(PARAMETERS, () => this.draw());
    this.draw();
  }

  remove() {
    this.size.disconnect();
    this.leaving.abort();
  }

  /** During a pause, cover the page with its dialogs and panels, in the top layer. */
  pause() {
    const { paused } = this.model;
    if (paused === this.cover.open || !this.root.isConnected) return;
    if (paused) this.cover.showModal();
    else this.cover.close();
  }

  /** Keep keys from the page during a pause. @param {KeyboardEvent} event */
  hold(event) {
    if (!this.cover.open) return;
    event.stopImmediatePropagation();
    if (event.key === "Escape") event.preventDefault();
  }

  /** Let panes that the bar covers end above it. */
  resize() {
    this.pause();
    document.documentElement.style.setProperty("--mw-class-height", `${this.bar.offsetHeight + 18}px`);
  }

  draw() {
    const { name_shown: name, message, class_step: step, challenges } = this.model;
    keepNames([step, ...challenges.map(({ title }) => title)]);
    this.pause();
    this.live.textContent = message;
    if (!name) {
      this.bar.replaceChildren("The teacher removed you from the workshop. ", h("a", { href: "join" }, "Join again"));
      return;
    }
    const parts = [
      h("strong", { translate: "no" }, name),
      message && h("span.mw-class-message", { translate: "no" }, message),
      button("Lessons", { onclick: () => this.send("lessons") }),
      step &&
        button(`Go to the class step: ${step}`, {
          content: "Go to the class step",
          title: step,
          onclick: () => this.send("go"),
        }),
      challenges.length > 0 && this.opener,
    ];
    this.bar.replaceChildren(...parts.filter((part) => part !== "" && part !== false));
    if (this.list.matches(":popover-open")) keepFocus(this.root, () => this.list.replaceChildren(...this.cards()));
  }

  cards() {
    return [...this.model.challenges.map((challenge) => this.card(challenge)), this.refusal];
  }

  /** @param {Challenge} challenge */
  card({ name, title, text, own, can_confirm: canConfirm, leaders }) {
    return h(
      "section.mw-class-card",
      { "aria-label": title },
      h("h3", { translate: "no" }, title),
      h("p", { translate: "no" }, text),
      h(
        "div.mw-class-row",
        {},
        button("Open the initial design", { onclick: () => this.send("start", { challenge: name }) }),
        button("Submit the open design", {
          kind: "mw-primary",
          onclick: () => this.send("submit", { challenge: name }),
        }),
      ),
      own && h("p", {}, own),
      canConfirm &&
        button("Confirm by a dry run", {
          title: "Run the schedule of your best design with compute replaced by waiting, and measure the step time",
          onclick: () => this.send("confirm", { challenge: name }),
        }),
      leaderboard(leaders),
    );
  }
}
