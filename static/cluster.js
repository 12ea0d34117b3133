// The cluster: devices as tiles, and meshes drawn on them by hand. Gestures go to Python as
// intentions; what is shown while one is in flight is a ghost that knows the same geometry.

import { Notice, button, clamp, count, followTheme, h, meshColour, openMenu, perFrame, s, send, stepper, trackPointer } from "static/canvas.js";
import { paneSwitch } from "static/panes.js";

const DRAG_PX = 4; // a press that moves less is a click
const DOUBLE_MS = 500; // between two presses, as systems have it
const TILE = { width: 112, height: 62 }; // px, at most
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const HANDLES = { nw: [0, 0], n: [0, 1], ne: [0, 2], e: [1, 2], se: [2, 2], s: [2, 1], sw: [2, 0], w: [1, 0] };

export function render({ model }) {
  const cluster = new Cluster(model);
  model.on("remove", () => cluster.remove());
  return cluster.root;
}

// ── geometry ────────────────────────────────────────────────────────────────────────────────

/** Where tiles go in a box: nodes as rows, wrapped into columns of nodes where that keeps tiles larger. */
function arrange(width, height, nodes, perNode) {
  let best = null;
  for (let columns = 1; columns <= nodes; columns++) {
    for (const headed of [true, false]) {
      const option = measure(width, height, nodes, perNode, columns, headed);
      if (!best || option.score > best.score) best = option;
    }
  }
  return best;
}

function measure(width, height, nodes, perNode, columns, headed) {
  const rows = Math.ceil(nodes / columns);
  const columnGap = 12;
  if (columns > 1) height -= 6; // for the line that joins the columns
  const columnWidth = (width - (columns - 1) * columnGap) / columns;
  const gutter = nodes > 1 ? 24 : headed ? 0 : 14;
  const rowGap = clamp(height / rows / 8, 2, 12);
  const head = headed ? 18 : 0;
  const foot = headed ? 9 : 0;
  const room = { x: (columnWidth - gutter) / perNode, y: height / rows - rowGap - head - foot };
  const pad = clamp(Math.min(room.x, room.y) / 6, 1, 8);
  const gap = clamp(Math.min(room.x, room.y) / 8, 1, 6);
  const tile = {
    width: Math.min(TILE.width, (columnWidth - gutter - 2 * pad - (perNode - 1) * gap) / perNode),
    height: Math.min(TILE.height, (height - (rows - 1) * rowGap) / rows - head - foot - 2 * pad),
  };
  const cramped = headed && (tile.height < 24 || tile.width * perNode < 110);
  const [wide, high] = [Math.min(tile.width, 2.2 * tile.height), Math.min(tile.height, 1.4 * tile.width)]; // room beyond is no use
  const worth = Math.max(0, wide) * Math.max(0, high) * Math.min(1, wide / 8, high / 8);
  const score = worth * (headed ? 1.5 : 1) * (cramped ? 0 : 1) * 0.9 ** columns;
  return { score, rows, columns, columnGap, gutter, rowGap, head, foot, pad, gap, tile, headed, nodes, perNode, width, height };
}

/** The corner and size of each node's panel and each device's tile. */
function place(layout) {
  const { rows, columns, gutter, rowGap, columnGap, head, foot, pad, gap, tile, nodes, perNode } = layout;
  const panel = { width: perNode * tile.width + (perNode - 1) * gap + 2 * pad, height: head + foot + tile.height + 2 * pad };
  const total = {
    width: columns * (gutter + panel.width) + (columns - 1) * columnGap,
    height: rows * panel.height + (rows - 1) * rowGap,
  };
  const left = Math.max(0, (layout.width - total.width) / 2);
  const top = Math.max(columns > 1 ? 6 : 0, (layout.height - total.height) / 2);
  const panels = Array.from({ length: nodes }, (_, node) => ({
    x: left + Math.floor(node / rows) * (gutter + panel.width + columnGap) + gutter,
    y: top + (node % rows) * (panel.height + rowGap),
    ...panel,
  }));
  const tiles = Array.from({ length: nodes * perNode }, (_, device) => {
    const { x, y } = panels[Math.floor(device / perNode)];
    return { x: x + pad + (device % perNode) * (tile.width + gap), y: y + head + pad, ...tile };
  });
  return { ...layout, panels, tiles };
}

/** How much can be written: full, some or none. */
function density({ tile }) {
  if (tile.width >= 44 && tile.height >= 36) return "full";
  return tile.width >= 18 && tile.height >= 13 ? "some" : "none";
}

function around(boxes) {
  const x = Math.min(...boxes.map((box) => box.x));
  const y = Math.min(...boxes.map((box) => box.y));
  return {
    x,
    y,
    width: Math.max(...boxes.map((box) => box.x + box.width)) - x,
    height: Math.max(...boxes.map((box) => box.y + box.height)) - y,
  };
}

// ── the widget ──────────────────────────────────────────────────────────────────────────────

