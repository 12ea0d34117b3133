// The cluster canvas: devices as tiles, and the meshes that the user draws on them. Gestures are sent to Python,
// which edits the design; only the preview ("ghost") of a gesture in progress is computed here.

/** @import { Message } from "../kit/types" */
/** @import { ClusterModel, DevicePlace, Ghost, Layout, Mesh } from "./types" */

import { Canvas, Notice } from "../kit/canvas.js";
import { stepper } from "../kit/controls.js";
import { find, h, setStyle } from "../kit/dom.js";
import { contextMenu, receiveKeys } from "../kit/key_targets.js";
import { keepNames } from "../kit/language.js";
import { clamp, count } from "../kit/numbers.js";
import { paneSwitch } from "../kit/panes.js";
import { plainData } from "../kit/widget.js";
import { boxOf } from "../kit/zoom.js";
import { AttachedLine } from "./attached.js";
import { Differences } from "./differences.js";
import { Footer } from "./footer.js";
import { Gestures } from "./gestures.js";
import { Grid } from "./grid.js";
import { Groups } from "./groups.js";
import { Keyboard } from "./keyboard.js";
import { density, layOut } from "./layout.js";
import { Meshes } from "./meshes.js";
import { Nodes } from "./nodes.js";
import { Owners } from "./owners.js";
import { Tiler } from "./tiler.js";
import { Tiles } from "./tiles.js";
import { View, isLarge } from "./view.js";
import { ZoomBar } from "./zoom_bar.js";

/** @param {{model: ClusterModel}} args */
export const render = ({ model }) => new Cluster(model).root;

/** @extends {Canvas<ClusterModel>} */
export class Cluster extends Canvas {
  focus = 0; // the device with the tab stop, the first of its group if nodes are folded
  /** First device of a selection with the keyboard. @type {number | null} */ anchor = null;
  /** @type {Ghost | null} */ ghost = null;
  /** The input for the new name of a mesh. @type {HTMLInputElement | null} */ nameField = null;
  /** @type {Owners} */ owners;
  /** @type {Layout} */ layout;

  /** @param {ClusterModel} model */
  constructor(model) {
    super(model);
    const makeStepper = (/** @type {string} */ gesture, /** @type {string} */ label, text = label) =>
      stepper({
        label,
        text,
        onchange: (value) => this.send(gesture, { value }),
        onblocked: (reason, element) => reason && this.announceAt(element, reason),
      });
    this.steppers = {
      nodes: makeStepper("nodes", "nodes"),
      devices_per_node: makeStepper("devices_per_node", "devices per node", "devices"),
    };
    this.tiles = new Tiles(this);
    this.groups = new Groups(this);
    this.view = new View(this);
    this.zoomBar = new ZoomBar(this);
    this.nodes = new Nodes(this);
    this.meshes = new Meshes(this);
    this.differences = new Differences(this);
    this.tiler = new Tiler(this);
    this.attached = new AttachedLine(this);
    this.footer = new Footer(this);
    const { fills, layer, ghosts } = this.meshes;
    const layers = [
      this.nodes.lines,
      this.nodes.panels,
      fills,
      this.tiles.layer,
      layer,
      this.differences.layer,
      ghosts,
    ];
    this.board = h("div.mw-board", {}, ...layers);
    const bar = [
      ...Object.values(this.steppers),
      h("span.mw-grow"),
      this.tiler.element,
      this.zoomBar.element,
      this.tiler.message,
    ];
    this.root = h(
      "section.mw-canvas.mw-cluster",
      { "aria-label": "Cluster and meshes" },
      h(
        "div.mw-bar.mw-head",
        {},
        paneSwitch("cluster", (pane) => this.send("pane", { pane })),
        ...bar,
      ),
      this.board,
      this.differences.line.element,
      this.attached.element,
      this.footer.element,
    );
    this.start();
    this.tip = new Notice(this.root);
    this.gestures = new Gestures(this);
    this.keyboard = new Keyboard(this);
    receiveKeys("Cluster", () => this.tiles.focused);
    this.root.append(contextMenu("Cluster", this.board, (target) => this.commandsAt(target)));
    model.on(["nodes", "devices_per_node", "meshes", "links", "palette", "selected", "limits"], () => this.onchange());
    model.on("flags", () => this.redraw());
    model.on("places", () => this.layout && this.tiles.draw());
    this.tiler.update();
    this.tiler.try();
  }

  remove() {
    super.remove();
    this.gestures.end();
    this.tiler.remove();
  }

  // ── messages from Python ──

  onchange() {
    if (this.gestures.gesture) this.cancel();
    this.ghost = null;
    this.anchor = null;
    this.redraw();
    this.tiler.update();
    this.tiler.trySoon();
  }

