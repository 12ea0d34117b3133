// The command palette: a search in all commands of the page, shown with their keys.

/** @import { Command } from "./types" */

import { consume, h } from "../kit/dom.js";
import { Modal } from "../kit/shell.js";

export class CommandPalette {
  /** @type {Command[]} */ found = [];
  active = 0;

  /** @param {() => Command[]} list @param {(keys: string) => string} keyNames formats keys as the system writes them */
  constructor(list, keyNames) {
    this.list = list;
    this.keyNames = keyNames;
    this.options = h("ul.mw-commands", { role: "listbox", id: "mw-commands", "aria-label": "Commands" });
    this.search = h("input.mw-command-search", {
      type: "text",
      role: "combobox",
      placeholder: "Search commands",
      "aria-label": "Search commands",
      "aria-expanded": "true",
      "aria-controls": "mw-commands",
      autocomplete: "off",
      spellcheck: "false",
    });
    this.search.addEventListener("input", () => this.draw());
    this.search.addEventListener("keydown", (event) => this.key(event));
    const dialog = h("dialog.mw-dialog.mw-command-palette", { "aria-label": "Commands" }, this.search, this.options);
    this.modal = new Modal(dialog);
  }

  open() {
    if (this.modal.isOpen) return this.modal.close();
    this.search.value = "";
    this.modal.open();
    this.draw();
    this.search.focus();
  }

  draw() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (/** @type {Command} */ { group, title }) =>
      words.every((word) => `${group} ${title}`.toLowerCase().includes(word));
    this.found = this.list().filter(matches);
    const options = this.found.map(({ group, title, keys }, at) =>
      h(
        "li.mw-command",
        { role: "option", id: `mw-command-${at}`, onclick: () => this.choose(at) },
        h("span.mw-command-group", {}, group),
        h("span.mw-item-text", {}, title),
        ...(keys ? [h("kbd", {}, this.keyNames(keys.split(", ")[0]))] : []),
      ),
    );
    this.options.replaceChildren(...options);
    this.activate(0);
  }

  /** @param {number} at */
  activate(at) {
    const options = [...this.options.children];
    this.active = Math.max(0, Math.min(at, options.length - 1));
    options.forEach((option, place) => option.setAttribute("aria-selected", String(place === this.active)));
    this.search.setAttribute("aria-activedescendant", options.length ? `mw-command-${this.active}` : "");
    options[this.active]?.scrollIntoView({ block: "nearest" });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const next = { ArrowDown: this.active + 1, ArrowUp: this.active - 1 }[event.key];
    if (event.key === "Enter") this.choose(this.active);
    else if (next !== undefined) this.activate(next);
    else return;
    consume(event);
  }

  /** @param {number} at */
  choose(at) {
    this.modal.close();
    this.found[at]?.run();
  }
}
