// Pointer gestures on the cluster: drawing, moving and resizing meshes, and renaming a mesh by a double click.

import { pointIn, trackPointer } from "../kit/canvas.js";
import { closest, listenWhile } from "../kit/dom.js";
import { pointOf } from "../kit/zoom.js";
import { Fingers, wheelMove } from "../kit/zooming.js";
import { nearestTile } from "./layout.js";

const DRAG_PX = 4; // a press that moves by fewer CSS pixels is a click
const DOUBLE_MS = 500; // longest time between the presses of a double click

/**
 * @typedef {{kind: string, rank: number, from: number, handle: string, started: boolean, at: [number, number]}} Gesture
 */

export class Gestures {
  /** A press in progress. @type {Gesture | null} */ gesture = null;
  /** The previous press, which the next press may complete to a double click. @type {PointerEvent | null} */
  lastPress = null;
  /** @type {(() => void) | undefined} */ untrack;
  fingers = new Fingers();

  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
    const { board } = cluster;
    board.addEventListener("pointerdown", (event) => this.press(event));
    board.addEventListener("pointermove", (event) => this.move(event));
    for (const type of /** @type {const} */ (["pointerup", "pointercancel"]))
      board.addEventListener(type, (event) => this.fingers.release(event));
    board.addEventListener("pointerleave", () => this.gesture || cluster.tip.hide());
    const isZoomed = () => cluster.isLarge && Boolean(cluster.layout);
    listenWhile(board, isZoomed, { wheel: (event) => this.wheel(event) }, { passive: false });
  }

  /** The mesh that is being moved or resized, -1 for none. */
  get movingRank() {
    return this.gesture?.started && this.gesture.kind !== "draw" ? this.gesture.rank : -1;
  }

  /** The device nearest to an event, and whether the event is on its tile. @param {PointerEvent} event */
  nearest(event) {
    return nearestTile(this.cluster.layout, pointIn(event, this.cluster.board));
  }

  /** @param {PointerEvent} event */
  press(event) {
    const { cluster } = this;
    if (event.button === 1 && cluster.isLarge) return this.pan(event);
    if (event.button !== 0 || closest(event, "button, input")) return;
    event.preventDefault();
    cluster.pointer = pointIn(event, cluster.root);
    cluster.notice.hide();
    cluster.tip.hide();
    cluster.nameField?.blur();
    if (cluster.isLarge) this.touch(event);
    if (this.fingers.isPinch) cluster.cancel();
    else if (this.isDoubleClick(event)) this.doubleClick(event);
    else this.singlePress(event);
  }

  /** @param {PointerEvent} event */
  singlePress(event) {
    const { cluster } = this;
    const { device, inside } = this.nearest(event);
    const handle = closest(event, ".mw-handle")?.dataset;
    cluster.anchor = null;
    cluster.ghost = null;
    if (handle) {
      const rank = Number(handle.mesh);
      cluster.select(rank);
      this.begin(event, "resize", rank, device, handle.handle ?? "");
    } else {
      const rank = inside ? cluster.owner(device) : -1;
      if (inside) cluster.tiles.at(device)?.focus({ preventScroll: true });
      cluster.select(rank);
      if (inside) this.begin(event, rank >= 0 ? "move" : "draw", rank, device, "");
    }
    cluster.redraw();
  }

  /**
   * @param {PointerEvent} event @param {string} kind @param {number} rank @param {number} from @param {string} handle
   */
  begin(event, kind, rank, from, handle) {
    this.end();
    this.gesture = { kind, rank, from, handle, started: false, at: [pointOf(event).x, pointOf(event).y] };
    this.untrack = trackPointer({
      onmove: (event) => this.drag(event),
      onrelease: (event) => this.release(event),
      oncancel: () => this.cluster.cancel(),
    });
  }

  /** @param {PointerEvent} event */
  drag(event) {
    const { cluster, gesture } = this;
    if (!gesture) return;
    cluster.pointer = pointIn(event, cluster.root);
    const [x, y] = gesture.at;
    if (!gesture.started && Math.hypot(pointOf(event).x - x, pointOf(event).y - y) < DRAG_PX) return;
    gesture.started = true;
    this.lastPress = null; // the press is a drag, not a click
    cluster.showGhost(this.target(gesture, this.nearest(event).device));
  }

  /** The devices of the mesh if a gesture ended at a device. @param {Gesture} gesture @param {number} to */
  target({ kind, rank, from, handle }, to) {
    const { cluster } = this;
    const { grid, groups } = cluster;
    if (kind === "draw") return cluster.makeGhost(cluster.devicesBetween(from, to), -1);
    const { devices } = cluster.meshList[rank];
    const { fold } = cluster.layout;
    if (kind === "resize") {
      const box = cluster.owners.bounds(rank);
      return cluster.makeGhost(fold ? groups.stretch(box, handle, to, rank) : grid.stretch(box, handle, to), rank);
    }
    if (fold) return cluster.makeGhost(groups.shift(rank, from, to), rank);
    const [[n0, c0], [n1, c1]] = [grid.at(from), grid.at(to)];
    return cluster.makeGhost(grid.shift(devices, n1 - n0, c1 - c0), rank);
  }

  /** @param {PointerEvent} event */
  release(event) {
    const { cluster, gesture } = this;
    const { ghost } = cluster;
    cluster.pointer = pointIn(event, cluster.root);
    this.end();
    cluster.redraw();
    if (!gesture?.started || !ghost) return;
    cluster.notice.hide();
    const { kind, rank } = gesture;
    const isSame = rank >= 0 && ghost.devices.join() === cluster.meshList[rank].devices.join();
    // the preview stays until Python responds
    if (ghost.ok && !isSame) return cluster.send(kind, { mesh: rank, devices: ghost.devices });
    cluster.ghost = null;
    if (!ghost.ok) cluster.announceTaken(ghost);
  }

  end() {
    this.untrack?.();
    this.gesture = null;
  }

  // ── zoom and pan of a large cluster ──

  /** @param {WheelEvent} event */
  wheel(event) {
    const { view, board } = this.cluster;
    event.preventDefault();
    const move = wheelMove(event);
    if ("factor" in move) view.zoom(move.factor, pointIn(event, board));
    else view.pan(move.dx, move.dy);
  }

  /** Follow a finger to the end of its press, although the tile under it may fold. @param {PointerEvent} event */
  touch(event) {
    this.fingers.press(event, pointIn(event, this.cluster.board));
    if (event.pointerType === "touch") this.cluster.board.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  move(event) {
    const { view, board } = this.cluster;
    if (!this.fingers.isPinch) return this.hover(event);
    const { factor, x, y, dx, dy } = this.fingers.pinch(event, pointIn(event, board));
    view.pan(-dx, -dy);
    view.zoom(factor, { x, y });
  }

  /** Pan while the middle button is held. @param {PointerEvent} event */
  pan(event) {
    event.preventDefault();
    this.end();
    let last = pointOf(event);
    const end = () => this.end();
    const onmove = (/** @type {PointerEvent} */ event) => {
      const now = pointOf(event);
      this.cluster.view.pan(last.x - now.x, last.y - now.y);
      last = now;
    };
    this.untrack = trackPointer({ onmove, onrelease: end, oncancel: end });
  }

  /** @param {PointerEvent} event */
  hover(event) {
    const { cluster } = this;
    if (this.gesture || !cluster.layout) return;
    const { device, inside } = this.nearest(event);
    const isOnControl = closest(event, "button, input");
    const isOnTile = inside && !isOnControl;
    const cursor = cluster.owner(device) >= 0 ? "grab" : "crosshair";
    cluster.board.style.cursor = isOnTile && !closest(event, ".mw-handle") ? cursor : "";
    if (!isOnTile || cluster.root.dataset.density === "full") cluster.tip.hide();
    else cluster.tip.show(cluster.describe(device), pointIn(event, cluster.root));
  }

  /**
   * True if a press completes a double click. The browser does not report double clicks, because the element is
   * redrawn between the presses.
   * @param {PointerEvent} event
   */
  isDoubleClick(event) {
    const { lastPress } = this;
    const isSecond =
      lastPress !== null &&
      event.timeStamp - lastPress.timeStamp < DOUBLE_MS &&
      Math.hypot(pointOf(event).x - pointOf(lastPress).x, pointOf(event).y - pointOf(lastPress).y) < DRAG_PX;
    this.lastPress = isSecond ? null : event;
    return isSecond;
  }

  /** @param {PointerEvent} event */
  doubleClick(event) {
    const { cluster } = this;
    const label = closest(event, ".mw-mesh-label");
    if (label) return cluster.rename(Number(label.dataset.mesh));
    const { device, inside } = this.nearest(event);
    if (!inside) return;
    if (cluster.layout.fold) return cluster.view.unfold(pointIn(event, cluster.board));
    if (cluster.owner(device) >= 0) cluster.rename(cluster.owner(device));
    else cluster.send("draw", { mesh: -1, devices: [device] });
  }
}