  /** @param {Message} message */
  receive(message) {
    const { type, gesture, refused } = message;
    if (type === "tile") {
      this.tiler.onTried(message);
    } else if (type === "focus") {
      requestAnimationFrame(() => this.tiles.focused?.focus({ preventScroll: true }));
    } else if (type === "answered" && gesture !== "try_tile" && gesture !== "preview_axes") {
      this.steppers[/** @type {"nodes" | "devices_per_node"} */ (gesture)]?.acknowledge();
      if (!this.gestures.gesture) this.ghost = null; // otherwise the message belongs to the next gesture
      if (gesture === "tile") this.tiler.onTiled();
      if (refused) this.announce(refused);
      this.redraw();
    }
  }

  // ── the design ──

  get grid() {
    return new Grid(this.model.nodes, this.model.devices_per_node);
  }

  get count() {
    return this.model.nodes * this.model.devices_per_node;
  }

  get isLarge() {
    return isLarge(this.model.nodes, this.model.devices_per_node);
  }

  /** @returns {Mesh[]} */
  get meshList() {
    return plainData(this.model, "meshes");
  }

  /** The rank of the mesh that holds a device, -1 for none. @param {number} device */
  owner(device) {
    return this.owners.rank(device);
  }

  /** The rank of the mesh under the focus, -1 for none: in a group, the selected mesh or the first. */
  get focusedRank() {
    if (!this.layout.fold) return this.owner(this.focus);
    const ranks = this.groups.ranks(this.focus);
    return ranks.includes(this.model.selected) ? this.model.selected : (ranks[0] ?? -1);
  }

  /** The first device of the tile that shows a device. @param {number} device */
  cell(device) {
    const [node] = this.grid.at(device);
    return this.layout.fold ? this.grid.device(this.groups.range(node)[0], 0) : device;
  }

  /** The devices of the tiles between two devices. @param {number} a @param {number} b */
  devicesBetween(a, b) {
    return (this.layout.fold ? this.groups : this.grid).devicesBetween(a, b);
  }

  /** The places of the devices of the mesh whose groups are shown, by device. */
  get places() {
    /** @type {DevicePlace[]} */
    const places = plainData(this.model, "places");
    return new Map(places.map((place) => [place[0], place]));
  }

  /** @param {number} device */
  describe(device) {
    if (this.layout.fold) return this.groups.describe(device);
    const [node] = this.grid.at(device);
    const rank = this.owner(device);
    const mesh = this.meshList[rank];
    const indices = this.places.get(device)?.[2];
    const use = mesh ? [`mesh ${mesh.name}, rank ${rank}`, ...(indices ? [indices] : [])].join(", ") : "unused";
    const state = this.attached.words(node);
    return `Device ${device}, node ${node}, ${use}${state && `, ${state}`}`;
  }

  // ── drawing ──

  draw() {
    const { nodes, devices_per_node: perNode } = this.model;
    const { clientWidth: width, clientHeight: height } = this.board;
    const { grid, meshList: meshes } = this;
    keepNames(meshes.map(({ name }) => name));
    if (!width || !height) return;
    if (this.owners?.meshes !== meshes || !this.owners.grid.equals(grid)) this.owners = new Owners(grid, meshes);
    this.layout = this.isLarge ? this.view.layout : layOut(width, height, nodes, perNode);
    this.root.dataset.density = density(this.layout);
    this.root.dataset.wide = String(width > 640);
    this.root.toggleAttribute("data-large", this.isLarge);
    this.focus = this.cell(clamp(this.focus, 0, this.count - 1));
    this.drawSteppers();
    this.nodes.draw();
    this.tiles.draw();
    this.meshes.draw();
    this.differences.draw();
    this.footer.draw();
    this.attached.draw();
    this.zoomBar.draw();
  }

  drawSteppers() {
    const { nodes, devices_per_node: perNode, limits } = this.model;
    const limit = (/** @type {number} */ now, /** @type {number} */ most, /** @type {number} */ each) => {
      const fitting = Math.min(most, Math.floor(limits.devices / each));
      return { least: 1, most: Math.max(now, fitting) };
    };
    const most = `A cluster has at most ${limits.devices} devices`;
    this.steppers.nodes.set(nodes, {
      ...limit(nodes, limits.nodes, perNode),
      more: `${most}, on at most ${limits.nodes} nodes`,
    });
    this.steppers.devices_per_node.set(perNode, {
      ...limit(perNode, limits.devices_per_node, nodes),
      more: `${most}, at most ${limits.devices_per_node} on each node`,
    });
  }

  // ── gestures of the pointer and the keyboard ──

  /**
   * The preview of a mesh. Only overlaps with other meshes are checked here; Python checks the rest.
   * @param {number[]} devices @param {number} rank
   */
  makeGhost(devices, rank) {
    const taken = devices.find((device) => this.owner(device) >= 0 && this.owner(device) !== rank);
    if (taken !== undefined) {
      const owner = this.meshList[this.owner(taken)];
      return { devices, rank, ok: false, words: `Device ${taken} belongs to mesh ${owner.name}` };
    }
    const box = this.grid.rectangle(devices);
    const shape = box && devices.length > 1 ? ` (${count(box.n1 - box.n0 + 1, "node")} × ${box.c1 - box.c0 + 1})` : "";
    const name = rank >= 0 ? `Mesh ${this.meshList[rank].name}` : "New mesh";
    return { devices, rank, ok: true, words: `${name}: ${count(devices.length, "device")}${shape}` };
  }

