// The bar of a transfer: its figures, files and link, the way back.

import { Theme, brand, tellTurn, themePicker, tooLarge } from "../kit/bars.js";
import { button, h } from "../kit/canvas.js";
import { openHelpOnF1 } from "../kit/help.js";
import { dropdown, icon, menu, tool } from "../kit/shell.js";

const PLAYED =
  "From the first byte to the last, each message played by itself and sharing the NICs with others: what the " +
  "timeline of an iteration reckons with";
const PLANNED = "A unit task holds the NICs of both its ends until it is done: so senders and order are chosen";

export class Bar {
  constructor(view) {
    this.view = view;
    this.picker = h("input", {
      type: "file",
      accept: ".json,application/json",
      hidden: true,
      tabindex: -1,
      "aria-label": "A transfer's file",
    });
    this.picker.addEventListener("change", () => this.picked());
    this.build();
  }

  build() {
    const { view } = this;
    const { model } = view;
    const act = (type) => () => view.send(type);
    this.undo = tool("Undo", { glyph: "undo", onclick: act("undo") });
    this.redo = tool("Redo", { glyph: "redo", onclick: act("redo") });
    this.link = tool("Copy link", {
      glyph: "share",
      text: "Link",
      tip: "Copy a link to this transfer",
      onclick: () => this.copy(),
    });
    this.title = h("h1", { class: "mw-tr-title" });
    this.figures = h("div", { class: "mw-tr-figures" });
    const rule = () => h("span", { class: "mw-rule", "aria-hidden": "true" });
    const grow = h("span", { class: "mw-grow" });
    this.element = h("div", { class: "mw-tr-bar", role: "banner" });
    if (view.isPage) {
      const cases = tool("Cases", { glyph: "examples", text: "Cases", tip: "Transfers to start from" });
      cases.append(icon("down"));
      const [theme, themes] = themePicker(new Theme(view.leaving.signal));
      openHelpOnF1(view.leaving.signal);
      const open = tool("Open a transfer", {
        glyph: "open",
        text: "Open",
        tip: "Open the file of a transfer, as meshwave reshard reads it",
        onclick: () => this.pick(),
      });
      const save = tool("Save", {
        glyph: "save",
        text: "Save",
        tip: "Download the transfer as JSON",
        onclick: act("save"),
      });
      const designer = h(
        "a",
        { class: "mw-button mw-tool", href: "./", "data-tip": "To the designer" },
        h("span", {}, "Designer"),
      );
      this.element.append(
        brand(),
        rule(),
        this.title,
        rule(),
        open,
        cases,
        save,
        this.link,
        rule(),
        this.undo,
        this.redo,
        grow,
        this.figures,
        rule(),
        designer,
        theme,
        this.picker,
      );
      const entries = () =>
        model.cases.map(({ name, title }) => ({ text: title, choose: () => view.send("case", { name }) }));
      this.element.append(menu(cases, "Cases", entries), themes);
    } else {
      this.take = button("Use this plan in the design", { kind: "mw-primary", onclick: act("take") });
      this.lab = h(
        "a",
        { class: "mw-button", target: "_blank", "data-tip": "Open it in the transfer lab, in a tab of its own" },
        "Open in the lab",
      );
      const close = tool("Close", { glyph: "close", tip: "Close (Esc)", onclick: () => view.overlay.close() });
      this.element.append(this.title, rule(), this.undo, this.redo, grow, this.figures, this.take, this.lab, close);
    }
    this.said = dropdown(this.link, "Link", (panel) => [h("div", { class: "mw-tr-said" }, panel.words ?? "")]);
    this.link.popoverTargetElement = null;
    this.element.append(this.said);
  }

  tell() {
    const { model } = this.view;
    const [undo, redo] = model.history;
    tellTurn(this.undo, "Undo", undo);
    tellTurn(this.redo, "Redo", redo);
    this.title.textContent = model.title;
    const { stale } = model;
    const { picture } = this.view;
    if (picture) {
      const count = picture.tasks.length;
      this.figures.replaceChildren(
        figure(
          picture.size,
          `in ${count} task${count === 1 ? "" : "s"}`,
          `${count} unit task${count === 1 ? "" : "s"}: slices that each have one set of senders and one of receivers`,
        ),
        figure(picture.played, "played", PLAYED),
        figure(
          picture.makespan,
          stale ? "of the last good one" : picture.optimal ? "planned ✓" : `planned, bound ${picture.bound}`,
          `${PLANNED}. ${picture.optimal ? "No order is shorter" : `No order is shorter than ${picture.bound}`}`,
        ),
      );
    }
    if (this.take && picture) {
      const has = String(model.design_has) === String([picture.strategy, picture.ordering]);
      this.take.allow(
        !has && !stale,
        has ? "The design has this plan" : "Strategy and ordering of all transfers of the design",
      );
      this.lab.href = `transfer#${model.fragment}`;
    }
  }

  pick() {
    this.picker.click();
  }

  picked() {
    const [file] = this.picker.files;
    this.picker.value = ""; // so that the same file can be opened again
    if (file) this.read(file);
  }

  async read(file) {
    const why = tooLarge(file, this.view.model.largest);
    if (why) return this.view.answered(`${file.name} ${why}`);
    this.view.send("open", { file: file.name, text: await file.text() });
  }

  async copy() {
    const { fragment } = this.view.model;
    const address = `${location.origin}${location.pathname}#${fragment}`;
    let words = "The link is copied.";
    if (!fragment) words = "This transfer is too large for a link: save it, and send the file.";
    else await navigator.clipboard.writeText(address).catch(() => (words = address));
    this.said.words = words;
    this.said.showPopover();
  }
}

function figure(value, words, tip) {
  return h(
    "span",
    { class: "mw-tr-figure", "data-tip": tip },
    h("b", {}, value),
    h("span", { class: "mw-quiet" }, words),
  );
}
