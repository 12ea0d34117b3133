// The form of a transfer: tensor, meshes, links. A problem is shown under its field.

/** @import { Sender } from "./types" */

import { focusedElement, h } from "../kit/dom.js";

/** @type {[string, string[]][]} */
const GROUPS = [
  ["Tensor", ["tensor.shape", "tensor.item_bytes"]],
  ["Source", ["source.shape", "source.hosts", "source.ranks", "source.partial"]],
  ["Destination", ["destination.shape", "destination.hosts", "destination.ranks"]],
  ["Between hosts", ["links.inter_node.bandwidth", "links.inter_node.latency_s", "nics_per_host"]],
  ["Inside a host", ["links.intra_node.bandwidth", "links.intra_node.latency_s"]],
  ["Chain", ["chunks"]],
];

/** @implements {Sender} */
class Field {
  shown = "";
  outstanding = 0; // outstanding responses
  /** @type {string | null} */ refused = null;

  /** @param {import("./transfer.js").Transfer} view @param {{path: string, label: string, help: string}} data */
  constructor(view, { path, label, help }) {
    this.view = view;
    this.path = path;
    const group = GROUPS.find(([, paths]) => paths.includes(path))?.[0];
    const attributes = { "data-path": path, spellcheck: "false", autocomplete: "off" };
    this.input = h("input", { "aria-label": `${group}: ${label}`, ...attributes });
    this.problem = h("p.mw-tr-trouble", { role: "alert", hidden: true });
    this.element = h("label.mw-tr-field", { "data-tip": help }, h("span", {}, label), this.input, this.problem);
    this.input.isUnedited = () => this.input.value === this.shown;
    this.input.addEventListener("change", () => this.commit());
    this.input.addEventListener("keydown", (event) => this.key(event));
  }

  commit() {
    const { path, view } = this;
    if (this.input.value === this.shown) this.acceptAnswer(null);
    else if (view.request("set", { path, text: this.input.value }, this)) this.outstanding += 1;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "Escape") {
      this.input.value = this.shown;
      this.acceptAnswer(null);
    }
    if (event.key === "Escape" || event.key === "Enter") this.input.blur();
    if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
  }

  /** @param {string | null} refused */
  acknowledge(refused) {
    this.outstanding -= 1;
    this.acceptAnswer(refused);
  }

  /** @param {string | null} refused */
  acceptAnswer(refused) {
    this.refused = refused;
    this.view.form.update();
  }

  update() {
    const { fields, troubles } = this.view.model;
    const { input, path } = this;
    const text = fields[path];
    const isTyping = input === focusedElement(input) && input.value !== this.shown;
    if (this.shown !== text) this.refused = null;
    if (!isTyping && !this.outstanding && !this.refused) input.value = text;
    this.shown = text;
    const problem = this.refused || troubles[path] || "";
    this.problem.textContent = problem;
    this.problem.hidden = !problem;
    input.setAttribute("aria-invalid", String(Boolean(problem)));
  }
}

export class Form {
  /** @param {import("./transfer.js").Transfer} view */
  constructor(view) {
    this.view = view;
    this.fields = view.model.form.map((data) => new Field(view, data));
    this.legends = GROUPS.map(([title]) => h("legend", {}, title));
    const groups = GROUPS.map(([, paths], i) => {
      const fields = paths.flatMap((path) => this.fields.filter((field) => field.path === path));
      return h("fieldset", {}, this.legends[i], ...fields.map(({ element }) => element));
    });
    this.element = h("div.mw-tr-form", {}, ...groups);
  }

  /** Clear refusals after another document was opened. */
  forgetRefusals() {
    for (const field of this.fields) field.refused = null;
    this.update();
  }

  update() {
    const { host_word: word } = this.view.model;
    GROUPS.forEach(([title], i) => (this.legends[i].textContent = title.replace("host", word)));
    for (const field of this.fields) field.update();
  }
}
