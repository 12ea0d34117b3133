// The bar of a transfer: its metrics, files, link and undo.

/** @import { Button } from "../kit/types" */
/** @import { Picture } from "./types" */

import { Theme, brand, filePicker, labelUndo, sizeProblem, themePicker } from "../kit/bars.js";
import { button } from "../kit/controls.js";
import { h } from "../kit/dom.js";
import { openHelpOnF1 } from "../kit/help.js";
import { icon } from "../kit/icons.js";
import { count } from "../kit/numbers.js";
import { dropdown, menu, tool } from "../kit/shell.js";
import { signOut } from "../kit/sign_out.js";

const SIMULATED =
  "Transfer time from the first byte sent to the last byte received, simulated on shared links as in the timeline " +
  "of the step";
const PLANNED =
  "Planner's estimate: a unit task occupies the NICs of its sender and receivers until it is done. The planner " +
  "chooses senders and order by this time";

export class Toolbar {
  element = h("div.mw-tr-bar", { role: "banner" });
  title = h("h1.mw-tr-title");
  figures = h("div.mw-tr-figures");
  message = "";
  /** @type {Button | undefined} */ take;
  /** @type {HTMLAnchorElement | undefined} */ lab;

  /** @param {import("./transfer.js").Transfer} view */
  constructor(view) {
    this.view = view;
    this.picker = filePicker("Transfer file", ".json,application/json", (file) => this.read(file));
    this.undo = tool("Undo", { glyph: "undo", onclick: () => view.request("undo") });
    this.redo = tool("Redo", { glyph: "redo", onclick: () => view.request("redo") });
    this.link = tool("Copy link", {
      glyph: "share",
      text: "Copy link",
      tip: "Copy a link to this transfer",
      onclick: () => this.copy(),
    });
    const rule = () => h("span.mw-rule", { "aria-hidden": "true" });
    const middle = [rule(), this.undo, this.redo, h("span.mw-grow"), this.figures];
    if (view.isPage) {
      const [files, theme, menus] = this.pageTools();
      this.element.append(brand(), rule(), this.title, rule(), ...files, ...middle, rule(), ...theme, ...menus);
    } else {
      this.element.append(this.title, ...middle, ...this.overlayTools());
    }
    this.linkMessage = dropdown(this.link, "Copy link", () => [h("div.mw-tr-said", {}, this.message)]);
    this.link.popoverTargetElement = null;
    this.element.append(this.linkMessage);
  }

  /** @returns {HTMLElement[][]} */
  pageTools() {
    const { view } = this;
    const cases = tool("Examples", { glyph: "examples", text: "Examples", tip: "Example transfers" });
    cases.append(icon("down"));
    const entries = () =>
      view.model.cases.map(({ name, title }) => ({ text: title, choose: () => view.request("case", { name }) }));
    const [theme, themes] = themePicker(new Theme(view.leaving.signal));
    openHelpOnF1(view.leaving.signal);
    const open = tool("Open a transfer", {
      glyph: "open",
      text: "Open",
      tip: "Open a transfer document (meshwave reshard reads the same)",
      onclick: () => this.picker.click(),
    });
    const save = tool("Save", {
      glyph: "save",
      text: "Save",
      tip: "Download the transfer as JSON",
      onclick: () => view.request("save"),
    });
    const tip = { href: "./", "data-tip": "Open the designer" };
    const designer = h("a.mw-button.mw-tool", tip, h("span", {}, "Designer"));
    return [
      [open, cases, save, this.link],
      [designer, theme, ...signOut()],
      [this.picker, menu(cases, "Examples", entries), themes],
    ];
  }

  overlayTools() {
    const { view } = this;
    const tip = { target: "_blank", "data-tip": "Open this transfer in the transfer lab, in another tab" };
    this.take = button("Use this plan in the design", { kind: "mw-primary", onclick: () => view.request("take") });
    this.lab = h("a.mw-button", tip, "Open in the lab");
    const close = tool("Close", { glyph: "close", tip: "Close (Esc)", onclick: () => view.overlay?.close() });
    return [this.take, this.lab, close];
  }

  update() {
    const { model, picture } = this.view;
    const [undo, redo] = model.history;
    labelUndo(this.undo, "Undo", undo);
    labelUndo(this.redo, "Redo", redo);
    this.title.textContent = model.title;
    if (picture) this.drawFigures(picture);
    if (picture && this.take && this.lab) {
      const isUsed = String(model.design_has) === String([picture.strategy, picture.ordering]);
      const about = "Use this strategy and ordering for all transfers of the design";
      this.take.enable(!isUsed && !model.stale, isUsed ? "The design uses this plan already" : about);
      this.lab.href = `transfer#${model.fragment}`;
    }
  }

  /** @param {Picture} picture */
  drawFigures({ tasks, size, simulated, makespan, optimal, bound }) {
    const number = count(tasks.length, "unit task");
    const limit = optimal ? "planned ✓" : `planned, lower bound ${bound}`;
    const proof = optimal ? "This order is optimal" : `No order of the tasks takes less than ${bound}`;
    this.figures.replaceChildren(
      figure(
        size,
        `in ${number}`,
        "A unit task sends one slice of the tensor from one of its possible senders to its receivers",
      ),
      figure(simulated, "simulated", SIMULATED),
      figure(makespan, this.view.model.stale ? "of the last valid transfer" : limit, `${PLANNED}. ${proof}`),
    );
  }

  /** @param {File} file */
  async read(file) {
    const problem = sizeProblem(file, this.view.model.largest);
    if (problem) return this.view.acknowledge(problem);
    this.view.request("open", { file: file.name, text: await file.text() });
  }

  async copy() {
    const { fragment } = this.view.model;
    const address = `${location.origin}${location.pathname}#${fragment}`;
    this.message = "Link copied";
    if (!fragment) this.message = "This transfer is too large for a link. Save it and share the file.";
    else await navigator.clipboard.writeText(address).catch(() => (this.message = address));
    this.linkMessage.showPopover();
  }
}

/** @param {string} value @param {string} words @param {string} tip */
const figure = (value, words, tip) =>
  h("span.mw-tr-figure", { "data-tip": tip }, h("b", {}, value), h("span.mw-quiet", {}, words));
