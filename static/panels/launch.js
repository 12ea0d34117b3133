// Launch: one click runs the open design, or rehearses it; how the run stands is seen beside the button.

import { button, followTheme, h, keepFocus, send } from "../kit/canvas.js";

const DOUBLE_CLICK_MS = 800; // a second press within is the same wish

export const render = ({ model }) => new LaunchBar(model).root;

class LaunchBar {
  constructor(model) {
    this.model = model;
    this.launch = button("Launch", { kind: "mw-primary mw-launch", onclick: () => this.ask("launch") });
    this.rehearse = button("Rehearse", { kind: "mw-rehearse", onclick: () => this.ask("rehearse") });
    this.cancel = button("Cancel", {
      kind: "mw-stop mw-danger",
      title: "End the run that is under way",
      onclick: () => send(model, { type: "cancel" }),
    });
    this.places = h("select", {
      class: "mw-launchbar-places",
      "aria-label": "Launch on",
      title: "Where the processes are started",
      onchange: () => send(model, { type: "choose", place: this.places.value }),
    });
    this.words = h("div", { class: "mw-launchbar-words", role: "status", "aria-live": "polite" });
    this.progress = h("div", { class: "mw-launchbar-progress" });
    for (const each of [this.launch, this.rehearse]) each.refuse = (reason) => this.say(reason, "no");
    this.root = h(
      "section",
      { class: "mw-canvas mw-launchbar", "aria-label": "Launch" },
      h("div", { class: "mw-launchbar-row" }, this.launch, this.rehearse, this.cancel),
      h("div", { class: "mw-launchbar-row" }, this.places, this.words),
      this.progress,
    );
    model.on(["launchable", "rehearsable", "notice", "places", "place", "status"], () => this.draw());
    model.on("msg:custom", (message) => (message.data ?? message).type === "focus" && this.launch.focus());
    this.draw();
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
  }

  ask(type) {
    if (performance.now() - this.asked < DOUBLE_CLICK_MS) return;
    this.asked = performance.now();
    this.say("starting ...");
    send(this.model, { type, key: `${Date.now()}-${Math.random()}` });
  }

  say(text, kind = "") {
    this.words.textContent = text;
    this.words.title = text;
    this.words.dataset.kind = kind;
  }

  drawPlaces() {
    const { places, place } = this.model;
    this.places.hidden = !places.length;
    this.places.replaceChildren(...places.map(({ name, title }) => h("option", { value: name }, title)));
    this.places.value = place;
  }

  draw() {
    const { launchable, rehearsable, notice, status } = this.model;
    const running = Boolean(status.running);
    this.drawPlaces();
    this.launch.textContent = launchable.label;
    this.launch.setAttribute("aria-label", launchable.label);
    this.launch.allow(
      launchable.allowed && !running,
      running
        ? "A run is under way; cancel it first"
        : launchable.reason || "Train exactly this design on this machine (L)",
    );
    this.rehearse.allow(
      rehearsable.allowed,
      rehearsable.reason ||
        "Play exactly this schedule with real processes and messages, waiting the modelled time instead of computing",
    );
    keepFocus(this.root, () => {
      this.rehearse.hidden = running;
      this.cancel.hidden = !running;
    });
    this.progress.style.width = running ? `${100 * (status.share ?? 0)}%` : "0";
    if (notice) this.say(notice, "no");
    else if (running) this.say(status.words);
    else if (launchable.reason) this.say(launchable.reason, "no");
    else this.say(status.words || "real training on this machine, or a rehearsal of it");
  }
}
