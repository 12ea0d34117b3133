// Up to four designs side by side: a column each, changes against the first.

import { button, followTheme, h, keepFocus, send } from "../kit/canvas.js";
import { Overlay, Tips, icon, menu, tipped, tool, walkTips } from "../kit/shell.js";

const NOTHING = "–"; // what Python writes where there is no such number

export const render = ({ model }) => new Comparison(model).root;

class Comparison {
  constructor(model) {
    this.model = model;
    this.build();
    model.on(["columns", "room", "stale"], () => keepFocus(this.dialog, () => this.draw(), this.dialog));
    model.on("msg:custom", (message) => this.answered(message));
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
    this.overlay.follow();
  }

  send(type, gesture = {}) {
    send(this.model, { type, ...gesture });
  }

  build() {
    const close = tool("Close", { glyph: "close", tip: "Close (Esc)", onclick: () => this.overlay.close() });
    this.table = h("table", { "aria-label": "Designs side by side" });
    this.reachTips = walkTips(this.table);
    this.refusal = h("div", { class: "mw-dialog-refusal", role: "alert", hidden: true });
    this.pin = button("Pin the open design", { content: icon("pin"), onclick: () => this.send("pin") });
    this.pin.append(h("span", {}, "Pin the open design"));
    this.add = button("Add an example", { content: icon("examples") });
    this.add.append(h("span", {}, "Add an example"));
    this.picker = h("input", {
      type: "file",
      accept: ".json,application/json",
      hidden: true,
      tabindex: -1,
      "aria-label": "A design's file to compare with",
    });
    this.picker.addEventListener("change", () => this.picked());
    this.file = button("Add a file", { content: icon("open"), onclick: () => this.picker.click() });
    this.file.append(h("span", {}, "Add a file"));
    this.end = button("End the comparison", { content: icon("close"), onclick: () => this.send("end") });
    this.end.append(h("span", {}, "End the comparison"));
    this.room = h("span", { class: "mw-quiet" });
    const examples = () =>
      this.model.examples.map(({ name, title, note }) => ({
        text: title,
        note,
        choose: () => this.send("example", { name }),
      }));
    this.dialog = h(
      "dialog",
      { class: "mw-dialog mw-comparison-dialog", tabindex: -1, "aria-labelledby": "mw-comparison-title" },
      h("header", {}, h("h2", { id: "mw-comparison-title" }, "Side by side"), h("span", { class: "mw-grow" }), close),
      h("div", { class: "mw-comparison-body" }, this.table),
      h(
        "footer",
        {},
        this.pin,
        this.add,
        this.file,
        this.room,
        this.refusal,
        h("span", { class: "mw-grow" }),
        this.end,
      ),
      this.picker,
    );
    this.dialog.append(menu(this.add, "Examples", examples));
    this.overlay = new Overlay(this.model, this.dialog, () => this.opened());
    this.root = h("div", { class: "mw-canvas mw-shell mw-overlay mw-comparison" }, this.dialog);
    this.tips = new Tips(this.dialog);
  }

  opened() {
    this.answered({ type: "answered" });
    this.draw();
    this.dialog.focus(); // a table to read first, not its first button
  }

  answered({ type, refused = "" }) {
    if (type !== "answered") return;
    this.refusal.textContent = refused ?? "";
    this.refusal.hidden = !refused;
  }

  async picked() {
    const [file] = this.picker.files;
    this.picker.value = ""; // so that the same file can be added again
    if (file) this.send("file", { text: await file.text() });
  }

  draw() {
    const { columns, figures, room, stale } = this.model;
    this.room.textContent = room ? `room for ${room} more` : "four is the most; unpin one to add another";
    for (const each of [this.pin, this.add, this.file]) each.allow(room > 0);
    this.end.hidden = columns.length < 2;
    const head = h(
      "tr",
      {},
      h("th", { scope: "col" }, h("span", { class: "mw-sr" }, "Figure")),
      ...columns.map((column) => this.head(column, stale)),
    );
    const known = figures.filter(({ key }) => columns.some((column) => column.cells[key].value !== NOTHING));
    const rows = known.map(({ key, label, help }) =>
      h(
        "tr",
        { "data-key": key },
        h("th", { scope: "row" }, h("span", tipped(help), label)),
        ...columns.map((column) => cell(column.cells[key])),
      ),
    );
    const words = h(
      "tr",
      { class: "mw-differences" },
      h("th", { scope: "row" }, "Differs"),
      ...columns.map(({ first, differences }) =>
        h(
          "td",
          {},
          first
            ? h("span", { class: "mw-small" }, "the others are told against this one")
            : h("ul", {}, ...differences.map((line) => h("li", {}, ...arrowed(line)))),
        ),
      ),
    );
    this.table.replaceChildren(h("thead", {}, head), h("tbody", {}, ...rows, words));
    this.reachTips();
  }

  head({ place, name, open, first }, stale) {
    const state = open ? (stale ? "open, last good" : "open") : "pinned";
    const unpin = open
      ? null
      : tool(`Unpin ${name}`, { glyph: "close", tip: "Unpin", onclick: () => this.send("unpin", { place }) });
    const top = h(
      "div",
      { class: "mw-column-state" },
      h("span", { "data-open": open ? "" : null }, state),
      first ? h("span", { class: "mw-small" }, "reference") : null,
      h("span", { class: "mw-grow" }),
      unpin,
    );
    return h("th", { scope: "col", class: open ? "mw-open" : null }, top, h("div", { class: "mw-column-name" }, name));
  }
}

// ── small things ────────────────────────────────────────────────────────────────────────────

function cell({ value, small, change, wrong }) {
  const words = change?.text
    ? h(
        "span",
        { class: "mw-change", "data-verdict": change.verdict, ...tipped(change.spoken) },
        icon(change.arrow),
        change.text,
      )
    : null;
  const note = wrong ? h("span", { class: "mw-wrong" }, wrong) : small;
  return h(
    "td",
    {},
    h("div", { class: "mw-cell" }, h("strong", {}, value), words),
    h("div", { class: "mw-small" }, note),
  );
}

/** A difference with its arrow as a sign. */
function arrowed(line) {
  const at = line.indexOf(": ");
  const rest = line.slice(at + 2).replace(" -> ", " → ");
  return at < 0 ? [line] : [h("span", {}, `${line.slice(0, at)} `), h("b", {}, rest)];
}
