// Clicks on controls that are drawn again while they are pressed.

import { findAll } from "./dom.js";

const CONTROLS = "button, a[href], summary";

/** The control on which the mouse was pressed, if no other has its name. @type {HTMLElement | null} */
let pressed = null;

/**
 * Click the successor of a control that was drawn again between press and release: the browser itself clicks only
 * elements that were there all the time, and widgets are drawn again whenever Python reports a change. Where several
 * controls have the same name, the successor is unknown and nothing is clicked.
 */
export function keepClicks() {
  window.addEventListener("mousedown", (event) => (pressed = event.button === 0 ? controlAt(event) : null), true);
  window.addEventListener("mouseup", (event) => event.button === 0 && release(event), true);
}

/** @param {MouseEvent} event */
function release(event) {
  const before = pressed;
  pressed = null;
  if (!before || before.isConnected) return;
  const after = controlAt(event);
  if (!after || nameOf(after) !== nameOf(before) || after.matches(":disabled")) return;
  const { clientX, clientY, ctrlKey, metaKey, shiftKey, altKey, detail } = event;
  const shared = { bubbles: true, cancelable: true, composed: true, view: window };
  after.dispatchEvent(
    new MouseEvent("click", { ...shared, clientX, clientY, ctrlKey, metaKey, shiftKey, altKey, detail }),
  );
}

/**
 * The control under the pointer, if no other one in the widget has its name.
 * @param {MouseEvent} event @returns {HTMLElement | null}
 */
function controlAt(event) {
  const [target] = event.composedPath(); // inside the shadow roots
  const control = target instanceof Element ? /** @type {HTMLElement | null} */ (target.closest(CONTROLS)) : null;
  if (!control) return null;
  const root = /** @type {Document | ShadowRoot} */ (control.getRootNode());
  const isAlone = findAll(root, CONTROLS).every((each) => each === control || nameOf(each) !== nameOf(control));
  return isAlone ? control : null;
}

/** @param {HTMLElement} control */
const nameOf = (control) => `${control.tagName} ${control.ariaLabel ?? control.textContent}`;
