// The cluster: devices as tiles, and meshes drawn on them by hand. Gestures go to Python as
// intentions; what is shown while one is in flight is a ghost that knows the same geometry.

import { Drawing, Notice, h, meshColour, stepper } from "../kit/canvas.js";
import { clamp, count } from "../kit/numbers.js";
import { paneSwitch } from "../kit/panes.js";
import { Foot } from "./footer.js";
import { Hand } from "./gestures.js";
import { Grid } from "./grid.js";
import { Keys } from "./keyboard.js";
import { density, layOut, px } from "./layout.js";
import { Meshes } from "./meshes.js";
import { Nodes } from "./nodes.js";
import { Tiler } from "./tiler.js";

export const render = ({ model }) => new Cluster(model).root;

class Cluster extends Drawing {
  constructor(model) {
    super(model);
    this.focus = 0; // the device that takes the keyboard
    this.anchor = null; // where a keyboard selection began
    this.ghost = null; // what a gesture would make: { devices, ok, words, rank }
    this.tiles = [];
    this.build();
    model.on(["nodes", "devices_per_node", "meshes", "links", "palette", "selected", "limits"], () => this.arrived());
    this.tiler.suggest();
    this.tiler.try();
  }

  remove() {
    super.remove();
    this.hand.end();
    this.tiler.remove();
  }

  // ── elements that stay ──

  build() {
    const number = (label, one, gesture) =>
      stepper({
        label,
        one,
        onchange: (value) => this.send(gesture, { value }),
        onrefuse: (reason, element) => reason && this.sayAt(element, reason),
      });
    this.steppers = {
      nodes: number("nodes", "node", "nodes"),
      devices_per_node: number("devices", "device a node", "devices_per_node"),
    };
    this.tileLayer = h("div", {
      class: "mw-layer",
      role: "grid",
      "aria-label": "devices: arrows move, Shift with arrows selects, Enter draws a mesh",
    });
    this.nodes = new Nodes(this);
    this.meshes = new Meshes(this);
    this.tiler = new Tiler(this);
    this.foot = new Foot(this);
    this.board = h(
      "div",
      { class: "mw-board" },
      this.nodes.lines,
      this.nodes.panels,
      this.tileLayer,
      this.meshes.layer,
      this.meshes.ghosts,
    );
    this.root = h(
      "section",
      { class: "mw-canvas mw-cluster", "aria-label": "Cluster and meshes" },
      h(
        "div",
        { class: "mw-bar mw-head" },
        paneSwitch("cluster", (pane) => this.send("pane", { pane })),
        ...Object.values(this.steppers),
        h("span", { class: "mw-grow" }),
        this.tiler.element,
        this.tiler.words,
      ),
      this.board,
      this.foot.element,
    );
    this.start();
    this.tip = new Notice(this.root);
    this.hand = new Hand(this);
    this.keys = new Keys(this);
  }

  // ── Python ──

  arrived() {
    if (this.hand.gesture) this.cancel();
    this.ghost = null;
    this.anchor = null;
    this.redraw();
    this.tiler.suggest();
    this.tiler.trySoon();
  }

  told(message) {
    if (message.type === "tile") {
      this.tiler.told(message);
    } else if (message.type === "focus") {
      requestAnimationFrame(() => this.tiles[this.focus]?.focus({ preventScroll: true }));
    } else if (message.type === "answered" && message.gesture !== "try_tile") {
      this.steppers[message.gesture]?.answered();
      if (!this.hand.gesture) this.ghost = null; // else it is of the next one already
      if (message.refused) this.say(message.refused);
      this.redraw();
    }
  }

  // ── the document as drawn ──

  get grid() {
    return new Grid(this.model.nodes, this.model.devices_per_node);
  }

  get count() {
    return this.model.nodes * this.model.devices_per_node;
  }

  /** The rank of the mesh that holds a device, -1 for none. */
  owner(device) {
    return this.owners.get(device) ?? -1;
  }

  describe(device) {
    const [node] = this.grid.at(device);
    const mesh = this.model.meshes[this.owner(device)];
    return `device ${device}, node ${node}, ${mesh ? `mesh ${mesh.name}, rank ${this.owner(device)}` : "unused"}`;
  }

  // ── drawing ──

  draw() {
    const { nodes, devices_per_node: perNode, meshes, limits } = this.model;
    const { clientWidth: width, clientHeight: height } = this.board;
    if (!width || !height) return;
    this.owners = new Map(meshes.flatMap((mesh, rank) => mesh.devices.map((device) => [device, rank])));
    this.layout = layOut(width, height, nodes, perNode);
    this.root.dataset.density = density(this.layout);
    this.root.dataset.wide = String(width > 640);
    this.focus = clamp(this.focus, 0, this.count - 1);
    for (const [name, element] of Object.entries(this.steppers))
      element.set(this.model[name], { least: 1, most: Math.max(this.model[name], limits[name]) });
    this.nodes.draw();
    this.drawTiles();
    this.meshes.draw();
    this.foot.draw();
  }

