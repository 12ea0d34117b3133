// The keys of the timeline, on a sheet over it.

import { button, h } from "../kit/canvas.js";

/** @type {[string, string[][]][]} */
const KEYS = [
  ["Move", [
    ["W, S", "zoom in and out; so does the wheel"],
    ["A, D", "left and right; drag, or the wheel with Shift"],
    ["↑, ↓", "through the lanes; the wheel with Alt"],
    ["0", "the whole step"],
    ["F", "go to the block, or to the area"],
  ]],
  ["Blocks", [
    ["J, K", "next and previous block of the lane"],
    ["Shift+Arrows", "from block to block, from lane to lane"],
    ["Enter", "pin the block, as a click does"],
    ["Enter again", "its layers, where there are some; Backspace back"],
    ["Click", "on an arrow: its transfer, on the links"],
    ["←, →", "from the pinned block to its cause, to its effect"],
    ["↑, ↓", "another of the causes or effects"],
    ["B", "before and after it: its neighbours, its microbatch, all causes"],
  ]],
  ["Measure", [
    ["R", "an area from this block on: walk to extend it"],
    ["Shift+drag", "an area by hand; along the axis on all lanes"],
    ["X", "a mark at the pointer or the block; a click on the axis"],
    ["Shift+X", "all marks away"],
  ]],
  ["Edit order", [
    ["E", "edit the order by hand, where the design is open"],
    ["←, →, ↑, ↓", "walk the blocks; Enter chooses, Shift+Enter adds"],
    ["Alt+←, →", "move what is chosen; Enter drops it, Esc does not"],
    ["R, P", "repeat for all microbatches, for all repetitions"],
    ["X, O", "split or join a backward; one slot or two"],
    ["V, H", "differences; repair"],
  ]],
  ["See", [
    ["/", "find; Enter and Shift+Enter step through"],
    ["N, Shift+N", "next and previous hit"],
    ["U", "keep the lane on top; a click on its name"],
    ["C", "critical path, and what would shorten it"],
    ["T, M", "transfers, memory"],
    ["L, Shift+L", "links of nodes, and of devices"],
    ["Esc", "close, one thing at a time"],
  ]],
]; // prettier-ignore

export class Help {
  constructor(chart) {
    this.chart = chart;
    const groups = KEYS.map(([title, lines]) =>
      h(
        "section",
        {},
        h("h4", {}, title),
        h("dl", {}, ...lines.flatMap(([keys, does]) => [h("dt", {}, ...keyCaps(keys)), h("dd", {}, does)])),
      ),
    );
    const close = button("close the help", {
      content: "×",
      kind: "mw-icon",
      title: "Close (Esc)",
      onclick: () => this.toggle(false),
    });
    this.element = h(
      "div",
      { class: "mw-timeline-help", role: "dialog", "aria-label": "Keys of the timeline", tabindex: -1, hidden: true },
      close,
      ...groups,
    );
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" && event.key !== "?") return;
      event.stopPropagation();
      event.preventDefault();
      this.toggle(false);
    });
  }

  get isOpen() {
    return !this.element.hidden;
  }

  toggle(open = !this.isOpen) {
    this.element.hidden = !open;
    (open ? this.element : this.chart.stage).focus();
  }
}

const keyCaps = (keys) => keys.split(", ").flatMap((key, place) => [...(place ? [" "] : []), h("kbd", {}, key)]);
