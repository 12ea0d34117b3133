// The sharding spec of a tensor on a mesh: the mesh axes as chips on the dims that they shard. A chip is dragged, or
// moved with keys: left and right to the next dim, up and down in the order of axes, Delete to replicate.

/** @import { Picture, Sender, Side } from "./types" */

import { closest, consume, find, findAll, focusedElement, h } from "../kit/dom.js";
import { tool } from "../kit/shell.js";
import { boxOf, pointOf } from "../kit/zoom.js";

const DRAG_PX = 4;
const HELP = `The sharding spec has an entry for each tensor dim:
R: replicated, every rank has all of it
S0: sharded over mesh axis 0, one piece for each place along that axis
S01: sharded over axis 0, and each piece over axis 1; in S10 axis 1 is the outer one
If a dim does not divide evenly, the last pieces are shorter or empty. Along a partial axis, ranks hold partial sums. \
Drag an axis to the dim that it shards.`;

/** A button that explains sharding specs. @param {import("./transfer.js").Transfer} view @param {Side} side */
export function specHelp(view, side) {
  const element = tool(`About the sharding spec of the ${side}`, {
    glyph: "help",
    tip: HELP,
    onclick: () => view.tips.schedule(element, 0),
  });
  element.setAttribute("aria-description", HELP);
  return element;
}

/** @implements {Sender} */
export class ShardingSpec {
  /** @type {string | null} */ refused = null;
  /** @type {Set<number>} */ partial = new Set();
  /** @type {number[][]} */ cuts = []; // [dim] axes
  /** @type {number[]} */ shape = []; // of the mesh
  /** @type {string[]} */ axisNames = [];
  /** The axis of the chip being dragged. @type {string | null} */ dragged = null;

