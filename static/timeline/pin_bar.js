// The pinned block: its name in the bar above the lanes, and the way to its causes, effects and flows.

import { button, h, send } from "../kit/canvas.js";
import { FLOWS, causeOf, effectsOf, flowOf } from "./flow.js";
import { nameOf, placeOf, twinOf } from "./place.js";
import { spoken } from "./text.js";

export class PinBar {
  constructor(chart) {
    this.chart = chart;
    this.name = h("span", { class: "mw-timeline-pinned" });
    this.flow = button("Flow", {
      title: "What is shown of where it comes from and leads to (B)",
      onclick: () => this.turnFlow(),
    });
    this.opener = button("open its layers", {
      content: "layers ↵",
      title: "What happens inside it, layer by layer (Enter, or a double click)",
      onclick: () => chart.depth.open(chart.pinned),
    });
    this.element = h(
      "div",
      { class: "mw-timeline-pinbar", hidden: true },
      this.name,
      this.opener,
      button("to its cause", {
        content: "← cause",
        title: "Pin what it waited for (←)",
        onclick: () => this.stepTo("cause"),
      }),
      button("to its effect", {
        content: "effect →",
        title: "Pin what it held up or brought about (→)",
        onclick: () => this.stepTo("effect"),
      }),
      this.flow,
      button("take the pin off", {
        content: "×",
        kind: "mw-icon",
        title: "Take the pin off (Esc)",
        onclick: () => this.pin(null),
      }),
    );
  }

  show() {
    const { chart } = this;
    const { pinned } = chart;
    if (!pinned && this.element.matches(":focus-within")) chart.stage.focus();
    this.element.hidden = !pinned;
    chart.toolbar.legend.hidden = Boolean(pinned);
    if (!pinned) return;
    const { layer, span } = pinned;
    const { names } = chart.model.palette;
    this.name.replaceChildren(
      h("i", { "data-kind": names[layer.op[span]] }),
      h("b", {}, layer.notation(span, names)),
      ` on ${layer.meshes[layer.rankOf(span)]}`,
    );
    this.opener.hidden = !chart.depth.canOpen(pinned);
    this.opener.textContent = layer.isTransfer(span) ? "its transfer ↵" : "layers ↵";
    this.opener.setAttribute("aria-label", layer.isTransfer(span) ? "open its transfer" : "open its layers");
    this.opener.title = layer.isTransfer(span)
      ? "Its unit tasks on the links (Enter, or a click on the arrow)"
      : "What happens inside it, layer by layer (Enter, or a double click)";
    this.flow.textContent = `Flow: ${FLOWS[chart.flow]}`;
  }

  /** Pin a place, or nothing; the same place again takes the pin off. */
  pin(place) {
    const { pinned } = this.chart;
    const same = place && pinned && place.layer === pinned.layer && place.span === pinned.span;
    this._set(same || !(place?.span >= 0) ? null : { layer: place.layer, span: place.span });
  }

  /** Pin what a link names, if it is there. */
  pinName(name, flow) {
    this._set(placeOf(this.chart.data, name));
    this.chart.flow = this.chart.pinned ? flow % FLOWS.length : 0;
  }

  _set(asked) {
    const { chart } = this;
    const place = chart.isShown(asked) ? asked : null;
    const { palette } = chart.model;
    const had = chart.pinned;
    chart.pinned = place;
    chart.related = this.beside = null;
    if (place) {
      const { layer, span } = place;
      chart.focus = layer.isTransfer(span) ? chart.focus : place;
      chart.pinnedFrom = chart.focus; // as long as it stays there, Enter is for what is pinned
      const { layer: number, rank, op, stage, mb } = nameOf(place);
      send(chart.model, { type: "pin", layer: number, rank, op: palette.names[op], stage, microbatch: mb });
      chart.live.textContent = `Pinned ${spoken(place, palette, twinOf(chart, place))}`;
    } else if (had) {
      chart.flow = 0;
      send(chart.model, { type: "unpin" });
      chart.live.textContent = "Nothing is pinned.";
    }
    this.show();
    chart.overpaint();
  }

  /** From the pinned block to its "cause" or its "effect". */
  stepTo(which) {
    const { pinned } = this.chart;
    const others = which === "cause" ? [causeOf(pinned), ...flowOf(pinned, 0).causes] : effectsOf(pinned);
    const found = [...new Set(others)].filter((other) => other >= 0 && other !== pinned.span);
    if (found.length) this._goTo(pinned.layer, found, 0);
    else this.chart.say(which === "cause" ? "It waited for nothing: it begins the step." : "Nothing waited for it.");
  }

  /** To another of the causes or effects that the last step chose from. */
  stepBeside(by) {
    const { found, at } = this.beside ?? { found: [] };
    if (found.length < 2) return this.chart.say("There is no other: ← and → step to a cause and to an effect.");
    this._goTo(this.chart.pinned.layer, found, (at + by + found.length) % found.length);
  }

  _goTo(layer, found, at) {
    const place = { layer, span: found[at] };
    this._set(place);
    this.beside = { found, at };
    this.chart.view.bringIn(place);
    this.chart.tellOf(place);
  }

  /** Show the next of the flows of the pinned block. */
  turnFlow() {
    const { chart } = this;
    if (!chart.pinned) return chart.say("Pin a block to see its flow: click it, or press Enter.");
    chart.flow = (chart.flow + 1) % FLOWS.length;
    chart.related = null;
    this.show();
    chart.live.textContent = `Flow: ${FLOWS[chart.flow]}.`;
    chart.overpaint();
  }
}