  drawTiles() {
    const { tiles } = this.layout;
    while (this.tiles.length > tiles.length) this.tiles.pop().remove();
    while (this.tiles.length < tiles.length) {
      const device = this.tiles.length;
      const tile = h(
        "div",
        { class: "mw-device", role: "gridcell", "data-device": device },
        h("span", { class: "mw-number-of" }, String(device)),
        h("span", { class: "mw-letter" }),
      );
      tile.addEventListener("focus", () => this.focused(device));
      this.tiles.push(tile);
      this.tileLayer.append(tile);
    }
    tiles.forEach((box, device) => this.drawTile(this.tiles[device], box, device));
  }

  drawTile(tile, box, device) {
    const rank = this.owner(device);
    const mesh = this.model.meshes[rank];
    for (const [key, value] of Object.entries(px(box))) tile.style.setProperty(key, value);
    tile.style.setProperty("--c", mesh ? meshColour(this.model.palette, rank) : "");
    tile.classList.toggle("mw-used", Boolean(mesh));
    tile.classList.toggle("mw-first", Boolean(mesh) && device === Math.min(...mesh.devices));
    tile.tabIndex = device === this.focus ? 0 : -1;
    tile.lastChild.textContent = mesh && mesh.devices.length > 1 && mesh.name.length < 4 ? mesh.name : "";
    tile.setAttribute("aria-label", this.describe(device));
    tile.setAttribute("aria-selected", String(this.anchor !== null && (this.ghost?.devices.includes(device) ?? false)));
  }

  // ── what the hand and the keys share ──

  /** A ghost with its verdict in words. Python has the last word when it is let go. */
  judge(devices, rank) {
    const taken = devices.find((device) => this.owner(device) >= 0 && this.owner(device) !== rank);
    if (taken !== undefined) {
      return {
        devices,
        rank,
        ok: false,
        words: `device ${taken} belongs to mesh ${this.model.meshes[this.owner(taken)].name}`,
      };
    }
    const box = this.grid.rectangle(devices);
    const shape = box && devices.length > 1 ? ` (${count(box.n1 - box.n0 + 1, "node")} × ${box.c1 - box.c0 + 1})` : "";
    const name = rank >= 0 ? `mesh ${this.model.meshes[rank].name}` : "new mesh";
    return { devices, rank, ok: true, words: `${name}: ${count(devices.length, "device")}${shape}` };
  }

  /** Show a ghost and what it would be, or none. */
  show(ghost) {
    this.ghost = ghost;
    if (ghost) this.notice.show(ghost.words, this.pointer.x, this.pointer.y, ghost.ok ? "tell" : "no");
    else this.notice.hide();
    this.redraw();
  }

  cancel() {
    this.hand.end();
    this.anchor = null;
    this.show(null);
  }

  select(rank) {
    if (this.model.selected !== rank) this.model.selected = rank;
  }

  focused(device) {
    if (this.focus === device) return;
    this.tiles[this.focus]?.setAttribute("tabindex", "-1");
    this.focus = device;
    this.tiles[device].tabIndex = 0;
  }

  /** A field in place of the mesh's name: Enter keeps, Escape does not. */
  rename(rank) {
    const mesh = this.model.meshes[rank];
    const label = this.meshes.layer.querySelector(`.mw-mesh-label[data-mesh="${rank}"]`);
    if (!mesh || !label || this.editing) return;
    const box = label.getBoundingClientRect();
    const board = this.board.getBoundingClientRect();
    const left = clamp(box.left - board.left, 0, Math.max(0, board.width - 96));
    const style = { left: `${left}px`, top: `${box.top - board.top - 1}px` };
    const finish = (keep) => {
      if (this.editing !== field) return;
      this.editing = null;
      const name = field.value;
      field.remove();
      if (keep && name !== mesh.name) this.send("rename", { mesh: rank, name });
      this.tiles[mesh.devices[0]]?.focus({ preventScroll: true });
      this.redraw();
    };
    const key = (event) => {
      event.stopPropagation();
      if (event.key === "Enter" || event.key === "Escape") finish(event.key === "Enter");
    };
    const field = h("input", {
      class: "mw-rename",
      "aria-label": `name of mesh ${mesh.name}`,
      value: mesh.name,
      maxlength: this.model.limits.name,
      spellcheck: "false",
      style,
      onkeydown: key,
      onblur: () => finish(true),
    });
    this.editing = field;
    this.board.append(field);
    field.focus();
    field.select();
  }
}
