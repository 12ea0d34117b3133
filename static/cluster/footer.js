// The footer of the cluster: unused devices and link rates, and the selected mesh or a hint.

/** @import { Mesh } from "./types" */

import { meshColour } from "../kit/canvas.js";
import { button } from "../kit/controls.js";
import { h, keepFocus } from "../kit/dom.js";
import { axesChip } from "./meshes.js";
import { shortRate } from "./nodes.js";

const LETTER_PX = 5.8;

export class Footer {
  legend = h("div.mw-legend.mw-quiet");
  inspector = h("div.mw-inspector");
  /** @type {Mesh | undefined} */ mesh;

  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
    this.element = h("div.mw-bar.mw-foot", {}, this.legend, h("span.mw-grow"), this.inspector);
  }

  draw() {
    const { count, layout, meshList, model, owners, tiles } = this.cluster;
    const mesh = meshList[model.selected];
    const unused = count - owners.used;
    const rates = this.rates();
    const usage = `${unused} of ${count} devices unused`;
    const full = rates.map(([where, rate]) => ` · ${where} ${rate}`).join("");
    const short = rates.map(([where, rate]) => `${where} ${shortRate(rate)}`);
    const options = [rates.map((each) => each.join(" ")), short, short.slice(0, 1)];
    const fits = (/** @type {string[]} */ words) =>
      [usage, ...words].join(" · ").length * LETTER_PX + 45 < layout.width;
    const shown = mesh ? [] : (options.find(fits) ?? []);
    this.legend.replaceChildren(
      h("span.mw-swatch", { "aria-hidden": "true" }),
      h("span.mw-unused", {}, usage),
      ...shown.flatMap((words) => [h("span", { "aria-hidden": "true" }, "·"), h("span.mw-rate", {}, words)]),
    );
    this.legend.title = usage + full;
    if (this.mesh === mesh && mesh) return; // nothing has changed, so the inspector keeps the focus
    this.mesh = mesh;
    const room = layout.width - 40 - LETTER_PX * [usage, ...shown].join(" · ").length;
    const parts = mesh ? this.inspect(mesh, model.selected) : this.hint(unused, room);
    keepFocus(this.inspector, () => this.inspector.replaceChildren(...parts), tiles.focused);
  }

  /** The link rates for which the drawing of the nodes has no room. */
  rates() {
    const { model, nodes } = this.cluster;
    const { intra, inter } = model.links;
    const rates = [];
    if (!nodes.shownRates.intra && intra && model.devices_per_node > 1) rates.push(["inside nodes", intra]);
    if (!nodes.shownRates.inter && inter && model.nodes > 1) rates.push(["between nodes", inter]);
    return rates;
  }

  /**
   * The possible gestures, shortened to fit; while devices are unused, at least how to draw a mesh.
   * @param {number} unused @param {number} room
   */
  hint(unused, room) {
    const draw = this.cluster.meshList.length
      ? "drag over devices to draw a mesh"
      : "drag over devices to draw the first mesh";
    const full = `${draw}, drag a mesh to move it`;
    const hints = [full, unused ? draw : "drag a mesh to move it", unused ? "drag to draw" : ""];
    const words = hints.find((text) => text.length * LETTER_PX < room) ?? hints[2];
    return words ? [h("span.mw-quiet", { title: full }, words)] : [];
  }

  /** @param {Mesh} mesh @param {number} rank */
  inspect(mesh, rank) {
    const { cluster } = this;
    const { palette } = cluster.model;
    const name = button(`Rename mesh ${mesh.name}`, {
      content: mesh.name,
      kind: "mw-plain",
      title: "Rename (F2)",
      onclick: () => cluster.rename(rank),
    });
    name.style.setProperty("--c", meshColour(palette, rank));
    return [
      name,
      this.mover(mesh, rank, -1, rank > 0 ? "" : "This is the first mesh of the pipeline"),
      h("span.mw-quiet", {}, `rank ${rank}`),
      this.mover(mesh, rank, 1, rank < cluster.meshList.length - 1 ? "" : "This is the last mesh of the pipeline"),
      mesh.devices.length > 1 ? axesChip(cluster, mesh, rank) : h("span.mw-quiet", {}, "1 device"),
      button(`Delete mesh ${mesh.name}`, {
        content: "×",
        kind: "mw-icon mw-danger",
        title: "Delete (Del)",
        onclick: () => cluster.send("delete", { mesh: rank }),
      }),
    ];
  }

  /**
   * A button that moves a mesh by one rank; it is disabled if there is a reason.
   * @param {Mesh} mesh @param {number} rank @param {number} by @param {string} reason
   */
  mover(mesh, rank, by, reason) {
    const { cluster } = this;
    const way = by < 0 ? "earlier" : "later";
    const mover = button(`Move mesh ${mesh.name} one rank ${way}`, {
      content: by < 0 ? "‹" : "›",
      kind: "mw-icon",
      onclick: () => cluster.send("reorder", { mesh: rank, rank: rank + by }),
    });
    mover.enable(!reason, reason || `Move ${way} in the pipeline`);
    mover.onblocked = (reason) => cluster.announceAt(mover, reason);
    return mover;
  }
}
