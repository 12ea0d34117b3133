// Parts shared by the widgets around the canvases: tooltips, dialogs, and panels and menus in the top layer.

/** @import { Answer, Child, MenuEntry, Message, OverlayModel, Point } from "./types" */

import { button } from "./controls.js";
import { ARROW_STEPS, closest, consume, find, findAll, focusedElement, focusFirst, h } from "./dom.js";
import { helpOn } from "./help.js";
import { icon } from "./icons.js";
import { Widget, send } from "./widget.js";
import { boxOf, pageHeight, pageWidth, pointOf } from "./zoom.js";

/**
 * A button with an icon, text or both, and a tooltip unless `tip` is "".
 * @param {string} label
 * @param {{glyph?: string, text?: string, tip?: string, kind?: string, onclick?: (event: MouseEvent) => void}} options
 */
export function tool(label, { glyph, text, tip = label, kind = "", onclick } = {}) {
  const element = button(label, { kind: `mw-tool ${kind}`, onclick, content: "" });
  element.replaceChildren(glyph ? icon(glyph) : "", text ? h("span", {}, text) : "");
  if (tip) element.dataset.tip = tip;
  return element;
}

// ── tooltips ────────────────────────────────────────────────────────────────────────────────

const TIP_DELAY_MS = 350;

/** Shows the `data-tip` of the element under the pointer or with the keyboard focus as a tooltip above everything
 * else. */
export class Tips {
  /** @type {HTMLElement | null} */ target = null;
  timer = 0;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.box = h("div.mw-tip", { popover: "manual", role: "tooltip" });
    root.append(this.box);
    root.addEventListener("pointerover", (event) => this.schedule(closest(event, "[data-tip]"), TIP_DELAY_MS));
    root.addEventListener("focusin", (event) => this.schedule(closest(event, ":focus-visible[data-tip]"), 0));
    for (const type of ["pointerleave", "pointerdown", "focusout", "keydown"])
      root.addEventListener(type, () => this.hide());
  }

  /** @param {HTMLElement | null} target @param {number} delay */
  schedule(target, delay) {
    if (target === this.target) return;
    this.hide();
    if (!target?.dataset.tip) return;
    this.target = target;
    this.timer = setTimeout(() => this.show(target), delay);
  }

  /** @param {HTMLElement} target */
  show(target) {
    if (!target.isConnected || !this.box.isConnected || !target.dataset.tip) return;
    const hint = helpOn(target) ? h("div.mw-quiet", {}, "F1: help on this element") : "";
    this.box.replaceChildren(target.dataset.tip, hint);
    this.box.showPopover();
    const [at, box] = [boxOf(target), boxOf(this.box)];
    const left = Math.max(6, Math.min(at.left + at.width / 2 - box.width / 2, pageWidth() - box.width - 6));
    const isBelow = at.bottom + 6 + box.height < pageHeight();
    this.box.style.left = `${left}px`;
    this.box.style.top = `${isBelow ? at.bottom + 6 : at.top - box.height - 6}px`;
  }

  hide() {
    clearTimeout(this.timer);
    this.target = null;
    if (this.box.matches(":popover-open")) this.box.hidePopover();
  }
}

/** Attributes of an element with a tooltip, which screen readers also read. @param {string} text */
export const tipped = (text) => ({ "data-tip": text, "aria-description": text });

/**
 * Make all elements with tooltips in `box` one tab stop, and move between the elements with arrow keys. Return a
 * function to call after `box` is redrawn.
 * @param {HTMLElement} box
 */
export function walkTips(box) {
  const tips = () => findAll(box, "[data-tip]:not(button)");
  box.addEventListener("keydown", (event) => {
    const step = ARROW_STEPS[event.key];
    const all = tips();
    const at = all.findIndex((tip) => tip === event.target);
    if (!step || at < 0) return;
    const next = all[(at + step + all.length) % all.length];
    for (const tip of all) tip.tabIndex = tip === next ? 0 : -1;
    next.focus();
    consume(event);
  });
  return () => tips().forEach((tip, index) => (tip.tabIndex = index ? -1 : 0));
}

