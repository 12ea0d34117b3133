// The level of detail of the timeline: the whole iteration, the layers inside a block, or the transfer behind an
// arrow. The view of the iteration is restored when a block is closed; a transfer is shown in a dialog.

/** @import { Folds } from "./collapse.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { ActionName, Data, Place, ViewWindow } from "./types" */

import { h } from "../kit/dom.js";
import { send } from "../kit/widget.js";
import { OP, TICKS } from "./columns.js";
import { actionName, placeOf } from "./place.js";

/** The view of the iteration while a block is open. */
/** @typedef {{place: ViewWindow, isWhole: boolean, horizon: number, actions: (ActionName | null)[], kept: Set<string>,
 *    filter: string, collapsed: Folds, marks: number[], flow: number}} SavedView */

export class Depth {
  /** @type {SavedView | null} */ saved = null;
  element = h("nav.mw-timeline-crumbs", { "aria-label": "Navigation path", hidden: true });

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    chart.model.on("msg:custom", ({ type, words }) => {
      if (type === "not-opened") chart.announce(words);
    });
  }

  /** True if the inside of a block is shown. */
  get isDeep() {
    return this.chart.data.crumbs.length > 0;
  }

  /** True if there is a timeline inside a block, or a transfer behind an arrow. @param {Place | null} place */
  canOpen(place) {
    if (!place || place.span < 0 || this.chart.edit.isOn) return false;
    const { layer, span } = place;
    if (layer.isTransfer(span)) return layer.crosses;
    return layer.opens && span < layer.blocks && layer.op[span] <= OP.W;
  }

  /** @param {Place} place */
  open(place) {
    const { layer, rank, op, stage, mb, other = -1 } = actionName(place);
    const { model } = this.chart;
    send(model, { type: "open", layer, rank, op: model.palette.names[op], stage, microbatch: mb, other });
  }

  back() {
    send(this.chart.model, { type: "back" });
  }

  /**
   * Follow a change of the level: show the whole inside of a block, or the previous view of the iteration. Return
   * true if the level changed.
   * @param {Data} before @param {(ActionName | null)[]} actions that were pinned and focused
   */
  onData(before, actions) {
    const { data } = this.chart;
    const [was, now] = [before.crumbs.length, data.crumbs.length];
    if (was === now || !before.layers.length || !data.layers.length) return false;
    if (now > was) this.save(before, actions);
    else this.restore();
    this.chart.toolbar.play.stop();
    this.draw();
    return true;
  }

  /** @param {Data} before @param {(ActionName | null)[]} actions */
  save(before, actions) {
    const { chart } = this;
    const { view, marks, selection } = chart;
    const { place, isWhole } = view;
    this.saved = {
      place,
      isWhole,
      horizon: before.horizon,
      actions,
      kept: chart.kept,
      filter: chart.filter.text,
      collapsed: chart.collapse.folds,
      marks: marks.times,
      flow: chart.flow,
    };
    view.stop();
    view.showWhole();
    chart.kept = new Set();
    chart.filter.set("");
    chart.collapse.reset();
    chart.flow = 0;
    marks.times = [];
    selection.drop();
    selection.isMode = false;
    chart.stage.removeAttribute("data-selecting");
    chart.search.element.hidden = true;
    if (chart.edit.isOn) chart.edit.toggle(false);
    chart.pinned = chart.focus = null;
  }

  restore() {
    const { chart, saved } = this;
    this.saved = null;
    chart.view.stop();
    chart.view.showWhole();
    if (!saved) return;
    const ratio = saved.horizon / chart.data.horizon;
    if (!saved.isWhole) chart.view.look(saved.place.from * ratio, Math.min(saved.place.to * ratio, 1.1 * TICKS));
    chart.view.scroll = saved.place.scroll;
    Object.assign(chart, { kept: saved.kept, flow: saved.flow });
    chart.filter.set(saved.filter);
    chart.collapse.set(saved.collapsed);
    chart.marks.times = saved.marks;
    [chart.pinned, chart.focus] = saved.actions.map((action) => placeOf(chart.data, action));
  }

  /** Draw the navigation path from the iteration to the open block. */
  draw() {
    const { crumbs } = this.chart.data;
    const current = crumbs.at(-1);
    this.element.hidden = !current;
    const attributes = { type: "button", title: "Back (Backspace, Esc)", onclick: () => this.back() };
    const parts = [
      ...crumbs.slice(0, -1).map((words) => h("button.mw-timeline-crumb", attributes, words)),
      ...(current ? [h("b", { "aria-current": "location" }, current)] : []),
    ];
    if (this.element.matches(":focus-within")) this.chart.stage.focus(); // the focused element is replaced
    const separated = parts.flatMap((part, i) => (i ? [h("span", { "aria-hidden": "true" }, "›"), part] : [part]));
    this.element.replaceChildren(...separated);
    if (current) this.chart.live.textContent = `Showing ${current}. Press Backspace to go back.`;
  }
}