class Cluster {
  constructor(model) {
    this.model = model;
    this.focus = 0; // the device that takes the keyboard
    this.anchor = null; // where a keyboard selection began
    this.gesture = null; // a press in flight
    this.ghost = null; // what it would make: { devices, ok, words, rank }
    this.tiles = [];
    this.pointer = { x: 40, y: 40 };
    this.build();
    this.redraw = perFrame(() => this.draw());
    model.on(["nodes", "devices_per_node", "meshes", "links", "palette", "selected", "limits"], () => this.arrived());
    model.on("msg:custom", (message) => this.told(message));
    this.observer = new ResizeObserver(() => this.redraw());
    this.observer.observe(this.board);
    requestAnimationFrame(() => (this.unfollow = followTheme(this.root)));
    this.suggest();
    this.tryTile();
  }

  /** The tiling is that of the open design, where its meshes differ that of the first; but never over what is typed. */
  suggest() {
    if (this.typed && this.sizes.includes(this.root.getRootNode().activeElement)) return;
    const { meshes } = this.model;
    const sizes = [Math.max(1, meshes.length), meshes[0]?.dp ?? 1, meshes[0]?.tp ?? 1];
    this.sizes.forEach((field, place) => (field.value = sizes[place]));
    this.typed = false;
  }

  remove() {
    this.observer.disconnect();
    this.unfollow?.();
    this.redraw.cancel();
    this.unlisten?.();
    clearTimeout(this.tileTimer);
  }

  // ── elements that stay ──

  build() {
    const refuse = (reason, element) => reason && this.sayAt(element, reason);
    this.nodes = stepper({ label: "nodes", one: "node", onchange: (value) => this.send("nodes", { value }), onrefuse: refuse });
    this.perNode = stepper({
      label: "devices",
      one: "device a node",
      onchange: (value) => this.send("devices_per_node", { value }),
      onrefuse: refuse,
    });
    this.links = s("svg", { class: "mw-links", "aria-hidden": "true" });
    this.panelLayer = h("div", { class: "mw-layer" });
    this.tileLayer = h("div", { class: "mw-layer", role: "grid", "aria-label": "devices: arrows move, Shift with arrows selects, Enter draws a mesh" });
    this.meshLayer = h("div", { class: "mw-layer mw-through" });
    this.ghostLayer = h("div", { class: "mw-layer mw-through" });
    this.board = h("div", { class: "mw-board" }, this.links, this.panelLayer, this.tileLayer, this.meshLayer, this.ghostLayer);
    this.board.addEventListener("pointerdown", (event) => this.press(event));
    this.board.addEventListener("pointermove", (event) => this.hover(event));
    this.board.addEventListener("pointerleave", () => this.gesture || this.tip.hide());
    this.board.addEventListener("keydown", (event) => this.key(event));
    this.legend = h("div", { class: "mw-legend mw-quiet" });
    this.inspector = h("div", { class: "mw-inspector" });
    this.tileWords = h("div", { class: "mw-tile-words mw-quiet", "aria-live": "polite" });
    this.root = h(
      "section",
      { class: "mw-canvas mw-cluster", "aria-label": "Cluster and meshes" },
      h("div", { class: "mw-bar mw-head" }, paneSwitch("cluster", (pane) => this.send("pane", { pane })), this.nodes, this.perNode, h("span", { class: "mw-grow" }), this.buildTiler(), this.tileWords),
      this.board,
      h("div", { class: "mw-bar mw-foot" }, this.legend, h("span", { class: "mw-grow" }), this.inspector),
    );
    this.notice = new Notice(this.root);
    this.tip = new Notice(this.root);
    this.root.addEventListener("pointermove", (event) => (this.pointer = this.within(event)), true);
    this.root.mw = this;
  }

  /** Three small numbers and what they will do, in words that Python finds. */
  buildTiler() {
    this.sizes = ["pp", "dp", "tp"].map((axis) => {
      const title = { pp: "meshes in the pipeline", dp: "data parallel in a mesh", tp: "tensor parallel in a mesh" }[axis];
      const field = h("input", { class: "mw-number", type: "number", min: 1, step: 1, value: 1, "aria-label": `${axis}: ${title}`, title });
      field.addEventListener("input", () => {
        this.typed = true;
        this.tryTile();
      });
      field.atRest = () => !this.typed; // then Ctrl+Z takes back an edit of the design
      field.addEventListener("keydown", (event) => {
        if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
        if (event.key === "Enter") this.tiler.click();
        if (event.key === "Escape") this.giveUpTiling();
      });
      return field;
    });
    this.tiler = button("Tile", { kind: "mw-tile-button", onclick: () => this.tile() });
    this.tiler.refuse = (reason) => this.sayAt(this.tiler, reason);
    const boxes = this.sizes.flatMap((field, place) => [
      place ? h("span", { class: "mw-quiet" }, "×") : null,
      h("label", { class: "mw-size" }, h("span", {}, ["pp", "dp", "tp"][place]), field),
    ]);
    return h("div", { class: "mw-tiler", role: "group", "aria-label": "Tile the cluster" }, ...boxes, this.tiler);
  }