/**
 * Select the tabs of a list with arrow keys, Home and End, as the ARIA tabs pattern describes.
 * @param {HTMLElement} list
 */
export function walkTabs(list) {
  list.addEventListener("keydown", (event) => {
    const tabs = findAll(list, '[role="tab"]');
    const at = tabs.findIndex((tab) => tab === closest(event, '[role="tab"]'));
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    if (at < 0 || next === undefined) return;
    const tab = tabs.at(next % tabs.length);
    tab?.focus();
    tab?.click();
    consume(event);
  });
}

// ── dialogs ─────────────────────────────────────────────────────────────────────────────────

/**
 * A modal dialog. Escape, a press outside the dialog and `close` close it and call `onend` at once, because the
 * `close` event of the dialog arrives later than the next key. The event is also handled, for other ways to close the
 * dialog.
 */
export class Modal {
  isOpen = false;

  /** @param {HTMLDialogElement} dialog @param {() => void} [onend] */
  constructor(dialog, onend = () => {}) {
    this.dialog = dialog;
    this.onend = onend;
    dialog.addEventListener("keydown", (event) => this.key(event));
    dialog.addEventListener("click", (event) => event.target === dialog && this.close());
    dialog.addEventListener("cancel", (event) => event.target === dialog && this.end()); // Escape outside the dialog
    dialog.addEventListener("close", () => dialog.open || this.end()); // the dialog may be open again
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
    this.onend();
  }

  /**
   * Close on Escape, unless an element in the dialog handled it or a panel over the dialog is open.
   * @param {KeyboardEvent} event
   */
  key(event) {
    if (event.key !== "Escape" || event.defaultPrevented || event.isComposing) return;
    if (find(this.dialog, '[popover="auto"]:popover-open')) return;
    event.preventDefault();
    this.close();
  }
}

/**
 * A modal dialog that Python opens (Overlay in designer/kit/canvas.py). A message about closing it contains the
 * number of the opening, so that a later opening stays open.
 */
export class Overlay extends Modal {
  /**
   * @param {OverlayModel} model @param {HTMLDialogElement} dialog
   * @param {() => void} onopen
   */
  constructor(model, dialog, onopen) {
    super(dialog, () => model.shown && send(model, { type: "close", opening: model.opening }));
    this.model = model;
    this.onopen = onopen;
    model.on(["shown", "opening"], () => this.follow());
  }

  /** Open or close the dialog as the model requests. */
  follow() {
    if (this.model.shown === this.dialog.open) return;
    if (this.model.shown) {
      this.open();
      this.onopen();
    } else {
      this.isOpen = false; // Python closed the dialog itself
      this.dialog.close();
    }
  }
}

/**
 * A widget in a modal dialog: a header with a title, an element for refusals, and tooltips. The constructor of a
 * subclass calls `build` with the parts of the dialog.
 * @template {OverlayModel} M
 * @extends {Widget<M>}
 */
export class DialogWidget extends Widget {
  /** @type {HTMLDialogElement} */ dialog;
  /** @type {Overlay} */ overlay;
  /** @type {Tips} */ tips;
  refusal = h("div.mw-dialog-refusal", { role: "alert", hidden: true });

  /**
   * @param {string} kind @param {string} title @param {Child[]} about @param {Child[]} inHeader @param {Child[]} parts
   */
  build(kind, title, about, inHeader, parts) {
    const close = tool("Close", { glyph: "close", tip: "Close (Esc)", onclick: () => this.overlay.close() });
    const heading = h("div", {}, h("h2", { id: `mw-${kind}-title` }, title), ...about);
    const header = h("header", {}, heading, h("span.mw-grow"), ...inHeader, close);
    this.dialog = h("dialog", { class: `mw-dialog mw-${kind}-dialog`, "aria-labelledby": `mw-${kind}-title` });
    this.dialog.append(header, .../** @type {Node[]} */ (parts));
    this.overlay = new Overlay(this.model, this.dialog, () => {
      this.showRefusal();
      this.onopen();
    });
    this.root = h("div", { class: `mw-canvas mw-shell mw-overlay mw-${kind}` }, this.dialog);
    this.tips = new Tips(this.dialog);
    this.overlay.follow();
  }

