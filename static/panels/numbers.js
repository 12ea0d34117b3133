// The metrics of the predicted step with their changes, and the pin button.

/** @import { NumbersModel, Tile } from "./types" */

import { button } from "../kit/controls.js";
import { h, keepFocus } from "../kit/dom.js";
import { icon } from "../kit/icons.js";
import { keepNames } from "../kit/language.js";
import { Tips, tool } from "../kit/shell.js";
import { Widget, plainData } from "../kit/widget.js";

const LONG_NOTE = 26; // characters from which on a note makes its tile wider
const NO_CHANGE = { spoken: "", arrow: "", verdict: "", text: "" };

/** @param {{model: NumbersModel}} args */
export const render = ({ model }) => new Numbers(model).root;

/** @extends {Widget<NumbersModel>} */
class Numbers extends Widget {
  /** @type {Map<string, ReturnType<typeof makeTile>>} */ parts = new Map();

  /** @param {NumbersModel} model */
  constructor(model) {
    super(model);
    this.tiles = h("div.mw-tiles");
    this.label = h("span", {}, "Pin");
    this.pin = button("Pin", { content: icon("pin"), onclick: () => this.send("pin") });
    this.pin.append(this.label);
    this.note = h("button.mw-side-note", { type: "button", onclick: () => this.send("compare") });
    this.end = tool("End comparison", { glyph: "close", onclick: () => this.send("end") });
    this.root = h(
      "section.mw-canvas.mw-shell.mw-numbers.mw-scroll-row",
      { "aria-label": "Predicted metrics" },
      this.tiles,
      h("div.mw-side", {}, this.pin, h("div.mw-side-row", {}, this.note, this.end)),
    );
    this.tips = new Tips(this.root);
    model.on(["tiles", "stale", "pinned", "is_pinned", "can_pin"], () => this.draw());
    this.draw();
  }

  draw() {
    this.root.toggleAttribute("data-stale", Boolean(this.model.stale.title));
    const tiles = plainData(this.model, "tiles");
    for (const tile of tiles) this.drawTile(tile);
    this.tiles.style.setProperty("--tiles", tiles.length);
    for (const [key, { tile }] of this.parts) tile.hidden = !tiles.some((/** @type {Tile} */ each) => each.key === key);
    keepFocus(this.root, () => this.drawSide());
  }

  /** @param {Tile} tile */
  drawTile({ key, label, value, small, help, change, bar, wrong }) {
    const part = this.parts.get(key) ?? this.addTile(key);
    const [amount, ...unit] = value.split(" ");
    const { spoken, arrow, verdict, text } = change ?? NO_CHANGE;
    part.tile.setAttribute("aria-label", [`${label}: ${value}`, wrong, small, spoken].filter(Boolean).join(", "));
    part.tile.dataset.tip = change ? `${help}\n\nNow ${value}: ${spoken}.` : help;
    part.name.textContent = label;
    part.value.replaceChildren(amount, h("span.mw-value-unit", {}, ` ${unit.join(" ")}`));
    part.value.toggleAttribute("data-none", value === "–");
    part.tile.toggleAttribute("data-long", `${wrong} ${small}`.trim().length > LONG_NOTE);
    part.small.replaceChildren(wrong ? h("span.mw-wrong", {}, `${wrong} `) : "", small);
    part.change.replaceChildren(text && icon(arrow), text);
    part.verdict.textContent = verdict;
    part.tile.dataset.verdict = verdict;
    part.track.hidden = bar === null;
    part.fill.style.width = `${100 * (bar ?? 0)}%`;
    part.fill.toggleAttribute("data-wrong", Boolean(wrong));
  }

  /** @param {string} key */
  addTile(key) {
    const part = makeTile(key);
    this.tiles.append(part.tile);
    this.parts.set(key, part);
    return part;
  }

  drawSide() {
    const { stale, pinned, is_pinned: isPinned, can_pin: canPin } = this.model;
    keepNames(pinned);
    const tip = isPinned
      ? "This design is pinned. Press to unpin it (P)."
      : "Pin the metrics and the timeline of this design for comparison; up to 3 designs (P).";
    this.label.textContent = isPinned ? "Pinned" : "Pin";
    this.pin.setAttribute("aria-pressed", String(isPinned));
    this.pin.setAttribute("aria-label", isPinned ? "Unpin this design" : "Pin this design");
    this.pin.enable(canPin);
    this.pin.dataset.tip = tip;
    const reference = pinned.length > 1 ? `${pinned[0]} and ${pinned.length - 1} more` : pinned[0];
    this.note.dataset.kind = stale.title ? "stale" : "pinned";
    this.note.textContent = stale.title ?? (reference ? `vs. ${reference}` : "for comparison");
    this.note.toggleAttribute("data-opens", pinned.length > 0);
    this.end.hidden = !pinned.length;
    this.note.dataset.tip =
      stale.detail ?? (reference ? `Changes are relative to “${pinned[0]}”. Press to compare all designs (V).` : tip);
  }
}

/** @param {string} key */
function makeTile(key) {
  const fill = h("div.mw-bar-fill");
  const part = {
    name: h("div.mw-name-of"),
    change: h("div.mw-change"),
    value: h("div.mw-value"),
    verdict: h("div.mw-verdict"),
    small: h("div.mw-small"),
    fill,
    track: h("div.mw-bar-track", {}, fill),
    tile: h("div.mw-tile", { "data-key": key, tabindex: 0, role: "group" }),
  };
  part.tile.append(
    h("div.mw-row", {}, part.name, part.change),
    h("div.mw-row", {}, part.value, part.verdict),
    part.small,
    part.track,
  );
  return part;
}
