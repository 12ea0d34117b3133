// The sortable and searchable table of all runs, with tags, notes and a menu of actions for each run.

/** @import { MenuEntry, Message } from "../kit/types" */
/** @import { RunRow, RunTableModel } from "./types" */

import { download } from "../kit/bars.js";
import { button } from "../kit/controls.js";
import { closest, h } from "../kit/dom.js";
import { keepNames } from "../kit/language.js";
import { count } from "../kit/numbers.js";
import { Modal, Tips, openOnContext, pointMenu, tool } from "../kit/shell.js";
import { Widget, plainData } from "../kit/widget.js";
import { boxOf } from "../kit/zoom.js";
import { stateBadge } from "./tables.js";

/** @type {[key: string, title: string, isNumber: boolean][]} */
const COLUMNS = [
  ["name", "Name", false],
  ["state", "State", false],
  ["kind", "Kind", false],
  ["steps", "Steps", true],
  ["loss", "Loss", true],
  ["time", "Step time", true],
  ["error", "Error", true],
  ["launched", "Launched", true],
];

/** @param {{model: RunTableModel}} args */
export const render = ({ model }) => new RunTable(model).root;

/** @extends {Widget<RunTableModel>} */
class RunTable extends Widget {
  sorted = { key: "launched", isDescending: true };
  /** @type {Map<string, Row>} */ rows = new Map();

  /** @param {RunTableModel} model */
  constructor(model) {
    super(model);
    this.search = h("input.mw-dock-search", {
      type: "search",
      placeholder: "Search runs",
      "aria-label": "Search runs",
    });
    this.search.addEventListener("input", () => this.draw());
    this.counted = h("span.mw-quiet", { role: "status" });
    this.refusal = h("span.mw-dock-refusal", { role: "alert" });
    this.body = h("tbody");
    this.headers = COLUMNS.map(([key, title, isNumber]) =>
      h(
        "th",
        { scope: "col", class: isNumber ? "mw-number-cell" : "" },
        h("button.mw-sort", { type: "button", onclick: () => this.sort(key) }, title),
      ),
    );
    const plain = (/** @type {string} */ title) => h("th", { scope: "col" }, title);
    const head = h(
      "tr",
      {},
      h("th", { scope: "col" }, h("span.mw-sr", {}, "Compare")),
      ...this.headers,
      plain("Tags"),
      plain("Notes"),
      h("th.mw-run-actions", { scope: "col" }, h("span.mw-sr", {}, "Actions")),
    );
    this.table = h("table.mw-run-table", { "aria-label": "Runs" }, h("thead", {}, head), this.body);
    this.menu = pointMenu("Run");
    this.confirmation = new Modal(h("dialog.mw-dialog.mw-run-delete", { "aria-labelledby": "mw-run-delete-title" }));
    this.empty = h("p.mw-dock-empty", {}, "No runs. Press Launch or Dry run to start one.");
    const bar = h("div.mw-dock-bar", {}, this.search, this.counted, h("span.mw-grow"), this.refusal);
    const scroller = h("div.mw-run-scroller", {}, this.table, this.empty);
    this.root = h("div.mw-canvas.mw-shell.mw-run-list", {}, bar, scroller, this.menu.element, this.confirmation.dialog);
    this.tips = new Tips(this.root);
    openOnContext(this.body, (at, target) => {
      const row = this.rows.get(target.closest("tr")?.dataset.run ?? "");
      if (row && !target.matches("input")) this.menu.open(at, this.actions(row.data));
      return Boolean(row) && !target.matches("input");
    });
    model.on(["rows", "compared", "shown"], () => this.draw());
    this.draw();
  }

  /** @param {Message} message */
  receive(message) {
    if (message.type === "download") download(message.name, new Blob([message.content], { type: message.mime }));
    super.receive(message);
  }

  // ── rows ──

  /** @param {string} key */
  sort(key) {
    const { sorted } = this;
    this.sorted = { key, isDescending: sorted.key === key ? !sorted.isDescending : key === "launched" };
    this.draw();
  }

  draw() {
    /** @type {RunRow[]} */
    const all = plainData(this.model, "rows");
    keepNames(all.flatMap(({ cells, tags, note }) => [cells.name[0], note, tags.join(", "), ...tags]));
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = all.filter((row) => words.every((word) => textOf(row).includes(word))).sort(order(this.sorted));
    COLUMNS.forEach(([key], at) => {
      const direction = this.sorted.isDescending ? "descending" : "ascending";
      this.headers[at].setAttribute("aria-sort", this.sorted.key === key ? direction : "none");
    });
    const kept = new Set(all.map(({ id }) => id));
    for (const id of this.rows.keys()) if (!kept.has(id)) this.rows.delete(id);
    this.table.hidden = !all.length;
    this.empty.hidden = Boolean(all.length);
    this.counted.textContent = words.length
      ? `${found.length} of ${count(all.length, "run")}`
      : count(all.length, "run");
    const elements = found.map((data) => this.row(data).element);
    const isSame =
      elements.length === this.body.children.length && elements.every((row, at) => row === this.body.children[at]);
    if (!isSame) this.body.replaceChildren(...elements);
  }

  /** @param {RunRow} data */
  row(data) {
    const row = this.rows.get(data.id) ?? new Row(data, this);
    this.rows.set(data.id, row);
    row.draw(data, this.model);
    return row;
  }

  // ── actions ──

