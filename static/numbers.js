// The strip of numbers: Python writes them, this shows them with their arrows and the pin.

import { button, followTheme, h } from "static/canvas.js";
import { Tips, icon } from "static/shell.js";

export function render({ model }) {
  const numbers = new Numbers(model);
  model.on("remove", () => numbers.unfollow?.());
  return numbers.root;
}

class Numbers {
  constructor(model) {
    this.model = model;
    this.parts = new Map();
    this.tiles = h("dl", { class: "mw-tiles" });
    this.label = h("span", {}, "Pin");
    this.pin = button("Pin", { content: icon("pin"), onclick: () => model.send_msg({ type: "pin" }) });
    this.pin.append(this.label);
    this.note = h("div", { class: "mw-side-note", role: "status", tabindex: -1 });
    this.root = h("section", { class: "mw-canvas mw-shell mw-numbers", "aria-label": "Numbers of the predicted step" }, this.tiles, h("div", { class: "mw-side" }, this.pin, this.note));
    this.tips = new Tips(this.root);
    model.on(["tiles", "stale", "pinned", "is_pinned", "can_pin"], () => this.draw());
    requestAnimationFrame(() => (this.unfollow = followTheme(this.root)));
    this.draw();
  }

  draw() {
    const { tiles, stale } = this.model;
    this.root.toggleAttribute("data-stale", Boolean(stale.title));
    for (const tile of tiles) this.drawTile(tile);
    this.drawSide();
  }

  drawTile({ key, label, value, small, help, change, bar, wrong }) {
    const part = this.parts.get(key) ?? this.makeTile(key);
    part.tile.dataset.tip = change ? `${help}\n\nNow ${value}: ${change.spoken}.` : help;
    part.tile.setAttribute("aria-description", part.tile.dataset.tip);
    part.name.textContent = label;
    part.value.textContent = value;
    part.value.toggleAttribute("data-none", value === "–");
    part.small.replaceChildren(...(wrong ? [h("span", { class: "mw-wrong" }, wrong), ` ${small.replace(/,.*/, "")}`] : [small]));
    part.change.replaceChildren(...(change ? drawChange(change) : []));
    part.change.dataset.verdict = change?.verdict ?? "";
    part.bar.hidden = bar === null;
    if (bar !== null) {
      part.fill.style.width = `${100 * bar}%`;
      part.fill.toggleAttribute("data-wrong", Boolean(wrong));
    }
  }

  makeTile(key) {
    const [name, value, small, change, fill] = ["", "mw-value", "mw-small", "mw-change", "mw-bar-fill"].map((kind, place) =>
      h(place === 0 || place === 3 ? "span" : place === 4 ? "div" : "dd", { class: kind }),
    );
    const bar = h("div", { class: "mw-bar-track", "aria-hidden": "true" }, fill);
    const tile = h("div", { class: "mw-tile", "data-key": key, tabindex: 0, role: "group" }, h("dt", {}, name, change), value, small, bar);
    this.tiles.append(tile);
    const part = { tile, name, value, small, change, bar, fill };
    this.parts.set(key, part);
    return part;
  }

  drawSide() {
    const { stale, pinned, is_pinned: isPinned, can_pin: canPin } = this.model;
    this.label.textContent = isPinned ? `Pinned` : "Pin";
    this.pin.setAttribute("aria-pressed", String(isPinned));
    this.pin.setAttribute("aria-label", isPinned ? `Pinned: ${pinned}` : "Pin this design");
    this.pin.allow(canPin || isPinned);
    this.pin.dataset.tip = isPinned
      ? `Every number is compared with “${pinned}”. Press to end the comparison (P).`
      : "Keep this design's numbers and timeline to compare with (P).";
    this.note.dataset.kind = stale.title ? "stale" : "pinned";
    this.note.textContent = stale.title ? stale.title : isPinned ? pinned : "to compare with";
    this.note.dataset.tip = stale.title ? `${stale.title}; ${stale.count}.\n${stale.detail}` : this.pin.dataset.tip;
  }
}

function drawChange({ arrow, verdict, text, spoken }) {
  const shown = [arrow === "same" ? null : icon(arrow), h("span", { "aria-hidden": "true" }, text)];
  return [...shown.filter(Boolean), h("span", { class: "mw-sr" }, spoken || verdict)];
}