  /** @param {Ghost | null} ghost */
  showGhost(ghost) {
    this.ghost = ghost;
    if (ghost) this.notice.show(ghost.words, this.pointer, ghost.ok ? "info" : "error");
    else this.notice.hide();
    this.redraw();
  }

  /** @param {Ghost} ghost */
  announceTaken({ words }) {
    this.announce(`${words}; a device can be in one mesh only`);
  }

  cancel() {
    this.gestures.end();
    this.anchor = null;
    this.showGhost(null);
  }

  /**
   * Move the focus to a device or mesh, and return the commands for it. The devices that are selected stay so.
   * @param {HTMLElement} target
   */
  commandsAt(target) {
    const { device, mesh } = closestData(target);
    if (device === undefined && mesh === undefined) return [];
    const at = Number(device ?? this.meshList[Number(mesh)].devices[0]);
    this.gestures.end();
    if (!this.ghost?.devices.includes(at)) this.cancel();
    this.setFocus(this.cell(at));
    const rank = mesh === undefined ? this.focusedRank : Number(mesh);
    this.select(rank);
    return this.model.commands.filter(({ keys }) => (keys === "Enter") === rank < 0);
  }

  /** @param {number} rank */
  select(rank) {
    if (this.model.selected !== rank) this.model.selected = rank;
  }

  /** @param {number} device */
  setFocus(device) {
    if (this.focus === device) return;
    this.tiles.focused?.setAttribute("tabindex", "-1");
    this.focus = device;
    this.tiles.focused?.setAttribute("tabindex", "0");
  }

  /** Bring the tile of a device into view, and move the keyboard there. @param {number} device */
  goTo(device) {
    this.setFocus(this.cell(device));
    if (this.isLarge) this.view.reveal(this.focus);
    this.tiles.draw();
    this.tiles.focused?.focus({ preventScroll: true });
  }

  pointAtFocus() {
    if (this.tiles.focused) this.pointAt(this.tiles.focused);
  }

  /** Replace the name of a mesh by a text field. @param {number} rank */
  rename(rank) {
    const mesh = this.meshList[rank];
    const send = (/** @type {string} */ name) => this.send("rename", { mesh: rank, name });
    if (mesh) this.edit(rank, `Name of mesh ${mesh.name}`, mesh.name, { maxlength: this.model.limits.name }, send);
  }

  /** Replace the name of a mesh by a text field with its devices in the order of its axes. @param {number} rank */
  orderDevices(rank) {
    const { name, devices } = this.meshList[rank];
    const send = (/** @type {string} */ text) => this.send("devices", { mesh: rank, text });
    this.edit(rank, `Devices of mesh ${name}, row by row of its axes`, devices.join(" "), { "data-wide": true }, send);
  }

  /**
   * Show a text field over the name of a mesh. Enter commits its text, Escape cancels.
   * @param {number} rank @param {string} label @param {string} value @param {Record<string, unknown>} attributes
   * @param {(text: string) => void} commit
   */
  edit(rank, label, value, attributes, commit) {
    const mesh = this.meshList[rank];
    const place = find(this.meshes.layer, `.mw-mesh-label[data-mesh="${rank}"]`) ?? this.tiles.focused;
    if (!place || this.nameField) return;
    const box = boxOf(place);
    const board = boxOf(this.board);
    const finish = (/** @type {boolean} */ commits) => {
      if (this.nameField !== field) return;
      this.nameField = null;
      const text = field.value;
      field.remove();
      if (commits && text !== value) commit(text);
      this.tiles.at(mesh.devices[0])?.focus({ preventScroll: true });
      this.redraw();
    };
    const field = h("input.mw-rename", {
      "aria-label": label,
      title: label,
      value,
      ...attributes,
      spellcheck: "false",
      onkeydown: (event) => {
        event.stopPropagation();
        if (event.key === "Enter" || event.key === "Escape") finish(event.key === "Enter");
      },
      onblur: () => finish(true),
    });
    this.nameField = field;
    this.board.append(field);
    const left = clamp(box.left - board.left, 0, Math.max(0, board.width - field.offsetWidth));
    setStyle(field, { left: `${left}px`, top: `${box.top - board.top - 1}px` });
    field.focus();
    field.select();
  }
}

/** The device or the mesh that an element belongs to. @param {HTMLElement} target @returns {DOMStringMap} */
const closestData = (target) =>
  /** @type {HTMLElement | null} */ (target.closest("[data-device], [data-mesh]"))?.dataset ?? {};
