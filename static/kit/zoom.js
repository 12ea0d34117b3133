// Positions on a page with large text, which is zoomed: events and boxes of the browser are in pixels of the window,
// styles and canvases in pixels of the page.

/** @import { Point } from "./types" */

const KEY = "meshwave.text-size"; // key of the choice in the browser's storage: normal or large

/** The chosen size of texts: normal or large. `kit/page.css` zooms the page by it. */
export const textSize = () => document.documentElement.dataset.textSize ?? "normal";

/** @param {string} size */
export function chooseTextSize(size) {
  document.documentElement.dataset.textSize = size;
  try {
    localStorage.setItem(KEY, size);
  } catch {
    // without storage, the size is lost when the page is left
  }
}

/** Window pixels per page pixel. */
const zoom = () => document.documentElement.currentCSSZoom ?? 1;

/** Device pixels per page pixel. */
export const pixelRatio = () => (window.devicePixelRatio || 1) * zoom();

/** The width of the window in page pixels. */
export const pageWidth = () => innerWidth / zoom();

/** The height of the window in page pixels. */
export const pageHeight = () => innerHeight / zoom();

/** The box of an element in page pixels. @param {Element} element */
export function boxOf(element) {
  const [{ x, y, width, height }, scale] = [element.getBoundingClientRect(), zoom()];
  return new DOMRect(x / scale, y / scale, width / scale, height / scale);
}

/** The position of an event in page pixels. @param {{clientX: number, clientY: number}} event @returns {Point} */
export const pointOf = ({ clientX, clientY }) => ({ x: clientX / zoom(), y: clientY / zoom() });