  tiling() {
    const [pp, dp, tp] = this.sizes.map((field) => Number.parseInt(field.value, 10) || 0);
    return { pp, dp, tp };
  }

  tryTile() {
    this.send("try_tile", this.tiling());
  }

  tile() {
    this.typed = false; // the design's, as soon as Python has answered
    this.send("tile", this.tiling());
  }

  giveUpTiling() {
    this.typed = false;
    this.suggest();
    this.tryTile();
  }

  // ── Python ──

  send(type, gesture) {
    send(this.model, { type, ...gesture });
  }

  arrived() {
    if (this.gesture) this.cancel();
    this.ghost = null;
    this.anchor = null;
    this.redraw();
    this.suggest();
    this.tryTileSoon();
  }

  tryTileSoon() {
    clearTimeout(this.tileTimer);
    this.tileTimer = setTimeout(() => this.tryTile(), 60);
  }

  told(message) {
    if (message.type === "tile") {
      this.tiler.allow(message.possible, message.words);
      this.tileWords.textContent = message.words;
      this.tileWords.title = message.words;
      this.tileWords.dataset.kind = message.possible ? "tell" : "no";
    } else if (message.type === "focus") {
      requestAnimationFrame(() => this.tiles[this.focus]?.focus({ preventScroll: true }));
    } else if (message.type === "answered" && message.gesture !== "try_tile") {
      ({ nodes: this.nodes, devices_per_node: this.perNode })[message.gesture]?.answered();
      this.ghost = null;
      if (message.refused) this.notice.say(message.refused, this.pointer.x, this.pointer.y);
      this.redraw();
    }
  }

  // ── the document as drawn ──

  get count() {
    return this.model.nodes * this.model.devices_per_node;
  }

  owner(device) {
    return this.owners.get(device) ?? -1;
  }

  at(device) {
    const per = this.model.devices_per_node;
    return [Math.floor(device / per), device % per];
  }

  device(node, column) {
    return node * this.model.devices_per_node + column;
  }

  /** Row-major devices of the rectangle between two devices. */
  between(a, b) {
    const [[n0, c0], [n1, c1]] = [this.at(a), this.at(b)];
    const devices = [];
    for (let node = Math.min(n0, n1); node <= Math.max(n0, n1); node++) {
      for (let column = Math.min(c0, c1); column <= Math.max(c0, c1); column++) devices.push(this.device(node, column));
    }
    return devices;
  }

  /** Opposite corners of a mesh, or null where its devices are no rectangle. */
  corners(devices) {
    const places = devices.map((device) => this.at(device));
    const [rows, columns] = [places.map(([node]) => node), places.map(([, column]) => column)];
    const [n0, n1, c0, c1] = [Math.min(...rows), Math.max(...rows), Math.min(...columns), Math.max(...columns)];
    return (n1 - n0 + 1) * (c1 - c0 + 1) === devices.length ? { n0, n1, c0, c1 } : null;
  }

  /** Boxes that cover devices: one for a rectangle, one more for each wrap, one a run otherwise. */
  fragments(devices) {
    const { rows, tiles } = this.layout;
    const solid = this.corners(devices) !== null;
    const groups = new Map();
    let last = -2;
    let run = 0;
    for (const device of [...devices].sort((a, b) => a - b)) {
      const [node] = this.at(device);
      if (device !== last + 1) run++;
      last = device;
      const key = solid ? Math.floor(node / rows) : `${node}/${run}`;
      groups.set(key, [...(groups.get(key) ?? []), tiles[device]]);
    }
    return [...groups.values()].map(around);
  }

  // ── drawing ──

  draw() {
    const { nodes, devices_per_node: perNode, meshes, limits } = this.model;
    const { clientWidth: width, clientHeight: height } = this.board;
    if (!width || !height) return;
    this.owners = new Map(meshes.flatMap((mesh, rank) => mesh.devices.map((device) => [device, rank])));
    this.layout = place(arrange(width, height, nodes, perNode));
    this.root.dataset.density = density(this.layout);
    this.root.dataset.wide = String(width > 640);
    this.focus = clamp(this.focus, 0, this.count - 1);
    this.nodes.set(nodes, { least: 1, most: Math.max(nodes, limits.nodes) });
    this.perNode.set(perNode, { least: 1, most: Math.max(perNode, limits.devices_per_node) });
    this.drawPanels();
    this.drawTiles();
    this.drawMeshes();
    this.drawGhost();
    this.drawFoot();
  }

