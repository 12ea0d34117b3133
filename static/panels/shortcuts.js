// The keyboard shortcuts of the whole page.

/** @import { Shortcut } from "./types" */

import { commandOf } from "../kit/bars.js";
import { h } from "../kit/dom.js";

const IS_APPLE = /Mac|iPhone|iPad/.test(navigator.platform);

/** The command of a key press, or undefined. @param {KeyboardEvent} event @param {Shortcut[]} shortcuts */
export function shortcutOf(event, shortcuts) {
  const key = event.key.toLowerCase();
  if (event.altKey || event.ctrlKey || event.metaKey) return opensPalette(event) ? "commands" : commandOf(event);
  if (event.repeat) return undefined;
  return shortcuts.find(({ keys, command }) => command && command !== "key" && keys.toLowerCase() === key)?.command;
}

/** @param {KeyboardEvent} event */
const opensPalette = ({ key, ctrlKey, metaKey, altKey, shiftKey }) =>
  key.toLowerCase() === "k" && (ctrlKey || metaKey) && !altKey && !shiftKey;

const CLICKED = ["checkbox", "radio", "range", "button", "file"]; // types of inputs without text

/**
 * True if the focused element handles a key press itself: a text input, a select, an open menu.
 * @param {HTMLElement} target @param {string} name
 */
export function isForTarget(target, name) {
  if (["save", "open", "commands", "panes"].includes(name)) return false;
  const isUndo = name === "undo" || name === "redo";
  if (isUndo && target.isUnedited?.()) return false; // the input has no edit to undo
  if (target.closest?.('[role="menu"]')) return true;
  return target instanceof HTMLSelectElement ? !isUndo : isTextInput(target);
}

/** @param {HTMLElement} target */
function isTextInput(target) {
  if (target instanceof HTMLInputElement) return !CLICKED.includes(target.type);
  return target instanceof HTMLTextAreaElement || target.isContentEditable;
}

/** A combination of keys as the operating system writes it. @param {string} combination */
export const keyNames = (combination) =>
  IS_APPLE ? combination.replaceAll("Ctrl+", "⌘").replaceAll("Shift+", "⇧") : combination;

/** @param {string} title @param {Shortcut[]} lines */
export function helpGroup(title, lines) {
  const rows = lines.flatMap(({ keys, does }) => [
    h("dt", {}, ...keys.split(", ").map((combination) => h("kbd", {}, keyNames(combination)))),
    h("dd", {}, does),
  ]);
  return h("section", {}, h("h3", {}, title), h("dl", {}, ...rows));
}
