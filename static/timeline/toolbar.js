// The bar over the timeline: its legend, and the buttons that show and hide parts of it.

import { button, h } from "../kit/canvas.js";
import { OP } from "./columns.js";
import { copyLink } from "./permalink.js";
import { savePicture } from "./save.js";

export const SWITCHES = ["show_memory", "show_critical", "show_transfers", "show_links", "show_device_links"];

/** The buttons and the legend over the timeline. */
export class Toolbar {
  /** @param {import("./timeline.js").Chart} chart */
  constructor(chart) {
    this.chart = chart;
    this.legend = h("div", { class: "mw-timeline-legend" });
    this.buttons = this._buttons();
  }

  _buttons() {
    const toggle = (name, label, key, title) =>
      button(label, { kind: "mw-timeline-toggle", title: `${title} (${key})`, onclick: () => this.chart.toggle(name) });
    return {
      show_transfers: toggle(
        "show_transfers",
        "Transfers",
        "T",
        "Messages between meshes as arrows, where there is room",
      ),
      show_links: toggle("show_links", "Links", "L", "What passes each NIC and link, and with which part of it"),
      show_device_links: toggle(
        "show_device_links",
        "Device links",
        "Shift+L",
        "The links of single devices beside those of nodes",
      ),
      show_critical: toggle(
        "show_critical",
        "Critical path",
        "C",
        "The chain of spans that makes the step as long as it is",
      ),
      show_memory: toggle("show_memory", "Memory", "M", "Memory of a device of each mesh"),
      area: button("Area", {
        kind: "mw-timeline-toggle",
        title: "Figures of an area: drag over it (R, or Shift+drag at any time)",
        onclick: () => this.chart.area.turnMode(),
      }),
      find: button("Find", {
        title: "Find blocks: 3F7, B of stage 2, mesh C (/)",
        onclick: () => this.chart.search.open(),
      }),
      fit: button("Fit", { title: "Show the whole step (0)", onclick: () => this.chart.view.fit() }),
      link: button("Link", { title: "Copy a link to exactly this view", onclick: () => copyLink(this.chart) }),
      png: button("PNG", { title: "Save what is shown as a picture", onclick: () => savePicture(this.chart) }),
      help: button("keys of the timeline", {
        content: "?",
        title: "Keys of the timeline (?)",
        onclick: () => this.chart.help.toggle(),
      }),
    };
  }

  refresh() {
    const { model, data } = this.chart;
    for (const name of SWITCHES) this.buttons[name].setAttribute("aria-pressed", String(model[name]));
    const has = (what) => Boolean(data?.layers.some(what));
    this.buttons.show_memory.hidden = !has((layer) => layer.hasMemory);
    this.buttons.show_critical.hidden = !has((layer) => layer.critical);
    for (const name of ["png", "fit", "show_transfers", "area", "find", "link"]) this.buttons[name].hidden = !data;
    this.buttons.show_links.hidden = !data || this.chart.openLayer?.unit !== "s";
    this.buttons.show_device_links.hidden = this.buttons.show_links.hidden || !model.show_links;
    for (const name of ["show_transfers", "show_links", "show_device_links", "area", "find", "link"])
      this.buttons[name].hidden ||= this.chart.depth.isDeep;
    this.buttons.area.setAttribute("aria-pressed", String(this.chart.area.mode));
  }

  drawLegend() {
    const layers = this.chart.data?.layers ?? [];
    const { palette } = this.chart.model;
    const ops = [OP.F, OP.B, OP.I, OP.W, OP.REDUCE_GRAD, OP.STEP].filter((op) =>
      layers.some((layer) => layer.takes(op)),
    );
    const swatch = (kind, words) => h("span", { class: "mw-timeline-key" }, h("i", { "data-kind": kind }), words);
    const carries = layers.some((layer) => layer.links?.lanes.length) ? [OP.SEND_F, OP.SEND_B] : [];
    const rises = layers.some((layer) => layer.shade.some((shade) => shade & 1));
    this.legend.replaceChildren(
      ...ops.map((op) => {
        const name = palette.names[op];
        if (layers[0].kinds) return layers[0].kinds[name] ? swatch(name, layers[0].kinds[name]) : "";
        return swatch(name, op <= OP.W ? `${name} ${palette.words[name]}` : palette.words[name]);
      }),
      ...carries.map((op) => swatch(palette.names[op], `${palette.words[palette.names[op]]} sent`)),
      ...(layers.length ? [swatch("idle", "idle")] : []),
      ...(rises ? [swatch("rising", "going up")] : []),
      ...(this.chart.rows.some((row) => row.length === 2 && row[0].unit === "s")
        ? [swatch("slower", "5\u2009% longer"), swatch("quicker", "shorter")]
        : []),
    );
  }
}
