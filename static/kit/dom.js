// Functions for elements of the page and the keyboard focus.

/** @import { Attributes, Child, HtmlOf, SvgOf } from "./types" */

import { boxOf } from "./zoom.js";

const SVG = "http://www.w3.org/2000/svg";

/** @type {Record<string, number | undefined>} */
export const ARROW_STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
/** Columns and rows by which an arrow key moves. @type {Record<string, [number, number]>} */
export const ARROW_MOVES = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

/**
 * Create an HTML element. The tag may include classes ("div.mw-bar"). Attributes that begin with `on` are listeners.
 * Attributes and children that are null, undefined or false are left out.
 * @template {string} T
 * @param {T} tag
 * @param {Attributes} [attributes]
 * @param {Child[]} children
 */
export function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return /** @type {HtmlOf<T>} */ (fill(document.createElement(name), classes, attributes, children));
}

/**
 * Create an SVG element, like `h`.
 * @template {string} T
 * @param {T} tag
 * @param {Attributes} [attributes]
 * @param {Child[]} children
 */
export function s(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return /** @type {SvgOf<T>} */ (fill(document.createElementNS(SVG, name), classes, attributes, children));
}

/** @param {Element} element @param {string[]} classes @param {Attributes} attributes @param {Child[]} children */
function fill(element, classes, attributes, children) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (name === "style") setStyle(/** @type {HTMLElement} */ (element), /** @type {any} */ (value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  const shown = children.filter((child) => child !== null && child !== undefined && child !== false);
  element.append(.../** @type {string[]} */ (shown));
  return element;
}

/** Set style properties, custom properties included. @param {HTMLElement} element @param {Record<string, any>} style */
export function setStyle(element, style) {
  for (const [name, value] of Object.entries(style)) element.style.setProperty(name, value);
}

/** @param {ParentNode} root @param {string} selector @returns {HTMLElement | null} */
export const find = (root, selector) => root.querySelector(selector);

/** @param {ParentNode} root @param {string} selector */
export const findAll = (root, selector) => [
  .../** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll(selector)),
];

/** @param {Event} event @param {string} selector @returns {HTMLElement | null} */
export const closest = (event, selector) => /** @type {Element} */ (event.target).closest(selector);

/**
 * The element with the keyboard focus, which may be inside a shadow root.
 * @param {Node} node @returns {HTMLElement | null}
 */
export const focusedElement = (node) => /** @type {any} */ (node.getRootNode()).activeElement;

/**
 * Add listeners that are called only while `isActive`.
 * @param {HTMLElement} element @param {(event: Event) => unknown} isActive
 * @param {{[Type in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[Type]) => void}} listeners
 * @param {AddEventListenerOptions} options
 */
export function listenWhile(element, isActive, listeners, options) {
  for (const [type, listener] of Object.entries(listeners)) {
    const call = /** @type {EventListener} */ (listener);
    element.addEventListener(type, (event) => isActive(event) && call(event), options);
  }
}

/** Stop an event: neither the browser nor another part of the page handles it. @param {Event} event */
export function consume(event) {
  event.preventDefault();
  event.stopPropagation();
}

/**
 * The index to which an arrow key, Home or End moves in a grid of `count` elements; undefined for other keys.
 * @param {string} key @param {number} at @param {number} count @param {number} [columns]
 */
export function indexByKey(key, at, count, columns = 1) {
  const last = count - 1;
  const index = {
    ArrowRight: at + 1,
    ArrowLeft: at - 1,
    ArrowDown: at + columns,
    ArrowUp: at - columns,
    Home: 0,
    End: last,
  }[key];
  return index === undefined ? undefined : Math.max(0, Math.min(last, index));
}

/** Number of elements per row of a wrapped list. @param {HTMLElement[]} elements */
export function countPerRow(elements) {
  const { top } = boxOf(elements[0]);
  const next = elements.findIndex((element) => boxOf(element).top > top + 4);
  return next < 0 ? elements.length : next;
}

/**
 * Make `current` the only tab stop of a group of elements.
 * @param {HTMLElement[]} group @param {HTMLElement} [current]
 */
export function setTabStop(group, current) {
  for (const element of group) element.tabIndex = element === current ? 0 : -1;
}

const FOCUSABLE = "button, input, select, textarea, summary, a[href], [tabindex]";

const IGNORE_KEYS_MS = 800; // ms; a second press within this time is meant for the previous control at this position

/**
 * Run `change`, which may redraw or hide the focused element of `root`. In this case, focus the element at its
 * position, or `fallback` if there is none.
 * @param {HTMLElement} root @param {() => void} change @param {HTMLElement | null} [fallback]
 */
export function keepFocus(root, change, fallback = null) {
  const focusable = () =>
    findAll(root, FOCUSABLE).filter((element) => !element.matches(":disabled") && element.checkVisibility());
  const focused = focusedElement(root);
  if (!focused || !root.contains(focused)) return change();
  const at = focusable().indexOf(focused);
  change();
  const left = focusable();
  if (left.includes(focused)) return refocus(focused);
  if (at < 0) return;
  const next = left[Math.min(at, left.length - 1)] ?? fallback;
  next?.focus();
  if (next && !next.matches("input, select, textarea")) ignoreKeysBriefly(next);
}

/** Focus the chosen or first control of a panel, unless a fast user has focused another. @param {HTMLElement} panel */
export const focusFirst = (panel) =>
  panel.matches(":focus-within") ||
  (find(panel, '[aria-checked="true"], [autofocus]') ?? find(panel, "button, input"))?.focus();

/** Focus an element that lost the focus when it was taken out and put back. @param {HTMLElement} element */
function refocus(element) {
  if (focusedElement(element) !== element) element.focus({ preventScroll: true });
}

/** @param {HTMLElement} element */
function ignoreKeysBriefly(element) {
  const end = new AbortController();
  const ignore = (/** @type {Event} */ event) => {
    const isPress =
      event instanceof KeyboardEvent ? ["Enter", " "].includes(event.key) : !(/** @type {UIEvent} */ (event).detail);
    if (!isPress) return; // presses of the pointer are not ignored
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  for (const type of ["keydown", "keyup", "click"])
    element.addEventListener(type, ignore, { capture: true, signal: end.signal });
  setTimeout(() => end.abort(), IGNORE_KEYS_MS);
}
