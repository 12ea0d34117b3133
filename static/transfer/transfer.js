// The transfer lab: the tensor on both meshes, the unit tasks, the timeline of the links, and the table of plans.
// Python (designer/canvases/transfer.py) plans the transfer; the plan is drawn here, and gestures are sent.

/** @import { Message } from "../kit/types" */
/** @import { Picture, Place, Sender, TransferModel } from "./types" */

import { commandOf, download } from "../kit/bars.js";
import { consume, h } from "../kit/dom.js";
import { Overlay, Tips, tool } from "../kit/shell.js";
import { TrafficDialog } from "../kit/traffic.js";
import { Widget, oncePerFrame, send } from "../kit/widget.js";
import { Form } from "./form.js";
import { Lanes } from "./lanes.js";
import { MeshGrid } from "./mesh_grid.js";
import { PlanTable } from "./plan_table.js";
import { ShardingSpec, specHelp } from "./sharding_spec.js";
import { TaskGrid } from "./task_grid.js";
import { Toolbar } from "./toolbar.js";

const OPENING = ["case", "open", "link", "undo", "redo"]; // gestures that replace the document

/** @param {{model: TransferModel}} args */
export const render = ({ model }) => new Transfer(model).root;

/**
 * @implements {Sender}
 * @extends {Widget<TransferModel>}
 */
export class Transfer extends Widget {
  /** The last valid transfer. @type {Picture | null} */ picture = null;
  /** The place under the pointer. @type {Place | null} */ hovered = null;
  /** The selected place. @type {Place | null} */ pinned = null;
  /** The highlighted place, and the tasks that it involves. @type {{tasks: Set<number> | null, place: Place | null}} */
  highlighted = { tasks: null, place: null };
  /**
   * Gestures to which Python has not responded yet, in their order, and their senders.
   * @type {{type: string, sender: Sender}[]}
   */
  outstanding = [];
  /** @type {string | null} */ refused = null;
  /** @type {Overlay | undefined} */ overlay;
  leaving = new AbortController();
  followsLink = false; // true until the link of the page has been opened

  /** @param {TransferModel} model */
  constructor(model) {
    super(model);
    this.rehighlight = oncePerFrame(() => this.highlight());
    this.toolbar = new Toolbar(this);
    this.specs = [new ShardingSpec(this, "source"), new ShardingSpec(this, "destination")];
    this.meshes = { source: new MeshGrid(this, "source"), destination: new MeshGrid(this, "destination") };
    const { source, destination } = this.meshes;
    const tasks = new TaskGrid(this);
    this.grids = [source, tasks, destination];
    this.form = new Form(this);
    this.lanes = new Lanes(this);
    this.table = new PlanTable(this);
    this.live = h("div.mw-sr", { role: "status", "aria-live": "polite" });
    this.problem = h("div.mw-tr-trouble.mw-tr-general", { role: "alert", hidden: true });
    const { note, element: lanes, choice, summary, help } = this.lanes;
    this.traffic = new TrafficDialog();
    const traffic = tool("Traffic", {
      text: "Traffic",
      tip: "Show the bytes that each rank sends to every other rank",
      onclick: () => this.request("traffic"),
    });
    const form = { "data-card": "form", "aria-label": "Meshes, tensor and links" };
    const body = h(
      "div.mw-tr-body",
      {},
      card("source", "Source", [this.specs[0].element, source.element], specHelp(this, "source")),
      card("tasks", "Unit tasks", [tasks.element], tasks.about),
      card("destination", "Destination", [this.specs[1].element, destination.element], specHelp(this, "destination")),
      h("section.mw-tr-card", form, this.form.element),
      card("lanes", "Links", [note, lanes], choice, summary, traffic, help),
      card("plans", "Plans", [this.table.element], this.table.about),
    );
    const parts = [this.toolbar.element, this.problem, body, this.live, this.traffic.element];
    this.root = h("div.mw-canvas.mw-shell.mw-transfer", { "data-mode": model.mode });
    this.root.mw = this; // for tests
    if (this.isPage) {
      this.root.append(...parts);
      this.tips = new Tips(this.root);
      this.listenOnPage();
    } else {
      const dialog = h("dialog.mw-dialog.mw-tr-dialog", { "aria-label": "Transfer" }, ...parts);
      this.root.append(dialog);
      this.overlay = new Overlay(model, dialog, () => this.onopen());
      this.tips = new Tips(dialog);
      dialog.addEventListener("keydown", (event) => {
        this.key(event);
        event.stopPropagation(); // keys are not passed on to the page below
      });
    }
    model.on("packed", () => this.draw());
    model.on(["fields", "troubles", "stale", "history", "title", "host_word", "fragment", "design_has"], () =>
      this.update(),
    );
    model.on(["shows", "play"], () => this.lanes.update());
    model.on(["shows", "table"], () => this.table.draw());
    this.draw();
    this.update();
    this.table.draw();
    this.overlay?.follow();
  }

  get isPage() {
    return this.model.mode === "page";
  }

  remove() {
    this.leaving.abort();
    this.lanes.remove();
    for (const grid of this.grids) grid.remove();
  }

  onopen() {
    this.pinned = this.hovered = this.refused = null;
    this.form.forgetRefusals();
    this.update();
    this.lanes.focus();
  }

  // ── messages to and from Python ──

  /**
   * Send a gesture; `sender` receives the answer.
   * @param {string} type @param {object} [gesture] @param {Sender} [sender]
   */
  request(type, gesture = {}, sender = this) {
    const isSent = send(this.model, { type, ...gesture });
    if (isSent) this.outstanding.push({ type, sender });
    return isSent;
  }

