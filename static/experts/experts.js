// Experts as chips on the devices that hold them. What is drawn and what a gesture means comes from Python;
// the hand (gestures.js) and the keys (keyboard.js) pick chips up and put them down.

import { Drawing, button, h } from "../kit/canvas.js";
import { paneSwitch } from "../kit/panes.js";
import { Tips, tipped } from "../kit/shell.js";
import { Hand, keyOf, parse } from "./gestures.js";
import { Keys } from "./keyboard.js";
import { Places } from "./places.js";
import { Settings } from "./settings.js";
import { Side } from "./side.js";

const LEVELS = 7;
const KINDS = { mp: "same tokens", esp: "same experts, cut up", ep: "other experts" };
export const render = ({ model }) => new Experts(model).root;

export class Experts extends Drawing {
  constructor(model) {
    super(model);
    this.pointer.y = 60;
    this.selected = new Set(); // keys of chips
    this.carried = null; // what is being moved: { chips, copy, to, refused, words }
    this.at = null; // the key of the chip, or -1 - place, that takes the keyboard
    this.tries = 0;
    this.hovered = ""; // words about what is under the pointer
    this.build();
    model.on("picture", () => this.redraw());
    this.draw();
  }

  remove() {
    super.remove();
    this.hand.stop();
  }

  // ── elements that stay ──

  build() {
    this.places = new Places(this);
    this.settings = new Settings(this);
    this.side = new Side(this);
    this.head = h(
      "div",
      { class: "mw-bar mw-head" },
      paneSwitch("experts", (pane) => this.send("pane", { pane })),
      this.settings.controls,
      h("span", { class: "mw-grow" }),
      this.settings.tools,
    );
    this.board = h("div", {
      class: "mw-xboard",
      role: "listbox",
      "aria-multiselectable": "true",
      "aria-label":
        "experts on devices: arrows move, Space picks up, Enter puts down, R replicates, Delete removes a replica",
    });
    this.words = h("span", { class: "mw-quiet mw-grow", role: "status" });
    this.foot = h("div", { class: "mw-bar mw-xfoot" }, this.words, legend());
    this.body = h("div", { class: "mw-xbody" }, this.board, this.side.element);
    this.root = h(
      "section",
      { class: "mw-canvas mw-experts", "aria-label": "Experts on devices" },
      this.head,
      this.body,
      this.foot,
    );
    this.start();
    this.tips = new Tips(this.root);
    this.hand = new Hand(this);
    this.keys = new Keys(this);
  }

  // ── Python ──

  get picture() {
    return this.model.picture;
  }

  told(message) {
    if (message.type === "tried") return this.judged(message);
    if (message.type === "focus") return this.take();
    if (message.type !== "answered" || message.gesture === "try") return;
    const { dropped } = this;
    this.dropped = null;
    if (message.refused) this.refuse(message.refused, dropped);
    else if (dropped)
      this.select(
        dropped.chips.map(([expert]) => keyOf(expert, dropped.to)),
        dropped.byKey,
      );
    this.redraw();
  }

  refuse(words, dropped) {
    const at = dropped && this.places.placeElement(dropped.to);
    if (at) this.sayAt(at, words);
    else this.say(words);
  }

  // ── carrying: the hand and the keys share it ──

  /** The chips that a gesture on `key` is about: the selection if it is part of it, else itself. */
  about(key) {
    return [...(this.selected.has(key) ? this.selected : [key])].map(parse);
  }

  pickUp(chips, copy, byKey = false) {
    this.carried = { chips, copy, byKey, to: null, refused: null, words: "" };
    this.root.dataset.carrying = copy ? "copy" : "move";
    for (const [expert, place] of chips)
      this.places.chips.get(keyOf(expert, place))?.classList.toggle("mw-away", !copy);
  }

  /** Hold what is carried over a place, or over none; Python says what a drop would do. */
  hold(to, copy = this.carried.copy) {
    const { carried } = this;
    if (carried.to === to && carried.copy === copy) return;
    Object.assign(carried, { to, copy, refused: null, words: "" });
    this.root.dataset.carrying = copy ? "copy" : "move";
    for (const [expert, place] of carried.chips)
      this.places.chips.get(keyOf(expert, place))?.classList.toggle("mw-away", !copy);
    this.markTarget();
    if (to !== null && !this.stays(carried)) this.send("try", { number: ++this.tries, chips: carried.chips, to, copy });
  }

  /** Whether it would lie where it was. */
  stays({ chips, to, copy }) {
    return !copy && chips.every(([, place]) => place === to);
  }

  judged({ number, refused, words }) {
    if (!this.carried || number !== this.tries) return;
    Object.assign(this.carried, { refused, words });
    this.markTarget();
    this.hand.retell();
    this.keys.retell();
  }

  markTarget() {
    for (const element of this.board.querySelectorAll(".mw-xplace[data-target]")) delete element.dataset.target;
    const { to, refused } = this.carried ?? { to: null };
    if (to !== null) this.places.placeElement(to).dataset.target = refused ? "no" : "yes";
  }

  /** Put down what is carried; a refusal is said at the place. */
  putDown() {
    const { carried } = this;
    this.letGo();
    if (!carried || carried.to === null || this.stays(carried)) return;
    if (carried.refused) return this.sayAt(this.places.placeElement(carried.to), carried.refused);
    const { chips, to, copy } = carried;
    this.dropped = carried;
    this.send(copy ? "replicate" : "move", { chips, to });
  }

  letGo() {
    this.carried = null;
    delete this.root.dataset.carrying;
    for (const chip of this.places.chips.values()) chip.classList.remove("mw-away");
    this.markTarget();
    this.notice.hide();
  }

  // ── what people do with what is selected ──

