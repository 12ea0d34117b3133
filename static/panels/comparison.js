// Up to four designs side by side, one column each, with changes against the first.

/** @import { Cell, Column, ComparisonModel } from "./types" */

import { filePicker } from "../kit/bars.js";
import { button } from "../kit/controls.js";
import { withArrow } from "../kit/differences.js";
import { h, keepFocus } from "../kit/dom.js";
import { icon } from "../kit/icons.js";
import { keepNames } from "../kit/language.js";
import { DialogWidget, menu, tipped, tool, walkTips } from "../kit/shell.js";

const NONE = "–"; // the text for a missing number

/** @param {{model: ComparisonModel}} args */
export const render = ({ model }) => new Comparison(model).root;

/** @extends {DialogWidget<ComparisonModel>} */
class Comparison extends DialogWidget {
  /** @param {ComparisonModel} model */
  constructor(model) {
    super(model);
    this.table = h("table", { "aria-label": "Design comparison" });
    this.updateTabStops = walkTips(this.table);
    this.pin = iconButton("Pin open design", "pin", () => this.send("pin"));
    this.example = iconButton("Add example", "examples");
    this.file = iconButton("Add file", "open", () => picker.click());
    this.end = iconButton("End comparison", "close", () => this.send("end"));
    this.room = h("span.mw-quiet");
    const picker = filePicker("Design file to compare", ".json,application/json", async (file) =>
      this.send("file", { text: await file.text() }),
    );
    const examples = () =>
      model.examples.map(({ name, title, note }) => ({
        text: title,
        isName: true,
        note,
        choose: () => this.send("example", { name }),
      }));
    const buttons = [this.pin, this.example, this.file, this.room, this.refusal, h("span.mw-grow"), this.end];
    this.build(
      "comparison",
      "Design comparison",
      [],
      [],
      [
        h("div.mw-comparison-body", {}, this.table),
        h("footer", {}, ...buttons),
        picker,
        menu(this.example, "Examples", examples),
      ],
    );
    this.dialog.tabIndex = -1;
    model.on(["columns", "room", "stale"], () => keepFocus(this.dialog, () => this.draw(), this.dialog));
  }

  onopen() {
    this.draw();
    this.dialog.focus(); // the table is read first, so no button is focused
  }

  draw() {
    const { columns, figures, room, stale } = this.model;
    keepNames(columns.map(({ name }) => name));
    this.room.textContent = room ? `${room} more can be added` : "Limit of 4 designs; unpin one to add another";
    for (const each of [this.pin, this.example, this.file]) each.enable(room > 0);
    this.end.hidden = columns.length < 2;
    const head = h(
      "tr",
      {},
      h("th", { scope: "col" }, h("span.mw-sr", {}, "Metric")),
      ...columns.map((column) => this.head(column, stale)),
    );
    const known = figures.filter(({ key }) => columns.some((column) => column.cells[key].value !== NONE));
    const rows = known.map(({ key, label, help }) => {
      const cells = columns.map((column) => drawCell(column.cells[key]));
      return h("tr", { "data-key": key }, h("th", { scope: "row" }, h("span", tipped(help), label)), ...cells);
    });
    const differences = columns.map(({ first, differences }) =>
      first
        ? h("td", {}, h("span.mw-small", {}, "reference for the other columns"))
        : h("td", {}, h("ul", {}, ...differences.map((line) => h("li", {}, ...withArrow(line))))),
    );
    rows.push(h("tr.mw-differences", {}, h("th", { scope: "row" }, "Differences"), ...differences));
    this.table.replaceChildren(h("thead", {}, head), h("tbody", {}, ...rows));
    this.updateTabStops();
  }

  /** @param {Column} column @param {boolean} stale */
  head({ place, name, open, first }, stale) {
    const state = open ? (stale ? "open design (last valid version)" : "open") : "pinned";
    const unpin = tool(`Unpin ${name}`, { glyph: "close", tip: "Unpin", onclick: () => this.send("unpin", { place }) });
    const top = h(
      "div.mw-column-state",
      {},
      h("span", { "data-open": open }, state),
      first && h("span.mw-small", {}, "reference"),
      h("span.mw-grow"),
      !open && unpin,
    );
    return h(
      "th",
      { scope: "col", class: open ? "mw-open" : null },
      top,
      h("div.mw-column-name", { translate: "no" }, name),
    );
  }
}

/** @param {string} label @param {string} glyph @param {() => void} [onclick] */
function iconButton(label, glyph, onclick) {
  const element = button(label, { content: icon(glyph), onclick });
  element.append(h("span", {}, label));
  return element;
}

/** @param {Cell} cell */
function drawCell({ value, small, change, wrong }) {
  const changed =
    change?.text &&
    h("span.mw-change", { "data-verdict": change.verdict, ...tipped(change.spoken) }, icon(change.arrow), change.text);
  return h(
    "td",
    {},
    h("div.mw-cell", {}, h("strong", {}, value), changed),
    h("div.mw-small", {}, wrong ? h("span.mw-wrong", {}, wrong) : small),
  );
}
