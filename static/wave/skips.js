// Skip connections over the wave: an arc from the stage that sends tensors to the later one that receives them. Python
// describes what is sent.

/** @import { Point } from "../kit/types" */
/** @import { Arc, Layout, Skip } from "./types" */

import { consume, focusedElement, indexByKey, s } from "../kit/dom.js";
import { clamp } from "../kit/numbers.js";
import { boxOf } from "../kit/zoom.js";
import { NEAR, arcLevels, arcOf, arcPath, distanceTo, round } from "./arcs.js";

const MANY = 12; // more arcs are paler
const LEAST_DISTANCE = 7; // least distance in CSS pixels; of closer arcs, some are shown on hover only
const HEAD_PITCH = 11; // distance of stages in CSS pixels from which an arc has an arrow head

/** @typedef {{element: SVGGElement, skip: Skip, arc: Arc}} Drawn */

export class Skips {
  /** @type {Drawn[]} */ arcs = [];
  /** @type {Drawn | null | undefined} */ marked = null;
  at = 0; // number of the arc with the tab stop

  /** @param {import("./wave.js").Wave} wave */
  constructor(wave) {
    this.wave = wave;
    this.group = s("g", { role: "group", "aria-label": "Skip connections: left and right arrow keys move the focus" });
    this.group.addEventListener("keydown", (event) => this.key(event));
  }

  /** @param {Layout} layout @param {number[][]} routes */
  draw(layout, routes) {
    const { skips } = this.wave.picture;
    const focusedAt = this.arcs.findIndex(({ element }) => element === /** @type {any} */ (focusedElement(this.group)));
    const { marked } = this;
    const words = marked?.skip.words;
    while (this.arcs.length > skips.length) this.arcs.pop()?.element.remove();
    this.at = clamp(this.at, 0, Math.max(0, skips.length - 1));
    const levels = arcLevels(skips, routes);
    skips.forEach((skip, number) =>
      this.drawArc(number, skip, arcOf(layout, skip, levels[number], routes), layout.pitch),
    );
    const every = Math.ceil(LEAST_DISTANCE / layout.pitch) * routes.length;
    this.arcs.forEach(({ element }, number) =>
      element.toggleAttribute("data-between", number % every >= routes.length),
    );
    this.group.toggleAttribute("data-many", skips.length > MANY);
    this.group.toggleAttribute("hidden", !skips.length);
    this.restore(focusedAt, marked && this.arcs.includes(marked) && marked.skip.words === words ? marked : null);
    if (marked && !this.marked) this.wave.tip.hide();
  }

  /**
   * Restore the mark and the focus after a redraw.
   * @param {number} focusedAt @param {Drawn | null} marked
   */
  restore(focusedAt, marked) {
    this.marked = undefined; // marks the ends again
    this.mark(marked);
    if (focusedAt >= this.arcs.length)
      (this.arcs[this.at]?.element ?? this.wave.boxes[this.wave.focus])?.focus(); // the arc no longer exists
    else if (focusedAt >= 0) this.show(this.arcs[focusedAt]);
  }

  /** @param {number} number @param {Skip} skip @param {Arc} arc @param {number} pitch */
  drawArc(number, skip, arc, pitch) {
    const { element } = this.arcs[number] ?? this.addArc(skip, arc);
    const [line, head] = element.children;
    Object.assign(this.arcs[number], { skip, arc });
    element.setAttribute("class", `mw-skip${skip.replica ? " mw-replica" : ""}`);
    element.dataset.way = skip.way;
    element.setAttribute("aria-label", skip.words);
    element.setAttribute("tabindex", number === this.at ? "0" : "-1");
    line.setAttribute("d", arcPath(arc));
    head.setAttribute("d", pitch < HEAD_PITCH ? "" : `M${round(arc.b.x)} ${round(arc.b.y - 0.5)}l-2.6 -5h5.2z`);
  }

  /** @param {Skip} skip @param {Arc} arc */
  addArc(skip, arc) {
    const element = s("g", { role: "img" }, s("path.mw-skip-line"), s("path.mw-skip-head"));
    this.group.append(element);
    const drawn = { element, skip, arc };
    this.arcs.push(drawn);
    return drawn;
  }

  /**
   * A text about the stages to which a stage sends skip tensors, and from which it receives them.
   * @param {number} stage
   */
  describe(stage) {
    const first = this.wave.picture.skips.filter(({ replica }) => replica === 0);
    const to = first.filter(({ from }) => from === stage).map((skip) => skip.to);
    const from = first.filter((skip) => skip.to === stage).map((skip) => skip.from);
    const sent = to.length ? `; skip connection to stage ${to.join(" and ")}` : "";
    return sent + (from.length ? `; skip connection from stage ${from.join(" and ")}` : "");
  }

  // ── the pointer and the keyboard ──

  /** The arc nearest to a point of the drawing, or null. @param {Point} point */
  nearest(point) {
    const [nearest] = this.arcs
      .map((drawn) => ({ drawn, distance: distanceTo(drawn.arc, point) }))
      .filter(({ distance }) => distance <= NEAR)
      .sort((a, b) => a.distance - b.distance);
    return nearest?.drawn ?? null;
  }

  /** Highlight an arc and the stages at its ends; null removes the highlighting. @param {Drawn | null} marked */
  mark(marked) {
    const { boxes, picture } = this.wave;
    if (this.marked === marked) return;
    for (const each of this.arcs) each.element.toggleAttribute("data-marked", each === marked);
    const ends = marked
      ? [marked.skip.from, marked.skip.to].map((stage) => boxes[marked.skip.replica * picture.layers.length + stage])
      : [];
    for (const box of boxes) box.toggleAttribute("data-linked", ends.includes(box));
    this.marked = marked;
  }

  /** Highlight an arc and show its description over its middle. @param {Drawn | null} drawn */
  show(drawn) {
    this.mark(drawn);
    if (!drawn) return this.wave.tip.hide();
    const { svg, root, tip } = this.wave;
    const [board, box] = [boxOf(svg), boxOf(root)];
    const { crown } = drawn.arc;
    tip.show(drawn.skip.words, { x: board.left - box.left + crown.x, y: board.top - box.top + crown.y });
  }

  /** @param {Element} element */
  onfocus(element) {
    this.arcs[this.at]?.element.setAttribute("tabindex", "-1");
    this.at = this.arcs.findIndex((drawn) => drawn.element === element);
    element.setAttribute("tabindex", "0");
    this.show(this.arcs[this.at]);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const index = indexByKey(event.key, this.at, this.arcs.length);
    if (index === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    this.arcs[index].element.focus();
    consume(event);
  }
}
