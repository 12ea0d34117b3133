// The meshes over the devices that they hold, with their names and handles; and the ghost of one that is being drawn.

import { h, meshColour, openMenu } from "../kit/canvas.js";
import { around, grow, px } from "./layout.js";

const HANDLES = { nw: [0, 0], n: [0, 1], ne: [0, 2], e: [1, 2], se: [2, 2], s: [2, 1], sw: [2, 0], w: [1, 0] };

export class Meshes {
  constructor(cluster) {
    this.cluster = cluster;
    this.layer = h("div", { class: "mw-layer mw-through" });
    this.ghosts = h("div", { class: "mw-layer mw-through" });
  }

  draw() {
    const { cluster } = this;
    this.drawGhost();
    if (cluster.editing) return;
    const pieces = cluster.model.meshes.flatMap((mesh, rank) =>
      this.drawMesh(mesh, rank, rank === cluster.hand.moving),
    );
    this.layer.replaceChildren(...pieces);
  }

  drawGhost() {
    const { ghost, model } = this.cluster;
    const rank = ghost?.rank >= 0 ? ghost.rank : model.meshes.length;
    const boxes = ghost?.devices.length ? this.fragments(ghost.devices) : [];
    this.ghosts.replaceChildren(
      ...boxes.map((box) =>
        h("div", { class: "mw-ghost", "data-ok": String(ghost.ok), style: this.style(grow(box, 3), rank) }),
      ),
    );
  }

  drawMesh(mesh, rank, moving) {
    const { layout, model } = this.cluster;
    const fragments = this.fragments(mesh.devices).map((box) => grow(box, Math.min(2.5, layout.gap / 2 + 0.5)));
    const selected = rank === model.selected;
    const pieces = fragments.map((box) => {
      const piece = h("div", { class: "mw-mesh", "data-mesh": rank, style: this.style(box, rank) });
      piece.classList.toggle("mw-selected", selected);
      piece.classList.toggle("mw-moving", moving);
      return piece;
    });
    pieces[0].append(this.label(mesh, rank, fragments[0]));
    if (selected && !moving) this.drawHandles(pieces, mesh, rank, fragments);
    return pieces;
  }

  style(box, rank) {
    return { ...px(box), "--c": meshColour(this.cluster.model.palette, rank) };
  }

  /** Boxes that cover devices: one for a rectangle, one more for each wrap, one a run otherwise. */
  fragments(devices) {
    const { grid, layout } = this.cluster;
    const solid = grid.rectangle(devices) !== null;
    const groups = new Map();
    let last = -2;
    let run = 0;
    for (const device of [...devices].sort((a, b) => a - b)) {
      const [node] = grid.at(device);
      if (device !== last + 1) run++;
      last = device;
      const key = solid ? Math.floor(node / layout.rows) : `${node}/${run}`;
      groups.set(key, [...(groups.get(key) ?? []), layout.tiles[device]]);
    }
    return [...groups.values()].map(around);
  }

  label(mesh, rank, box) {
    const { model, root } = this.cluster;
    const letters = 7 * mesh.name.length;
    const roomy = box.width > 26 + letters && box.height > 15;
    const label = h("div", {
      class: roomy ? "mw-mesh-label mw-named" : "mw-mesh-label",
      "data-mesh": rank,
      title: `rank ${rank} of the pipeline, mesh ${mesh.name}: double click to rename`,
    });
    label.style.maxWidth = `${box.width - 6}px`;
    label.classList.toggle("mw-crowded", this.isCrowded(mesh, box));
    label.append(h("b", { class: "mw-rank" }, String(rank)), h("span", { class: "mw-name" }, mesh.name));
    if (
      mesh.devices.length > 1 &&
      box.width > 120 + letters + (rank === model.selected ? 22 : 0) &&
      root.dataset.density === "full"
    ) {
      label.append(axesChip(this.cluster, mesh, rank));
    }
    return label;
  }

  /** Whether ranks are wider than their tiles and this is not one of the few that are written. */
  isCrowded({ devices }, box) {
    const { grid, model, root } = this.cluster;
    const needed = 3 + 4.6 * String(model.meshes.length - 1).length;
    return root.dataset.density === "none" && box.width < needed && grid.at(devices[0])[1] % 4 > 0;
  }

  /** Eight handles where there is room, the corners otherwise; a wrapped mesh has them at its ends. */
  drawHandles(pieces, mesh, rank, fragments) {
    const { cluster } = this;
    const small = Math.min(fragments[0].width, fragments[0].height) < 40;
    for (const [name, [row, column]] of Object.entries(cluster.grid.rectangle(mesh.devices) ? HANDLES : {})) {
      if ((small && name.length === 1) || (pieces.length > 1 && row === 1)) continue;
      const piece = row === 2 ? pieces.at(-1) : pieces[0];
      piece.append(
        h("span", {
          class: "mw-handle",
          "data-handle": name,
          "data-mesh": rank,
          style: { left: `${column * 50}%`, top: `${row * 50}%`, cursor: `${name}-resize` },
        }),
      );
    }
    if (cluster.root.dataset.density !== "full") return;
    const remove = () => cluster.send("delete", { mesh: rank });
    pieces[0].append(
      h(
        "button",
        {
          class: "mw-close",
          type: "button",
          "aria-label": `delete mesh ${mesh.name}`,
          title: "Delete (Del)",
          onclick: remove,
        },
        "×",
      ),
    );
  }
}

/** A button with the axes of a mesh, which opens the other ways to use its devices. */
export function axesChip(cluster, mesh, rank) {
  const words = (dp, tp) => `dp ${dp} × tp ${tp}`;
  const choose = () => {
    const items = mesh.ways.map(([dp, tp]) => ({
      text: words(dp, tp),
      checked: dp === mesh.dp && tp === mesh.tp,
      choose: () => cluster.send("axes", { mesh: rank, dp, tp }),
    }));
    openMenu(cluster.root, chip, `axes of mesh ${mesh.name}`, items);
  };
  const text = words(mesh.dp, mesh.tp);
  const chip = h(
    "button",
    {
      class: "mw-chip",
      type: "button",
      "aria-label": `axes of mesh ${mesh.name}: ${text}`,
      title: "Use its devices in another way",
      onclick: choose,
    },
    text,
  );
  return chip;
}
