// Experts as chips on the devices that hold them. Python computes what is drawn and turns gestures into edits;
// gestures.js and keyboard.js move the chips.

/** @import { Message } from "../kit/types" */
/** @import { Carried, ExpertsModel, Replica } from "./types" */

import { Canvas } from "../kit/canvas.js";
import { button } from "../kit/controls.js";
import { find, findAll, focusedElement, h } from "../kit/dom.js";
import { DifferenceLine } from "../kit/differences.js";
import { contextMenu, receiveKeys } from "../kit/key_targets.js";
import { paneSwitch } from "../kit/panes.js";
import { Tips, tipped } from "../kit/shell.js";
import { TrafficDialog } from "../kit/traffic.js";
import { ScrolledZoom } from "../kit/zooming.js";
import { Gestures, keyOf, parseKey } from "./gestures.js";
import { Keyboard } from "./keyboard.js";
import { Places } from "./places.js";
import { Settings } from "./settings.js";
import { Side } from "./side.js";

const LOAD_LEVELS = 7;
/** @type {Record<string, string>} */
const GROUPS = { mp: "same tokens", esp: "parts of the same experts", ep: "different experts" };

/** @param {{model: ExpertsModel}} args */
export const render = ({ model }) => new Experts(model).root;

/** @extends {Canvas<ExpertsModel>} */
export class Experts extends Canvas {
  /** @type {Set<string>} */ selected = new Set(); // keys of chips
  /** @type {Carried | null} */ carried = null;
  /** The dropped chips until Python responds. @type {Carried | null} */ dropped = null;
  /** The key of the chip with the tab stop, or -1 - number of an empty place. @type {string | number | null} */ at =
    null;
  /** See {@link Experts.shapeKey}, of the picture that was drawn last. */ drawnShape = "";
  tries = 0;
  hovered = ""; // description of the element under the pointer
  takesFocus = false; // true to take the focus after the next redraw

  /** @param {ExpertsModel} model */
  constructor(model) {
    super(model);
    this.pointer.y = 60;
    this.differences = new DifferenceLine(model);
    this.places = new Places(this);
    this.settings = new Settings(this);
    this.side = new Side(this);
    this.traffic = new TrafficDialog();
    const panes = paneSwitch("experts", (pane) => this.send("pane", { pane }));
    const { controls, tools } = this.settings;
    this.head = h("div.mw-bar.mw-head", {}, panes, controls, h("span.mw-grow"), tools);
    this.board = h("div.mw-xboard", {
      role: "listbox",
      "aria-multiselectable": "true",
      "aria-label":
        "Experts on devices: arrow keys move the focus, Space picks up, Enter puts down, R replicates, Delete removes",
    });
    this.zoom = new ScrolledZoom(this.board, { draw: () => this.draw(), cancel: () => this.cancelPress() });
    this.message = h("span.mw-quiet.mw-grow", { role: "status" });
    const foot = h("div.mw-bar.mw-xfoot", {}, this.message, legend());
    const body = h("div.mw-xbody", {}, this.board, this.side.element);
    this.root = h(
      "section.mw-canvas.mw-experts",
      { "aria-label": "Experts on devices" },
      this.head,
      body,
      this.differences.element,
      foot,
      this.traffic.element,
    );
    this.start();
    this.tips = new Tips(this.root);
    this.gestures = new Gestures(this);
    this.keyboard = new Keyboard(this);
    receiveKeys("Experts", () => this.places.element(this.at) ?? this.board);
    this.root.append(contextMenu("Experts", this.board, (target) => this.commandsAt(target)));
    model.on(["picture", "differences", "marks_shown"], () => this.redraw());
    this.draw();
  }

  remove() {
    super.remove();
    this.gestures.stop();
  }

  get picture() {
    return this.model.picture;
  }

  /** Move the focus to an expert, and return the commands for it. @param {HTMLElement} target */
  commandsAt(target) {
    const key = /** @type {HTMLElement | null} */ (target.closest("[data-key]"))?.dataset.key;
    if (key === undefined) return [];
    this.cancelPress();
    this.keyboard.focus(key);
    return this.model.commands;
  }

  cancelPress() {
    this.gestures.stop();
    if (this.carried) this.cancelDrag();
  }

  // ── messages from Python ──

  /** @param {Message} message */
  receive(message) {
    const read = {
      tried: () => this.onTried(message),
      focus: () => this.takeFocus(),
      traffic: () => this.traffic.open(/** @type {any} */ (message)),
      answered: () => ["try", "traffic"].includes(message.gesture) || this.onAnswered(message),
    }[message.type];
    read?.();
  }

  /** @param {Message} message */
  onAnswered(message) {
    const { dropped } = this;
    this.dropped = null;
    if (message.refused) this.announceAt(this.places.placeElement(dropped?.to ?? null) ?? null, message.refused);
    else if (dropped) {
      const keys = dropped.chips.map(([expert]) => keyOf(expert, /** @type {number} */ (dropped.to)));
      this.select(keys, dropped.byKey);
    }
    this.redraw();
  }

