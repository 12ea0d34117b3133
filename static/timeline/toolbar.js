// The bar above the timeline: its legend, and the buttons that show and hide parts of it.

/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */

import { button } from "../kit/controls.js";
import { h } from "../kit/dom.js";
import { translate } from "../kit/language.js";
import { menu } from "../kit/shell.js";
import { OP } from "./columns.js";
import { copyLink } from "./permalink.js";
import { Play } from "./play.js";
import { savePicture } from "./save.js";

/** @typedef {"show_memory" | "show_critical" | "show_transfers" | "show_links" | "show_device_links"} Switch */

/** @type {Switch[]} */
export const SWITCHES = ["show_memory", "show_critical", "show_transfers", "show_links", "show_device_links"];

export class Toolbar {
  legend = h("div.mw-timeline-legend");

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    this.play = new Play(chart);
    const toggle = (/** @type {Switch} */ name, /** @type {string} */ label, /** @type {string} */ title) =>
      button(label, { kind: "mw-timeline-toggle", title, onclick: () => chart.toggle(name) });
    this.buttons = {
      show_transfers: toggle("show_transfers", "Transfers", "Show transfers between meshes as arrows (T)"),
      show_links: toggle("show_links", "Links", "Show the load of NICs and links (L)"),
      show_device_links: toggle("show_device_links", "Device links", "Show the links of each device too (Shift+L)"),
      show_critical: toggle(
        "show_critical",
        "Critical path",
        "Show the chain of spans that determines the step time (C)",
      ),
      show_memory: toggle("show_memory", "Memory", "Show the memory per device of each mesh (M)"),
      area: button("Area", {
        kind: "mw-timeline-toggle",
        title: "Select an area to show its metrics: drag over it (R, or Shift+drag at any time)",
        onclick: () => chart.selection.toggleMode(),
      }),
      find: button("Find", {
        title: "Find blocks: 3F7, B of stage 2, mesh C (/)",
        onclick: () => chart.search.open(),
      }),
      filter: button("Filter", {
        title: "Show some lanes only: mesh C, rank 0-3, stage 5 (G)",
        onclick: () => chart.filter.open(),
      }),
      groups: button("Group", { title: "Group the lanes, by node for example, and collapse groups (Shift+G)" }),
      play: button("Play", {
        kind: "mw-timeline-toggle",
        title: "Play the step from the start of the view (Space); , and . step from event to event",
        onclick: () => (this.play.isOn ? this.play.stop() : this.play.toggle()),
      }),
      fit: button("Fit", { title: "Show the whole step (0)", onclick: () => chart.view.fit() }),
      link: button("Copy link", { title: "Copy a link to this view", onclick: () => copyLink(chart) }),
      png: button("PNG", { title: "Save this view as a PNG", onclick: () => savePicture(chart) }),
      help: button("Keyboard shortcuts", {
        content: "?",
        title: "Keyboard shortcuts of the timeline (?)",
        onclick: () => chart.help.toggle(),
      }),
    };
    this.groups = menu(this.buttons.groups, "Groups of lanes", () => chart.collapse.entries());
    const { area, find, filter, groups, play, fit, link, png, help, ...shown } = this.buttons;
    this.tools = [
      toolGroup("Shown parts", Object.values(shown)),
      toolGroup("Selection of blocks and lanes", [area, find, filter, groups]),
      toolGroup("View", [play, fit]),
      toolGroup("Copies of the view", [link, png]),
      help,
    ];
  }

  openGroups() {
    if (!this.buttons.groups.hidden) this.buttons.groups.click();
  }

  refresh() {
    const { model, data, hasData, openLayer, depth, selection } = this.chart;
    const { buttons } = this;
    for (const name of SWITCHES) buttons[name].setAttribute("aria-pressed", String(model[name]));
    buttons.area.setAttribute("aria-pressed", String(selection.isMode));
    buttons.play.setAttribute("aria-pressed", String(this.play.isOn));
    const hasLinks = hasData && openLayer?.unit === "s" && !depth.isDeep;
    buttons.show_memory.hidden = !data.layers.some((layer) => layer.hasMemory);
    buttons.show_critical.hidden = !data.layers.some((layer) => layer.critical);
    buttons.groups.hidden = !data.choices.length;
    buttons.show_links.hidden = !hasLinks;
    buttons.show_device_links.hidden = !hasLinks || !model.show_links;
    for (const each of [buttons.png, buttons.fit, buttons.play, buttons.filter]) each.hidden = !hasData;
    const { show_transfers: transfers, area, find, link } = buttons;
    for (const each of [transfers, area, find, link]) each.hidden = !hasData || depth.isDeep;
  }

  drawLegend() {
    const { data, rows } = this.chart;
    const { layers } = data;
    const ops = [OP.F, OP.B, OP.I, OP.W, OP.UNSHARD, OP.REDUCE_GRAD, OP.STEP].filter((op) =>
      layers.some((layer) => timedOps(layer)[op]),
    );
    const sends = layers.some((layer) => layer.links?.lanes.length) ? [OP.SEND_F, OP.SEND_B] : [];
    const hasReturn = layers.some((layer) => layer.shade.some((shade) => shade & 1));
    const isCompared = rows.flat().some(({ over, unit }) => over && unit === "s");
    this.legend.replaceChildren(
      ...[...ops, ...sends].flatMap((op) => this.opEntry(op)),
      ...(layers.length ? [entry("idle", "idle")] : []),
      ...(hasReturn ? [entry("rising", "return")] : []),
      ...(layers.some(({ blocked }) => blocked) ? [entry("blocked", "blocked by the deadlock")] : []),
      ...(isCompared ? [entry("slower", "over 5% longer"), entry("quicker", "over 5% shorter")] : []),
    );
  }

  /** @param {number} op */
  opEntry(op) {
    const { names, words } = this.chart.model.palette;
    const name = names[op];
    const { kinds } = this.chart.data.layers[0];
    if (kinds) return kinds[name] ? [entry(name, kinds[name])] : [];
    if (op <= OP.W) return [entry(name, `${name} ${translate(words[name])}`)];
    const isSend = op === OP.SEND_F || op === OP.SEND_B;
    return [entry(name, isSend ? `send ${words[name]}` : words[name])];
  }
}

/** For each op, 1 if any of its spans takes time. @param {Layer} layer @returns {Uint8Array} */
const timedOps = (layer) =>
  layer.once("timedOps", () => {
    const { op, start, end } = layer;
    const found = new Uint8Array(256);
    for (let span = 0; span < op.length; span++) if (end[span] > start[span]) found[op[span]] = 1;
    return found;
  });

/** @param {string} label @param {HTMLElement[]} buttons */
const toolGroup = (label, buttons) => h("div.mw-timeline-tools", { role: "group", "aria-label": label }, ...buttons);

/** @param {string} kind @param {string} words */
const entry = (kind, words) => h("span.mw-timeline-key", {}, h("i", { "data-kind": kind }), words);
