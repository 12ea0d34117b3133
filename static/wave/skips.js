// Skip connections over the wave: an arc from the stage that makes tensors to the later one that takes them. What
// travels is said by Python; here it is drawn, and told to who points at an arc or walks there.

import { s } from "../kit/canvas.js";
import { clamp } from "../kit/numbers.js";
import { NEAR, away, bow, outline, r, stack } from "./arcs.js";

const MANY = 12; // arcs, of which more are paler
const APART = 7; // px between the stages of arcs that are drawn; of closer ones every so many, the rest when pointed at
const HEADED = 11; // px between stages from which on an arc has a head
const HELP = "skip connections: left and right walk from one to the next";

export class Skips {
  constructor(wave) {
    this.wave = wave;
    this.arcs = []; // { element, skip, drawn }: what it stands for, and where
    this.at = 0; // the one that takes the keyboard
    this.group = s("g", { role: "group", "aria-label": HELP });
    this.group.addEventListener("keydown", (event) => this.key(event));
  }

  draw(layout, routes) {
    const { skips } = this.wave.picture;
    const held = this.arcs.findIndex(({ element }) => element === this.group.getRootNode().activeElement);
    const { marked } = this;
    const words = marked?.skip.words;
    while (this.arcs.length > skips.length) this.arcs.pop().element.remove();
    while (this.arcs.length < skips.length) this.arcs.push(this.arc());
    this.at = clamp(this.at, 0, Math.max(0, skips.length - 1));
    const places = stack(skips, routes);
    skips.forEach((skip, number) =>
      this.drawArc(this.arcs[number], skip, bow(layout, skip, places[number], routes), layout.pitch, number),
    );
    const every = Math.ceil(APART / layout.pitch) * routes.length;
    this.arcs.forEach(({ element }, number) =>
      element.toggleAttribute("data-between", number % every >= routes.length),
    );
    this.group.toggleAttribute("data-many", skips.length > MANY);
    this.group.toggleAttribute("hidden", !skips.length);
    const stays = marked && this.arcs.includes(marked) && marked.skip.words === words;
    if (marked && !stays) this.wave.tip.hide();
    this.marked = undefined; // so that its ends are marked anew
    this.mark(stays ? marked : null);
    if (held >= skips.length)
      (this.arcs[this.at]?.element ?? this.wave.boxes[this.wave.focus])?.focus(); // its own is gone
    else if (held >= 0) this.point(this.arcs[held]);
  }

  arc() {
    const element = s("g", { role: "img" }, s("path", { class: "mw-skip-line" }), s("path", { class: "mw-skip-head" }));
    this.group.append(element);
    return { element };
  }

  drawArc(arc, skip, drawn, pitch, number) {
    const { element } = arc;
    const [line, head] = element.children;
    Object.assign(arc, { skip, drawn });
    element.setAttribute("class", `mw-skip${skip.replica ? " mw-replica" : ""}`);
    element.dataset.way = skip.way;
    element.setAttribute("aria-label", skip.words);
    element.setAttribute("tabindex", number === this.at ? 0 : -1);
    line.setAttribute("d", outline(drawn));
    head.setAttribute("d", pitch < HEADED ? "" : `M${r(drawn.b.x)} ${r(drawn.b.y - 0.5)}l-2.6 -5h5.2z`);
  }

  /** Which stages a stage skips to, and from which it takes skips, in words. */
  of(stage) {
    const first = this.wave.picture.skips.filter(({ replica }) => replica === 0);
    const to = first.filter(({ from }) => from === stage).map((skip) => skip.to);
    const from = first.filter((skip) => skip.to === stage).map((skip) => skip.from);
    const sent = to.length ? `; skips to stage ${to.join(" and ")}` : "";
    return sent + (from.length ? `; takes what skips from stage ${from.join(" and ")}` : "");
  }

  // ── the pointer and the keyboard ──

  /** The arc at a place of the drawing, if one is near. */
  near(place) {
    const found = this.arcs
      .map((arc) => ({ arc, distance: away(arc.drawn, place) }))
      .filter(({ distance }) => distance <= NEAR);
    return found.sort((one, other) => one.distance - other.distance)[0]?.arc ?? null;
  }

  /** Show one arc, and its ends, among the others; null for none. */
  mark(arc) {
    const { boxes, picture } = this.wave;
    if (this.marked === arc) return;
    for (const each of this.arcs) each.element.toggleAttribute("data-marked", each === arc);
    const ends = arc
      ? [arc.skip.from, arc.skip.to].map((stage) => boxes[arc.skip.replica * picture.layers.length + stage])
      : [];
    for (const box of boxes) box.toggleAttribute("data-linked", ends.includes(box));
    this.marked = arc;
  }

  /** Mark an arc and say what it is over its middle. */
  point(arc) {
    this.mark(arc);
    if (!arc) return this.wave.tip.hide();
    const { svg, root, tip } = this.wave;
    const [board, box] = [svg.getBoundingClientRect(), root.getBoundingClientRect()];
    tip.show(arc.skip.words, board.left - box.left + arc.drawn.crown.x, board.top - box.top + arc.drawn.crown.y);
  }

  focused(element) {
    this.arcs[this.at]?.element.setAttribute("tabindex", -1);
    this.at = this.arcs.findIndex((arc) => arc.element === element);
    element.setAttribute("tabindex", 0);
    this.point(this.arcs[this.at]);
  }

  key(event) {
    const last = this.arcs.length - 1;
    const to = {
      ArrowLeft: this.at - 1,
      ArrowUp: this.at - 1,
      ArrowRight: this.at + 1,
      ArrowDown: this.at + 1,
      Home: 0,
      End: last,
    }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    this.arcs[clamp(to, 0, last)].element.focus();
    event.preventDefault();
    event.stopPropagation();
  }
}
