// The meshes drawn over their devices, with names and handles, and the preview of a gesture.

/** @import { Box } from "../kit/types" */
/** @import { Axes, Mesh } from "./types" */

import { meshColour } from "../kit/canvas.js";
import { openMenu } from "../kit/shell.js";
import { h } from "../kit/dom.js";
import { ink, rgb } from "../kit/palette.js";
import { around, grow, px } from "./layout.js";

/** @type {Record<string, [number, number]>} */
const HANDLES = { nw: [0, 0], n: [0, 1], ne: [0, 2], e: [1, 2], se: [2, 2], s: [2, 1], sw: [2, 0], w: [1, 0] };

export class Meshes {
  layer = h("div.mw-layer.mw-through");
  ghosts = h("div.mw-layer.mw-through");

  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
  }

  draw() {
    const { cluster } = this;
    this.drawGhost();
    if (cluster.nameField) return;
    const pieces = cluster.model.meshes.flatMap((mesh, rank) => this.pieces(mesh, rank));
    this.layer.replaceChildren(...pieces);
  }

  drawGhost() {
    const { ghost, model } = this.cluster;
    const rank = ghost && ghost.rank >= 0 ? ghost.rank : model.meshes.length;
    const boxes = ghost?.devices.length ? this.fragments(ghost.devices) : [];
    const pieces = boxes.map((box) =>
      h("div.mw-ghost", { "data-ok": String(ghost?.ok), style: this.style(grow(box, 3), rank) }),
    );
    this.ghosts.replaceChildren(...pieces);
  }

  /** @param {Mesh} mesh @param {number} rank */
  pieces(mesh, rank) {
    const { layout, model, gestures } = this.cluster;
    const isMoving = rank === gestures.movingRank;
    const isSelected = rank === model.selected;
    const fragments = this.fragments(mesh.devices).map((box) => grow(box, Math.min(2.5, layout.gap / 2 + 0.5)));
    const kind = `mw-mesh${isSelected ? " mw-selected" : ""}${isMoving ? " mw-moving" : ""}`;
    const pieces = fragments.map((box) => h("div", { class: kind, "data-mesh": rank, style: this.style(box, rank) }));
    pieces[0].append(this.label(mesh, rank, fragments[0]));
    if (isSelected && !isMoving) this.addHandles(pieces, mesh, rank, fragments);
    this.addFlags(pieces, rank);
    return pieces;
  }

  /**
   * Add the names of others who have selected a mesh, and its comments.
   * @param {HTMLElement[]} pieces @param {number} rank
   */
  addFlags(pieces, rank) {
    const flags = this.cluster.model.flags.filter((flag) => flag.rank === rank);
    if (!flags.length) return;
    const chosen = flags.find(({ selects }) => selects);
    for (const piece of chosen ? pieces : []) {
      piece.classList.add("mw-flagged");
      piece.style.setProperty("--flag", chosen?.colour ?? "");
    }
    const tags = flags.map(({ colour, text }) =>
      h("span.mw-flag", { style: { background: colour, color: ink(rgb(colour)) } }, text),
    );
    pieces[0].append(h("div.mw-flags", {}, ...tags));
  }

  /** @param {Box} box @param {number} rank */
  style(box, rank) {
    return { ...px(box), "--c": meshColour(this.cluster.model.palette, rank) };
  }

  /**
   * Boxes that cover the devices of a mesh: one for a rectangle and one more for each wrap of the nodes; otherwise
   * one for each run of devices.
   * @param {number[]} devices
   */
  fragments(devices) {
    const { grid, layout } = this.cluster;
    const isRectangle = grid.rectangle(devices) !== null;
    /** @type {Map<number | string, Box[]>} */
    const groups = new Map();
    let last = -2;
    let run = 0;
    for (const device of [...devices].sort((a, b) => a - b)) {
      const [node] = grid.at(device);
      if (device !== last + 1) run++;
      last = device;
      const key = isRectangle ? Math.floor(node / layout.rows) : `${node}/${run}`;
      groups.set(key, [...(groups.get(key) ?? []), layout.tiles[device]]);
    }
    return [...groups.values()].map(around);
  }

  /** @param {Mesh} mesh @param {number} rank @param {Box} box */
  label(mesh, rank, box) {
    const { model, root } = this.cluster;
    const nameWidth = 7 * mesh.name.length;
    const hasName = box.width > 26 + nameWidth && box.height > 15;
    const label = h(
      "div",
      {
        class: `mw-mesh-label${hasName ? " mw-named" : ""}${this.isCrowded(mesh, box) ? " mw-crowded" : ""}`,
        "data-mesh": rank,
        title: `Mesh ${mesh.name}, rank ${rank} of the pipeline. Double-click to rename`,
        style: { "max-width": `${box.width - 6}px` },
      },
      h("b.mw-rank", {}, String(rank)),
      h("span.mw-name", { translate: "no" }, mesh.name),
    );
    const needed = 70 + 26 * mesh.axes.length + nameWidth + (rank === model.selected ? 22 : 0);
    if (mesh.devices.length > 1 && box.width > needed && root.dataset.density === "full")
      label.append(axesChip(this.cluster, mesh, rank));
    return label;
  }

  /**
   * True if the label of the rank is hidden: if labels do not fit their tiles, only every fourth column shows them.
   * @param {Mesh} mesh @param {Box} box
   */
  isCrowded({ devices }, box) {
    const { grid, model, root } = this.cluster;
    const needed = 3 + 4.6 * String(model.meshes.length - 1).length;
    return root.dataset.density === "none" && box.width < needed && grid.at(devices[0])[1] % 4 > 0;
  }

  /**
   * Add eight handles if there is room, else handles at the corners; a wrapped mesh has handles at its ends only.
   * @param {HTMLElement[]} pieces @param {Mesh} mesh @param {number} rank @param {Box[]} fragments
   */
  addHandles(pieces, mesh, rank, fragments) {
    const { cluster } = this;
    const isSmall = Math.min(fragments[0].width, fragments[0].height) < 40;
    for (const [name, [row, column]] of Object.entries(cluster.grid.rectangle(mesh.devices) ? HANDLES : {})) {
      if ((isSmall && name.length === 1) || (pieces.length > 1 && row === 1)) continue;
      const style = { left: `${column * 50}%`, top: `${row * 50}%`, cursor: `${name}-resize` };
      const piece = pieces[row === 2 ? pieces.length - 1 : 0];
      piece.append(h("span.mw-handle", { "data-handle": name, "data-mesh": rank, style }));
    }
    if (cluster.root.dataset.density !== "full") return;
    const attributes = { type: "button", "aria-label": `Delete mesh ${mesh.name}`, title: "Delete (Del)" };
    pieces[0].append(
      h("button.mw-close", { ...attributes, onclick: () => cluster.send("delete", { mesh: rank }) }, "×"),
    );
  }
}

/**
 * A button that shows the axes of a mesh and opens a menu to change the axes.
 * @param {import("./cluster.js").Cluster} cluster @param {Mesh} mesh @param {number} rank
 */
export function axesChip(cluster, mesh, rank) {
  const axesText = (/** @type {Axes} */ axes) => axes.map(([axis, size]) => `${axis} ${size}`).join(" × ");
  const text = axesText(mesh.axes);
  const onclick = () => {
    const preview = (/** @type {Axes} */ axes) => cluster.send("preview_axes", { mesh: rank, axes });
    const choices = mesh.choices.map((axes) => ({
      text: axesText(axes),
      checked: axesText(axes) === text,
      preview: () => preview(axes),
      choose: () => cluster.send("axes", { mesh: rank, axes }),
    }));
    const order = { text: "Order of devices…", checked: false, choose: () => cluster.orderDevices(rank) };
    openMenu(cluster.root, chip, `Axes of mesh ${mesh.name}, outermost first`, [...choices, order], () => preview([]));
  };
  const label = `Axes of mesh ${mesh.name}: ${text}`;
  const title = "Change the axes (outermost first) or the order of the devices";
  const chip = h("button.mw-chip", { type: "button", "aria-label": label, title, onclick }, text);
  return chip;
}
