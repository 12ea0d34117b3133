// Keyboard control of the cluster: arrow keys move the focus between devices, Shift+arrow keys select devices,
// Alt+arrow keys move a mesh.

import { ARROW_MOVES, closest, consume } from "../kit/dom.js";

const ZOOM_STEP = 1.5;

export class Keyboard {
  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
    cluster.board.addEventListener("keydown", (event) => this.key(event));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (closest(event, "button, input")) return;
    const arrow = ARROW_MOVES[event.key];
    const act =
      this.zoom(event) ??
      {
        Enter: () => this.enter(),
        " ": () => this.enter(),
        Delete: () => this.deleteMesh(),
        Backspace: () => this.deleteMesh(),
        Escape: () => this.escape(),
        F2: () => this.cluster.rename(this.mesh),
      }[event.key];
    if (arrow) this.arrow(event, ...arrow);
    else if (act) act();
    else return;
    consume(event);
  }

  /** The action of a key that zooms a large cluster. @param {KeyboardEvent} event */
  zoom({ key, ctrlKey, metaKey, altKey }) {
    const { cluster } = this;
    if (!cluster.isLarge || ctrlKey || metaKey || altKey) return undefined;
    const [inward, outward] = [ZOOM_STEP, 1 / ZOOM_STEP].map((factor) => () => cluster.view.zoomToFocus(factor));
    return { "+": inward, "=": inward, "-": outward, _: outward, 0: () => cluster.view.fit() }[key];
  }

  /** Rank of the mesh that a key acts on: the mesh under the focus, else the selected mesh. */
  get mesh() {
    const { cluster } = this;
    const under = cluster.focusedRank;
    return under >= 0 ? under : cluster.model.selected;
  }

  /** @param {KeyboardEvent} event @param {number} columns @param {number} nodes */
  arrow(event, columns, nodes) {
    const { cluster } = this;
    cluster.pointAtFocus();
    if (event.altKey) return event.shiftKey ? this.resizeMesh(nodes, columns) : this.moveMesh(nodes, columns);
    if (event.shiftKey) cluster.anchor ??= cluster.focus;
    else cluster.anchor = null;
    this.moveFocus(nodes, columns);
    cluster.showGhost(
      cluster.anchor === null ? null : cluster.makeGhost(cluster.devicesBetween(cluster.anchor, cluster.focus), -1),
    );
  }

  /** @param {number} nodes @param {number} columns */
  moveFocus(nodes, columns) {
    const { cluster } = this;
    const { fold, rows, perNode } = cluster.layout;
    if (!fold) return cluster.goTo(cluster.grid.step(cluster.focus, nodes, columns));
    const device = cluster.focus + (nodes * fold + columns * rows) * perNode;
    if (device >= 0 && device < cluster.count) cluster.goTo(device);
  }

  /** @param {number} nodes @param {number} columns */
  moveMesh(nodes, columns) {
    const { cluster, mesh: rank } = this;
    if (rank < 0) return cluster.announce("There is no mesh here to move; use the arrow keys to go to a mesh");
    const { devices } = cluster.meshList[rank];
    const { fold, rows } = cluster.layout;
    const moved = fold
      ? cluster.grid.shift(devices, nodes * fold + columns * rows, 0)
      : cluster.grid.shift(devices, nodes, columns);
    if (!this.sendMove("move", rank, moved, "This is the edge of the cluster")) return;
    if (cluster.focusedRank >= 0) this.moveFocus(nodes, columns); // the focus moves with the mesh
  }

  /** @param {number} nodes @param {number} columns */
  resizeMesh(nodes, columns) {
    const { cluster, mesh: rank } = this;
    if (rank < 0) return cluster.announce("There is no mesh here to resize; use the arrow keys to go to a mesh");
    const box = cluster.grid.rectangle(cluster.meshList[rank].devices);
    const { fold, rows } = cluster.layout;
    if (!box) return cluster.announce("The devices of this mesh do not form a rectangle, so it cannot be resized");
    this.sendMove(
      "resize",
      rank,
      fold ? cluster.grid.grow(box, nodes * fold + columns * rows, 0) : cluster.grid.grow(box, nodes, columns),
      "The mesh cannot be resized further in this direction",
    );
  }

  /**
   * Move or resize a mesh, and return whether that was requested.
   * @param {string} type @param {number} rank @param {number[]} devices @param {string} limit why nothing would change
   */
  sendMove(type, rank, devices, limit) {
    const { cluster } = this;
    const ghost = cluster.makeGhost(devices, rank);
    const isSame = devices.join() === cluster.meshList[rank].devices.join();
    if (isSame) cluster.announce(limit);
    else if (!ghost.ok) cluster.announce(ghost.words);
    else return cluster.send(type, { mesh: rank, devices });
    return false;
  }

  enter() {
    const { cluster } = this;
    cluster.pointAtFocus();
    cluster.notice.hide();
    if (cluster.anchor === null && cluster.focusedRank >= 0) return this.selectNext();
    const ghost = cluster.makeGhost(cluster.devicesBetween(cluster.anchor ?? cluster.focus, cluster.focus), -1);
    cluster.anchor = null;
    cluster.ghost = null;
    if (ghost.ok) cluster.send("draw", { mesh: -1, devices: ghost.devices });
    else cluster.announceTaken(ghost);
    cluster.redraw();
  }

  /** Select the mesh under the focus; in a group, the next one of its meshes. */
  selectNext() {
    const { cluster } = this;
    if (!cluster.layout.fold) return cluster.select(cluster.focusedRank);
    const ranks = cluster.groups.ranks(cluster.focus);
    cluster.select(ranks[(ranks.indexOf(cluster.model.selected) + 1) % ranks.length]);
  }

  deleteMesh() {
    this.cluster.pointAtFocus();
    if (this.mesh < 0) this.cluster.announce("There is no mesh here to delete");
    else this.cluster.send("delete", { mesh: this.mesh });
  }

  escape() {
    const { cluster } = this;
    if (cluster.anchor === null && !cluster.ghost) cluster.select(-1);
    cluster.cancel();
  }
}
