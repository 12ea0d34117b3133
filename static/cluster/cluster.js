// The cluster canvas: devices as tiles, and the meshes that the user draws on them. Gestures are sent to Python,
// which edits the design; only the preview ("ghost") of a gesture in progress is computed here.

/** @import { Message } from "../kit/types" */
/** @import { ClusterModel, DevicePlace, Ghost, Layout } from "./types" */

import { Canvas, Notice, meshColour } from "../kit/canvas.js";
import { stepper } from "../kit/controls.js";
import { find, h, setStyle } from "../kit/dom.js";
import { contextMenu, receiveKeys } from "../kit/key_targets.js";
import { keepNames } from "../kit/language.js";
import { clamp, count } from "../kit/numbers.js";
import { paneSwitch } from "../kit/panes.js";
import { boxOf } from "../kit/zoom.js";
import { Differences } from "./differences.js";
import { Footer } from "./footer.js";
import { Gestures } from "./gestures.js";
import { Grid } from "./grid.js";
import { Keyboard } from "./keyboard.js";
import { density, layOut, px } from "./layout.js";
import { Meshes } from "./meshes.js";
import { Nodes } from "./nodes.js";
import { Tiler } from "./tiler.js";

/** @param {{model: ClusterModel}} args */
export const render = ({ model }) => new Cluster(model).root;