  /** @param {import("./transfer.js").Transfer} view @param {Side} side */
  constructor(view, side) {
    this.view = view;
    this.side = side;
    this.slots = h("div.mw-tr-slots");
    this.problem = h("p.mw-tr-trouble", { role: "alert", hidden: true });
    const label = { role: "group", "aria-label": `Sharding spec of the ${side}` };
    this.element = h("div.mw-tr-spec", label, this.slots, this.problem);
    this.element.addEventListener("pointerdown", (event) => this.press(event));
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  update() {
    const problem = this.refused || this.view.model.troubles[`${this.side}.spec`] || "";
    this.problem.textContent = problem;
    this.problem.hidden = !problem;
  }

  /** @param {string | null} refused */
  acknowledge(refused) {
    this.refused = refused;
    this.update();
  }

  /** @param {Picture} picture */
  draw(picture) {
    const { shape, cuts, spec, partial } = picture[this.side];
    const focused = focusedElement(this.element);
    const axis = this.slots.contains(focused) ? focused?.closest("[data-axis]")?.getAttribute("data-axis") : null;
    const { axes = [], dims = [] } = this.view.model.names;
    Object.assign(this, { partial: new Set(partial), cuts, shape, refused: null });
    this.axisNames = axes.length === shape.length ? axes : []; // true until the mesh changes
    const dimNames = dims.length === cuts.length ? dims : [];
    const sharding = new Set(cuts.flat());
    const replicating = [...shape.keys()].filter((axis) => !sharding.has(axis));
    const slots = cuts.map((axes, dim) => {
      const size = `${picture.shape[dim].toLocaleString("en")} ${dimNames[dim] ?? ""}`;
      return this.slot(dim, axes, h("code", {}, spec[dim]), h("b", {}, size));
    });
    this.slots.replaceChildren(...slots, this.slot(null, replicating));
    this.markDragged();
    if (axis) find(this.slots, `[data-axis="${axis}"]`)?.focus();
  }

  /** @param {number | null} dim null for the axes that replicate @param {number[]} axes @param {Node[]} words */
  slot(dim, axes, ...words) {
    const tip =
      dim === null
        ? "Axes that shard no dim: ranks along them hold the same data, or partial sums of it"
        : this.meaning(dim, axes);
    const name = h("span.mw-tr-dim", {}, dim === null ? "replicate" : `dim ${dim}`);
    const chips = axes.map((axis) => this.chip(axis, dim));
    return h(
      "div.mw-tr-slot",
      { "data-dim": dim ?? "none" },
      h("div.mw-tr-slot-words", { "data-tip": tip }, name, ...words),
      h("div.mw-tr-slot-axes", {}, ...chips),
    );
  }

  /** An explanation of the spec entry of a dim. @param {number} dim @param {number[]} axes */
  meaning(dim, axes) {
    if (!axes.length) return `R: no axis shards dim ${dim}; each rank has all of it`;
    const [outer, ...inner] = axes;
    const then = inner.map((axis) => `, then axis ${axis} splits each piece into ${this.shape[axis]}`).join("");
    const total = axes.reduce((product, axis) => product * this.shape[axis], 1);
    const all = inner.length ? `: ${total} pieces in total` : "";
    return `S${axes.join("")}: axis ${outer} shards dim ${dim} into ${this.shape[outer]}${then}${all}`;
  }

  /** @param {number} axis @param {number | null} dim */
  chip(axis, dim) {
    const role = dim === null ? "replicates" : `shards dim ${dim}`;
    const name = this.axisNames[axis] ?? "";
    const size = ` ${name ? `${name} ` : ""}× ${this.shape[axis]}`;
    const isPartial = this.partial.has(axis);
    const label = `${this.side} axis ${axis}${size}, ${isPartial ? "partial sums" : role}`;
    const tip = "Drag the axis to a dim. Keys: ← → to the next dim, ↑ ↓ in the order of axes, Delete to replicate";
    return h(
      "button.mw-tr-axis",
      {
        type: "button",
        "data-axis": axis,
        "data-partial": isPartial ? "" : null,
        "data-tip": tip,
        "aria-label": label,
      },
      h("i", {}, String(axis)),
      size,
      isPartial && h("span", {}, "partial"),
    );
  }

  /** Put an axis on a dim, or on none. @param {number} axis @param {number | null} dim @param {number} at */
  place(axis, dim, at) {
    const cuts = this.cuts.map((axes) => axes.filter((each) => each !== axis));
    if (dim !== null) cuts[dim].splice(at, 0, axis);
    if (JSON.stringify(cuts) === JSON.stringify(this.cuts)) return;
    this.cuts = cuts; // the next key acts on these axes, even before Python responds
    this.view.request("place", { side: this.side, axis, dim, at }, this);
  }

  // ── the pointer ──

  /** @param {PointerEvent} event */
  press(event) {
    const chip = closest(event, ".mw-tr-axis");
    if (!chip || event.button !== 0) return;
    this.element.setPointerCapture(event.pointerId); // not on the chip, which a redraw may replace
    const axis = chip.dataset.axis ?? "";
    /** @type {HTMLElement | null} */
    let ghost = null;
    const listening = new AbortController();
    const options = { signal: listening.signal };
    const end = () => {
      listening.abort();
      ghost?.remove();
      this.dragged = null;
      this.markDragged();
      this.markTarget(null);
    };
    const move = (/** @type {PointerEvent} */ to) => {
      if (!ghost && Math.hypot(pointOf(to).x - pointOf(event).x, pointOf(to).y - pointOf(event).y) < DRAG_PX) return;
      ghost ??= this.beginDrag(axis, chip);
      ghost.style.left = `${pointOf(to).x - ghost.offsetWidth / 2}px`;
      ghost.style.top = `${pointOf(to).y - ghost.offsetHeight / 2}px`;
      this.markTarget(this.slotAt(to));
    };
    const cancel = (/** @type {KeyboardEvent} */ key) => {
      if (key.key !== "Escape") return;
      consume(key);
      end();
    };
    const release = (/** @type {PointerEvent} */ up) => {
      const slot = ghost && this.slotAt(up);
      end();
      if (slot && Number(axis) < this.shape.length) this.drop(Number(axis), slot, pointOf(up).x);
    };
    this.element.addEventListener("pointermove", move, options);
    this.element.addEventListener("pointercancel", end, options);
    this.element.addEventListener("pointerup", release, options);
    window.addEventListener("keydown", cancel, { ...options, capture: true });
  }

  /** @param {string} axis @param {HTMLElement} chip */
  beginDrag(axis, chip) {
    const content = [...chip.childNodes].map((node) => node.cloneNode(true));
    const ghost = h("div.mw-tr-axis.mw-tr-ghost", { "aria-hidden": "true" }, ...content);
    this.dragged = axis;
    this.markDragged();
    this.element.append(ghost);
    this.view.tips.hide();
    return ghost;
  }

  markDragged() {
    for (const chip of findAll(this.slots, ".mw-tr-axis"))
      chip.toggleAttribute("data-dragged", chip.dataset.axis === this.dragged);
  }

  /** @param {PointerEvent} event */
  slotAt(event) {
    const { x, y } = pointOf(event);
    const isInside = (/** @type {DOMRect} */ { left, right, top, bottom }) =>
      x >= left && x <= right && y >= top && y <= bottom;
    return findAll(this.slots, ".mw-tr-slot").find((slot) => isInside(boxOf(slot))) ?? null;
  }

  /** @param {HTMLElement | null} slot */
  markTarget(slot) {
    for (const each of this.slots.children) each.toggleAttribute("data-target", each === slot);
  }

  /** @param {number} axis @param {HTMLElement} slot @param {number} x */
  drop(axis, slot, x) {
    const others = findAll(slot, ".mw-tr-axis").filter((chip) => Number(chip.dataset.axis) !== axis);
    const before = others.filter((chip) => {
      const { left, width } = boxOf(chip);
      return left + width / 2 < x;
    });
    if (slot.dataset.dim === "none") this.place(axis, null, 0);
    else this.place(axis, Number(slot.dataset.dim), before.length);
  }

  // ── the keyboard ──

  /** @param {KeyboardEvent} event */
  key(event) {
    const chip = closest(event, ".mw-tr-axis");
    if (!chip || event.ctrlKey || event.metaKey || event.altKey) return;
    const axis = Number(chip.dataset.axis);
    const dim = this.cuts.findIndex((axes) => axes.includes(axis));
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const along = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) this.moveToNext(axis, dim, step);
    else if (along && dim >= 0) this.place(axis, dim, Math.max(0, this.cuts[dim].indexOf(axis) + along));
    else if (event.key === "Delete" || event.key === "Backspace") this.place(axis, null, 0);
    else return;
    consume(event);
  }

  /**
   * Move an axis to the next dim; after the last dim, the axis replicates.
   * @param {number} axis @param {number} dim @param {number} step
   */
  moveToNext(axis, dim, step) {
    const places = this.cuts.length + 1;
    const to = ((dim < 0 ? places - 1 : dim) + step + places) % places;
    if (to === places - 1) this.place(axis, null, 0);
    else this.place(axis, to, this.cuts[to].length);
  }
}
