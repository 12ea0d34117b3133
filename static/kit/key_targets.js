// The canvases to which the command palette and the context menus send key presses, by group of commands.

/** @import { CanvasCommand, MenuEntry } from "./types" */

import { openOnContext, pointMenu } from "./shell.js";

/** Elements that take the keys of a group. @type {Map<string, () => Element | null | undefined>} */
const targets = new Map();

/** Names of keys in the list of commands, as events have them. @type {Record<string, string>} */
const NAMED = { Space: " ", Left: "ArrowLeft", Right: "ArrowRight", Up: "ArrowUp", Down: "ArrowDown" };

/**
 * Send the key presses of a group of commands to the element that `find` returns.
 * @param {string} group @param {() => Element | null | undefined} find
 */
export const receiveKeys = (group, find) => void targets.set(group, find);

/** True if the canvas of a group is on the page and visible. @param {string} group */
export const takesKeys = (group) => Boolean(targets.get(group)?.()?.checkVisibility());

/**
 * Focus the canvas of a group and send it a key press, such as `F2` or `Alt+Left`.
 * @param {string} group @param {string} keys
 */
export function pressKey(group, keys) {
  const target = /** @type {HTMLElement | null | undefined} */ (targets.get(group)?.());
  const [name, ...modifiers] = keys === "+" ? [keys] : keys.split("+").reverse();
  const key = NAMED[name] ?? (name.length === 1 ? name.toLowerCase() : name);
  const [shiftKey, altKey] = ["Shift", "Alt"].map((modifier) => modifiers.includes(modifier));
  target?.focus();
  target?.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey, altKey, bubbles: true, cancelable: true }));
}

/**
 * The context menu of a canvas: the commands that apply to what was pointed at. `pointAt` moves the focus there and
 * returns these commands, or none to leave the menu to the browser. The canvas adds the returned element.
 * @param {string} group @param {HTMLElement} area @param {(target: HTMLElement) => CanvasCommand[]} pointAt
 */
export function contextMenu(group, area, pointAt) {
  const menu = pointMenu(group);
  const entry = (/** @type {CanvasCommand} */ { keys, does }) => ({
    text: does[0].toUpperCase() + does.slice(1),
    note: keys,
    choose: () => pressKey(group, keys),
  });
  openOnContext(area, (at, target) => {
    /** @type {MenuEntry[]} */
    const entries = pointAt(target).map(entry);
    menu.open(at, entries);
    return entries.length > 0;
  });
  return menu.element;
}
