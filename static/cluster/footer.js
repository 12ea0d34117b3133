// Below the cluster: how many devices are free and how fast the links are; and the selected mesh, or what can be done.

import { button, h, keepFocus, meshColour } from "../kit/canvas.js";
import { axesChip } from "./meshes.js";
import { short } from "./nodes.js";

const LETTER_PX = 5.8;

export class Foot {
  constructor(cluster) {
    this.cluster = cluster;
    this.legend = h("div", { class: "mw-legend mw-quiet" });
    this.inspector = h("div", { class: "mw-inspector" });
    this.element = h("div", { class: "mw-bar mw-foot" }, this.legend, h("span", { class: "mw-grow" }), this.inspector);
  }

  draw() {
    const { count, layout, model, owners } = this.cluster;
    const mesh = model.meshes[model.selected];
    const unused = count - owners.size;
    const rates = this.rates();
    const said = `unused ${unused} of ${count}`;
    const whole = rates.map(([where, rate]) => ` · ${where} ${rate}`).join("");
    const roomy = (said.length + whole.length) * LETTER_PX + 30 < layout.width;
    const shown = mesh ? [] : rates.map(([where, rate]) => `${where} ${roomy ? rate : short(rate)}`);
    this.legend.replaceChildren(
      h("span", { class: "mw-swatch", "aria-hidden": "true" }),
      h("span", { class: "mw-unused" }, said),
      ...shown.flatMap((words) => [h("span", { "aria-hidden": "true" }, "·"), h("span", { class: "mw-rate" }, words)]),
    );
    this.legend.title = said + whole;
    if (this.mesh === mesh && mesh) return; // the inspector keeps its focus while nothing changed
    this.mesh = mesh;
    const room = layout.width - 40 - LETTER_PX * [said, ...shown].join(" · ").length;
    const found = mesh ? this.inspect(mesh, model.selected) : [this.hint(unused, room)].filter(Boolean);
    keepFocus(this.inspector, () => this.inspector.replaceChildren(...found), this.cluster.tiles[this.cluster.focus]);
  }

  /** The rates of the links that are not written at the nodes. */
  rates() {
    const { model, nodes } = this.cluster;
    const { intra, inter } = model.links;
    return [
      ...(!nodes.written.intra && intra && model.devices_per_node > 1 ? [["node", intra]] : []),
      ...(!nodes.written.inter && inter && model.nodes > 1 ? [["between", inter]] : []),
    ];
  }

  /** What can be done by hand, as long as the room allows; where devices are free, how to draw on them at least. */
  hint(unused, room) {
    const draw = this.cluster.model.meshes.length
      ? "drag over devices to draw"
      : "drag over devices to draw the first mesh";
    const both = [
      `${draw}, drag a mesh to move it`,
      unused ? draw : "drag a mesh to move it",
      unused ? "drag to draw" : "",
    ];
    const words = both.find((text) => text.length * LETTER_PX < room) ?? both.at(-1);
    return words ? h("span", { class: "mw-quiet", title: both[0] }, words) : null;
  }

  inspect(mesh, rank) {
    const { cluster } = this;
    const { meshes, palette } = cluster.model;
    const name = button(`rename mesh ${mesh.name}`, {
      content: mesh.name,
      kind: "mw-plain",
      title: "Rename (F2)",
      onclick: () => cluster.rename(rank),
    });
    name.style.setProperty("--c", meshColour(palette, rank));
    return [
      name,
      this.mover(mesh, rank, -1, "‹", "earlier", rank > 0 ? "" : "It is the first of the pipeline"),
      h("span", { class: "mw-quiet" }, `rank ${rank}`),
      this.mover(mesh, rank, 1, "›", "later", rank < meshes.length - 1 ? "" : "It is the last of the pipeline"),
      mesh.devices.length > 1 ? axesChip(cluster, mesh, rank) : h("span", { class: "mw-quiet" }, "1 device"),
      button(`delete mesh ${mesh.name}`, {
        content: "×",
        kind: "mw-icon mw-danger",
        title: "Delete (Del)",
        onclick: () => cluster.send("delete", { mesh: rank }),
      }),
    ];
  }

  /** A button that moves a mesh by one rank, unless there is a reason why not. */
  mover(mesh, rank, by, content, way, reason) {
    const { cluster } = this;
    const title = `${way[0].toUpperCase()}${way.slice(1)} in the pipeline`;
    const mover = button(`mesh ${mesh.name} one rank ${way}`, {
      content,
      kind: "mw-icon",
      title,
      onclick: () => cluster.send("reorder", { mesh: rank, rank: rank + by }),
    });
    mover.allow(!reason, reason || title);
    mover.refuse = (words) => cluster.sayAt(mover, words);
    return mover;
  }
}
