// What the small widgets around the canvases share: icons, tooltips, dialogs and panels in the top layer.

import { button, h, s, send } from "./canvas.js";
import { helpOn } from "./help.js";

const ICONS = {
  open: ["M1.75 12.5v-9h4l1.5 2h5.5v2", "M1.75 12.5l2-5h10.5l-2 5z"],
  examples: ["M2.5 2.5h4.2v4.2H2.5zM9.3 2.5h4.2v4.2H9.3zM2.5 9.3h4.2v4.2H2.5zM9.3 9.3h4.2v4.2H9.3z"],
  gallery: ["M2 3h6.5M4.5 6.3H12M2 9.7h4M7.5 9.7H14M5.5 13h6"],
  transfer: [
    "M1.75 3h4.5v4.25h-4.5zM1.75 8.75h4.5V13h-4.5zM9.75 3h4.5v10h-4.5z",
    "M6.25 5.1h3.5M6.25 10.9h3.5M9.75 8h4.5",
  ],
  compare: ["M2.5 3h4.2v10H2.5zM9.3 3h4.2v10H9.3z"],
  save: ["M8 2v8M4.75 7 8 10.25 11.25 7", "M2.5 10.5v3h11v-3"],
  saveAs: ["M7 2v7M4 6.5 7 9.5l1.5-1.5", "M2.5 10v3.5h5", "M9.5 13.5l.4-1.9 3-3 1.5 1.5-3 3z"],
  share: ["M8 10V2M4.75 5 8 1.75 11.25 5", "M5 7.5H2.5v6h11v-6H11"],
  undo: ["M6 3 2.5 6.5 6 10", "M2.5 6.5h7a3.75 3.75 0 0 1 0 7.5H6"],
  redo: ["M10 3l3.5 3.5L10 10", "M13.5 6.5h-7a3.75 3.75 0 0 0 0 7.5H10"],
  light: [
    "M8 5.1a2.9 2.9 0 1 0 0 5.8 2.9 2.9 0 0 0 0-5.8z",
    "M8 1v1.4M8 13.6V15M1 8h1.4M13.6 8H15M3.05 3.05l1 1M11.95 11.95l1 1M3.05 12.95l1-1M11.95 4.05l1-1",
  ],
  dark: ["M13.2 9.6A5.7 5.7 0 0 1 6.4 2.8a5.7 5.7 0 1 0 6.8 6.8z"],
  system: ["M1.75 2.75h12.5v8.5H1.75z", "M5.5 13.75h5M8 11.25v2.5"],
  help: [
    "M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5z",
    "M6.2 6.2a1.85 1.85 0 1 1 2.6 1.7c-.5.25-.8.6-.8 1.2v.2M8 11.4v.05",
  ],
  down: ["M4.5 6.5 8 10l3.5-3.5"],
  close: ["M4 4l8 8M12 4l-8 8"],
  pin: ["M5.5 1.75h5M6.25 1.75v4.5L4.25 9h7.5l-2-2.75v-4.5M8 9v5.25"],
  check: ["M3 8.5l3.25 3.25L13 5"],
  error: ["M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5z", "M5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4"],
  warning: ["M8 2 14.5 13.5h-13z", "M8 6.25v3.5M8 11.6v.05"],
  rise: ["M8 13V3.5M4 7.25 8 3.25l4 4"],
  fall: ["M8 3v9.5M4 8.75l4 4 4-4"],
  same: ["M3.5 6h9M3.5 10h9"],
};

