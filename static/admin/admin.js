// The administration page: people, runs, computations, saved designs and the load of the machine, with buttons to stop
// entries.

/** @import { AdminModel, AdminRow, AdminState, AdminTable } from "./types" */

import { Theme, brand, themePicker } from "../kit/bars.js";
import { button } from "../kit/controls.js";
import { h, keepFocus } from "../kit/dom.js";
import { keepNames } from "../kit/language.js";
import { Modal } from "../kit/shell.js";
import { signOut } from "../kit/sign_out.js";
import { Widget, plainData } from "../kit/widget.js";

/** @param {{model: AdminModel}} args */
export const render = ({ model }) => new Admin(model).root;

/** @extends {Widget<AdminModel>} */
class Admin extends Widget {
  leaving = new AbortController();
  machine = h("dl.mw-admin-machine", { "aria-label": "Machine" });
  tables = h("div.mw-admin-tables");
  refusal = h("p.mw-admin-refused", { role: "alert" });
  question = new Modal(h("dialog.mw-dialog.mw-admin-question", { "aria-labelledby": "mw-admin-question" }));

  /** @param {AdminModel} model */
  constructor(model) {
    super(model);
    const [theme, themes] = themePicker(new Theme(this.leaving.signal));
    const parts = [brand(), h("h1", {}, "Administration"), h("span.mw-grow"), theme, ...signOut("Sign out"), themes];
    const bar = h("header.mw-admin-bar", {}, ...parts);
    const main = h("main.mw-admin-main", {}, this.machine, this.refusal, this.tables);
    this.root = h("div.mw-canvas.mw-shell.mw-admin", {}, bar, main, this.question.dialog);
    document.title = "Meshwave: administration";
    model.on("state", () => this.draw());
    this.draw();
  }

  remove() {
    this.leaving.abort();
  }

  draw() {
    /** @type {AdminState} */
    const { machine, tables } = plainData(this.model, "state");
    keepFocus(this.root, () => {
      this.machine.replaceChildren(
        ...machine.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
      );
      this.tables.replaceChildren(...tables.map((table) => this.section(table)));
    });
  }

  /** @param {AdminTable} table */
  section(table) {
    const { title, columns, rows, empty, action } = table;
    const head = (action ? [...columns, ""] : columns).map((text) => h("th", { scope: "col" }, text));
    const lines = rows.map((row) => this.line(table, row));
    const content = rows.length
      ? h("table.mw-class-table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...lines))
      : h("p.mw-quiet", {}, empty);
    return h("section", { "aria-label": title }, h("h2", {}, title), h("div.mw-admin-scroll", {}, content));
  }

  /** @param {AdminTable} table @param {AdminRow} row */
  line({ kind, action }, { id, cells, name, question }) {
    keepNames([name]);
    const entries = cells.map((cell) => h("td", {}, cell));
    if (!action) return h("tr", {}, ...entries);
    const stop = button(`${action}: ${name}`, {
      content: action,
      onclick: () => this.ask(question, action, () => this.send("stop", { kind, id })),
    });
    return h("tr", {}, ...entries, h("td", {}, stop));
  }

  /** @param {string} question @param {string} action @param {() => void} then */
  ask(question, action, then) {
    const confirm = () => {
      this.question.close();
      then();
    };
    this.question.dialog.replaceChildren(
      h("header", {}, h("h2", { id: "mw-admin-question" }, question)),
      h(
        "div.mw-admin-answers",
        {},
        button(action, { kind: "mw-danger", onclick: confirm }),
        button("Keep", { onclick: () => this.question.close() }),
      ),
    );
    this.question.open();
  }
}
