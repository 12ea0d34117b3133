// The buttons that launch the open design or start a dry run, and the progress of the run.

/** @import { Message } from "../kit/types" */
/** @import { LaunchModel } from "./types" */

import { button } from "../kit/controls.js";
import { h, keepFocus } from "../kit/dom.js";
import { Tips } from "../kit/shell.js";
import { Widget } from "../kit/widget.js";

const DOUBLE_CLICK_MS = 800; // ms; a second press within this time is taken for a repetition of the first

/** @param {{model: LaunchModel}} args */
export const render = ({ model }) => new LaunchBar(model).root;

/** @extends {Widget<LaunchModel>} */
class LaunchBar extends Widget {
  requested = -Infinity;
  isAsking = false; // true while the button asks for a second press, which launches despite the warnings

  /** @param {LaunchModel} model */
  constructor(model) {
    super(model);
    this.launch = button("Launch", { kind: "mw-primary mw-launch", onclick: () => this.request("launch") });
    this.rehearse = button("Dry run", { kind: "mw-rehearse", onclick: () => this.request("rehearse") });
    this.cancel = button("Cancel", {
      kind: "mw-stop mw-danger",
      title: "Cancel the active run",
      onclick: () => this.send("cancel"),
    });
    this.places = h("select.mw-launchbar-places", {
      "aria-label": "Launch on",
      title: "Where processes are started",
    });
    this.places.addEventListener("change", () => this.send("choose", { place: this.places.value }));
    this.drawCluster = button("Use this cluster", { kind: "mw-draw", onclick: () => this.send("draw") });
    this.status = h("div.mw-launchbar-words", { role: "status", "aria-live": "polite" });
    this.status.addEventListener("click", () => this.tips.show(this.status));
    this.cutting = new ResizeObserver(() => this.offerWholeStatus());
    this.progress = h("div.mw-launchbar-progress");
    this.launch.addEventListener("blur", () => this.isAsking && this.ask(false));
    this.launch.onblocked = this.rehearse.onblocked = (reason) => this.showStatus(reason, "error");
    this.root = h(
      "section.mw-canvas.mw-launchbar",
      { "aria-label": "Launch" },
      h("div.mw-launchbar-row", {}, this.launch, this.rehearse, this.cancel),
      h("div.mw-launchbar-row", {}, this.places, this.drawCluster),
      this.status,
      this.progress,
    );
    this.tips = new Tips(this.root);
    this.cutting.observe(this.status);
    model.on(["launchable", "rehearsable", "notice", "places", "place", "drawing", "activity", "status"], () =>
      this.draw(),
    );
    this.draw();
  }

  remove() {
    this.cutting.disconnect();
  }

  /** @param {Message} message */
  receive({ type }) {
    if (type === "focus") this.launch.focus();
  }

  /** @param {string} type */
  request(type) {
    if (performance.now() - this.requested < DOUBLE_CLICK_MS) return;
    if (this.model.activity) return this.showStatus(this.model.activity); // the target has not answered yet
    this.requested = performance.now();
    if (type === "launch" && this.model.launchable.question && !this.isAsking) return this.ask(true);
    this.isAsking = false;
    this.showStatus("Starting …");
    this.send(type, { key: `${Date.now()}-${Math.random()}` });
  }

  /** Ask for a confirmation of the launch, or withdraw the question. @param {boolean} isAsking */
  ask(isAsking) {
    this.isAsking = isAsking;
    this.draw();
  }

  /** @param {string} text @param {string} [kind] */
  showStatus(text, kind = "") {
    const { status } = this;
    if (status.textContent === text && status.dataset.kind === kind) return; // measuring it would lay out the page
    status.textContent = text;
    status.dataset.kind = kind;
    this.offerWholeStatus();
  }

  /** Give a status that does not fit a tooltip with the whole text, for the pointer, a tap and the keyboard. */
  offerWholeStatus() {
    const { status } = this;
    const isCut = status.scrollHeight > status.clientHeight;
    if (isCut) status.dataset.tip = status.textContent ?? "";
    else delete status.dataset.tip;
    status.toggleAttribute("tabindex", isCut);
    if (isCut) status.tabIndex = 0;
  }

  drawPlaces() {
    const { places, place, drawing } = this.model;
    this.places.hidden = places.length < 2;
    const options = places.map(({ name, title }) => h("option", { value: name }, title));
    const shown = this.places.options;
    const isSame = options.length === shown.length && options.every((option, at) => option.isEqualNode(shown[at]));
    if (!isSame) this.places.replaceChildren(...options); // only then, since a list that is open would close
    this.places.value = place;
    this.drawCluster.hidden = !places.find(({ name }) => name === place)?.drawable;
    this.drawCluster.enable(
      !drawing,
      drawing
        ? `A job on ${drawing} is measuring its cluster`
        : "Replace the design's cluster with that of the launch target, measured by a short job",
    );
  }

  draw() {
    const { launchable, rehearsable, status } = this.model;
    const isRunning = Boolean(status.running);
    this.drawPlaces();
    this.isAsking &&= Boolean(launchable.question);
    const label = this.isAsking ? "Launch anyway" : launchable.label;
    this.launch.textContent = label;
    this.launch.setAttribute("aria-label", label);
    this.launch.enable(
      launchable.allowed,
      launchable.reason ||
        (isRunning ? "Queue this design; it starts after the active run (L)" : "Train this design (L)"),
    );
    this.rehearse.enable(
      rehearsable.allowed,
      rehearsable.reason ||
        "Run this schedule with real processes and messages; compute is replaced by waiting for its modelled time",
    );
    keepFocus(this.root, () => {
      this.rehearse.hidden = isRunning;
      this.cancel.hidden = !isRunning;
    });
    this.progress.style.width = isRunning ? `${100 * (status.share ?? 0)}%` : "0";
    this.drawStatus(isRunning);
  }

  /** @param {boolean} isRunning */
  drawStatus(isRunning) {
    const { launchable, notice, activity, status } = this.model;
    const problem = notice || (!isRunning && launchable.reason);
    if (problem) this.showStatus(problem, "error");
    else if (this.isAsking) this.showStatus(`${launchable.question}. Launch anyway?`, "warning");
    else this.showStatus(activity || status.words || (isRunning ? "" : "Train the design, or start a dry run"));
  }
}
