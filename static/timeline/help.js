// The keyboard shortcuts of the timeline, listed over it.

/** @import { Chart } from "./timeline.js" */

import { button } from "../kit/controls.js";
import { consume, h } from "../kit/dom.js";

/** @type {[title: string, lines: [keys: string, action: string][]][]} */
const SHORTCUTS = [
  ["View", [
    ["W, S", "zoom in, zoom out; also the wheel"],
    ["A, D", "pan left, pan right; also dragging, or Shift with the wheel"],
    ["↑, ↓", "scroll the lanes; also Alt with the wheel"],
    ["0", "show the whole step"],
    ["F", "zoom to the block or the area"],
    ["Space", "play the step, pause"],
    ["., Comma", "next, previous start or end of a block"],
  ]],
  ["Blocks", [
    ["J, K", "next, previous block of the lane"],
    ["Shift+Arrows", "move between blocks and lanes"],
    ["Enter", "pin the block; also a click"],
    ["Enter again", "open the layers of the pinned block; Backspace goes back"],
    ["Click", "on an arrow: open its transfer"],
    ["←, →", "from the pinned block to its cause, its effect"],
    ["↑, ↓", "other causes or effects"],
    ["B", "switch the flow: neighbours, microbatch, all causes"],
  ]],
  ["Measure", [
    ["R", "start an area selection at this block; move to extend it"],
    ["Shift+drag", "select an area; along the axis, on all lanes"],
    ["X", "set a mark at the pointer or block; or click the axis"],
    ["Shift+X", "remove all marks"],
  ]],
  ["Edit order", [
    ["E", "edit the order of the open design"],
    ["←, →, ↑, ↓", "move the focus; Enter selects, Shift+Enter adds"],
    ["Alt+←, →", "move the selected blocks; Enter drops them, Esc cancels"],
    ["R, P", "repeat for all microbatches, for all repetitions"],
    ["X, O", "split or join a backward; use one slot or two"],
    ["V, H", "show differences; repair the order"],
  ]],
  ["Show", [
    ["/", "find blocks; Enter and Shift+Enter step through them"],
    ["N, Shift+N", "next, previous match"],
    ["G", "filter lanes by mesh, rank or stage; Esc shows all"],
    ["Shift+G", "group lanes; ← and → on a triangle collapse and expand"],
    ["U", "pin the lane to the top (or click its name)"],
    ["C", "critical path, and what-if analysis"],
    ["T, M", "transfers, memory"],
    ["L, Shift+L", "links of nodes, of devices"],
    ["Esc", "close the topmost panel or selection; press again for the next"],
  ]],
]; // prettier-ignore

export class Help {
  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    const sections = SHORTCUTS.map(([title, lines]) => {
      const rows = lines.flatMap(([keys, action]) => [h("dt", {}, ...keyCaps(keys)), h("dd", {}, action)]);
      return h("section", {}, h("h4", {}, title), h("dl", {}, ...rows));
    });
    const close = button("Close keyboard shortcuts", {
      content: "×",
      kind: "mw-icon",
      title: "Close (Esc)",
      onclick: () => this.toggle(false),
    });
    const attributes = {
      role: "dialog",
      "aria-label": "Keyboard shortcuts of the timeline",
      tabindex: -1,
      hidden: true,
    };
    this.element = h("div.mw-timeline-help", attributes, close, ...sections);
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" && event.key !== "?") return;
      consume(event);
      this.toggle(false);
    });
  }

  get isOpen() {
    return !this.element.hidden;
  }

  toggle(isOpen = !this.isOpen) {
    this.element.hidden = !isOpen;
    (isOpen ? this.element : this.chart.stage).focus();
  }
}

/** @param {string} keys */
const keyCaps = (keys) => keys.split(", ").flatMap((key, i) => [i ? " " : null, h("kbd", {}, key)]);
