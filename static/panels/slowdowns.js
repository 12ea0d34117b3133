// Stragglers of a run with a button to simulate each, and a form that simulates slow devices, slow links and jitter.

/** @import { SlowdownFields, SlowdownsModel, Straggler } from "./types" */

import { button } from "../kit/controls.js";
import { findAll, h, keepFocus } from "../kit/dom.js";
import { icon } from "../kit/icons.js";
import { Widget } from "../kit/widget.js";

const NO_RUN = "No run is shown. Stragglers are found in measured runs, from their tenth step.";
const NO_STRAGGLER = "No straggler was found in the shown run. Runs are checked from their tenth step.";

/** @param {{model: SlowdownsModel}} args */
export const render = ({ model }) => new Slowdowns(model).root;

/** @extends {Widget<SlowdownsModel>} */
class Slowdowns extends Widget {
  list = h("ul.mw-straggler-list");
  rows = "";
  link = ""; // the chosen link, which the design may not have at the moment
  none = h("p.mw-quiet");
  result = h("p.mw-slow-result", { role: "status" });
  refusal = h("p.mw-dock-refusal", { role: "alert" });

  /** @param {SlowdownsModel} model */
  constructor(model) {
    super(model);
    this.inputs = {
      device: numberInput("Slow device", { min: 0, step: 1, placeholder: "none" }),
      device_factor: numberInput("Slowdown factor of the device", {
        min: 0.01,
        max: 1000,
        step: "any",
        required: true,
      }),
      link: h("select.mw-slow-input", { "aria-label": "Slow link" }),
      link_factor: numberInput("Slowdown factor of the link", { min: 0.01, max: 1000, step: "any", required: true }),
      jitter_percent: numberInput("Jitter in percent", { min: 0, max: 100, step: "any", required: true }),
    };
    const { device, device_factor, link, link_factor, jitter_percent } = this.inputs;
    link.addEventListener("change", () => (this.link = link.value));
    this.form = h(
      "form.mw-slow-form",
      {},
      h("label", {}, "Device", device),
      h("label", { title: "Multiplies the time of each computation on the device" }, "Slowdown factor", device_factor),
      h("label", {}, "Link", link),
      h("label", { title: "Multiplies the time of each message on the link" }, "Slowdown factor", link_factor),
      h("label", { title: "Coefficient of variation of the time of each computation" }, "Jitter (%)", jitter_percent),
      h("button.mw-button.mw-primary", { type: "submit" }, "Simulate"),
      button("Clear", { onclick: () => this.send("clear") }),
    );
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.simulate();
    });
    this.root = h(
      "div.mw-canvas.mw-shell.mw-slowdowns",
      {},
      h("section", { "aria-label": "Stragglers" }, h("h3", {}, "Stragglers of the run"), this.list, this.none),
      h(
        "section",
        { "aria-label": "Simulated slowdown" },
        h("h3", {}, "Simulate a slowdown in the open design"),
        this.form,
        this.result,
        this.refusal,
      ),
    );
    model.on(["stragglers", "has_run"], () => keepFocus(this.root, () => this.drawStragglers()));
    model.on("links", () => this.drawLinks());
    model.on("fields", () => this.drawFields());
    model.on("result", () => this.drawResult());
    this.drawStragglers();
    this.drawLinks();
    this.drawFields();
    this.drawResult();
  }

  simulate() {
    const fields = Object.entries(this.inputs).map(([name, input]) => [name, input.value]);
    this.send("simulate", Object.fromEntries(fields));
  }

  /** Draw the list; rows of the same stragglers stay and only change their text, so that a click is never lost. */
  drawStragglers() {
    const { stragglers, has_run } = this.model;
    this.none.textContent = has_run ? NO_STRAGGLER : NO_RUN;
    this.none.hidden = stragglers.length > 0;
    const rows = JSON.stringify(stragglers.map(({ code, where, fields }) => [code, where, Boolean(fields)]));
    if (rows !== this.rows)
      this.list.replaceChildren(...stragglers.map((straggler, index) => this.row(straggler, index)));
    this.rows = rows;
    for (const [index, text] of findAll(this.list, "span[data-code]").entries())
      text.textContent = stragglers[index].message;
  }

  /** @param {Straggler} straggler @param {number} index */
  row({ code, where, fields }, index) {
    const text = h("span", { "data-code": code, "data-where": where });
    const act = button("Simulate", {
      title: "Predict the step time of the open design with this slowdown",
      onclick: () => {
        this.fill(/** @type {SlowdownFields} */ (this.model.stragglers[index].fields));
        this.simulate();
      },
    });
    return h("li", {}, icon("warning"), text, ...(fields ? [act] : []));
  }

  drawLinks() {
    const { links } = this.model;
    const choices = [["", "none"], ...links].map(([value, title]) => h("option", { value }, title));
    const { link } = this.inputs;
    link.replaceChildren(...choices);
    link.value = this.link;
    if (link.selectedIndex < 0) link.value = ""; // the design does not have this link
  }

  drawFields() {
    this.fill(this.model.fields);
  }

  /** @param {SlowdownFields} fields */
  fill(fields) {
    for (const [name, input] of Object.entries(this.inputs))
      input.value = String(fields[/** @type {keyof SlowdownFields} */ (name)]);
    this.link = fields.link;
  }

  drawResult() {
    const { result } = this.model;
    this.result.textContent = result && `Step time with this slowdown: ${result}.`;
  }
}

/** @param {string} label @param {object} attributes */
const numberInput = (label, attributes) =>
  h("input.mw-slow-input", { type: "number", "aria-label": label, ...attributes });