/** A line icon of 16 x 16 in the colour of its text; the words beside it or its label say what it means. */
export function icon(name) {
  const paths = ICONS[name].map((d) => s("path", { d }));
  return s(
    "svg",
    { class: "mw-svg", viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true", "data-icon": name },
    ...paths,
  );
}

/**
 * A button of an icon, words or both; `tip` explains it, "" does not.
 * @param {string} label
 * @param {{glyph?: string, text?: string, tip?: string, kind?: string, onclick?: (event: MouseEvent) => void}} options
 */
export function tool(label, { glyph, text, tip = label, kind = "", onclick } = {}) {
  const element = button(label, { kind: `mw-tool ${kind}`, onclick, content: "" });
  element.replaceChildren(...[glyph && icon(glyph), text && h("span", {}, text)].filter(Boolean));
  if (tip) element.dataset.tip = tip;
  return element;
}

// ── tooltips ────────────────────────────────────────────────────────────────────────────────

const TIP_AFTER_MS = 350;

/** Show the `data-tip` of what the pointer rests on or the keyboard is at, above everything else. */
export class Tips {
  constructor(root) {
    this.box = h("div", { class: "mw-tip", popover: "manual", role: "tooltip" });
    root.append(this.box);
    root.addEventListener("pointerover", (event) => this.over(event.target.closest("[data-tip]"), TIP_AFTER_MS));
    root.addEventListener("pointerleave", () => this.hide());
    root.addEventListener("pointerdown", () => this.hide());
    root.addEventListener(
      "focusin",
      (event) => event.target.matches(":focus-visible[data-tip]") && this.over(event.target, 0),
    );
    root.addEventListener("focusout", () => this.hide());
    root.addEventListener("keydown", () => this.hide());
  }

  over(target, after) {
    if (target === this.target) return;
    this.hide();
    if (!target?.dataset.tip) return;
    this.target = target;
    this.timer = setTimeout(() => this.show(), after);
  }

  show() {
    if (!this.target.isConnected || !this.box.isConnected) return;
    const hint = helpOn(this.target) ? h("div", { class: "mw-quiet" }, "F1: help on this") : "";
    this.box.replaceChildren(this.target.dataset.tip, hint);
    this.box.showPopover();
    const [at, box] = [this.target.getBoundingClientRect(), this.box.getBoundingClientRect()];
    const left = Math.max(6, Math.min(at.left + at.width / 2 - box.width / 2, innerWidth - box.width - 6));
    const below = at.bottom + 6 + box.height < innerHeight;
    this.box.style.left = `${left}px`;
    this.box.style.top = `${below ? at.bottom + 6 : at.top - box.height - 6}px`;
  }

  hide() {
    clearTimeout(this.timer);
    this.target = null;
    if (this.box.matches(":popover-open")) this.box.hidePopover();
  }
}

/** The attributes of what explains itself: to the pointer, to the keyboard and to who listens. */
export const tipped = (words) => ({ "data-tip": words, "aria-description": words });

/** One stop of the keyboard for all that explains itself in `box`: arrows go from one to the next. */
export function walkTips(box) {
  const tips = () => [...box.querySelectorAll("[data-tip]:not(button)")];
  box.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    const all = tips();
    const at = all.indexOf(event.target);
    if (!step || at < 0) return;
    for (const each of all) each.tabIndex = -1; // a press may have put the keyboard on any
    const next = all.at((at + step) % all.length);
    next.tabIndex = 0;
    next.focus();
    event.preventDefault();
    event.stopPropagation();
  });
  return () => tips().forEach((tip, number) => (tip.tabIndex = number ? -1 : 0));
}

// ── dialogs ─────────────────────────────────────────────────────────────────────────────────

/** A modal dialog. Escape, a press beside it and `close` end it at once, and `ended` hears of it in that moment: the
    dialog's own `close` event is a task of its own, which the next key would overtake. The event is kept for whatever
    else closes a dialog. */
export class Modal {
  constructor(dialog, ended = () => {}) {
    this.dialog = dialog;
    this.ended = ended;
    this.isOpen = false;
    dialog.addEventListener("keydown", (event) => this.key(event));
    dialog.addEventListener("click", (event) => event.target === dialog && this.close());
    // Escape with the keyboard elsewhere
    dialog.addEventListener("cancel", (event) => event.target === dialog && this.end());
    dialog.addEventListener("close", () => dialog.open || this.end()); // it may be open again
  }

  open() {
    this.isOpen = true;
    this.dialog.showModal();
  }

  close() {
    this.dialog.close();
    this.end();
  }

  end() {
    if (!this.isOpen) return;
    this.isOpen = false;
    this.ended();
  }

