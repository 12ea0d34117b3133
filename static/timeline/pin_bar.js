// The pinned block: its name in the bar above the lanes, with buttons to its causes, effects and flows.

/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { ActionName, Place } from "./types" */

import { button } from "../kit/controls.js";
import { h } from "../kit/dom.js";
import { send } from "../kit/widget.js";
import { FLOWS, causeOf, effectsOf, flowOf } from "./flow.js";
import { actionName, placeOf, twinOf } from "./place.js";
import { announcement } from "./text.js";

export class PinBar {
  /** The causes or effects among which the last step selected one. @type {{found: number[], at: number} | null} */
  choices = null;
  name = h("span.mw-timeline-pinned");

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    this.flow = button("Flow", {
      title: "Related actions to show: neighbours, same microbatch, all causes (B)",
      onclick: () => this.nextFlow(),
    });
    this.opener = button("Open", { onclick: () => chart.pinned && chart.depth.open(chart.pinned) });
    const cause = button("Go to cause", {
      content: "← cause",
      title: "Pin the cause: the action that the pinned action waited for (←)",
      onclick: () => this.stepToCause(),
    });
    const effect = button("Go to effect", {
      content: "effect →",
      title: "Pin the effect: an action that waited for the pinned action or needs its result (→)",
      onclick: () => this.stepToEffect(),
    });
    const unpin = button("Unpin", {
      content: "×",
      kind: "mw-icon",
      title: "Unpin (Esc)",
      onclick: () => this.toggle(null),
    });
    const parts = [this.name, this.opener, cause, effect, this.flow, unpin];
    this.element = h("div.mw-timeline-pinbar", { hidden: true }, ...parts);
  }

  draw() {
    const { chart } = this;
    const { pinned } = chart;
    if (!pinned && this.element.matches(":focus-within")) chart.stage.focus();
    this.element.hidden = !pinned;
    chart.toolbar.legend.hidden = Boolean(pinned);
    if (!pinned) return;
    const { layer, span } = pinned;
    const { names } = chart.model.palette;
    const mesh = ` on ${layer.meshes[layer.rankOf(span)]}`;
    this.name.replaceChildren(
      h("i", { "data-kind": names[layer.op[span]] }),
      h("b", {}, layer.notation(span, names)),
      mesh,
    );
    const isTransfer = layer.isTransfer(span);
    this.opener.hidden = !chart.depth.canOpen(pinned);
    this.opener.textContent = isTransfer ? "transfer ↵" : "layers ↵";
    this.opener.setAttribute("aria-label", isTransfer ? "Open transfer" : "Open layers");
    this.opener.title = isTransfer
      ? "Show the unit tasks of the transfer on the links (Enter, or click the arrow)"
      : "Show the layers of the block (Enter, or double-click)";
    this.flow.textContent = `Flow: ${FLOWS[chart.flow]}`;
  }

  /** Pin a place, or nothing; a pinned place is unpinned. @param {Place | null} place */
  toggle(place) {
    const { pinned } = this.chart;
    const isPinned = pinned && place?.layer === pinned.layer && place.span === pinned.span;
    if (!place || place.span < 0 || isPinned) this.pin(null);
    else this.pin({ layer: place.layer, span: place.span });
  }

  /** Pin the action of a link, if the timeline has it. @param {ActionName | null} action @param {number} flow */
  pinAction(action, flow) {
    this.pin(placeOf(this.chart.data, action));
    this.chart.flow = this.chart.pinned ? flow % FLOWS.length : 0;
  }

  /** @param {Place | null} requested */
  pin(requested) {
    const { chart } = this;
    const place = chart.isShown(requested) ? requested : null;
    const { palette } = chart.model;
    const wasPinned = chart.pinned !== null;
    chart.pinned = place;
    chart.related = this.choices = null;
    if (place) {
      if (!place.layer.isTransfer(place.span)) chart.focus = place;
      chart.pinnedFocus = chart.focus;
      const { layer, rank, op, stage, mb } = actionName(place);
      send(chart.model, { type: "pin", layer, rank, op: palette.names[op], stage, microbatch: mb });
      chart.live.textContent = `Pinned ${announcement(place, palette, twinOf(chart, place))}`;
    } else if (wasPinned) {
      chart.flow = 0;
      send(chart.model, { type: "unpin" });
      chart.live.textContent = "Unpinned.";
    }
    this.draw();
    chart.overpaint();
  }

  // ── steps ──

  stepToCause() {
    const { pinned } = this.chart;
    if (pinned)
      this.step(
        pinned,
        [causeOf(pinned), ...flowOf(pinned, 0).causes],
        "The pinned action did not wait for another action",
      );
  }

  stepToEffect() {
    const { pinned } = this.chart;
    if (pinned) this.step(pinned, effectsOf(pinned), "No action waited for the pinned action");
  }

  /** @param {Place} pinned @param {number[]} others @param {string} none */
  step({ layer, span }, others, none) {
    const found = [...new Set(others)].filter((other) => other >= 0 && other !== span);
    if (found.length) this.goTo(layer, found, 0);
    else this.chart.announce(none);
  }

  /** Go to another of the causes or effects of the last step. @param {number} by */
  stepBeside(by) {
    const { found, at } = this.choices ?? { found: [], at: 0 };
    const { pinned } = this.chart;
    if (!pinned || found.length < 2)
      return this.chart.announce("There is no other related action; press ← for a cause and → for an effect");
    this.goTo(pinned.layer, found, (at + by + found.length) % found.length);
  }

  /** @param {Layer} layer @param {number[]} found @param {number} at */
  goTo(layer, found, at) {
    const place = { layer, span: found[at] };
    this.pin(place);
    this.choices = { found, at };
    this.chart.view.panTo(place);
    this.chart.showTooltip(place);
  }

  /** Show the next flow of the pinned block. */
  nextFlow() {
    const { chart } = this;
    if (!chart.pinned) return chart.announce("Pin a block to show its flow: click it, or press Enter");
    chart.flow = (chart.flow + 1) % FLOWS.length;
    chart.related = null;
    this.draw();
    chart.live.textContent = `Flow: ${FLOWS[chart.flow]}.`;
    chart.overpaint();
  }
}
