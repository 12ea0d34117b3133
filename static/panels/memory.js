// Peak memory per device: a predicted bar by category for each group of equal devices, and the measured bar of a mesh.

/** @import { MemoryBar, MemoryModel } from "./types" */

import { h } from "../kit/dom.js";
import { count } from "../kit/numbers.js";
import { Widget, plainData } from "../kit/widget.js";

/** @param {{model: MemoryModel}} args */
export const render = ({ model }) => new Memory(model).root;

/** @extends {Widget<MemoryModel>} */
class Memory extends Widget {
  legend = h("div.mw-memory-legend");
  body = h("tbody");
  more = h("p.mw-quiet", { role: "status" });
  empty = h("p.mw-dock-empty", {}, "No prediction: it is being computed, or the design has problems");

  /** @param {MemoryModel} model */
  constructor(model) {
    super(model);
    const titles = ["Mesh", "Devices", "", "Peak", "By category"];
    const head = titles.map((title) => h("th", { scope: "col", class: title ? "" : "mw-memory-kind" }, title));
    this.table = h("table.mw-memory", { "aria-label": "Peak memory per device" }, h("thead", {}, h("tr", {}, ...head)));
    this.table.append(this.body);
    this.root = h("div.mw-canvas.mw-memory-bars", {}, this.legend, this.empty, this.table, this.more);
    model.on(["bars", "capacity", "hidden_groups"], () => this.draw());
    this.draw();
  }

  draw() {
    /** @type {MemoryBar[]} */
    const bars = plainData(this.model, "bars");
    const { capacity, hidden_groups: hidden } = this.model;
    const kinds = [...new Set(bars.flatMap(({ parts }) => Object.keys(parts)))];
    const most = Math.max(1, ...bars.map(({ total }) => total));
    const shownCapacity = capacity.bytes && capacity.bytes < 4 * most ? capacity.bytes : 0;
    const scale = Math.max(most, shownCapacity);
    this.table.hidden = !bars.length;
    this.table.classList.toggle(
      "mw-memory-compared",
      bars.some(({ kind }) => kind === "measured"),
    );
    this.empty.hidden = Boolean(bars.length);
    this.more.textContent = hidden ? `${count(hidden, "more group")} of devices` : "";
    const limit = capacity.text ? h("span", {}, `Capacity of a device: ${capacity.text}`) : "";
    const entries = kinds.map((kind, at) =>
      h("span", {}, h("i", { style: { "--kind": `var(--memory-${at % 6})` } }), kind),
    );
    this.legend.replaceChildren(...entries, limit);
    const rows = bars.map((bar, at) => {
      const isFirst = bar.mesh !== bars[at - 1]?.mesh;
      const parts = kinds.map((kind, place) => bar.parts[kind] && part(kind, place, bar.parts[kind], scale));
      const line =
        shownCapacity > 0 && h("span.mw-memory-limit", { style: { left: `${(100 * shownCapacity) / scale}%` } });
      return h(
        "tr",
        { "data-kind": bar.kind, "data-first": isFirst },
        ...names(bar, isFirst),
        h("td.mw-memory-kind", {}, bar.kind),
        h("td.mw-memory-total", { "data-over": bar.over }, bar.text),
        h("td.mw-memory-axis", {}, h("div.mw-memory-bar", {}, ...parts, line)),
      );
    });
    this.body.replaceChildren(...rows);
  }
}

/** The first cells of a row: the meshes and devices of a bar. @param {MemoryBar} bar @param {boolean} isFirst */
function names({ mesh, devices }, isFirst) {
  const text = { translate: "no", title: mesh };
  return [
    h("th", { scope: "row", ...text }, isFirst ? mesh : h("span.mw-sr", {}, mesh)),
    h("td.mw-memory-devices", { translate: "no", title: devices }, devices),
  ];
}

/** @param {string} kind @param {number} place @param {[number, string]} size @param {number} scale */
function part(kind, place, [bytes, text], scale) {
  const style = { width: `${(100 * bytes) / scale}%`, "--kind": `var(--memory-${place % 6})` };
  return h("span.mw-memory-part", { style, title: `${kind}: ${text}` }, h("span.mw-sr", {}, `${kind} ${text}`));
}
