// Clicks on controls that are drawn again while they are pressed.

const CONTROLS = "button, a[href], summary";

/** The control on which the mouse was pressed. @type {HTMLElement | null} */
let pressed = null;

/**
 * Click the successor of a control that was drawn again between press and release: the browser itself clicks only
 * elements that were there all the time, and widgets are drawn again whenever Python reports a change.
 */
export function keepClicks() {
  window.addEventListener("mousedown", (event) => (pressed = event.button === 0 ? controlAt(event) : null), true);
  window.addEventListener("mouseup", (event) => event.button === 0 && release(event), true);
}

/** @param {MouseEvent} event */
function release(event) {
  const [before, after] = [pressed, controlAt(event)];
  pressed = null;
  if (!before || before.isConnected || !after || nameOf(after) !== nameOf(before)) return;
  const { clientX, clientY, ctrlKey, metaKey, shiftKey, altKey, detail } = event;
  const shared = { bubbles: true, cancelable: true, composed: true, view: window };
  after.dispatchEvent(
    new MouseEvent("click", { ...shared, clientX, clientY, ctrlKey, metaKey, shiftKey, altKey, detail }),
  );
}

/** @param {MouseEvent} event @returns {HTMLElement | null} */
function controlAt(event) {
  const [target] = event.composedPath(); // inside the shadow roots
  return target instanceof Element ? target.closest(CONTROLS) : null;
}

/** @param {HTMLElement} control */
const nameOf = (control) => `${control.tagName} ${control.ariaLabel ?? control.textContent}`;