  onopen() {}

  /** @param {Message} message */
  receive(message) {
    if (message.type === "answered") this.showRefusal(/** @type {Answer} */ (message).refused);
  }

  /** @param {string | null} [reason] */
  showRefusal(reason) {
    this.refusal.textContent = reason ?? "";
    this.refusal.hidden = !reason;
  }
}

// ── panels ──────────────────────────────────────────────────────────────────────────────────

/**
 * A panel under `anchor`. A click on the anchor opens the panel; a press elsewhere, Escape or a choice closes it.
 * `make` returns the content each time the panel opens.
 * @param {HTMLButtonElement} anchor @param {string} label @param {(panel: HTMLElement) => (Node | string)[]} make
 * @param {string | null} [role]
 */
export function dropdown(anchor, label, make, role = null) {
  const panel = h("div.mw-drop", { popover: "auto", role, "aria-label": label });
  anchor.popoverTargetElement = panel;
  anchor.setAttribute("aria-haspopup", role ?? "dialog");
  anchor.setAttribute("aria-expanded", "false");
  panel.addEventListener("beforetoggle", (event) => {
    const opens = event.newState === "open";
    anchor.setAttribute("aria-expanded", String(opens));
    if (!opens) return panel.matches(":focus-within") && anchor.focus(); // inside a shadow root, the browser loses it
    panel.replaceChildren(...make(panel));
    placeBelow(panel, anchor);
  });
  panel.addEventListener("toggle", (event) => event.newState === "open" && focusFirst(panel));
  return panel;
}

/** @param {HTMLElement} panel @param {HTMLElement} anchor */
function placeBelow(panel, anchor) {
  const at = boxOf(anchor);
  const [isRight, isSmall] = [at.left > pageWidth() / 2, pageWidth() < 700]; // a small window shows one pane
  Object.assign(panel.style, {
    top: `${at.bottom + 4}px`,
    left: isRight || isSmall ? "6px" : `${at.left}px`,
    right: isRight && !isSmall ? `${Math.max(6, pageWidth() - at.right)}px` : "6px",
    marginLeft: isRight ? "auto" : "0",
  });
}

/**
 * A menu under `anchor`, for pointer, arrow keys and first letters.
 * @param {HTMLButtonElement} anchor @param {string} label @param {() => MenuEntry[]} entries
 */
export function menu(anchor, label, entries) {
  const panel = dropdown(anchor, label, () => entries().map((entry) => menuItem(panel, entry)), "menu");
  walkMenu(panel);
  return panel;
}

/** Move between the items of a menu with arrow keys and first letters. @param {HTMLElement} panel */
function walkMenu(panel) {
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Tab") return panel.hidePopover();
    if (event.key === "Enter" || event.key === " ") return event.stopPropagation(); // the item takes it
    const items = findAll(panel, '[role^="menuitem"]');
    const next = menuTarget(event, items, items.indexOf(/** @type {HTMLElement} */ (focusedElement(panel))));
    if (next === undefined) return;
    next?.focus();
    consume(event);
  });
}

const LONG_PRESS_MS = 550;
const LONG_PRESS_PX = 8; // CSS pixels; a finger that moves further does not press

/** A menu at a point of the window. The widget adds `element` to its root. @param {string} label */
export function pointMenu(label) {
  const element = h("div.mw-drop", { popover: "auto", role: "menu", "aria-label": label });
  /** @type {HTMLElement | null} */
  let focused = null;
  walkMenu(element);
  element.addEventListener("beforetoggle", (event) => {
    if (event.newState === "closed" && element.matches(":focus-within")) focused?.focus();
  });
  const open = (/** @type {Point} */ { x, y }, /** @type {MenuEntry[]} */ entries) => {
    if (!entries.length) return;
    focused = focusedElement(element);
    element.replaceChildren(...entries.map((entry) => menuItem(element, entry)));
    if (!element.matches(":popover-open")) element.showPopover();
    const { width, height } = boxOf(element);
    element.style.left = `${Math.max(4, Math.min(x, pageWidth() - width - 4))}px`;
    element.style.top = `${Math.max(4, Math.min(y, pageHeight() - height - 4))}px`;
    focusFirst(element);
  };
  return { element, open };
}