  drawPanels() {
    const { panels, headed, head, foot, gutter, tile, tiles, pad, rows, rowGap } = this.layout;
    const { intra, inter } = this.model.links;
    const perNode = this.model.devices_per_node;
    const lines = [];
    const boxes = panels.map((panel, node) => {
      const box = h("div", { class: "mw-panel", style: px(panel) });
      if (headed) {
        const rate = intra && perNode > 1 && panel.width > 120 && !this.bridged(node) && (panel.width > 190 ? intra : short(intra));
        box.append(h("div", { class: "mw-panel-head" }, h("span", {}, `node ${node}`), rate ? h("span", { class: "mw-rate" }, rate) : ""));
        if (perNode > 1) lines.push(bus(tiles, node, perNode, panel.y + head + 2 * pad + tile.height + foot / 2 - 3, pad));
      }
      return box;
    });
    if (panels.length > 1) {
      panels.forEach((panel, node) => {
        const x = panel.x - 8;
        const y = panel.y + panel.height / 2;
        const last = node % rows === rows - 1 || node === panels.length - 1;
        lines.push(s("path", { class: "mw-link", d: `M${x} ${y}H${panel.x}` }));
        if (!last) lines.push(s("path", { class: "mw-link", d: `M${x} ${y}V${y + panel.height + rowGap}` }));
        if (node % rows === 0 && node > 0) lines.push(s("path", { class: "mw-link", d: hop(panels[node - rows], panel) }));
        if (!headed && panel.height > 8) {
          lines.push(s("text", { class: "mw-node-number", x: x - 3, y: y + 3, "text-anchor": "end" }, String(node)));
        }
      });
    }
    const label = headed && inter ? this.interLabel(inter) : [];
    this.written = { intra: headed && panels[0].width > 120, inter: label.length > 0 };
    lines.push(...label);
    this.panelLayer.replaceChildren(...boxes);
    this.links.replaceChildren(...lines);
    this.links.setAttribute("width", this.layout.width);
    this.links.setAttribute("height", this.layout.height);
  }

  /** Whether a mesh crosses the head of a node on its right, where the rate is written. */
  bridged(node) {
    const per = this.model.devices_per_node;
    if (node % this.layout.rows === 0) return false;
    for (let column = Math.floor(per / 2); column < per; column++) {
      const rank = this.owner(this.device(node, column));
      if (rank >= 0 && rank === this.owner(this.device(node - 1, column))) return true;
    }
    return false;
  }

  /** The bandwidth between nodes, written along its line. */
  interLabel(text) {
    const { panels, rows } = this.layout;
    const column = panels.slice(0, rows);
    const [top, bottom] = [column[0], column.at(-1)];
    const middle = (top.y + bottom.y + bottom.height) / 2;
    const span = bottom.y + bottom.height - top.y;
    const shown = text.length * 5.6 < span ? text : short(text);
    if (rows < 2 || shown.length * 5.6 > span) return [];
    const x = top.x - 15;
    return [s("text", { class: "mw-rate", "text-anchor": "middle", transform: `translate(${x} ${middle}) rotate(-90)` }, shown)];
  }

