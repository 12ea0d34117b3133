// The form of a transfer: tensor, meshes, links. What is wrong stands under the field that it is about.

import { h } from "../kit/canvas.js";

/** @type {[string, string[]][]} */
const GROUPS = [
  ["Tensor", ["tensor.shape", "tensor.item_bytes"]],
  ["Source", ["source.shape", "source.hosts", "source.ranks", "source.partial"]],
  ["Destination", ["destination.shape", "destination.hosts", "destination.ranks"]],
  ["Between hosts", ["links.inter_node.bandwidth", "links.inter_node.latency_s", "nics_per_host"]],
  ["Inside a host", ["links.intra_node.bandwidth", "links.intra_node.latency_s"]],
  ["Chain", ["chunks"]],
];

export class Form {
  constructor(view) {
    this.view = view;
    this.fields = new Map(view.model.form.map((field) => [field.path, this.field(field)]));
    this.legends = GROUPS.map(([title]) => h("legend", {}, title));
    const group = ([, paths], number) =>
      h("fieldset", {}, this.legends[number], ...paths.map((path) => this.fields.get(path).element));
    this.element = h("div", { class: "mw-tr-form" }, ...GROUPS.map(group));
  }

  field({ path, label, help }) {
    const { view } = this;
    const input = h("input", {
      "aria-label": `${groupOf(path)}: ${label}`,
      "data-path": path,
      spellcheck: "false",
      autocomplete: "off",
    });
    const trouble = h("p", { class: "mw-tr-trouble", role: "alert", hidden: true });
    const field = {
      input,
      trouble,
      shown: "",
      awaits: 0,
      element: h("label", { class: "mw-tr-field", "data-tip": help }, h("span", {}, label), input, trouble),
      answered: (refused) => {
        field.awaits -= 1;
        field.refused = refused;
        this.tell();
      },
      forget: () => {
        field.refused = null;
        this.tell();
      },
    };
    input.atRest = () => input.value === field.shown;
    const take = () => {
      if (input.value === field.shown) return field.forget();
      if (view.send("set", { path, text: input.value }, field)) field.awaits += 1;
    };
    input.addEventListener("change", take);
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        input.value = field.shown;
        field.forget();
      }
      if (event.key === "Escape" || event.key === "Enter") input.blur();
      if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
    });
    return field;
  }

  /** What was refused is of no more use: another document is in place. */
  forget() {
    for (const field of this.fields.values()) field.forget();
  }

  tell() {
    const { fields, troubles, host_word: word } = this.view.model;
    GROUPS.forEach(([title], number) => (this.legends[number].textContent = title.replace("host", word)));
    for (const [path, field] of this.fields) {
      const { input, trouble } = field;
      const isTyping = input === input.getRootNode().activeElement && input.value !== field.shown;
      if (field.shown !== fields[path]) field.refused = null;
      if (!isTyping && !field.awaits && !field.refused) input.value = fields[path];
      field.shown = fields[path];
      const words = field.refused || troubles[path] || "";
      trouble.textContent = words;
      trouble.hidden = !words;
      input.setAttribute("aria-invalid", String(Boolean(words)));
    }
  }
}

const groupOf = (path) => GROUPS.find(([, paths]) => paths.includes(path))[0];
