// Parts shared by the top bars of the designer and of the transfer lab: brand, theme, undo, files.

/** @import { Button, MenuEntry } from "./types" */

import { h, s } from "./dom.js";
import { icon } from "./icons.js";
import { languageEntries } from "./language.js";
import { menu, tool } from "./shell.js";
import { chooseTextSize, textSize } from "./zoom.js";

const THEME_KEY = "meshwave.theme"; // key of the theme in the browser's storage: light, dark or system
const THEMES = ["light", "dark", "system"];

/** The logo, a wave over four devices, and the name. */
export function brand() {
  const dots = [5, 9.7, 14.3, 19].map((x) => s("circle", { cx: x, cy: 17.6, r: 1.3 }));
  const logo = s(
    "svg",
    { viewBox: "0 0 24 24", "aria-hidden": "true" },
    s("rect", { width: 24, height: 24, rx: 6.5 }),
    s("path", { d: "M4.6 5.6 9 12.4 13.1 6.4 16.6 12.4 19.6 7.6" }),
    ...dots,
  );
  return h("div.mw-brand", {}, logo, h("span", {}, "Meshwave"));
}

/**
 * The theme of the page: `data-theme` and `color-scheme` of its root, on which all colours depend. It follows the
 * system and other tabs until `signal` is aborted; `onchange` receives the theme that is shown.
 */
export class Theme {
  /** @param {AbortSignal} signal @param {(theme: string) => void} [onchange] */
  constructor(signal, onchange = () => {}) {
    this.onchange = onchange;
    this.system = matchMedia("(prefers-color-scheme: dark)");
    this.system.addEventListener("change", () => this.apply(), { signal });
    window.addEventListener("storage", (event) => event.key === THEME_KEY && this.apply(), { signal });
    this.apply();
  }

  get chosen() {
    try {
      const stored = localStorage.getItem(THEME_KEY) ?? "";
      return ["light", "dark"].includes(stored) ? stored : "system";
    } catch {
      return this.unstored ?? "system";
    }
  }

  /** @param {string} theme */
  choose(theme) {
    this.unstored = theme;
    try {
      localStorage.setItem(THEME_KEY, theme);
    } catch {
      // without storage, the theme is lost when the page is left
    }
    this.apply();
  }

  apply() {
    const shown = this.chosen === "system" ? (this.system.matches ? "dark" : "light") : this.chosen;
    const root = document.documentElement;
    root.dataset.theme = shown;
    root.style.colorScheme = shown;
    this.onchange(shown);
  }
}

const textSizeEntries = () =>
  Object.entries({ normal: "Normal text", large: "Large text, for a projector" }).map(([size, text]) => ({
    text,
    checked: size === textSize(),
    choose: () => chooseTextSize(size),
  }));

/** The button that shows the theme, and its menu with the themes, text sizes and languages. @param {Theme} theme */
export function themePicker(theme) {
  const label = "Theme, text size and language";
  const button = tool(label, { glyph: theme.chosen });
  const choose = (/** @type {string} */ name) => {
    theme.choose(name);
    button.replaceChildren(icon(name));
    button.focus();
  };
  const entries = () =>
    THEMES.map((name) => ({
      text: name[0].toUpperCase() + name.slice(1),
      checked: name === theme.chosen,
      choose: () => choose(name),
    }));
  const parts = () => [entries(), textSizeEntries(), languageEntries()];
  const separate = (/** @type {MenuEntry} */ entry, /** @type {number} */ i) => ({ ...entry, isFirst: i === 0 });
  return [button, menu(button, label, () => parts().flatMap((part) => part.map(separate)))];
}

/**
 * Label the button "Undo" or "Redo" with the edit that it undoes or redoes.
 * @param {Button} button @param {string} verb @param {string} edit @param {string} [keys]
 */
export function labelUndo(button, verb, edit, keys = "") {
  const label = edit ? `${verb}: ${edit}` : verb;
  button.enable(Boolean(edit));
  button.setAttribute("aria-label", label);
  button.dataset.tip = edit ? label + (keys && ` (${keys})`) : `Nothing to ${verb.toLowerCase()}`;
}

/** @type {Record<string, string | undefined>} */
const COMMANDS = { z: "undo", y: "redo", s: "save", o: "open" };

/** The command of a key press with Ctrl or ⌘, or undefined. @param {KeyboardEvent} event */
export function commandOf(event) {
  const key = event.key.toLowerCase();
  if (!(event.ctrlKey || event.metaKey) || event.altKey) return undefined;
  if (event.shiftKey) return key === "z" ? "redo" : undefined;
  return COMMANDS[key];
}

/**
 * A hidden input for one file, or for several, with `click` to open the dialog of the browser.
 * @param {string} label @param {string} accept @param {(file: File, files: File[]) => void} onchoose
 * @param {boolean} [multiple]
 */
export function filePicker(label, accept, onchoose, multiple = false) {
  const input = h("input", { type: "file", accept, multiple, hidden: true, tabindex: -1, "aria-label": label });
  input.addEventListener("change", () => {
    const files = [...(input.files ?? [])];
    input.value = ""; // allows choosing the same file again
    if (files.length) onchoose(files[0], files);
  });
  return input;
}

/**
 * The message for a file that is too large to open, else "".
 * @param {{name: string, size: number}} file @param {number} limit in bytes
 */
export const sizeProblem = ({ name, size }, limit) =>
  size > limit ? `${name} is ${(size / 1e6).toFixed(1)} MB; the limit is ${limit / 1e6} MB.` : "";

/** Save a file on the user's machine. @param {string} name @param {Blob} content */
export function download(name, content) {
  const url = URL.createObjectURL(content);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * Copy a link that contains a design, and confirm it by a message.
 * @param {string} fragment @param {(words: string) => void} say
 */
export async function copyLink(fragment, say) {
  const link = new URL("start", document.baseURI);
  link.hash = fragment;
  try {
    await navigator.clipboard.writeText(link.href);
    say("Link copied. It can be opened in any installation of Meshwave.");
  } catch {
    say(link.href);
  }
}
