// The strip of numbers: Python writes them, this shows them with their arrows and the pin.

import { button, followTheme, h, keepFocus, plain, send } from "../kit/canvas.js";
import { Tips, icon, tool } from "../kit/shell.js";

export const render = ({ model }) => new Numbers(model).root;

class Numbers {
  constructor(model) {
    this.model = model;
    this.parts = new Map();
    this.tiles = h("div", { class: "mw-tiles" });
    this.label = h("span", {}, "Pin");
    this.pin = button("Pin", { content: icon("pin"), onclick: () => send(model, { type: "pin" }) });
    this.pin.append(this.label);
    this.note = h("button", { class: "mw-side-note", type: "button", onclick: () => send(model, { type: "compare" }) });
    this.end = tool("End the comparison", { glyph: "close", onclick: () => send(model, { type: "end" }) });
    this.root = h(
      "section",
      { class: "mw-canvas mw-shell mw-numbers", "aria-label": "Numbers of the predicted step" },
      this.tiles,
      h("div", { class: "mw-side" }, this.pin, h("div", { class: "mw-side-row" }, this.note, this.end)),
    );
    this.tips = new Tips(this.root);
    model.on(["tiles", "stale", "pinned", "is_pinned", "can_pin"], () => this.draw());
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
    this.draw();
  }

  draw() {
    const { stale } = this.model;
    this.root.toggleAttribute("data-stale", Boolean(stale.title));
    for (const tile of plain(this.model, "tiles")) this.drawTile(tile);
    keepFocus(this.root, () => this.drawSide());
  }

  drawTile({ key, label, value, small, help, change, bar, wrong }) {
    const part = this.parts.get(key) ?? this.makeTile(key);
    const [amount, ...unit] = value.split(" ");
    part.tile.setAttribute(
      "aria-label",
      [`${label}: ${value}`, wrong, small, change?.spoken].filter(Boolean).join(", "),
    );
    part.tile.dataset.tip = change ? `${help}\n\nNow ${value}: ${change.spoken}.` : help;
    part.name.textContent = label;
    part.value.replaceChildren(amount, h("span", { class: "mw-value-unit" }, ` ${unit.join(" ")}`));
    part.value.toggleAttribute("data-none", value === "–");
    part.small.replaceChildren(...(wrong ? [h("span", { class: "mw-wrong" }, `${wrong} `)] : []), small);
    part.change.replaceChildren(...(change?.text ? [icon(change.arrow), change.text] : []));
    part.verdict.textContent = change?.verdict ?? "";
    part.tile.dataset.verdict = change?.verdict ?? "";
    part.track.hidden = bar === null;
    part.fill.style.width = `${100 * (bar ?? 0)}%`;
    part.fill.toggleAttribute("data-wrong", Boolean(wrong));
  }

  makeTile(key) {
    const box = (kind) => h("div", { class: kind });
    const part = {
      name: box("mw-name-of"),
      change: box("mw-change"),
      value: box("mw-value"),
      verdict: box("mw-verdict"),
      small: box("mw-small"),
    };
    part.fill = box("mw-bar-fill");
    part.track = h("div", { class: "mw-bar-track" }, part.fill);
    part.tile = h("div", { class: "mw-tile", "data-key": key, tabindex: 0, role: "group" });
    part.tile.append(
      h("div", { class: "mw-row" }, part.name, part.change),
      h("div", { class: "mw-row" }, part.value, part.verdict),
      part.small,
      part.track,
    );
    this.tiles.append(part.tile);
    this.parts.set(key, part);
    return part;
  }

  drawSide() {
    const { stale, pinned, is_pinned: isPinned, can_pin: canPin } = this.model;
    this.label.textContent = isPinned ? "Pinned" : "Pin";
    this.pin.setAttribute("aria-pressed", String(isPinned));
    this.pin.setAttribute("aria-label", isPinned ? "Unpin this design" : "Pin this design");
    this.pin.allow(canPin);
    this.pin.dataset.tip = isPinned
      ? "This design is pinned. Press to unpin it (P)."
      : "Keep this design's numbers and timeline to compare with, up to three (P).";
    const against = pinned.length === 1 ? pinned[0] : `${pinned[0]} and ${pinned.length - 1} more`;
    this.note.dataset.kind = stale.title ? "stale" : "pinned";
    this.note.textContent = stale.title ? stale.title : pinned.length ? `against ${against}` : "to compare with";
    this.note.toggleAttribute("data-opens", pinned.length > 0);
    this.end.hidden = !pinned.length;
    this.note.dataset.tip = stale.title
      ? stale.detail
      : pinned.length
        ? `Changes are against “${pinned[0]}”. Press to see all side by side (V).`
        : this.pin.dataset.tip;
  }
}