  /** @param {HTMLElement | null} element @param {string} text */
  announceAt(element, text) {
    if (element) this.pointAt(element);
    this.announce(text);
  }

  // ── moving chips, by the pointer or by keys ──

  /**
   * The chips that a gesture on a chip affects: the selection if it contains the chip, else the chip alone.
   * @param {string} key
   */
  selectionAt(key) {
    return [...(this.selected.has(key) ? this.selected : [key])].map(parseKey);
  }

  /** @param {Replica[]} chips @param {boolean} copy @param {boolean} [byKey] */
  pickUp(chips, copy, byKey = false) {
    this.carried = { chips, copy, byKey, to: null, refused: null, words: "" };
    this.markCarried(this.carried);
  }

  /** @param {Carried} carried */
  markCarried({ chips, copy }) {
    this.root.dataset.carrying = copy ? "copy" : "move";
    for (const replica of chips) this.places.chips.get(keyOf(...replica))?.classList.toggle("mw-away", !copy);
  }

  /**
   * Move the carried chips over a place, or over none. Python responds with the effect of a drop.
   * @param {number | null} to @param {boolean} [copy]
   */
  holdOver(to, copy = this.carried?.copy) {
    const { carried } = this;
    if (!carried || (carried.to === to && carried.copy === copy)) return;
    Object.assign(carried, { to, copy, refused: null, words: "" });
    this.markCarried(carried);
    this.markTarget();
    if (to !== null && !this.isUnmoved(carried))
      this.send("try", { number: ++this.tries, chips: carried.chips, to, copy });
  }

  /** Go on with a drag on a board that was drawn again. @param {Carried} carried */
  carryOn(carried) {
    const { to, copy } = carried;
    carried.to = null;
    this.markCarried(carried);
    this.holdOver(to, copy);
  }

  /** True if a drop would change nothing. @param {Carried} carried */
  isUnmoved({ chips, to, copy }) {
    return !copy && chips.every(([, place]) => place === to);
  }

  /** @param {Message} message */
  onTried({ number, refused, words }) {
    if (!this.carried || number !== this.tries) return;
    Object.assign(this.carried, { refused, words });
    this.markTarget();
    this.gestures.showEffect();
    this.keyboard.showEffect();
  }

  markTarget() {
    for (const element of findAll(this.board, ".mw-xplace[data-target]")) delete element.dataset.target;
    const { to, refused } = this.carried ?? { to: null };
    if (to !== null) this.places.placeElement(to).dataset.target = refused ? "no" : "yes";
  }

  /** Drop the carried chips; a refusal is shown at the place. */
  putDown() {
    const { carried } = this;
    this.cancelDrag();
    if (!carried || carried.to === null || this.isUnmoved(carried)) return;
    if (carried.refused) return this.announceAt(this.places.placeElement(carried.to), carried.refused);
    const { chips, to, copy } = carried;
    this.dropped = carried;
    this.send(copy ? "replicate" : "move", { chips, to });
  }

  cancelDrag() {
    this.carried = null;
    delete this.root.dataset.carrying;
    for (const chip of this.places.chips.values()) chip.classList.remove("mw-away");
    this.markTarget();
    this.notice.hide();
  }

  // ── the selection ──

  /** @param {string[]} keys @param {boolean} [takesFocus] */
  select(keys, takesFocus = false) {
    this.selected = new Set(keys);
    if (keys.length) this.at = keys[0];
    this.markSelected();
    this.takesFocus ||= takesFocus;
  }

  /** Add a chip to the selection, or remove it. @param {string} key */
  toggle(key) {
    const keys = new Set(this.selected);
    if (!keys.delete(key)) keys.add(key);
    this.select([...keys]);
  }

  replicate() {
    this.act("replicate", "Select an expert to replicate");
  }

  removeReplicas() {
    this.act("remove", "Select a replica to remove");
  }

  /** @param {number} factor */
  scaleLoad(factor) {
    this.act("heat", "Select an expert to change its load", { factor });
  }

  /**
   * Send a gesture on the selected chips, or on the focused one.
   * @param {string} type @param {string} hint shown if there are none @param {object} [gesture]
   */
  act(type, hint, gesture = {}) {
    const { at } = this;
    const isChip = typeof at === "string" && this.places.chips.has(at);
    const keys = this.selected.size ? [...this.selected] : isChip ? [at] : [];
    if (!keys.length) return this.message.replaceChildren(hint);
    this.pointAt(this.places.chips.get(keys[0]) ?? this.board);
    this.send(type, { chips: keys.map(parseKey), ...gesture });
  }

  markSelected() {
    for (const [key, chip] of this.places.chips)
      chip.setAttribute("aria-selected", String(this.selected.has(String(key))));
    this.drawMessage();
  }

  // ── drawing ──