/**
 * Open a menu under `anchor`, within `root`; when it closes, `onclose` ends the preview of an entry.
 * @param {HTMLElement} root @param {HTMLElement} anchor @param {string} label @param {MenuEntry[]} entries
 * @param {() => void} [onclose]
 */
export function openMenu(root, anchor, label, entries, onclose = () => {}) {
  const { element, open } = pointMenu(label);
  element.addEventListener("beforetoggle", (event) => event.newState === "closed" && onclose());
  element.addEventListener("toggle", (event) => event.newState === "closed" && element.remove());
  root.append(element);
  const { left, bottom } = boxOf(anchor);
  open({ x: left, y: bottom + 3 }, entries);
}

/**
 * Call `show` with a point and the element there on a right click, Shift+F10, the menu key, or a long press of a
 * finger. It returns true if it showed a menu; otherwise the browser shows its own.
 * @param {HTMLElement} area @param {(at: Point, target: HTMLElement, isByKey: boolean) => boolean} show
 */
export function openOnContext(area, show) {
  let timer = 0;
  /** @type {Point} */
  let start = { x: 0, y: 0 };
  const end = () => clearTimeout(timer);
  area.addEventListener("contextmenu", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const isKey = event.button !== 2 && event.pointerType !== "touch";
    const { left, bottom } = boxOf(target);
    if (show(isKey ? { x: left + 8, y: bottom } : pointOf(event), target, isKey)) consume(event);
  });
  area.addEventListener("pointerdown", (event) => {
    end();
    if (event.pointerType !== "touch") return;
    start = pointOf(event);
    const target = /** @type {HTMLElement} */ (event.target);
    timer = setTimeout(() => show(start, target, false), LONG_PRESS_MS);
  });
  area.addEventListener("pointermove", (event) => {
    if (Math.hypot(pointOf(event).x - start.x, pointOf(event).y - start.y) > LONG_PRESS_PX) end();
  });
  for (const type of ["pointerup", "pointercancel"]) area.addEventListener(type, end);
}

/**
 * The item to which a key moves, null if no item begins with the letter, undefined if the key is not for the menu.
 * @param {KeyboardEvent} event @param {HTMLElement[]} items @param {number} at
 */
function menuTarget({ key, ctrlKey, metaKey }, items, at) {
  /** @type {Record<string, number>} */
  const steps = { ArrowDown: at + 1, ArrowUp: at < 0 ? -1 : at - 1, Home: 0, End: -1 };
  if (key in steps) return items.at(steps[key] % items.length);
  if (key.length !== 1 || key === " " || ctrlKey || metaKey) return undefined;
  const ordered = [...items.slice(at + 1), ...items];
  return ordered.find((item) => item.textContent?.toLowerCase().startsWith(key.toLowerCase())) ?? null;
}

/** @param {HTMLElement} panel @param {MenuEntry} entry */
function menuItem(panel, { text, isName, isFirst, note, checked, choose, preview }) {
  const isChoice = checked !== undefined;
  const onclick = () => {
    panel.hidePopover();
    choose();
  };
  return h(
    "button.mw-item",
    {
      type: "button",
      role: isChoice ? "menuitemradio" : "menuitem",
      tabindex: -1,
      "aria-checked": isChoice ? String(checked) : null,
      "data-first": isFirst,
      onclick,
      onfocus: preview,
      onpointerenter: preview,
    },
    isChoice && h("span.mw-mark", {}, checked ? icon("check") : ""),
    h("span.mw-item-text", { translate: isName ? "no" : null }, text),
    note && h("span.mw-item-note", {}, note),
  );
}
