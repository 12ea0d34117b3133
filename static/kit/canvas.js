// Parts shared by the drawing canvases: the pointer, notices beside the pointer, and colours of meshes.

/** @import { Model, Point } from "./types" */

import { consume, h } from "./dom.js";
import { clamp } from "./numbers.js";
import { Widget, oncePerFrame } from "./widget.js";
import { boxOf, pointOf } from "./zoom.js";

/**
 * The colour of a mesh. The page may override the palette by --mw-mesh-N.
 * @param {string[]} palette @param {number} rank
 */
export function meshColour(palette, rank) {
  const index = rank % palette.length;
  return `var(--mw-mesh-${index}, ${palette[index]})`;
}

/**
 * Track a pressed pointer until it is released. Escape or losing the pointer cancels; `onkey` receives the events of
 * other keys. Return a function that stops the tracking and may be called repeatedly.
 * @param {object} listeners @param {(event: PointerEvent) => void} listeners.onmove
 * @param {(event: PointerEvent) => void} listeners.onrelease @param {() => void} listeners.oncancel
 * @param {(event: KeyboardEvent) => void} [listeners.onkey]
 */
export function trackPointer({ onmove, onrelease, oncancel, onkey = () => {} }) {
  const end = new AbortController();
  const options = { signal: end.signal, capture: true };
  window.addEventListener("pointermove", onmove, options);
  window.addEventListener("pointerup", onrelease, options);
  window.addEventListener("pointercancel", oncancel, options);
  window.addEventListener("keyup", onkey, options);
  window.addEventListener(
    "keydown",
    (event) => {
      if (event.key !== "Escape") return onkey(event);
      consume(event);
      oncancel();
    },
    options,
  );
  return () => end.abort();
}

/**
 * Position of an event on an element.
 * @param {{clientX: number, clientY: number}} event @param {Element} element @returns {Point}
 */
export const pointIn = (event, element) => offsetIn(pointOf(event), element);

/**
 * Position on an element of a point of the page.
 * @param {Point} point @param {Element} element @returns {Point}
 */
export function offsetIn({ x, y }, element) {
  const { left, top } = boxOf(element);
  return { x: x - left, y: y - top };
}

/**
 * Position of a box beside a point of an element: to the right and below, or above if there is no room.
 * @param {Point} point @param {HTMLElement} box @param {HTMLElement} element
 */
export function beside({ x, y }, box, element) {
  const left = clamp(x + 14, 6, Math.max(6, element.clientWidth - box.offsetWidth - 6));
  const isBelow = y + 18 + box.offsetHeight < element.clientHeight;
  return { left, top: isBelow ? y + 18 : Math.max(6, y - box.offsetHeight - 10) };
}

/** Text beside the pointer. A text of `show` stays until `hide`; a text of `announce` is also read by screen readers
 * and fades. */
export class Notice {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.box = h("div.mw-notice", { "aria-hidden": "true" });
    this.live = h("div.mw-sr", { role: "status", "aria-live": "polite" });
    this.timer = 0;
    root.append(this.box, this.live);
  }

  /** @param {string} text @param {Point} at @param {string} [kind] "info" or "error" */
  show(text, at, kind = "info") {
    clearTimeout(this.timer);
    this.text = this.last = text;
    this.box.textContent = text;
    this.box.dataset.kind = kind;
    this.box.dataset.shown = "";
    const { left, top } = beside(at, this.box, this.root);
    this.box.style.left = `${left}px`;
    this.box.style.top = `${top}px`;
  }

  /** @param {string} text @param {Point} at @param {string} [kind] */
  announce(text, at, kind = "error") {
    this.show(text, at, kind);
    this.live.textContent = text;
    this.timer = setTimeout(() => this.hide(), 1800 + 45 * text.length);
  }

  hide() {
    clearTimeout(this.timer);
    this.text = "";
    delete this.box.dataset.shown;
  }
}

/**
 * A widget that draws on a `board` inside its `root`, at most once per frame, with notices beside the pointer. A
 * subclass creates both elements, then calls `start`.
 * @template {Model} M
 * @extends {Widget<M>}
 */
export class Canvas extends Widget {
  /** @type {HTMLElement} */ board;
  /** @type {Notice} */ notice;
  /** @type {ResizeObserver} */ observer;

  /** @param {M} model */
  constructor(model) {
    super(model);
    this.pointer = { x: 40, y: 40 }; // the last position of the pointer, or the position set by `pointAt`
    this.redraw = oncePerFrame(() => this.draw());
  }

  draw() {}

  start() {
    this.notice = new Notice(this.root);
    this.root.addEventListener("pointermove", (event) => (this.pointer = pointIn(event, this.root)), true);
    this.root.mw = this;
    this.observer = new ResizeObserver(() => this.redraw());
    this.observer.observe(this.board);
  }

  remove() {
    this.observer.disconnect();
    this.redraw.cancel();
  }

  /** @param {string} text */
  announce(text) {
    this.notice.announce(text, this.pointer);
  }

  /** @param {HTMLElement} element @param {string} text */
  announceAt(element, text) {
    const { left, bottom } = boxOf(element);
    const box = boxOf(this.root);
    this.notice.announce(text, { x: left - box.left - 14, y: bottom - box.top - 12 });
  }

  /** Show the next notices beside an element. @param {Element} element */
  pointAt(element) {
    const { left, bottom } = boxOf(element);
    const box = boxOf(this.root);
    this.pointer = { x: left - box.left, y: bottom - box.top - 12 };
  }
}
