// The canvases whose keys the command palette presses, by the group of their commands.

/** @type {Map<string, HTMLElement>} */
const targets = new Map();

/** Let the commands of a group press their keys at an element. @param {string} group @param {HTMLElement} element */
export const receiveKeys = (group, element) => void targets.set(group, element);

/** Focus the canvas of a group and press a key there. @param {string} group @param {string} keys */
export function pressKey(group, keys) {
  const target = targets.get(group);
  const key = keys === "Space" ? " " : keys.toLowerCase();
  target?.focus();
  target?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
}