/** @extends {Canvas<ClusterModel>} */
export class Cluster extends Canvas {
  focus = 0; // the device with the tab stop
  /** First device of a selection with the keyboard. @type {number | null} */ anchor = null;
  /** @type {Ghost | null} */ ghost = null;
  /** The input for the new name of a mesh. @type {HTMLInputElement | null} */ nameField = null;
  /** @type {HTMLElement[]} */ tiles = [];
  /** @type {Map<number, number>} */ owners = new Map(); // device: rank
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
    this.tileLayer = h("div.mw-layer", {
      role: "listbox",
      "aria-multiselectable": "true",
      "aria-label": "Devices: arrow keys move the focus, Shift with arrow keys selects, Enter draws a mesh",
    });
    this.nodes = new Nodes(this);
    this.meshes = new Meshes(this);
    this.differences = new Differences(this);
    this.tiler = new Tiler(this);
    this.footer = new Footer(this);
    const layers = [
      this.nodes.lines,
      this.nodes.panels,
      this.tileLayer,
      this.meshes.layer,
      this.differences.layer,
      this.meshes.ghosts,
    ];
    this.board = h("div.mw-board", {}, ...layers);
    const bar = [...Object.values(this.steppers), h("span.mw-grow"), this.tiler.element, this.tiler.message];
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
      this.footer.element,
    );
    this.start();
    this.tip = new Notice(this.root);
    this.gestures = new Gestures(this);
    this.keyboard = new Keyboard(this);
    receiveKeys("Cluster", () => this.tiles[this.focus]);
    this.root.append(contextMenu("Cluster", this.board, (target) => this.commandsAt(target)));
    model.on(["nodes", "devices_per_node", "meshes", "links", "palette", "selected", "limits"], () => this.onchange());
    model.on("flags", () => this.redraw());
    model.on("places", () => this.layout && this.drawTiles());
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
      requestAnimationFrame(() => this.tiles[this.focus]?.focus({ preventScroll: true }));
    } else if (type === "answered" && gesture !== "try_tile" && gesture !== "preview_axes") {
      this.steppers[/** @type {"nodes" | "devices_per_node"} */ (gesture)]?.acknowledge();
      if (!this.gestures.gesture) this.ghost = null; // otherwise the message belongs to the next gesture
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

  /** The rank of the mesh that holds a device, -1 for none. @param {number} device */
  owner(device) {
    return this.owners.get(device) ?? -1;
  }

  /** The places of the devices of the mesh whose groups are shown, by device. */
  get places() {
    return new Map(this.model.places.map((place) => [place[0], place]));
  }

  /** @param {number} device */
  describe(device) {
    const [node] = this.grid.at(device);
    const rank = this.owner(device);
    const mesh = this.model.meshes[rank];
    const indices = this.places.get(device)?.[2];
    const use = mesh ? [`mesh ${mesh.name}, rank ${rank}`, ...(indices ? [indices] : [])].join(", ") : "unused";
    return `Device ${device}, node ${node}, ${use}`;
  }

  // ── drawing ──

  draw() {
    const { nodes, devices_per_node: perNode, meshes, limits } = this.model;
    const { clientWidth: width, clientHeight: height } = this.board;
    keepNames(meshes.map(({ name }) => name));
    if (!width || !height) return;
    this.owners = new Map(meshes.flatMap((mesh, rank) => mesh.devices.map((device) => [device, rank])));
    this.layout = layOut(width, height, nodes, perNode);
    this.root.dataset.density = density(this.layout);
    this.root.dataset.wide = String(width > 640);
    this.focus = clamp(this.focus, 0, this.count - 1);
    this.steppers.nodes.set(nodes, { least: 1, most: Math.max(nodes, limits.nodes) });
    this.steppers.devices_per_node.set(perNode, { least: 1, most: Math.max(perNode, limits.devices_per_node) });
    this.nodes.draw();
    this.drawTiles();
    this.meshes.draw();
    this.differences.draw();
    this.footer.draw();
  }

  drawTiles() {
    const { tiles } = this.layout;
    const { places } = this;
    while (this.tiles.length > tiles.length) this.tiles.pop()?.remove();
    while (this.tiles.length < tiles.length) this.addTile(this.tiles.length);
    tiles.forEach((box, device) => {
      setStyle(this.tiles[device], px(box));
      this.drawTile(this.tiles[device], device, places.get(device));
    });
  }

  /** @param {number} device */
  addTile(device) {
    const tile = h(
      "div.mw-device",
      { role: "option", "data-device": device, onfocus: () => this.setFocus(device) },
      h("span.mw-number-of", {}, String(device)),
      h("span.mw-letter"),
      h("span.mw-indices"),
    );
    this.tiles.push(tile);
    this.tileLayer.append(tile);
  }

  /** @param {HTMLElement} tile @param {number} device @param {DevicePlace} [place] */
  drawTile(tile, device, place) {
    const rank = this.owner(device);
    const mesh = this.model.meshes[rank];
    const isSelected = this.anchor !== null && Boolean(this.ghost?.devices.includes(device));
    const hasName = mesh && mesh.devices.length > 1 && mesh.name.length < 4;
    tile.style.setProperty("--c", mesh ? meshColour(this.model.palette, rank) : "");
    tile.classList.toggle("mw-used", Boolean(mesh));
    tile.classList.toggle("mw-first", Boolean(mesh) && device === Math.min(...mesh.devices));
    tile.tabIndex = device === this.focus ? 0 : -1;
    tile.children[1].textContent = hasName && !place ? mesh.name : "";
    this.drawPlace(tile, place);
    tile.setAttribute("aria-label", this.describe(device));
    tile.setAttribute("aria-selected", String(isSelected));
  }

  /**
   * The indices of a device along the axes of its mesh, with a frame in the colour of its group.
   * @param {HTMLElement} tile @param {DevicePlace} [place]
   */
  drawPlace(tile, [, group, indices] = [-1, 0, ""]) {
    tile.children[2].textContent = indices;
    tile.toggleAttribute("data-group", Boolean(indices));
    tile.style.setProperty("--group", meshColour(this.model.palette, group));
  }

  // ── gestures of the pointer and the keyboard ──

  /**
   * The preview of a mesh. Only overlaps with other meshes are checked here; Python checks the rest.
   * @param {number[]} devices @param {number} rank
   */
  makeGhost(devices, rank) {
    const taken = devices.find((device) => this.owner(device) >= 0 && this.owner(device) !== rank);
    if (taken !== undefined) {
      const owner = this.model.meshes[this.owner(taken)];
      return { devices, rank, ok: false, words: `Device ${taken} belongs to mesh ${owner.name}` };
    }
    const box = this.grid.rectangle(devices);
    const shape = box && devices.length > 1 ? ` (${count(box.n1 - box.n0 + 1, "node")} × ${box.c1 - box.c0 + 1})` : "";
    const name = rank >= 0 ? `Mesh ${this.model.meshes[rank].name}` : "New mesh";
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
    const at = Number(device ?? this.model.meshes[Number(mesh)].devices[0]);
    this.gestures.end();
    if (!this.ghost?.devices.includes(at)) this.cancel();
    this.setFocus(at);
    const rank = this.owner(at);
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
    this.tiles[this.focus]?.setAttribute("tabindex", "-1");
    this.focus = device;
    this.tiles[device].tabIndex = 0;
  }

  pointAtFocus() {
    this.pointAt(this.tiles[this.focus]);
  }

  /** Replace the name of a mesh by a text field. @param {number} rank */
  rename(rank) {
    const mesh = this.model.meshes[rank];
    const send = (/** @type {string} */ name) => this.send("rename", { mesh: rank, name });
    if (mesh) this.edit(rank, `Name of mesh ${mesh.name}`, mesh.name, { maxlength: this.model.limits.name }, send);
  }

  /** Replace the name of a mesh by a text field with its devices in the order of its axes. @param {number} rank */
  orderDevices(rank) {
    const { name, devices } = this.model.meshes[rank];
    const send = (/** @type {string} */ text) => this.send("devices", { mesh: rank, text });
    this.edit(rank, `Devices of mesh ${name}, row by row of its axes`, devices.join(" "), { "data-wide": true }, send);
  }

  /**
   * Show a text field over the name of a mesh. Enter commits its text, Escape cancels.
   * @param {number} rank @param {string} label @param {string} value @param {Record<string, unknown>} attributes
   * @param {(text: string) => void} commit
   */
  edit(rank, label, value, attributes, commit) {
    const mesh = this.model.meshes[rank];
    const place = find(this.meshes.layer, `.mw-mesh-label[data-mesh="${rank}"]`);
    if (!place || this.nameField) return;
    const box = boxOf(place);
    const board = boxOf(this.board);
    const finish = (/** @type {boolean} */ commits) => {
      if (this.nameField !== field) return;
      this.nameField = null;
      const text = field.value;
      field.remove();
      if (commits && text !== value) commit(text);
      this.tiles[mesh.devices[0]]?.focus({ preventScroll: true });
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
