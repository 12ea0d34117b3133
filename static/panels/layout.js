// The layout of the page: splitters between its areas, the drawer of narrow windows, and the panes of small ones.
// page_layout.css arranges the areas by custom properties of the root element, which are set here.

import { consume, findAll, h } from "../kit/dom.js";
import { icon } from "../kit/icons.js";
import { clamp } from "../kit/numbers.js";
import { pageHeight, pageWidth, pointOf } from "../kit/zoom.js";

const SIZES_KEY = "meshwave.layout"; // key of the sizes in the browser's storage
const STEP_PX = 16; // CSS pixels per press of an arrow key
const PANES = { cluster: "Cluster", wave: "Pipeline", timeline: "Timeline" };

/**
 * `grows` is 1 if the area grows to the right or down, else -1.
 * @typedef {{property: string, label: string, usual: () => number, least: number, most: () => number, grows: 1 | -1,
 *   isRow?: boolean, isInner?: boolean}} Edge
 */

/** @type {Edge[]} */
const EDGES = [
  {
    property: "--mw-upper-height",
    label: "Height of the canvases",
    usual: () => Math.round(clamp(0.334 * pageHeight(), 240, 300)),
    least: 0,
    most: () => pageHeight() - 250,
    grows: 1,
    isRow: true,
  },
  {
    property: "--mw-side-width",
    label: "Width of the side panel",
    usual: () => 320,
    least: 240,
    most: () => Math.min(900, pageWidth() - 500),
    grows: -1,
  },
  {
    property: "--mw-cluster-width",
    label: "Width of the cluster",
    usual: () => Math.round(0.4 * canvasWidth()),
    least: 180,
    most: () => canvasWidth() - 200,
    grows: 1,
    isInner: true,
  },
];

/** The width of the two canvases together. */
const canvasWidth = () => pageWidth() - (readSizes()["--mw-side-width"] ?? 320);

/** The splitters between the areas. They are dragged or moved with arrow keys; a double click restores the default
 * size, or maximizes the area. */
export const splitters = () => EDGES.map(splitter);

/** @param {Edge} edge */
function splitter(edge) {
  const { property, label, usual, least, most, grows, isRow = false, isInner = false } = edge;
  const { style } = document.documentElement;
  /** @type {number | null} */
  let chosen = readSizes()[property] ?? null; // null for the usual size
  const size = () => chosen ?? usual();
  const element = h(isInner ? "div.mw-splitter.mw-inner" : "div.mw-splitter", {
    role: "separator",
    tabindex: 0,
    "aria-label": label,
    "aria-orientation": isRow ? "horizontal" : "vertical",
    "aria-valuemin": least,
    "aria-valuenow": size(),
  });
  const set = (/** @type {number} */ wanted) => {
    chosen = Math.round(clamp(wanted, least, Math.max(least, most())));
    style.setProperty(property, `${chosen}px`);
    element.setAttribute("aria-valuenow", String(chosen));
    element.setAttribute("aria-valuemax", String(most()));
  };
  const keep = (/** @type {number} */ wanted) => {
    set(wanted);
    writeSize(property, size());
  };
  element.addEventListener("pointerdown", (event) => {
    const [from, before] = [isRow ? pointOf(event).y : pointOf(event).x, size()];
    element.setPointerCapture(event.pointerId);
    element.onpointermove = (move) => set(before + grows * ((isRow ? pointOf(move).y : pointOf(move).x) - from));
    element.onpointerup = element.onpointercancel = () => {
      element.onpointermove = null;
      if (chosen !== null) keep(chosen); // it was moved
    };
  });
  element.addEventListener("dblclick", () => {
    if (chosen === null) return keep(isRow ? least : most());
    chosen = null;
    style.removeProperty(property);
    element.setAttribute("aria-valuenow", String(size()));
    writeSize(property, undefined);
  });
  element.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const isAlong = isRow === event.key.startsWith("ArrowDown") || isRow === event.key.startsWith("ArrowUp");
    if (!step || !isAlong) return;
    keep(size() + grows * step * STEP_PX);
    consume(event);
  });
  if (chosen !== null) set(chosen);
  return element;
}

/** The button that opens the side panel as a drawer in narrow windows. */
export function drawerButton() {
  const element = h("button.mw-button.mw-tool.mw-drawer-button", {
    type: "button",
    "aria-label": "Side panel",
    "aria-expanded": "false",
    "data-tip": "Design, run and problems",
  });
  element.append(icon("compare"));
  element.addEventListener("click", () => showDrawer(element.getAttribute("aria-expanded") !== "true", element));
  return element;
}

/** @param {boolean} isShown @param {HTMLElement} button */
function showDrawer(isShown, button) {
  document.documentElement.style.setProperty("--mw-drawer", isShown ? "grid" : "none");
  button.setAttribute("aria-expanded", String(isShown));
}

/** The buttons that select the pane that a small window shows. */
export function paneButtons() {
  const buttons = Object.entries(PANES).map(([name, title]) =>
    h("button.mw-segment", { type: "button", "aria-pressed": String(name === "timeline"), "data-pane": name }, title),
  );
  const element = h("nav.mw-pane-bar.mw-segments", { "aria-label": "Pane" }, ...buttons);
  for (const button of buttons)
    button.addEventListener("click", () => {
      for (const other of buttons) {
        const isShown = other === button;
        other.setAttribute("aria-pressed", String(isShown));
        const visibility = isShown ? "visible" : "hidden";
        document.documentElement.style.setProperty(`--mw-pane-${other.dataset.pane}`, visibility);
      }
    });
  return element;
}

/**
 * Move the focus to the next visible pane of the page, or to the previous one.
 * @param {HTMLElement} bar the top bar @param {boolean} [isBack]
 */
export function focusPane(bar, isBack = false) {
  const { host } = /** @type {ShadowRoot} */ (bar.getRootNode());
  const page = /** @type {ShadowRoot} */ (host.getRootNode());
  const panes = findAll(page, "[class*='mw-area-']").filter(firstFocusable);
  const at = panes.findIndex((pane) => pane.matches(":focus-within"));
  const next = isBack ? Math.max(at, 0) - 1 : (at + 1) % panes.length;
  firstFocusable(/** @type {HTMLElement} */ (panes.at(next)))?.focus();
}

/** The first visible element inside another one, also in shadow roots, that can have the focus.
 * @param {Element} element @returns {HTMLElement | null} */
function firstFocusable(element) {
  for (const child of (element.shadowRoot ?? element).children) {
    const isVisible = child.checkVisibility({ visibilityProperty: true });
    if (isVisible && child instanceof HTMLElement && child.tabIndex >= 0) return child;
    const inner = firstFocusable(child);
    if (inner) return inner;
  }
  return null;
}

/** @returns {Record<string, number>} */
function readSizes() {
  try {
    return JSON.parse(localStorage.getItem(SIZES_KEY) ?? "{}");
  } catch {
    return {};
  }
}

/** @param {string} property @param {number | undefined} size */
function writeSize(property, size) {
  try {
    localStorage.setItem(SIZES_KEY, JSON.stringify({ ...readSizes(), [property]: size }));
  } catch {
    // without storage, the sizes are lost when the page is left
  }
}