  drawTiles() {
    const { tiles } = this.layout;
    while (this.tiles.length > tiles.length) this.tiles.pop().remove();
    while (this.tiles.length < tiles.length) {
      const device = this.tiles.length;
      const tile = h("div", { class: "mw-device", role: "gridcell", "data-device": device }, h("span", { class: "mw-number-of" }, String(device)), h("span", { class: "mw-letter" }));
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

  describe(device) {
    const [node] = this.at(device);
    const mesh = this.model.meshes[this.owner(device)];
    return `device ${device}, node ${node}, ${mesh ? `mesh ${mesh.name}, rank ${this.owner(device)}` : "unused"}`;
  }

  drawMeshes() {
    if (this.editing) return;
    const moving = this.gesture?.started && this.gesture.kind !== "draw" ? this.gesture.rank : -1;
    const pieces = this.model.meshes.flatMap((mesh, rank) => this.drawMesh(mesh, rank, rank === moving));
    this.meshLayer.replaceChildren(...pieces);
  }

  drawMesh(mesh, rank, moving) {
    const fragments = this.fragments(mesh.devices).map((box) => grow(box, Math.min(2.5, this.layout.gap / 2 + 0.5)));
    const selected = rank === this.model.selected;
    const pieces = fragments.map((box) => {
      const piece = h("div", { class: "mw-mesh", "data-mesh": rank, style: { ...px(box), "--c": meshColour(this.model.palette, rank) } });
      piece.classList.toggle("mw-selected", selected);
      piece.classList.toggle("mw-moving", moving);
      return piece;
    });
    pieces[0].append(this.meshLabel(mesh, rank, fragments[0]));
    if (selected && !moving) this.drawHandles(pieces, mesh, rank, fragments);
    return pieces;
  }

  meshLabel(mesh, rank, box) {
    const roomy = box.width > 26 + 7 * mesh.name.length && box.height > 15;
    const label = h("div", { class: roomy ? "mw-mesh-label mw-named" : "mw-mesh-label", "data-mesh": rank, title: `rank ${rank} of the pipeline, mesh ${mesh.name}: double click to rename` });
    label.style.maxWidth = `${box.width - 6}px`;
    label.classList.toggle("mw-crowded", this.crowded(mesh, box));
    label.append(h("b", { class: "mw-rank" }, String(rank)), h("span", { class: "mw-name" }, mesh.name));
    if (mesh.devices.length > 1 && box.width > 120 + 7 * mesh.name.length + (rank === this.model.selected ? 22 : 0) && this.root.dataset.density === "full") {
      label.append(this.axesChip(mesh, rank));
    }
    return label;
  }

  /** Whether ranks are wider than their tiles and this is not one of the few that are written. */
  crowded({ devices }, box) {
    const needed = 3 + 4.6 * String(this.model.meshes.length - 1).length;
    return this.root.dataset.density === "none" && box.width < needed && this.at(devices[0])[1] % 4 > 0;
  }

  axesChip(mesh, rank) {
    const text = `dp ${mesh.dp} × tp ${mesh.tp}`;
    const chip = h("button", { class: "mw-chip", type: "button", "aria-label": `axes of mesh ${mesh.name}: ${text}`, title: "Use its devices in another way" }, text);
    chip.addEventListener("click", () => this.chooseAxes(chip, mesh, rank));
    return chip;
  }

  chooseAxes(anchor, mesh, rank) {
    const items = mesh.ways.map(([dp, tp]) => ({
      text: `dp ${dp} × tp ${tp}`,
      checked: dp === mesh.dp && tp === mesh.tp,
      choose: () => this.send("axes", { mesh: rank, dp, tp }),
    }));
    openMenu(this.root, anchor, `axes of mesh ${mesh.name}`, items);
  }

  /** Eight handles where there is room, the corners otherwise; a wrapped mesh has them at its ends. */
  drawHandles(pieces, mesh, rank, fragments) {
    const whole = this.corners(mesh.devices);
    if (whole) {
      const small = Math.min(fragments[0].width, fragments[0].height) < 40;
      for (const [name, [row, column]] of Object.entries(HANDLES)) {
        if ((small && name.length === 1) || (pieces.length > 1 && row === 1)) continue;
        const piece = row === 2 ? pieces.at(-1) : pieces[0];
        piece.append(h("span", { class: "mw-handle", "data-handle": name, "data-mesh": rank, style: { left: `${column * 50}%`, top: `${row * 50}%`, cursor: `${name}-resize` } }));
      }
    }
    const close = h("button", { class: "mw-close", type: "button", "aria-label": `delete mesh ${mesh.name}`, title: "Delete (Del)" }, "×");
    close.addEventListener("click", () => this.send("delete", { mesh: rank }));
    if (this.root.dataset.density === "full") pieces[0].append(close);
  }

  drawGhost() {
    this.ghostLayer.replaceChildren();
    if (!this.ghost?.devices.length) return;
    const { devices, ok, rank } = this.ghost;
    const next = rank >= 0 ? rank : this.model.meshes.length;
    for (const box of this.fragments(devices)) {
      const style = { ...px(grow(box, 3)), "--c": meshColour(this.model.palette, next) };
      this.ghostLayer.append(h("div", { class: "mw-ghost", "data-ok": String(ok), style }));
    }
  }

  drawFoot() {
    const unused = this.count - this.owners.size;
    const { intra, inter } = this.model.links;
    const mesh = this.model.meshes[this.model.selected];
    const { written } = this;
    const rates = [
      ...(!written.intra && intra && this.model.devices_per_node > 1 ? [["node", intra]] : []),
      ...(!written.inter && inter && this.model.nodes > 1 ? [["between", inter]] : []),
    ];
    const said = `unused ${unused} of ${this.count}`;
    const whole = rates.map(([where, rate]) => ` · ${where} ${rate}`).join("");
    const roomy = (said.length + whole.length) * 5.8 + 30 < this.layout.width;
    const shown = mesh ? [] : rates.map(([where, rate]) => `${where} ${roomy ? rate : short(rate)}`);
    this.legend.replaceChildren(
      h("span", { class: "mw-swatch", "aria-hidden": "true" }),
      h("span", { class: "mw-unused" }, said),
      ...shown.flatMap((words) => [dot(), h("span", { class: "mw-rate" }, words)]),
    );
    this.legend.title = said + whole;
    if (this.footer === mesh && mesh) return; // the inspector keeps its focus while nothing changed
    this.footer = mesh;
    const room = this.layout.width - 40 - 5.8 * [said, ...shown].join(" · ").length;
    this.inspector.replaceChildren(...(mesh ? this.inspect(mesh, this.model.selected) : [this.hint(unused, room)].filter(Boolean)));
  }

  /** What can be done by hand, as long as the room allows; where devices are free, how to draw on them at least. */
  hint(unused, room) {
    const draw = this.model.meshes.length ? "drag over devices to draw" : "drag over devices to draw the first mesh";
    const both = [`${draw}, drag a mesh to move it`, unused ? draw : "drag a mesh to move it", unused ? "drag to draw" : ""];
    const words = both.find((text) => text.length * 5.8 < room) ?? both.at(-1);
    return words ? h("span", { class: "mw-quiet", title: both[0] }, words) : null;
  }

  inspect(mesh, rank) {
    const last = this.model.meshes.length - 1;
    const earlier = button(`mesh ${mesh.name} one rank earlier`, { content: "‹", kind: "mw-icon", title: "Earlier in the pipeline", onclick: () => this.send("reorder", { mesh: rank, rank: rank - 1 }) });
    const later = button(`mesh ${mesh.name} one rank later`, { content: "›", kind: "mw-icon", title: "Later in the pipeline", onclick: () => this.send("reorder", { mesh: rank, rank: rank + 1 }) });
    earlier.allow(rank > 0, rank > 0 ? undefined : "It is the first of the pipeline");
    later.allow(rank < last, rank < last ? undefined : "It is the last of the pipeline");
    earlier.refuse = later.refuse = (reason, event) => this.sayAt(event.currentTarget, reason);
    const remove = button(`delete mesh ${mesh.name}`, { content: "×", kind: "mw-icon mw-danger", title: "Delete (Del)", onclick: () => this.send("delete", { mesh: rank }) });
    const name = button(`rename mesh ${mesh.name}`, { content: mesh.name, kind: "mw-plain", title: "Rename (F2)", onclick: () => this.rename(rank) });
    name.style.setProperty("--c", meshColour(this.model.palette, rank));
    return [
      name,
      earlier,
      h("span", { class: "mw-quiet" }, `rank ${rank}`),
      later,
      mesh.devices.length > 1 ? this.axesChip(mesh, rank) : h("span", { class: "mw-quiet" }, "1 device"),
      remove,
    ];
  }

  // ── the pointer ──

  within(event) {
    const box = this.root.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  /** The device nearest to a point of the board; `inside` tells whether the point is on its tile. */
  nearest(event) {
    const box = this.board.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let best = { device: 0, distance: Infinity };
    this.layout.tiles.forEach((tile, device) => {
      const dx = Math.max(tile.x - x, 0, x - tile.x - tile.width);
      const dy = Math.max(tile.y - y, 0, y - tile.y - tile.height);
      if (dx * dx + dy * dy < best.distance) best = { device, distance: dx * dx + dy * dy };
    });
    return { ...best, inside: best.distance <= (this.layout.gap + 2) ** 2 };
  }

  press(event) {
    if (event.button !== 0 || event.target.closest("button, input")) return;
    event.preventDefault();
    this.pointer = this.within(event);
    this.notice.hide();
    this.tip.hide();
    this.editing?.blur();
    if (this.isSecond(event)) return this.doubleClick(event);
    const { device, inside } = this.nearest(event);
    const handle = event.target.closest(".mw-handle")?.dataset;
    const rank = handle ? Number(handle.mesh) : inside ? this.owner(device) : -1;
    this.anchor = null;
    this.ghost = null;
    if (inside && !handle) this.tiles[device].focus({ preventScroll: true });
    this.select(rank);
    if (!inside && !handle) {
      this.redraw();
      return;
    }
    const kind = handle ? "resize" : rank >= 0 ? "move" : "draw";
    this.gesture = { kind, rank, from: device, handle: handle?.handle, started: false, at: [event.clientX, event.clientY] };
    this.unlisten?.();
    this.unlisten = trackPointer({
      moved: (event) => this.drag(event),
      released: (event) => this.release(event),
      cancel: () => this.cancel(),
    });
    this.redraw();
  }

  drag(event) {
    const { at } = this.gesture;
    this.pointer = this.within(event);
    if (!this.gesture.started && Math.hypot(event.clientX - at[0], event.clientY - at[1]) < DRAG_PX) return;
    this.gesture.started = true;
    this.pressed = null; // it is no click
    this.ghost = this.aim(this.nearest(event).device);
    this.notice.show(this.ghost.words, this.pointer.x, this.pointer.y, this.ghost.ok ? "tell" : "no");
    this.redraw();
  }

  /** What the gesture in flight would make if it ended at a device. */
  aim(to) {
    const { kind, rank, from, handle } = this.gesture;
    if (kind === "draw") return this.judge(this.between(from, to), -1);
    if (kind === "resize") return this.judge(this.stretched(rank, handle, to), rank);
    const [[n0, c0], [n1, c1]] = [this.at(from), this.at(to)];
    return this.judge(this.shifted(rank, n1 - n0, c1 - c0), rank);
  }

  /** A mesh's devices, moved by nodes and columns, but never out of the cluster. */
  shifted(rank, nodes, columns) {
    const { devices } = this.model.meshes[rank];
    const places = devices.map((device) => this.at(device));
    const [ns, cs] = [places.map(([node]) => node), places.map(([, column]) => column)];
    const dn = clamp(nodes, -Math.min(...ns), this.model.nodes - 1 - Math.max(...ns));
    const dc = clamp(columns, -Math.min(...cs), this.model.devices_per_node - 1 - Math.max(...cs));
    return places.map(([node, column]) => this.device(node + dn, column + dc));
  }

  stretched(rank, handle, to) {
    const box = this.corners(this.model.meshes[rank].devices);
    const [node, column] = this.at(to);
    if (handle.includes("n")) box.n0 = Math.min(node, box.n1);
    if (handle.includes("s")) box.n1 = Math.max(node, box.n0);
    if (handle.includes("w")) box.c0 = Math.min(column, box.c1);
    if (handle.includes("e")) box.c1 = Math.max(column, box.c0);
    return this.between(this.device(box.n0, box.c0), this.device(box.n1, box.c1));
  }

  /** A ghost with its verdict in words. Python has the last word when it is let go. */
  judge(devices, rank) {
    const taken = devices.find((device) => this.owner(device) >= 0 && this.owner(device) !== rank);
    if (taken !== undefined) {
      return { devices, rank, ok: false, words: `device ${taken} belongs to mesh ${this.model.meshes[this.owner(taken)].name}` };
    }
    const box = this.corners(devices);
    const shape = box && devices.length > 1 ? ` (${count(box.n1 - box.n0 + 1, "node")} × ${box.c1 - box.c0 + 1})` : "";
    const name = rank >= 0 ? `mesh ${this.model.meshes[rank].name}` : "new mesh";
    return { devices, rank, ok: true, words: `${name}: ${count(devices.length, "device")}${shape}` };
  }

  release(event) {
    const { kind, rank, started } = this.gesture;
    this.pointer = this.within(event);
    this.unlisten?.();
    this.gesture = null;
    if (!started) return this.redraw();
    this.notice.hide();
    const { devices, ok, words } = this.ghost;
    const same = rank >= 0 && devices.join() === this.model.meshes[rank].devices.join();
    if (ok && !same) {
      this.send(kind, { mesh: rank, devices }); // the ghost stays until Python has answered
    } else {
      this.ghost = null;
      if (!ok) this.notice.say(`${words}; a device is in one mesh only`, this.pointer.x, this.pointer.y);
    }
    this.redraw();
  }

  cancel() {
    this.unlisten?.();
    this.gesture = null;
    this.ghost = null;
    this.anchor = null;
    this.notice.hide();
    this.redraw();
  }

  hover(event) {
    if (this.gesture || !this.layout) return;
    const { device, inside } = this.nearest(event);
    const cursor = event.target.closest(".mw-handle, button, input") || !inside ? "" : this.owner(device) >= 0 ? "grab" : "crosshair";
    this.board.style.cursor = cursor;
    if (!inside || this.root.dataset.density === "full" || event.target.closest("button, input")) this.tip.hide();
    else this.tip.show(this.describe(device), ...Object.values(this.within(event)));
  }

  /** Whether a press is the second of a double click. The browser sees none: what was pressed is drawn anew between. */
  isSecond({ clientX, clientY, timeStamp }) {
    const before = this.pressed;
    const second = Boolean(before) && timeStamp - before.timeStamp < DOUBLE_MS && Math.hypot(clientX - before.clientX, clientY - before.clientY) < DRAG_PX;
    this.pressed = second ? null : { clientX, clientY, timeStamp };
    return second;
  }

  doubleClick(event) {
    const label = event.target.closest(".mw-mesh-label");
    if (label) return this.rename(Number(label.dataset.mesh));
    const { device, inside } = this.nearest(event);
    if (!inside || event.target.closest("button, input")) return;
    if (this.owner(device) >= 0) this.rename(this.owner(device));
    else this.send("draw", { mesh: -1, devices: [device] });
  }

  select(rank) {
    if (this.model.selected === rank) return;
    this.model.selected = rank;
  }

  sayAt(element, text) {
    const [box, at] = [this.root.getBoundingClientRect(), element.getBoundingClientRect()];
    this.notice.say(text, at.left - box.left - 14, at.bottom - box.top - 12);
  }

  /** A field in place of the mesh's name: Enter keeps, Escape does not. */
  rename(rank) {
    const mesh = this.model.meshes[rank];
    const label = this.meshLayer.querySelector(`.mw-mesh-label[data-mesh="${rank}"]`);
    if (!mesh || !label || this.editing) return;
    const box = label.getBoundingClientRect();
    const board = this.board.getBoundingClientRect();
    const field = h("input", { class: "mw-rename", "aria-label": `name of mesh ${mesh.name}`, value: mesh.name, maxlength: this.model.limits.name, spellcheck: "false" });
    const left = clamp(box.left - board.left, 0, Math.max(0, board.width - 96));
    Object.assign(field.style, { left: `${left}px`, top: `${box.top - board.top - 1}px` });
    const finish = (keep) => {
      if (this.editing !== field) return;
      this.editing = null;
      const name = field.value;
      field.remove();
      if (keep && name !== mesh.name) this.send("rename", { mesh: rank, name });
      this.tiles[mesh.devices[0]]?.focus({ preventScroll: true });
      this.redraw();
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter" || event.key === "Escape") finish(event.key === "Enter");
    });
    field.addEventListener("blur", () => finish(true));
    this.editing = field;
    this.board.append(field);
    field.focus();
    field.select();
  }

  // ── the keyboard ──

  focused(device) {
    if (this.focus === device) return;
    this.tiles[this.focus]?.setAttribute("tabindex", "-1");
    this.focus = device;
    this.tiles[device].tabIndex = 0;
  }

  key(event) {
    if (event.target.closest("button, input")) return;
    const arrow = ARROWS[event.key];
    if (arrow) this.arrow(event, ...arrow);
    else if (event.key === "Enter" || event.key === " ") this.enter();
    else if (event.key === "Delete" || event.key === "Backspace") this.deleteMesh();
    else if (event.key === "Escape") this.escape();
    else if (event.key === "F2") this.rename(this.current());
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The mesh a key is meant for: the one under the focus, else the selected one. */
  current() {
    const under = this.owner(this.focus);
    return under >= 0 ? under : this.model.selected;
  }

  arrow(event, nodes, columns) {
    this.pointNearFocus();
    if (event.altKey) return this.arrowMesh(nodes, columns, event.shiftKey);
    const [node, column] = this.at(this.focus);
    const to = this.device(clamp(node + nodes, 0, this.model.nodes - 1), clamp(column + columns, 0, this.model.devices_per_node - 1));
    if (event.shiftKey) this.anchor ??= this.focus;
    else this.anchor = null;
    this.focused(to);
    this.tiles[to].focus();
    this.ghost = this.anchor === null ? null : this.judge(this.between(this.anchor, to), -1);
    if (this.ghost) this.notice.show(this.ghost.words, this.pointer.x, this.pointer.y, this.ghost.ok ? "tell" : "no");
    else this.notice.hide();
    this.redraw();
  }

  arrowMesh(nodes, columns, resize) {
    const rank = this.current();
    if (rank < 0) return this.sayHere("no mesh here to move; arrows alone bring you to one");
    const { devices } = this.model.meshes[rank];
    const box = this.corners(devices);
    if (resize && !box) return this.sayHere("its devices are no rectangle, so it cannot be stretched");
    const wanted = resize ? this.grown(box, nodes, columns) : this.shifted(rank, nodes, columns);
    if (wanted.join() === devices.join()) return this.sayHere(resize ? "it cannot become smaller or larger this way" : "the cluster ends here");
    const verdict = this.judge(wanted, rank);
    if (!verdict.ok) return this.sayHere(verdict.words);
    this.send(resize ? "resize" : "move", { mesh: rank, devices: wanted });
    if (!resize) this.follow(nodes, columns);
  }

  grown(box, nodes, columns) {
    const n1 = clamp(box.n1 + nodes, box.n0, this.model.nodes - 1);
    const c1 = clamp(box.c1 + columns, box.c0, this.model.devices_per_node - 1);
    return this.between(this.device(box.n0, box.c0), this.device(n1, c1));
  }

  /** The focus goes along with a mesh that is moved from under it. */
  follow(nodes, columns) {
    if (this.owner(this.focus) < 0) return;
    const [node, column] = this.at(this.focus);
    const to = this.device(clamp(node + nodes, 0, this.model.nodes - 1), clamp(column + columns, 0, this.model.devices_per_node - 1));
    this.tiles[to].focus();
  }

  enter() {
    this.pointNearFocus();
    this.notice.hide();
    if (this.anchor === null && this.owner(this.focus) >= 0) return this.select(this.owner(this.focus));
    const verdict = this.judge(this.between(this.anchor ?? this.focus, this.focus), -1);
    this.anchor = null;
    this.ghost = null;
    if (verdict.ok) this.send("draw", { mesh: -1, devices: verdict.devices });
    else this.sayHere(`${verdict.words}; a device is in one mesh only`);
    this.redraw();
  }

  deleteMesh() {
    this.pointNearFocus();
    const rank = this.current();
    if (rank < 0) this.sayHere("no mesh here to delete");
    else this.send("delete", { mesh: rank });
  }

  escape() {
    if (this.anchor === null && !this.ghost) this.select(-1);
    this.cancel();
  }

  pointNearFocus() {
    const [box, at] = [this.root.getBoundingClientRect(), this.tiles[this.focus].getBoundingClientRect()];
    this.pointer = { x: at.left - box.left, y: at.bottom - box.top - 14 };
  }

  sayHere(text) {
    this.notice.say(text, this.pointer.x, this.pointer.y);
  }
}

// ── small pieces ────────────────────────────────────────────────────────────────────────────

const px = ({ x, y, width, height }) => ({ left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });

const grow = ({ x, y, width, height }, by) => ({ x: x - by, y: y - by, width: width + 2 * by, height: height + 2 * by });

/** From the first node of one column of nodes over its top to the first of the next. */
const hop = (from, to) => {
  const y = Math.min(from.y, to.y) - 5;
  return `M${from.x - 8} ${from.y + from.height / 2}V${y}H${to.x - 8}V${to.y + to.height / 2}`;
};

/** "300 GB/s" of "300 GB/s NVLink-class". */
const short = (rate) => rate.split(" ").slice(0, 2).join(" ");

const dot = () => h("span", { "aria-hidden": "true" }, "·");

/** The line that joins the devices of a node. */
function bus(tiles, node, perNode, y) {
  const own = tiles.slice(node * perNode, (node + 1) * perNode);
  const taps = own.map(({ x, width, y: top, height }) => `M${x + width / 2} ${top + height}V${y}`);
  const [first, last] = [own[0], own.at(-1)];
  return s("path", { class: "mw-link", d: `M${first.x + first.width / 2} ${y}H${last.x + last.width / 2}${taps.join("")}` });
}
