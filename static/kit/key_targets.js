// The canvases to which the command palette sends key presses, by group of commands.

/** @type {Map<string, HTMLElement>} */
const targets = new Map();

/** Send the key presses of a group of commands to an element. @param {string} group @param {HTMLElement} element */
export const receiveKeys = (group, element) => void targets.set(group, element);

/** Focus the canvas of a group and send it a key press. @param {string} group @param {string} keys */
export function pressKey(group, keys) {
  const target = targets.get(group);
  const key = keys === "Space" ? " " : keys.toLowerCase();
  target?.focus();
  target?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
}
