// The pointer on the cluster: a mesh is drawn over devices, moved, stretched, and renamed by a double click.

import { trackPointer } from "../kit/canvas.js";
import { nearestTile } from "./layout.js";

const DRAG_PX = 4; // a press that moves less is a click
const DOUBLE_MS = 500; // between two presses, as systems have it

export class Hand {
  constructor(cluster) {
    this.cluster = cluster;
    this.gesture = null; // a press in flight
    this.pressed = null; // the press before, which this one may make a double click
    const { board } = cluster;
    board.addEventListener("pointerdown", (event) => this.press(event));
    board.addEventListener("pointermove", (event) => this.hover(event));
    board.addEventListener("pointerleave", () => this.gesture || cluster.tip.hide());
  }

  /** The mesh that is moved or stretched, -1 for none. */
  get moving() {
    return this.gesture?.started && this.gesture.kind !== "draw" ? this.gesture.rank : -1;
  }

  /** The device nearest to a point of the board; `inside` tells whether the point is on its tile. */
  nearest(event) {
    const box = this.cluster.board.getBoundingClientRect();
    return nearestTile(this.cluster.layout, event.clientX - box.left, event.clientY - box.top);
  }

  press(event) {
    const { cluster } = this;
    if (event.button !== 0 || event.target.closest("button, input")) return;
    event.preventDefault();
    cluster.pointer = cluster.within(event);
    cluster.notice.hide();
    cluster.tip.hide();
    cluster.editing?.blur();
    if (this.isSecond(event)) return this.doubleClick(event);
    const { device, inside } = this.nearest(event);
    const handle = event.target.closest(".mw-handle")?.dataset;
    const rank = handle ? Number(handle.mesh) : inside ? cluster.owner(device) : -1;
    cluster.anchor = null;
    cluster.ghost = null;
    if (inside && !handle) cluster.tiles[device].focus({ preventScroll: true });
    cluster.select(rank);
    if (inside || handle) {
      const kind = handle ? "resize" : rank >= 0 ? "move" : "draw";
      this.begin({
        kind,
        rank,
        from: device,
        handle: handle?.handle,
        started: false,
        at: [event.clientX, event.clientY],
      });
    }
    cluster.redraw();
  }

  begin(gesture) {
    this.end();
    this.gesture = gesture;
    this.unlisten = trackPointer({
      moved: (event) => this.drag(event),
      released: (event) => this.release(event),
      cancel: () => this.cluster.cancel(),
    });
  }

  drag(event) {
    const { cluster, gesture } = this;
    cluster.pointer = cluster.within(event);
    if (!gesture.started && Math.hypot(event.clientX - gesture.at[0], event.clientY - gesture.at[1]) < DRAG_PX) return;
    gesture.started = true;
    this.pressed = null; // it is no click
    cluster.show(this.aim(this.nearest(event).device));
  }

  /** What the gesture in flight would make if it ended at a device. */
  aim(to) {
    const { kind, rank, from, handle } = this.gesture;
    const { grid, model } = this.cluster;
    if (kind === "draw") return this.cluster.judge(grid.between(from, to), -1);
    const { devices } = model.meshes[rank];
    if (kind === "resize") return this.cluster.judge(grid.stretched(grid.rectangle(devices), handle, to), rank);
    const [[n0, c0], [n1, c1]] = [grid.at(from), grid.at(to)];
    return this.cluster.judge(grid.shifted(devices, n1 - n0, c1 - c0), rank);
  }

  release(event) {
    const { cluster } = this;
    const { kind, rank, started } = this.gesture;
    cluster.pointer = cluster.within(event);
    this.end();
    cluster.redraw();
    if (!started) return;
    cluster.notice.hide();
    const { devices, ok, words } = cluster.ghost;
    const same = rank >= 0 && devices.join() === cluster.model.meshes[rank].devices.join();
    if (ok && !same) return cluster.send(kind, { mesh: rank, devices }); // the ghost stays until Python has answered
    cluster.ghost = null;
    if (!ok) cluster.say(`${words}; a device is in one mesh only`);
  }

  end() {
    this.unlisten?.();
    this.gesture = null;
  }

  hover(event) {
    const { cluster } = this;
    if (this.gesture || !cluster.layout) return;
    const { device, inside } = this.nearest(event);
    const onControl = event.target.closest("button, input");
    cluster.board.style.cursor =
      onControl || event.target.closest(".mw-handle") || !inside
        ? ""
        : cluster.owner(device) >= 0
          ? "grab"
          : "crosshair";
    if (!inside || cluster.root.dataset.density === "full" || onControl) cluster.tip.hide();
    else cluster.tip.show(cluster.describe(device), ...Object.values(cluster.within(event)));
  }

  /** Whether a press is the second of a double click. The browser sees none: what was pressed is drawn anew between. */
  isSecond({ clientX, clientY, timeStamp }) {
    const before = this.pressed;
    const second =
      Boolean(before) &&
      timeStamp - before.timeStamp < DOUBLE_MS &&
      Math.hypot(clientX - before.clientX, clientY - before.clientY) < DRAG_PX;
    this.pressed = second ? null : { clientX, clientY, timeStamp };
    return second;
  }

  doubleClick(event) {
    const { cluster } = this;
    const label = event.target.closest(".mw-mesh-label");
    if (label) return cluster.rename(Number(label.dataset.mesh));
    const { device, inside } = this.nearest(event);
    if (!inside) return;
    if (cluster.owner(device) >= 0) cluster.rename(cluster.owner(device));
    else cluster.send("draw", { mesh: -1, devices: [device] });
  }
}