  draw() {
    const { shapeKey } = this;
    const { state } = this.picture;
    this.root.dataset.state = state;
    if (shapeKey !== this.drawnShape || !this.board.clientWidth) this.cancelPress();
    this.drawnShape = shapeKey;
    if (!this.board.clientWidth) return; // hidden, or not on the page yet: the observer of its size draws it
    const hadFocus = this.takesFocus || this.board.contains(focusedElement(this.root));
    this.takesFocus = false;
    this.board.setAttribute("role", state === "ready" ? "listbox" : "group");
    if (state === "none") this.drawNone();
    else if (state === "unfit") this.drawUnfit();
    else this.drawLayer();
    if (hadFocus) this.focusBoard();
  }

  /** What does not change during a drag: the state, the layer, and the devices of the places. */
  get shapeKey() {
    const { state, controls, places } = this.picture;
    const layer = controls?.find(({ key }) => key === "layer")?.value;
    return JSON.stringify([state, layer, places?.map(({ devices }) => devices)]);
  }

  drawLayer() {
    this.settings.draw();
    this.places.draw();
    this.side.draw();
    this.drawMessage();
    if (!this.gestures.canGoOn()) this.cancelPress();
    else if (this.carried) this.carryOn(this.carried);
  }

  drawNone() {
    this.settings.controls.replaceChildren();
    const add = button("Add experts", { kind: "mw-primary", onclick: () => this.send("add") });
    const about =
      "In a mixture-of-experts model, some feed-forward blocks are replaced by several experts, and a gate routes " +
      "each token to a few of them. Experts are placed on devices, and each token is sent to the devices of its " +
      "experts. This view shows and edits the placement.";
    this.drawEmpty(
      h("h3", {}, "This model has no experts"),
      h("p", {}, about),
      add,
      h("p.mw-quiet", {}, this.picture.offer ?? ""),
    );
  }

  drawUnfit() {
    const { reason, fixes = [] } = this.picture;
    this.settings.draw();
    this.drawEmpty(
      h("h3", {}, "The experts cannot be placed"),
      h("p", { role: "alert" }, `${reason}.`),
      ...fixes.map((label) => button(label, { kind: "mw-fix", onclick: () => this.send("fix", { fix: label }) })),
    );
  }

  /** @param {(Node | string)[]} children */
  drawEmpty(...children) {
    this.places.chips.clear();
    this.places.tags.clear();
    this.selected.clear();
    this.side.figures.replaceChildren();
    this.message.textContent = "";
    this.board.replaceChildren(h("div.mw-xempty", {}, ...children));
  }

  // ── messages and the focus ──

  /** Describe the hovered, selected or focused element in the footer. */
  drawMessage() {
    const { size } = this.selected;
    const chip = this.places.chips.get(this.at);
    const selection = `${size} experts selected; drag to move, Ctrl+drag to replicate, Delete to remove replicas`;
    const one = chip && `${chip.ariaLabel}; ${this.groupsOf(parseKey(String(this.at))[1])}`;
    const hint = "Drag an expert to another device; Ctrl+drag replicates it. Drag over several experts to select them.";
    this.message.textContent = this.hovered || (size > 1 ? selection : size && one) || hint;
    this.message.title = this.message.textContent; // the text may be truncated in a narrow window
  }

  /** A description of the groups of the first device of a place. @param {number} place */
  groupsOf(place) {
    const device = this.picture.places[place]?.devices[0];
    /** @type {Map<string, string[]>} */
    const kinds = new Map(); // by their devices
    for (const [kind, groups] of Object.entries(this.picture.groups)) {
      const devices = listDevices(groups.find((group) => group.includes(device)) ?? []);
      kinds.set(devices, [...(kinds.get(devices) ?? []), `${kind} (${GROUPS[kind]})`]);
    }
    return [...kinds].map(([devices, names]) => `${names.join(" and ")} ${devices}`).join(", ");
  }

  /** Take the keyboard focus once the canvas is visible. */
  takeFocus() {
    this.takesFocus = true;
    this.redraw();
  }

  /** Focus the chip with the tab stop; without chips, the button on the board or the switch to the other pane. */
  focusBoard() {
    const element = this.places.element(this.at) ?? find(this.board, "button");
    (element ?? find(this.head, '[aria-pressed="true"]'))?.focus();
  }
}

/** @param {number[]} devices */
const listDevices = (devices) =>
  devices.length > 9 ? `${devices.slice(0, 8).join(" ")} … ${devices.at(-1)}` : devices.join(" ");

function legend() {
  const swatches = Array.from({ length: LOAD_LEVELS }, (_, level) =>
    h("i", { style: { background: `var(--load-${level})` } }),
  );
  const about = "Load of an expert or device, relative to the mean. The tick in a device's bar marks the mean.";
  const label = "Colour scale: load relative to the mean";
  return h(
    "span.mw-xlegend",
    { role: "img", "aria-label": label, tabindex: 0, ...tipped(about) },
    "less",
    ...swatches,
    "more",
    h("span", {}, " than the mean"),
  );
}