  /** @param {RunRow} row @returns {MenuEntry[]} */
  actions({ id, over, resumable, has_weights: hasWeights, cells }) {
    const send =
      (/** @type {string} */ type, gesture = {}) =>
      () =>
        this.send(type, { run: id, ...gesture });
    const isCompared = this.model.compared.includes(id);
    return [
      { text: "Show timeline", choose: send("show", { timeline: true }) },
      { text: "Open its design", note: "new tab", choose: () => open(`./?run=${encodeURIComponent(id)}`, "_blank") },
      { text: isCompared ? "Remove from comparison" : "Compare", choose: send("compare", { on: !isCompared }) },
      ...(resumable ? [{ text: "Resume", note: "from its newest checkpoint", choose: send("resume") }] : []),
      ...(hasWeights
        ? [{ text: "Export weights", note: "Hugging Face, .tar", choose: send("export", { to: "weights" }) }]
        : []),
      ...(over
        ? [
            { text: "Export run", note: ".tar.gz", choose: send("export", { to: "archive" }) },
            { text: "Export timeline", note: "Perfetto", choose: send("export", { to: "perfetto" }) },
            { text: "Delete …", choose: () => this.confirmDelete(id, cells.name[0]) },
          ]
        : []),
    ];
  }

  /** @param {string} id @param {string} name */
  confirmDelete(id, name) {
    const { dialog } = this.confirmation;
    const remove = () => {
      this.confirmation.close();
      this.send("delete", { run: id });
    };
    dialog.replaceChildren(
      h("h2", { id: "mw-run-delete-title" }, "Delete run"),
      h("p", {}, `Delete "${name}" (${id}) with its log, timeline and checkpoints? This cannot be undone.`),
      h(
        "div.mw-dialog-buttons",
        {},
        button("Cancel", { onclick: () => this.confirmation.close() }),
        button("Delete run", { kind: "mw-primary", onclick: remove }),
      ),
    );
    this.confirmation.open();
  }
}

/** A row of the table. It is updated in place, so that the focus stays. */
class Row {
  /** @param {RunRow} data @param {RunTable} table */
  constructor(data, table) {
    this.data = data;
    const { id } = data;
    this.compare = h("input", { type: "checkbox", "data-tip": "Compare its loss and step time with the shown run" });
    this.compare.addEventListener("change", () => table.send("compare", { run: id, on: this.compare.checked }));
    this.show = h("button.mw-run-open", { type: "button", onclick: () => table.send("show", { run: id }) });
    this.cells = COLUMNS.map(([, , isNumber]) => h("td", { class: isNumber ? "mw-number-cell" : "" }));
    this.tags = h("input.mw-run-tags", { placeholder: "tag, tag" });
    this.note = h("input.mw-run-note", { placeholder: "Note" });
    for (const field of [this.tags, this.note]) {
      field.addEventListener("change", () =>
        table.send("annotate", { run: id, tags: this.tags.value, note: this.note.value }),
      );
      field.addEventListener("keydown", (event) => event.key === "Enter" && field.blur());
    }
    this.more = tool("Actions", { text: "⋯", kind: "mw-run-more", tip: "" });
    this.more.addEventListener("click", () => {
      const { left, bottom } = boxOf(this.more);
      table.menu.open({ x: left, y: bottom + 2 }, table.actions(this.data));
    });
    this.more.setAttribute("aria-haspopup", "menu");
    const cell = (/** @type {HTMLElement} */ child) => h("td", {}, child);
    const fields = [cell(this.tags), cell(this.note), h("td.mw-run-actions", {}, this.more)];
    this.element = h("tr", { "data-run": id }, cell(this.compare), ...this.cells, ...fields);
    this.element.addEventListener("dblclick", (event) => {
      if (!closest(event, "input")) table.send("show", { run: id, timeline: true });
    });
    this.element.addEventListener("click", (event) => {
      if (!closest(event, "button, input")) table.send("show", { run: id });
    });
  }

  /** @param {RunRow} data @param {RunTableModel} model */
  draw(data, { compared, shown }) {
    this.data = data;
    const [name] = data.cells.name;
    COLUMNS.forEach(([key], at) => this.drawCell(this.cells[at], key, data.cells[key][0]));
    this.element.setAttribute("aria-current", String(shown === data.id));
    this.compare.checked = compared.includes(data.id);
    this.compare.disabled = shown === data.id;
    this.compare.setAttribute("aria-label", `Compare ${name}`);
    this.more.setAttribute("aria-label", `Actions of ${name}`);
    const values = { tags: data.tags.join(", "), note: data.note };
    for (const [field, key] of /** @type {const} */ ([
      [this.tags, "tags"],
      [this.note, "note"],
    ])) {
      field.setAttribute("aria-label", `${key === "tags" ? "Tags" : "Notes"} of ${name}`);
      if (!field.matches(":focus")) field.value = values[key];
      field.title = values[key];
    }
  }

  /** @param {HTMLElement} cell @param {string} key @param {string} text */
  drawCell(cell, key, text) {
    if (cell.dataset.text === text) return;
    cell.dataset.text = text;
    if (key === "name") {
      this.show.translate = false;
      this.show.textContent = text;
      this.show.title = `${text} (${this.data.id})`;
      if (!this.show.isConnected) cell.append(this.show);
    } else cell.replaceChildren(key === "state" ? stateBadge(text) : text);
  }
}

/** The text of a row that is searched. @param {RunRow} row */
const textOf = ({ id, cells, tags, note }) =>
  [id, ...Object.values(cells).map(([text]) => text), ...tags, note].join(" ").toLowerCase();

/**
 * The comparison function of the rows; rows without a value come last.
 * @param {{key: string, isDescending: boolean}} sorted
 */
const order =
  ({ key, isDescending }) =>
  (/** @type {RunRow} */ a, /** @type {RunRow} */ b) => {
    const [first, second] = [a.cells[key][1], b.cells[key][1]];
    if (first === null || second === null) return Number(first === null) - Number(second === null);
    const sign = first < second ? -1 : Number(first > second);
    return isDescending ? -sign : sign;
  };