  select(keys, focus = false) {
    this.selected = new Set(keys);
    if (keys.length) this.at = keys[0];
    this.markSelected();
    this.wantsFocus ||= focus;
  }

  replicate() {
    this.act("replicate", "select an expert to replicate");
  }

  removeReplicas() {
    this.act("remove", "select a replica to remove");
  }

  heat(factor) {
    this.act("heat", "select an expert to make it hotter or cooler", { factor });
  }

  act(type, otherwise, gesture = {}) {
    const chips = this.selected.size
      ? [...this.selected].map(parse)
      : this.places.chips.has(this.at)
        ? [parse(this.at)]
        : [];
    if (!chips.length) return this.words.replaceChildren(otherwise);
    this.pointAt(this.places.chips.get(keyOf(...chips[0])));
    this.send(type, { chips, ...gesture });
  }

  markSelected() {
    for (const [key, chip] of this.places.chips) chip.setAttribute("aria-selected", String(this.selected.has(key)));
    this.tell();
  }

  // ── drawing ──

  draw() {
    const { state } = this.picture;
    this.root.dataset.state = state;
    if (this.carried) this.letGo();
    this.hand.stop();
    const held = this.root.getRootNode().activeElement;
    const focused = this.wantsFocus || this.board.contains(held);
    this.wantsFocus = false;
    this.board.setAttribute("role", state === "ready" ? "listbox" : "group");
    if (state === "none") this.drawNone();
    else if (state === "unfit") this.drawUnfit();
    else this.drawLayer();
    if (focused) this.focusAt();
  }

  drawLayer() {
    this.settings.drawControls();
    this.places.drawBoard();
    this.side.drawSide();
    this.tell();
  }

  drawNone() {
    const { offer } = this.picture;
    this.settings.controls.replaceChildren();
    this.forget();
    const add = button("Add experts to the model", { kind: "mw-primary", onclick: () => this.send("add") });
    const words = [
      h("h3", {}, "This model has no experts"),
      h(
        "p",
        {},
        "In a mixture of experts, every second feed-forward block becomes several of which each token visits a few. " +
          "They lie on different devices, so that tokens travel; which device holds which experts is drawn here.",
      ),
    ];
    this.board.replaceChildren(
      h("div", { class: "mw-xempty" }, ...words, add, h("p", { class: "mw-quiet" }, offer ?? "")),
    );
  }

  drawUnfit() {
    const { reason, fixes } = this.picture;
    this.settings.drawControls();
    this.forget();
    const buttons = fixes.map((label) =>
      button(label, { kind: "mw-fix", onclick: () => this.send("fix", { fix: label }) }),
    );
    this.board.replaceChildren(
      h(
        "div",
        { class: "mw-xempty" },
        h("h3", {}, "These experts cannot be laid out"),
        h("p", { role: "alert" }, `${reason}.`),
        ...buttons,
      ),
    );
  }

  forget() {
    this.places.chips.clear();
    this.places.tags.clear();
    this.selected.clear();
    this.side.costs.replaceChildren();
    this.words.textContent = "";
  }

  // ── words ──

  /** What is selected or has the keyboard, in the foot. */
  tell() {
    const { size } = this.selected;
    const chip = this.places.chips.get(this.at);
    const hovered = this.hovered;
    if (hovered) this.words.textContent = hovered;
    else if (size > 1)
      this.words.textContent = `${size} chips selected; drag them, Ctrl to replicate, Delete to remove replicas`;
    else if (size === 1 && chip) this.words.textContent = `${chip.ariaLabel}; ${this.groupsOf(parse(this.at)[1])}`;
    else
      this.words.textContent =
        "Drag an expert to another device; Ctrl replicates it. Drag over several to select them.";
    this.words.title = this.words.textContent; // a narrow window cuts it short
  }

  /** The groups of a place's first device, in words. */
  groupsOf(place) {
    const device = this.picture.places[place]?.devices[0];
    const found = Object.entries(this.picture.groups).map(([kind, groups]) => [
      kind,
      groups.find((group) => group.includes(device)),
    ]);
    const kinds = new Map(); // of the same devices, by them
    for (const [kind, group] of found)
      kinds.set(some(group), [...(kinds.get(some(group)) ?? []), `${kind} (${KINDS[kind]})`]);
    return [...kinds].map(([devices, names]) => `${names.join(" and ")} ${devices}`).join(", ");
  }

  /** Take the keyboard, now that this is what is shown. */
  take() {
    this.wantsFocus = true;
    this.redraw();
  }

  /** On the chip; without any on what there is to do, or on what leads elsewhere. */
  focusAt() {
    const place =
      this.places.element(this.at) ??
      this.board.querySelector("button") ??
      this.head.querySelector('[aria-pressed="true"]');
    place.focus();
  }

  pointAt(element) {
    const [box, at] = [this.root.getBoundingClientRect(), (element ?? this.board).getBoundingClientRect()];
    this.pointer = { x: at.left - box.left, y: at.bottom - box.top - 12 };
    return this.pointer;
  }

  sayAt(element, words) {
    this.pointAt(element);
    this.say(words);
  }
}

const some = (group) => (group.length > 9 ? `${group.slice(0, 8).join(" ")} … ${group.at(-1)}` : group.join(" "));

function legend() {
  const swatches = Array.from({ length: LEVELS }, (_, level) =>
    h("i", { style: { background: `var(--load-${level})` } }),
  );
  return h(
    "span",
    {
      class: "mw-xlegend",
      role: "img",
      "aria-label": "Colours: from less load to more than an even share",
      tabindex: 0,
      ...tipped(
        "The load of an expert, and of a device, against an even share: what it had if all had the same. The tick " +
          "in the bar of a device is an even share.",
      ),
    },
    "less",
    ...swatches,
    "more",
    h("span", {}, " than an even share"),
  );
}