  /** @param {Message} message */
  receive(message) {
    if (message.type === "traffic") return this.traffic.open(/** @type {any} */ (message));
    if (message.type === "hops") {
      this.lanes.planned.receiveHops({ number: message.number, task: message.task, hops: JSON.parse(message.hops) });
      this.lanes.repaint();
    } else if (message.type === "download") {
      download(message.name, new Blob([message.content], { type: message.mime }));
    } else if (message.type === "answered") {
      const at = this.outstanding.findIndex(({ type }) => type === message.gesture);
      if (at >= 0) this.outstanding.splice(at, 1)[0].sender.acknowledge(message.refused);
      if (!message.refused && OPENING.includes(message.gesture)) this.form.forgetRefusals();
    }
  }

  /** @param {string | null} refused */
  acknowledge(refused) {
    this.refused = refused;
    this.update();
  }

  // ── drawing ──

  draw() {
    const { packed } = this.model;
    if (!packed) return;
    /** @type {Picture} */
    const picture = JSON.parse(packed);
    this.picture = picture;
    this.pinned = this.hovered = null;
    this.highlighted = { tasks: null, place: null };
    for (const part of [...this.specs, ...this.grids, this.lanes]) part.draw(picture);
    this.table.draw();
    this.update();
    this.highlight();
  }

  /** Update everything except the picture: problems, fields, undo. */
  update() {
    const { model } = this;
    const problem = this.refused || model.troubles[""] || "";
    this.problem.textContent = problem;
    this.problem.hidden = !problem;
    this.root.toggleAttribute("data-stale", model.stale);
    this.toolbar.update();
    this.form.update();
    for (const spec of this.specs) spec.update();
    if (this.isPage) this.updateLink();
  }

  /** Put the shown transfer into the link of the page, without the access token. */
  updateLink() {
    const { fragment } = this.model;
    if (!this.followsLink && this.picture)
      history.replaceState(null, "", `${location.pathname}${fragment && `#${fragment}`}`);
  }

  // ── highlighting ──

  /** @param {Place | null} place */
  hover(place) {
    this.hovered = place;
    this.rehighlight();
  }

  /**
   * Select a place, or none; a selected place is deselected.
   * @param {Place | null} place @param {boolean} [announces]
   */
  pin(place, announces = true) {
    this.pinned = isSame(place, this.pinned) ? null : place;
    this.rehighlight();
    if (!announces || !this.pinned) return;
    if (this.pinned.side) this.live.textContent = this.meshes[this.pinned.side].describePlaces(this.pinned.places);
    else this.live.textContent = this.lanes.describeTask(this.pinned.task);
  }

  highlight() {
    if (!this.picture) return;
    const place = this.hovered ?? this.pinned;
    const tasks = place && tasksOf(this.picture, place);
    this.highlighted = { tasks, place };
    this.root.toggleAttribute("data-lit", Boolean(tasks));
    for (const part of [...this.grids, this.lanes]) part.highlight(tasks, place);
  }

  // ── the whole page ──

  listenOnPage() {
    const { signal } = this.leaving;
    window.addEventListener("keydown", (event) => this.key(event), { signal });
    window.addEventListener("hashchange", () => this.followLink(), { signal });
    window.addEventListener(
      "dragover",
      (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault(),
      { signal },
    );
    window.addEventListener("drop", (event) => this.drop(event), { signal });
    document.title = "Transfer lab · Meshwave";
    this.followsLink = location.hash.length > 1;
    if (this.followsLink) whenIdle(() => this.followLink());
  }

  followLink() {
    this.followsLink = false;
    const fragment = location.hash.slice(1);
    if (fragment && fragment !== this.model.fragment) this.request("link", { fragment });
  }

  /** @param {DragEvent} event */
  drop(event) {
    const [file] = event.dataTransfer?.files ?? [];
    if (!file) return;
    event.preventDefault();
    this.toolbar.read(file);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.defaultPrevented || !this.model.shown) return;
    const name = commandOf(event);
    if (!name || !this.accepts(name, event.composedPath()[0])) return;
    consume(event);
    if (name === "open") this.toolbar.picker.click();
    else this.request(name);
  }

  /**
   * True if a command is meant for this view instead of the input in which it was typed.
   * @param {string} name @param {EventTarget} target
   */
  accepts(name, target) {
    if (name === "save" || name === "open") return this.isPage;
    return !(target instanceof HTMLInputElement) || Boolean(target.isUnedited?.());
  }
}

/**
 * The unit tasks of a place: the task itself, or all tasks that its ranks send or receive.
 * @param {Picture} picture @param {Place} place
 */
function tasksOf(picture, place) {
  if (!place.side) return new Set([place.task]);
  const { side, places } = place;
  const ranks = new Set(places.map((each) => picture[side].ranks[each]));
  const involved = picture.tasks.flatMap(({ senders, receivers, keepers }, number) =>
    (side === "source" ? senders : [...receivers, ...keepers]).some((rank) => ranks.has(rank)) ? [number] : [],
  );
  return new Set(involved);
}

/** @param {Place | null} a @param {Place | null} b */
const isSame = (a, b) => Boolean(a && b) && JSON.stringify(a) === JSON.stringify(b);

/** @param {string} name @param {string} title @param {Node[]} children @param {Node[]} inHeader */
function card(name, title, children, ...inHeader) {
  const header = h("header", {}, h("h2", {}, title), ...inHeader);
  return h("section.mw-tr-card", { "data-card": name, "aria-label": title }, header, ...children);
}

/** Call `onidle` once the connection of the page accepts messages. @param {() => void} onidle */
function whenIdle(onidle) {
  if (globalThis.Bokeh?.documents[0]?.is_idle) onidle();
  else setTimeout(() => whenIdle(onidle), 30);
}
