// The keyboard on the cluster: arrows go from device to device, with Shift they select, with Alt they move a mesh.

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class Keys {
  constructor(cluster) {
    this.cluster = cluster;
    cluster.board.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.target.closest("button, input")) return;
    const arrow = ARROWS[event.key];
    if (arrow) this.arrow(event, ...arrow);
    else if (event.key === "Enter" || event.key === " ") this.enter();
    else if (event.key === "Delete" || event.key === "Backspace") this.deleteMesh();
    else if (event.key === "Escape") this.escape();
    else if (event.key === "F2") this.cluster.rename(this.mesh);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The mesh a key is meant for: the one under the focus, else the selected one. */
  get mesh() {
    const { cluster } = this;
    const under = cluster.owner(cluster.focus);
    return under >= 0 ? under : cluster.model.selected;
  }

  arrow(event, nodes, columns) {
    const { cluster } = this;
    this.pointNearFocus();
    if (event.altKey) return this.moveMesh(nodes, columns, event.shiftKey);
    if (event.shiftKey) cluster.anchor ??= cluster.focus;
    else cluster.anchor = null;
    this.step(nodes, columns);
    cluster.show(
      cluster.anchor === null ? null : cluster.judge(cluster.grid.between(cluster.anchor, cluster.focus), -1),
    );
  }

  /** The focus goes to another device. */
  step(nodes, columns) {
    const { cluster } = this;
    const device = cluster.grid.step(cluster.focus, nodes, columns);
    cluster.focused(device);
    cluster.tiles[device].focus();
  }

  moveMesh(nodes, columns, resize) {
    const { cluster, mesh: rank } = this;
    if (rank < 0) return cluster.say("no mesh here to move; arrows alone bring you to one");
    const { devices } = cluster.model.meshes[rank];
    const box = cluster.grid.rectangle(devices);
    if (resize && !box) return cluster.say("its devices are no rectangle, so it cannot be stretched");
    const wanted = resize ? cluster.grid.grown(box, nodes, columns) : cluster.grid.shifted(devices, nodes, columns);
    if (wanted.join() === devices.join())
      return cluster.say(resize ? "it cannot become smaller or larger this way" : "the cluster ends here");
    const verdict = cluster.judge(wanted, rank);
    if (!verdict.ok) return cluster.say(verdict.words);
    cluster.send(resize ? "resize" : "move", { mesh: rank, devices: wanted });
    if (!resize && cluster.owner(cluster.focus) >= 0) this.step(nodes, columns); // along with the mesh
  }

  enter() {
    const { cluster } = this;
    this.pointNearFocus();
    cluster.notice.hide();
    if (cluster.anchor === null && cluster.owner(cluster.focus) >= 0)
      return cluster.select(cluster.owner(cluster.focus));
    const verdict = cluster.judge(cluster.grid.between(cluster.anchor ?? cluster.focus, cluster.focus), -1);
    cluster.anchor = null;
    cluster.ghost = null;
    if (verdict.ok) cluster.send("draw", { mesh: -1, devices: verdict.devices });
    else cluster.say(`${verdict.words}; a device is in one mesh only`);
    cluster.redraw();
  }

  deleteMesh() {
    this.pointNearFocus();
    if (this.mesh < 0) this.cluster.say("no mesh here to delete");
    else this.cluster.send("delete", { mesh: this.mesh });
  }

  escape() {
    const { cluster } = this;
    if (cluster.anchor === null && !cluster.ghost) cluster.select(-1);
    cluster.cancel();
  }

  pointNearFocus() {
    const { cluster } = this;
    const [box, at] = [cluster.root.getBoundingClientRect(), cluster.tiles[cluster.focus].getBoundingClientRect()];
    cluster.pointer = { x: at.left - box.left, y: at.bottom - box.top - 14 };
  }
}