  /** Escape, unless something in the dialog took it or a panel over it is closed first. */
  key(event) {
    if (event.key !== "Escape" || event.defaultPrevented || event.isComposing) return;
    if (this.dialog.querySelector('[popover="auto"]:popover-open')) return;
    event.preventDefault();
    this.close();
  }
}

/** A modal dialog that Python opens (designer/kit/canvas.py); `opened` runs each time. What is closed here is told
    by its number, so that an opening that crosses it on the way stays. */
export class Overlay extends Modal {
  constructor(model, dialog, opened) {
    super(dialog, () => model.shown && send(model, { type: "close", opening: model.opening }));
    this.model = model;
    this.opened = opened;
    model.on(["shown", "opening"], () => this.follow());
  }

  /** Open and close as Python says. */
  follow() {
    if (this.model.shown === this.dialog.open) return;
    if (this.model.shown) {
      this.open();
      this.opened();
    } else {
      this.isOpen = false; // Python knows
      this.dialog.close();
    }
  }
}

// ── panels ──────────────────────────────────────────────────────────────────────────────────

/** A panel under `anchor` that its click opens and a press elsewhere, Escape or a choice closes.
    `make` gives what is in it, each time it opens. */
export function dropdown(anchor, label, make, { role = null } = {}) {
  const panel = h("div", { class: "mw-drop", popover: "auto", role, "aria-label": label });
  anchor.popoverTargetElement = panel;
  anchor.setAttribute("aria-haspopup", role ?? "dialog");
  anchor.setAttribute("aria-expanded", "false");
  panel.addEventListener("beforetoggle", (event) => {
    anchor.setAttribute("aria-expanded", String(event.newState === "open"));
    // behind a shadow root the browser loses it
    if (event.newState !== "open") return panel.matches(":focus-within") && anchor.focus();
    panel.replaceChildren(...make(panel));
    below(panel, anchor);
  });
  panel.addEventListener("toggle", (event) => event.newState === "open" && first(panel)?.focus());
  return panel;
}

function below(panel, anchor) {
  const at = anchor.getBoundingClientRect();
  const leans = at.left > innerWidth / 2;
  Object.assign(panel.style, {
    top: `${at.bottom + 4}px`,
    left: leans ? "auto" : `${at.left}px`,
    right: leans ? `${Math.max(6, innerWidth - at.right)}px` : "auto",
  });
}

const first = (panel) =>
  panel.querySelector('[aria-checked="true"], [autofocus]') ?? panel.querySelector("button, input");

/** A menu of `{ text, note, checked, choose }` under `anchor`, for pointer, arrows and first letters. */
export function menu(anchor, label, entries) {
  const panel = dropdown(anchor, label, () => entries().map((entry) => item(panel, entry)), { role: "menu" });
  panel.addEventListener("keydown", (event) => {
    const items = [...panel.querySelectorAll('[role^="menuitem"]')];
    const at = items.indexOf(panel.getRootNode().activeElement);
    const steps = { ArrowDown: at + 1, ArrowUp: at < 0 ? -1 : at - 1, Home: 0, End: -1 };
    const letter =
      event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey ? event.key.toLowerCase() : "";
    if (event.key in steps) items.at(steps[event.key] % items.length)?.focus();
    else if (letter)
      [...items.slice(at + 1), ...items].find((each) => each.textContent.toLowerCase().startsWith(letter))?.focus();
    else if (event.key === "Tab") return panel.hidePopover();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return panel;
}

function item(panel, { text, note, checked, choose }) {
  const role = checked === undefined ? "menuitem" : "menuitemradio";
  const chosen = () => {
    panel.hidePopover();
    choose();
  };
  const mark = checked === undefined ? null : h("span", { class: "mw-mark" }, checked ? icon("check") : "");
  const attributes = {
    type: "button",
    class: "mw-item",
    role,
    tabindex: -1,
    "aria-checked": checked === undefined ? null : String(checked),
  };
  return h(
    "button",
    { ...attributes, onclick: chosen },
    mark,
    h("span", { class: "mw-item-text" }, text),
    note ? h("span", { class: "mw-item-note" }, note) : null,
  );
}
