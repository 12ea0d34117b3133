// How deep one looks: the iteration, and inside a block its layers, behind an arrow its transfer. What one comes
// from keeps its view; a transfer lies over it.

import { h, send } from "../kit/canvas.js";
import { OP, TICKS } from "./columns.js";
import { nameOf, placeOf } from "./place.js";

export class Depth {
  constructor(chart) {
    this.chart = chart;
    this.aside = null; // the iteration's view, while one looks into a block of it
    this.element = h("nav", { class: "mw-timeline-crumbs", "aria-label": "Where this timeline lies", hidden: true });
    chart.model.on("msg:custom", (message) => {
      const told = message.data ?? message;
      if (told.type === "not-opened") chart.say(told.words);
    });
  }

  /** Whether what is shown is the inside of a block. */
  get isDeep() {
    return Boolean(this.chart.data?.crumbs.length);
  }

  /** Whether there is a timeline behind a place, or a transfer behind an arrow. */
  canOpen(place) {
    const { edit } = this.chart;
    if (!place || place.span < 0 || edit.isOn) return false;
    const { layer, span } = place;
    if (layer.isTransfer(span)) return Boolean(layer.crosses);
    return Boolean(layer.opens) && span < layer.blocks && layer.op[span] <= OP.W;
  }

  open(place) {
    const { layer: number, rank, op, stage, mb, other = -1 } = nameOf(place);
    const { palette } = this.chart.model;
    send(this.chart.model, { type: "open", layer: number, rank, op: palette.names[op], stage, microbatch: mb, other });
  }

  back() {
    send(this.chart.model, { type: "back" });
  }

  /** Another timeline came: where it is deeper or less deep, look at the whole of it, or as one did before. */
  arrived(before, names) {
    const { chart } = this;
    const [was, now] = [before, chart.data].map((data) => data?.crumbs.length ?? 0);
    if (was === now || !before || !chart.data) return false;
    if (now > was) this._setAside(before, names);
    else this._takeUp();
    this._draw();
    return true;
  }

  _setAside(before, names) {
    const { chart } = this;
    const { view, marks } = chart;
    this.aside = {
      place: view.place,
      isWhole: view.isWhole,
      horizon: before.horizon,
      names,
      kept: chart.kept,
      marks: marks.times,
      flow: chart.flow,
    };
    view.stop();
    view.showWhole();
    chart.kept = new Set();
    chart.flow = 0;
    marks.times = [];
    if (chart.area.chosen || chart.area.mode) chart.area.drop();
    chart.area.mode = false;
    chart.stage.removeAttribute("data-selecting");
    chart.search.element.hidden = true;
    if (chart.edit.isOn) chart.edit.turn(false);
    chart.pinned = chart.focus = null;
  }

  _takeUp() {
    const { chart, aside } = this;
    this.aside = null;
    chart.view.stop();
    chart.view.showWhole();
    if (!aside) return;
    const ratio = aside.horizon / chart.data.horizon;
    if (!aside.isWhole) chart.view.look(aside.place.from * ratio, Math.min(aside.place.to * ratio, 1.1 * TICKS));
    chart.view.scroll = aside.place.scroll;
    Object.assign(chart, { kept: aside.kept, flow: aside.flow });
    chart.marks.times = aside.marks;
    [chart.pinned, chart.focus] = aside.names.map((name) => placeOf(chart.data, name));
  }

  _draw() {
    const { crumbs } = this.chart.data;
    this.element.hidden = !crumbs.length;
    const up = crumbs
      .slice(0, -1)
      .map((words) =>
        h(
          "button",
          { type: "button", class: "mw-timeline-crumb", title: "Back (Backspace, Esc)", onclick: () => this.back() },
          words,
        ),
      );
    const parts = [...up, crumbs.length ? h("b", { "aria-current": "location" }, crumbs.at(-1)) : ""];
    if (this.element.matches(":focus-within")) this.chart.stage.focus(); // the crumb that was pressed goes
    this.element.replaceChildren(
      ...parts.flatMap((part, place) => (place ? [h("span", { "aria-hidden": "true" }, "›"), part] : [part])),
    );
    if (crumbs.length) this.chart.live.textContent = `Inside ${crumbs.at(-1)}. Backspace leads back.`;
  }

  /** In another block of the same depth the words change alone. */
  renew() {
    if (this.chart.data) this._draw();
  }
}
