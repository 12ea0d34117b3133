// How a tensor lies on a mesh: the mesh's axes as chips on the dims that they cut. Drag a chip, or focus it and
// use the arrows: left and right to the next dim, up and down in the order of cuts, Delete to replicate.

import { h } from "../kit/canvas.js";
import { tool } from "../kit/shell.js";

const DRAG_PX = 4; // a press that moves less is no drag
const HELP = `How the tensor lies on the mesh, told for each of its dims:
R: whole on every rank (replicated)
S0: cut into as many pieces as mesh axis 0 is long (sharded), one for each place along that axis
S01: cut by axis 0, and each piece by axis 1; S10 is the other way round
Of an uneven cut the last pieces are shorter, or empty. Along an axis named under Partial axes ranks hold addends. \
Drag an axis to the dim that it shall cut.`;

/** What the letters of a spec mean, where they stand. */
export function help(view, side) {
  const element = tool(`What S0, S01 and R mean, ${side}`, {
    glyph: "help",
    tip: HELP,
    onclick: (event) => view.tips.over(event.currentTarget, 0),
  });
  element.setAttribute("aria-description", HELP);
  return element;
}

export class Spec {
  constructor(view, side) {
    this.view = view;
    this.side = side;
    this.slots = h("div", { class: "mw-tr-slots" });
    this.trouble = h("p", { class: "mw-tr-trouble", role: "alert", hidden: true });
    this.element = h(
      "div",
      { class: "mw-tr-spec", role: "group", "aria-label": `Sharding of the ${side}` },
      this.slots,
      this.trouble,
    );
    this.element.addEventListener("pointerdown", (event) => this.press(event));
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  tell() {
    const { troubles } = this.view.model;
    const words = this.refused || troubles[`${this.side}.spec`] || "";
    this.trouble.textContent = words;
    this.trouble.hidden = !words;
  }

  answered(refused) {
    this.refused = refused;
    this.tell();
  }

  draw(picture) {
    const { shape, cuts, spec, partial } = picture[this.side];
    this.partial = new Set(partial);
    this.cuts = cuts;
    this.shape = shape;
    this.refused = null;
    const cutting = new Set(cuts.flat());
    const resting = shape.map((_, axis) => axis).filter((axis) => !cutting.has(axis));
    const at = this.element.getRootNode().activeElement;
    // not that of the other mesh
    const focused = this.slots.contains(at) ? at.closest(".mw-tr-axis")?.dataset.axis : undefined;
    const { axes: axisNames = [], dims: dimNames = [] } = this.view.model.names;
    // of what crosses a boundary, until it is made something else
    this.names = axisNames.length === shape.length ? axisNames : [];
    const called = dimNames.length === cuts.length ? dimNames : [];
    const dims = cuts.map((axes, dim) =>
      this.slot(
        dim,
        [
          h("span", { class: "mw-tr-dim" }, `dim ${dim}`),
          h("code", {}, spec[dim]),
          h("b", {}, `${picture.shape[dim].toLocaleString("en")} ${called[dim] ?? ""}`),
        ],
        axes,
      ),
    );
    this.slots.replaceChildren(...dims, this.slot(null, [h("span", { class: "mw-tr-dim" }, "replicate")], resting));
    this.mark();
    if (focused !== undefined)
      this.chips()
        .find((chip) => chip.dataset.axis === focused)
        ?.focus();
  }

  slot(dim, words, axes) {
    const chips = axes.map((axis) => this.chip(axis, dim));
    const tip =
      dim === null
        ? "Axes that cut nothing: along them, ranks hold the same, or addends of it"
        : this.meaning(dim, axes);
    return h(
      "div",
      { class: "mw-tr-slot", "data-dim": dim === null ? "none" : dim },
      h("div", { class: "mw-tr-slot-words", "data-tip": tip }, ...words),
      h("div", { class: "mw-tr-slot-axes" }, ...chips),
    );
  }

  /** What stands in the spec for a dim, in words. */
  meaning(dim, axes) {
    if (!axes.length) return `R: no axis cuts dim ${dim}, so that each rank has all of it`;
    const [outer, ...inner] = axes.map((axis) => `axis ${axis}`);
    const then = inner.map((axis, place) => `, then ${axis} each piece into ${this.shape[axes[place + 1]]}`).join("");
    const all = inner.length ? `: ${axes.reduce((product, axis) => product * this.shape[axis], 1)} in all` : "";
    return `S${axes.join("")}: ${outer} cuts dim ${dim} into ${this.shape[axes[0]]}${then}${all}`;
  }

  chip(axis, dim) {
    const does = this.partial.has(axis) ? "holds addends" : dim === null ? "replicates" : `cuts dim ${dim}`;
    const name = this.names[axis] ? ` (${this.names[axis]})` : "";
    const label = `${this.side} axis ${axis}${name} of ${this.shape[axis]}, ${does}`;
    const tip = "Drag it to a dim; or ← → to the next dim, ↑ ↓ in the order of cuts, Delete to replicate";
    return h(
      "button",
      { type: "button", class: "mw-tr-axis", "data-axis": axis, "data-tip": tip, "aria-label": label },
      h("i", {}, `${axis}`),
      `${this.names[axis] ?? ""} × ${this.shape[axis]}`,
    );
  }

  chips() {
    return [...this.slots.querySelectorAll(".mw-tr-axis")];
  }

  place(axis, dim, at) {
    const cuts = this.cuts.map((axes) => axes.filter((each) => each !== axis));
    if (dim !== null) cuts[dim].splice(at, 0, axis);
    if (JSON.stringify(cuts) === JSON.stringify(this.cuts)) return;
    this.cuts = cuts; // the next key counts from here, also before Python has answered
    this.view.send("place", { side: this.side, axis, dim, at }, this);
  }

  // ── by hand ──

  press(event) {
    const chip = event.target.closest(".mw-tr-axis");
    if (!chip || event.button !== 0) return;
    this.element.setPointerCapture(event.pointerId); // not the chip: what was done before may draw all chips anew
    const drag = { axis: chip.dataset.axis, chip, x: event.clientX, y: event.clientY, ghost: null };
    const listening = new AbortController();
    const { signal } = listening;
    const end = () => {
      listening.abort();
      drag.ghost?.remove();
      this.dragged = null;
      this.mark();
      this.aim(null);
    };
    this.element.addEventListener("pointermove", (move) => this.move(drag, move), { signal });
    this.element.addEventListener("pointercancel", end, { signal });
    window.addEventListener(
      "keydown",
      (key) => key.key === "Escape" && (key.stopPropagation(), key.preventDefault(), end()),
      { signal, capture: true },
    );
    this.element.addEventListener(
      "pointerup",
      (up) => {
        const slot = drag.ghost && this.slotAt(up);
        end();
        if (slot && drag.axis < this.shape.length) this.drop(Number(drag.axis), slot, up.clientX);
      },
      { signal },
    );
  }

  /** Pale is the chip that is on its way. */
  mark() {
    for (const chip of this.chips()) chip.toggleAttribute("data-dragged", chip.dataset.axis === this.dragged);
  }

  move(drag, { clientX, clientY }) {
    if (!drag.ghost && Math.hypot(clientX - drag.x, clientY - drag.y) < DRAG_PX) return;
    if (!drag.ghost) {
      drag.ghost = h(
        "div",
        { class: "mw-tr-axis mw-tr-ghost", "aria-hidden": "true" },
        ...[...drag.chip.childNodes].map((node) => node.cloneNode(true)),
      );
      this.dragged = drag.axis;
      this.mark();
      this.element.append(drag.ghost);
      this.view.tips.hide();
    }
    drag.ghost.style.left = `${clientX - drag.ghost.offsetWidth / 2}px`;
    drag.ghost.style.top = `${clientY - drag.ghost.offsetHeight / 2}px`;
    this.aim(this.slotAt({ clientX, clientY }));
  }

  slotAt({ clientX, clientY }) {
    const within = ({ left, right, top, bottom }) =>
      clientX >= left && clientX <= right && clientY >= top && clientY <= bottom;
    return [...this.slots.children].find((slot) => within(slot.getBoundingClientRect())) ?? null;
  }

  aim(slot) {
    for (const each of this.slots.children) each.toggleAttribute("data-target", each === slot);
  }

  drop(axis, slot, x) {
    const dim = slot.dataset.dim === "none" ? null : Number(slot.dataset.dim);
    const others = [...slot.querySelectorAll(".mw-tr-axis")].filter((chip) => Number(chip.dataset.axis) !== axis);
    const before = others.filter((chip) => {
      const { left, width } = chip.getBoundingClientRect();
      return left + width / 2 < x;
    });
    this.place(axis, dim, dim === null ? 0 : before.length);
  }

  // ── by keyboard ──

  key(event) {
    const chip = event.target.closest(".mw-tr-axis");
    if (!chip || event.ctrlKey || event.metaKey || event.altKey) return;
    const axis = Number(chip.dataset.axis);
    const places = [...this.cuts.keys(), null]; // the dims, then none
    const dim = this.cuts.findIndex((axes) => axes.includes(axis));
    const here = dim < 0 ? places.length - 1 : dim;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const along = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) this.put(axis, places[(here + step + places.length) % places.length]);
    else if (along && dim >= 0) this.place(axis, dim, Math.max(0, this.cuts[dim].indexOf(axis) + along));
    else if (event.key === "Delete" || event.key === "Backspace") this.place(axis, null, 0);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  put(axis, dim) {
    this.place(axis, dim, dim === null ? 0 : this.cuts[dim].length);
  }
}
