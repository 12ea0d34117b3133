// What the bars of the designer and of the transfer lab share: the mark, the theme, the way back, files.

import { h, s } from "./canvas.js";
import { icon, menu, tool } from "./shell.js";

const THEME = "meshwave.theme"; // light, dark or system, kept in this browser
const THEMES = ["light", "dark", "system"];

/** The mark: a wave over four devices. */
export function brand() {
  const dots = [5, 9.7, 14.3, 19].map((x) => s("circle", { cx: x, cy: 17.6, r: 1.3 }));
  const mark = s(
    "svg",
    { viewBox: "0 0 24 24", "aria-hidden": "true" },
    s("rect", { width: 24, height: 24, rx: 6.5 }),
    s("path", { d: "M4.6 5.6 9 12.4 13.1 6.4 16.6 12.4 19.6 7.6" }),
    ...dots,
  );
  return h("div", { class: "mw-brand" }, mark, h("span", {}, "Meshwave"));
}

/**
 * The theme of the page: `data-theme` and `color-scheme` of its root, from which every colour follows. `shows` hears
 * which one is shown; it listens to the system and to other tabs until `signal`.
 */
export class Theme {
  constructor(signal, shows = (_theme) => {}) {
    this.shows = shows;
    this.system = matchMedia("(prefers-color-scheme: dark)");
    this.system.addEventListener("change", () => this.apply(), { signal });
    window.addEventListener("storage", (event) => event.key === THEME && this.apply(), { signal });
    this.apply();
  }

  get chosen() {
    try {
      const kept = localStorage.getItem(THEME);
      return ["light", "dark"].includes(kept) ? kept : "system";
    } catch {
      return this.unkept ?? "system";
    }
  }

  choose(theme) {
    this.unkept = theme;
    try {
      localStorage.setItem(THEME, theme);
    } catch {
      // a browser that keeps nothing shows the theme until the page is left
    }
    this.apply();
  }

  apply() {
    const shown = this.chosen === "system" ? (this.system.matches ? "dark" : "light") : this.chosen;
    const root = document.documentElement;
    root.dataset.theme = shown;
    root.style.colorScheme = shown;
    this.shows(shown);
  }
}

/** The button of a theme and its menu. */
export function themePicker(theme) {
  const button = tool("Theme", { glyph: theme.chosen, tip: "Theme: light, dark or the system's" });
  const choose = (name) => {
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
  return [button, menu(button, "Theme", entries)];
}

/** Say on a button what it would undo or redo; `keys` are those that do so too. */
export function tellTurn(button, verb, label, keys = "") {
  button.allow(Boolean(label));
  button.setAttribute("aria-label", label ? `${verb}: ${label}` : verb);
  button.dataset.tip = label ? `${verb}: ${label}${keys && ` (${keys})`}` : `Nothing to ${verb.toLowerCase()}`;
}

/** Why a file is not read, if it is too large to. */
export function tooLarge(file, largest) {
  return file.size > largest
    ? `has ${(file.size / 1e6).toFixed(1)} MB, and the page opens up to ${largest / 1e6} MB`
    : "";
}

export function download({ name, mime, content }) {
  const address = URL.createObjectURL(new Blob([content], { type: mime }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
