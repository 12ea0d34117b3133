// The meshes drawn over their devices, with names and handles, and the preview of a gesture.

/** @import { Box } from "../kit/types" */
/** @import { Axes, Mesh } from "./types" */

import { meshColour } from "../kit/canvas.js";
import { openMenu } from "../kit/shell.js";
import { h, s } from "../kit/dom.js";
import { ink, rgb } from "../kit/palette.js";
import { boxesOf, grow, isVisible, px } from "./layout.js";
import { cover } from "./owners.js";

/** @type {Record<string, [number, number]>} */
const HANDLES = { nw: [0, 0], n: [0, 1], ne: [0, 2], e: [1, 2], se: [2, 2], s: [2, 1], sw: [2, 0], w: [1, 0] };

const LABELLED = { width: 18, height: 14 }; // smallest box of a mesh with a label, where nodes are folded
const CLIP_PX = 24; // pieces of a mesh end so far outside the board

export class Meshes {
  fills = s("svg.mw-links.mw-fills", { "aria-hidden": "true" });
  layer = h("div.mw-layer.mw-through");
  ghosts = h("div.mw-layer.mw-through");

  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
  }

  draw() {
    const { cluster } = this;
    const { layout, owners, meshList } = cluster;
    this.drawGhost();
    const boxes = meshList.map((_, rank) => owners.cover(rank).flatMap((each) => boxesOf(layout, each)));
    this.fill(layout.fold ? boxes : []);
    if (cluster.nameField) return;
    this.layer.replaceChildren(...meshList.flatMap((mesh, rank) => this.pieces(mesh, rank, boxes[rank])));
  }

  /** Fill the boxes of the meshes on folded nodes: one path per colour. @param {Box[][]} boxes by rank */
  fill(boxes) {
    const { layout, model } = this.cluster;
    const paths = model.palette.map(() => "");
    boxes.forEach((each, rank) => {
      for (const box of each)
        if (isVisible(layout, box))
          paths[rank % paths.length] += `M${box.x} ${box.y}h${box.width}v${box.height}h${-box.width}z`;
    });
    const shown = paths.map((d, index) => d && s("path", { d, style: { "--c": meshColour(model.palette, index) } }));
    this.fills.replaceChildren(...shown.filter((path) => path instanceof Node));
  }

  drawGhost() {
    const { ghost, grid, layout, meshList } = this.cluster;
    const rank = ghost && ghost.rank >= 0 ? ghost.rank : meshList.length;
    const covers = ghost?.devices.length ? cover(grid, ghost.devices) : [];
    const boxes = covers.flatMap((each) => boxesOf(layout, each)).filter((box) => isVisible(layout, box));
    const pieces = boxes.map((box) =>
      h("div.mw-ghost", { "data-ok": String(ghost?.ok), style: this.style(this.clip(grow(box, 3)), rank) }),
    );
    this.ghosts.replaceChildren(...pieces);
  }

  /**
   * The visible pieces of a mesh, with its label on the first. On folded nodes, a piece without room for a label is
   * left out, unless its mesh is selected or flagged.
   * @param {Mesh} mesh @param {number} rank @param {Box[]} boxes
   */
  pieces(mesh, rank, boxes) {
    const { layout, model, gestures } = this.cluster;
    const isMoving = rank === gestures.movingRank;
    const isSelected = rank === model.selected;
    const isKept = isSelected || !layout.fold || model.flags.some((flag) => flag.rank === rank);
    const by = layout.fold ? 0 : Math.min(2.5, layout.gap / 2 + 0.5);
    const shown = boxes.filter(
      (box) => isVisible(layout, box) && (isKept || (box.width >= LABELLED.width && box.height >= LABELLED.height)),
    );
    const fragments = shown.map((box) => this.clip(grow(box, by)));
    if (!fragments.length) return [];
    const kind = `mw-mesh${isSelected ? " mw-selected" : ""}${isMoving ? " mw-moving" : ""}`;
    const pieces = fragments.map((box) => h("div", { class: kind, "data-mesh": rank, style: this.style(box, rank) }));
    pieces[0].append(this.label(mesh, rank, fragments[0]));
    if (isSelected && !isMoving) this.addHandles(pieces, mesh, rank, fragments);
    this.addFlags(pieces, rank);
    return pieces;
  }

  /** The part of a box on the board and a margin around it. @param {Box} box @returns {Box} */
  clip({ x, y, width, height }) {
    const { layout } = this.cluster;
    const [left, top] = [Math.max(x, -CLIP_PX), Math.max(y, -CLIP_PX)];
    const right = Math.min(x + width, layout.width + CLIP_PX);
    const bottom = Math.min(y + height, layout.height + CLIP_PX);
    return { x: left, y: top, width: right - left, height: bottom - top };
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

  /** @param {Mesh} mesh @param {number} rank @param {Box} box */
  label(mesh, rank, box) {
    const { model, root } = this.cluster;
    const nameWidth = 7 * mesh.name.length;
    const [left, top] = [box.x, box.y].map((start) => (start < -8 ? 3 - start : 3)); // a label stays on the board
    const hasName = box.width > 26 + nameWidth && box.height > 15;
    const widths = { "max-width": `${box.width - left - 3}px`, "min-width": this.coveredWidth(nameWidth, box) };
    const style = { ...widths, ...(left > 3 && { left: `${left}px` }) };
    const kinds = [
      hasName && "mw-named",
      this.isCrowded(mesh, box) && "mw-crowded",
      this.shortForm(rank, nameWidth, box),
    ];
    const label = h(
      "div",
      {
        class: ["mw-mesh-label", ...kinds].filter(Boolean).join(" "),
        "data-mesh": rank,
        title: `Mesh ${mesh.name}, rank ${rank} of the pipeline. Double-click to rename`,
        style: top > 3 ? { ...style, top: `${top}px` } : style,
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
   * The least width of a label on small tiles: up to the end of the last tile that it covers, so that no number of a
   * device is half hidden.
   * @param {number} nameWidth @param {Box} box
   */
  coveredWidth(nameWidth, box) {
    const { layout, root } = this.cluster;
    if (root.dataset.density !== "some" || box.width <= 26 + nameWidth) return "0";
    const pitch = layout.tile.width + layout.gap;
    return `${Math.min(Math.ceil((nameWidth + 21) / pitch) * pitch, box.width - 6)}px`;
  }

  /**
   * The class of a label on folded nodes that has no room for both rank and name: it shows the name, or else the rank.
   * @param {number} rank @param {number} nameWidth @param {Box} box
   */
  shortForm(rank, nameWidth, { width }) {
    const rankWidth = Math.max(12, 4 + 5.5 * String(rank).length);
    if (this.cluster.root.dataset.density !== "folded" || rankWidth + nameWidth + 14 <= width) return "";
    return nameWidth + 10 <= width ? "mw-name-only" : "mw-rank-only";
  }

  /**
   * True if the label of the rank is hidden: if labels do not fit their tiles, only every fourth column shows them.
   * @param {Mesh} mesh @param {Box} box
   */
  isCrowded({ devices }, box) {
    const { grid, meshList, root } = this.cluster;
    const needed = 3 + 4.6 * String(meshList.length - 1).length;
    return root.dataset.density === "none" && box.width < needed && grid.at(devices[0])[1] % 4 > 0;
  }

  /**
   * Add eight handles if there is room, else handles at the corners; a wrapped mesh has handles at its ends only.
   * @param {HTMLElement[]} pieces @param {Mesh} mesh @param {number} rank @param {Box[]} fragments
   */
  addHandles(pieces, mesh, rank, fragments) {
    const { cluster } = this;
    const isSmall = Math.min(fragments[0].width, fragments[0].height) < 40;
    for (const [name, [row, column]] of Object.entries(cluster.owners.isRectangle(rank) ? HANDLES : {})) {
      const isLeftOut = row === 1 && (pieces.length > 1 || cluster.layout.fold > 0); // a mesh on whole nodes
      if ((isSmall && name.length === 1) || isLeftOut) continue;
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
