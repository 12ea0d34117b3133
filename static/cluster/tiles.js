// The tiles of the visible devices, or of the visible groups of nodes.

/** @import { DevicePlace } from "./types" */

import { meshColour } from "../kit/canvas.js";
import { focusedElement, h, setStyle } from "../kit/dom.js";
import { around, grow, panelBox, px, tileBox, visibleTiles } from "./layout.js";

const WITH_TEXT = 24; // least height in CSS pixels of a group whose nodes are named, below the name of its mesh
const DEVICES = "Devices: arrow keys move the focus, Shift with arrow keys selects, Enter draws a mesh";

export class Tiles {
  layer = h("div.mw-layer", { role: "listbox", "aria-multiselectable": "true" });
  /** The tiles by the first device. @type {Map<number, HTMLElement>} */ elements = new Map();
  /** Devices of a selection with the keyboard. @type {Set<number>} */ selected = new Set();

  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
  }

  /** The tile of a device, if it is visible or has the focus. @param {number} device */
  at(device) {
    return this.elements.get(this.cluster.cell(device));
  }

  /** The tile with the tab stop. */
  get focused() {
    return this.at(this.cluster.focus);
  }

  draw() {
    const { cluster } = this;
    const { anchor, ghost, places } = cluster;
    const { fold } = cluster.layout;
    const focused = focusedElement(this.layer);
    const hadFocus = focused !== null && this.layer.contains(focused);
    const shown = new Set([...visibleTiles(cluster.layout), cluster.focus]);
    this.selected = new Set(anchor === null ? [] : ghost?.devices);
    this.keep(shown);
    for (const device of shown) {
      const tile = this.elements.get(device) ?? this.add(device);
      if (fold) this.drawGroup(tile, device);
      else this.drawDevice(tile, device, places.get(device));
    }
    this.describe();
    if (hadFocus && !focused.isConnected) this.focused?.focus({ preventScroll: true });
  }

  /** Remove all other tiles. @param {Set<number>} shown */
  keep(shown) {
    for (const [device, tile] of this.elements) {
      if (shown.has(device)) continue;
      tile.remove();
      this.elements.delete(device);
    }
  }

  /** Describe the level of a large cluster in the name of the list, and the places of the visible tiles in it. */
  describe() {
    const { groups, isLarge, layout } = this.cluster;
    const { fold, nodes, perNode } = layout;
    const [size, each] = fold ? [Math.ceil(nodes / fold), fold * perNode] : [nodes * perNode, 1];
    const level = `${DEVICES}, plus and minus zoom; visible: ${groups.level}`;
    this.layer.setAttribute("aria-label", isLarge ? level : DEVICES);
    if (!isLarge) return;
    for (const [device, tile] of this.elements) {
      tile.setAttribute("aria-posinset", String(1 + device / each));
      tile.setAttribute("aria-setsize", String(size));
    }
  }

  /** @param {number} device */
  add(device) {
    const tile = h(
      "div.mw-device",
      { role: "option", "data-device": device, onfocus: () => this.cluster.setFocus(device) },
      h("span.mw-number-of"),
      h("span.mw-letter"),
      h("span.mw-indices"),
    );
    this.elements.set(device, tile);
    this.layer.append(tile);
    return tile;
  }

  /** @param {HTMLElement} tile @param {number} device */
  drawGroup(tile, device) {
    const { cluster } = this;
    const { layout, groups } = cluster;
    const [n0, n1] = groups.range(cluster.grid.at(device)[0]);
    const box = grow(around([panelBox(layout, n0), panelBox(layout, n1)]), -0.5);
    const text = box.height < WITH_TEXT ? "" : groups.text(device, box.width);
    tile.className = "mw-device mw-group";
    tile.removeAttribute("data-group");
    this.fill(tile, device, [text, "", ""]);
    setStyle(tile, px(box));
  }

  /** @param {HTMLElement} tile @param {number} device @param {DevicePlace} [place] */
  drawDevice(tile, device, [, group, indices] = [-1, 0, ""]) {
    const { layout, meshList, model, owners } = this.cluster;
    const rank = owners.rank(device);
    const mesh = meshList[rank];
    const hasName = mesh && mesh.devices.length > 1 && mesh.name.length < 4;
    const isFirst = mesh && device === owners.firsts[rank];
    tile.className = `mw-device${mesh ? " mw-used" : ""}${isFirst ? " mw-first" : ""}`;
    tile.toggleAttribute("data-group", Boolean(indices)); // a frame in the colour of its group
    this.fill(tile, device, [String(device), hasName && !indices ? mesh.name : "", indices]);
    setStyle(tile, {
      ...px(tileBox(layout, device)),
      "--c": mesh ? meshColour(model.palette, rank) : "",
      "--group": meshColour(model.palette, group),
    });
  }

  /** @param {HTMLElement} tile @param {number} device @param {string[]} texts */
  fill(tile, device, texts) {
    texts.forEach((text, i) => (tile.children[i].textContent = text));
    tile.tabIndex = device === this.cluster.focus ? 0 : -1;
    tile.setAttribute("aria-label", this.cluster.describe(device));
    tile.setAttribute("aria-selected", String(this.selected.has(device)));
  }
}
