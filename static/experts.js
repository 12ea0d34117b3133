// Experts as chips on the devices that hold them. What is drawn and what a gesture means comes from Python;
// the hand (experts_hand.js) and the keys (experts_keys.js) pick chips up and put them down.

import { Drawing, button, count, h, openMenu, stepper } from "static/canvas.js";
import { explained } from "static/expert_words.js";
import { Hand, keyOf, parse } from "static/experts_hand.js";
import { Keys } from "static/experts_keys.js";
import { paneSwitch } from "static/panes.js";
import { Tips, tipped, walkTips } from "static/shell.js";

const CHIP = { most: 64, least: 6, numbered: 14, digit: 6, large: 30, told: 44 }; // px; from the last two its number is large, and its share is told
const PLACE = { width: 172, least: [34, 24], gap: 4 };
const AROUND = [
  // what stands around the chips of a place, the most first, as long as the chips have at least this size
  { headed: true, barred: true, footed: true, least: 26, wide: 112, edge: 6, high: 41, gap: 4 },
  { headed: true, barred: true, footed: false, least: 20, wide: 72, edge: 6, high: 26, gap: 4 },
  { headed: true, barred: false, footed: false, least: 16, wide: 48, edge: 4, high: 17, gap: 3 },
  { headed: false, barred: false, footed: false, least: 0, wide: 0, edge: 3, high: 0, gap: 2 },
];
const NODE = { pad: 6, head: 15, gap: 8 };
const LEVELS = 7;
const KINDS = { mp: "same tokens", esp: "same experts, cut up", ep: "other experts" };

export const render = ({ model }) => new Experts(model).root;

class Experts extends Drawing {
  constructor(model) {
    super(model);
    this.pointer.y = 60;
    this.selected = new Set(); // keys of chips
    this.carried = null; // what is being moved: { chips, copy, to, refused, words }
    this.at = null; // the key of the chip, or -1 - place, that takes the keyboard
    this.chips = new Map(); // key: element
    this.tags = new Map(); // device: element
    this.tries = 0;
    this.extra = 1;
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
    this.controls = h("div", { class: "mw-bar mw-xcontrols" });
    this.room = stepper({ label: "replicas", one: "replica a device", min: 0, onchange: (value) => this.setRoom(value), onrefuse: (reason, at) => this.sayAt(at, reason) });
    this.room.title = "Replicas that balancing may add to each device";
    this.blocks = button("Equal blocks", { title: "Experts in order, as many on each device (Shift+B)", onclick: () => this.send("blocks") });
    this.blocks.refuse = (reason) => this.sayAt(this.blocks, reason);
    this.balancer = button("Balance", { kind: "mw-primary", title: "Place the experts by their load, with replicas of the hottest (B)", onclick: () => this.balance() });
    this.tools = h("div", { class: "mw-bar mw-xtools" }, this.blocks, this.room, this.balancer);
    this.head = h("div", { class: "mw-bar mw-head" }, paneSwitch("experts", (pane) => this.send("pane", { pane })), this.controls, h("span", { class: "mw-grow" }), this.tools);
    this.board = h("div", { class: "mw-xboard", role: "listbox", "aria-multiselectable": "true", "aria-label": "experts on devices: arrows move, Space picks up, Enter puts down, R replicates, Delete removes a replica" });
    this.costs = h("div", { class: "mw-xcosts" });
    this.reachTips = walkTips(this.costs);
    const compare = button("Compare schedules", { title: "All expert schedules for this layer, side by side", onclick: () => this.send("compare") });
    this.side = h("aside", { class: "mw-xside", "aria-label": "What the layer costs" }, h("div", { class: "mw-bar" }, h("h3", {}, "Layer, forward"), h("span", { class: "mw-grow" }), compare), this.costs);
    this.words = h("span", { class: "mw-quiet mw-grow", role: "status" });
    this.foot = h("div", { class: "mw-bar mw-xfoot" }, this.words, legend());
    this.body = h("div", { class: "mw-xbody" }, this.board, this.side);
    this.root = h("section", { class: "mw-canvas mw-experts", "aria-label": "Experts on devices" }, this.head, this.body, this.foot);
    this.start();
    this.tips = new Tips(this.root);
    this.hand = new Hand(this);
    this.keys = new Keys(this);
  }

  setRoom(value) {
    this.extra = value;
    this.room.answered();
    this.room.set(value, { least: 0, most: this.picture.most_extra });
  }

  balance() {
    this.send("balance", { extra: this.extra });
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
    else if (dropped) this.select(dropped.chips.map(([expert]) => keyOf(expert, dropped.to)), dropped.byKey);
    this.redraw();
  }

  refuse(words, dropped) {
    const at = dropped && this.placeElement(dropped.to);
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
    for (const [expert, place] of chips) this.chips.get(keyOf(expert, place))?.classList.toggle("mw-away", !copy);
  }

  /** Hold what is carried over a place, or over none; Python says what a drop would do. */
  hold(to, copy = this.carried.copy) {
    const { carried } = this;
    if (carried.to === to && carried.copy === copy) return;
    Object.assign(carried, { to, copy, refused: null, words: "" });
    this.root.dataset.carrying = copy ? "copy" : "move";
    for (const [expert, place] of carried.chips) this.chips.get(keyOf(expert, place))?.classList.toggle("mw-away", !copy);
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
    if (to !== null) this.placeElement(to).dataset.target = refused ? "no" : "yes";
  }

  /** Put down what is carried; a refusal is said at the place. */
  putDown() {
    const { carried } = this;
    this.letGo();
    if (!carried || carried.to === null || this.stays(carried)) return;
    if (carried.refused) return this.sayAt(this.placeElement(carried.to), carried.refused);
    const { chips, to, copy } = carried;
    this.dropped = carried;
    this.send(copy ? "replicate" : "move", { chips, to });
  }

  letGo() {
    this.carried = null;
    delete this.root.dataset.carrying;
    for (const chip of this.chips.values()) chip.classList.remove("mw-away");
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
    const chips = this.selected.size ? [...this.selected].map(parse) : this.chips.has(this.at) ? [parse(this.at)] : [];
    if (!chips.length) return this.words.replaceChildren(otherwise);
    this.pointAt(this.chips.get(keyOf(...chips[0])));
    this.send(type, { chips, ...gesture });
  }

  markSelected() {
    for (const [key, chip] of this.chips) chip.setAttribute("aria-selected", String(this.selected.has(key)));
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
    this.drawControls();
    this.drawBoard();
    this.drawSide();
    this.tell();
  }

  drawNone() {
    const { offer } = this.picture;
    this.controls.replaceChildren();
    this.forget();
    const add = button("Add experts to the model", { kind: "mw-primary", onclick: () => this.send("add") });
    const words = [
      h("h3", {}, "This model has no experts"),
      h("p", {}, "In a mixture of experts, every second feed-forward block becomes several of which each token visits a few. They lie on different devices, so that tokens travel; which device holds which experts is drawn here."),
    ];
    this.board.replaceChildren(h("div", { class: "mw-xempty" }, ...words, add, h("p", { class: "mw-quiet" }, offer ?? "")));
  }

  drawUnfit() {
    const { reason } = this.picture;
    this.drawControls();
    this.forget();
    const blocks = button("Put them in equal blocks", { onclick: () => this.send("blocks") });
    this.board.replaceChildren(h("div", { class: "mw-xempty" }, h("h3", {}, "These experts cannot be laid out"), h("p", { role: "alert" }, `${reason}.`), /equal blocks/.test(reason) ? blocks : null));
  }

  forget() {
    this.chips.clear();
    this.tags.clear();
    this.selected.clear();
    this.costs.replaceChildren();
    this.words.textContent = "";
  }

  drawControls() {
    const { meshes, mesh, controls, most_extra: most = this.extra, equal } = this.picture;
    const held = this.root.getRootNode().activeElement?.dataset?.control;
    const items = meshes.map((name, rank) => ({ value: rank, text: name }));
    const chosen = { key: "mesh", label: "mesh", value: mesh, text: meshes[mesh], options: items, help: "The mesh whose devices are shown; all meshes hold their experts alike" };
    const choose = ({ key }) => (value) => (key === "mesh" ? this.send("mesh", { mesh: value }) : this.send("setting", { key, value }));
    const now = [...this.controls.children];
    const drawn = [...(meshes.length > 1 ? [chosen] : []), ...controls].map((control, at) => {
      const said = JSON.stringify(control);
      if (now[at]?.said === said) return now[at]; // it stays, and a press that has begun on it is not lost
      return Object.assign(this.control(control, choose(control)), { said });
    });
    drawn.forEach((element, at) => (now[at] ? now[at] !== element && now[at].replaceWith(element) : this.controls.append(element)));
    for (const element of now.slice(drawn.length)) element.remove();
    this.controls.querySelector(`[data-control="${held}"]`)?.focus();
    this.extra = Math.min(this.extra, most);
    this.room.set(this.extra, { least: 0, most });
    this.blocks.allow(!equal, equal ? "They are in equal blocks" : "Experts in order, as many on each device (Shift+B)");
  }

  /** A small button with its value, which opens a menu. */
  control({ key, label, text, value, options, help, reason }, choose) {
    const content = h("span", {}, h("span", { class: "mw-quiet" }, `${label} `), text);
    const element = button(`${label}: ${text}`, { content, kind: "mw-xcontrol", title: reason || help, onclick: () => openMenu(this.root, element, label, options.map((option) => ({ text: option.text, checked: option.value === value, choose: () => choose(option.value) }))) });
    element.dataset.control = key;
    element.setAttribute("aria-haspopup", "menu");
    element.allow(options.length > 0, reason || help);
    element.refuse = (words) => this.sayAt(element, words);
    return element;
  }

  drawBoard() {
    const { places, esp } = this.picture;
    const nodes = new Map();
    places.forEach((place, number) => nodes.set(place.node, [...(nodes.get(place.node) ?? []), number]));
    const most = Math.max(...[...nodes.values()].map((own) => own.length));
    const fullest = Math.max(1, ...places.map(({ held }) => held.length));
    const layout = arrange(this.board.clientWidth, this.board.clientHeight, nodes.size, most, fullest);
    this.chips.clear();
    this.tags.clear();
    this.outlined = this.hovered = null; // of what is gone
    this.root.dataset.heads = layout.headed ? (layout.width < 22 * esp + 48 ? "load" : "all") : "none";
    const style = { "--place-edge": `${layout.edge - 1}px`, "--chip-gap": `${layout.gap}px`, "--place-w": `${layout.width}px`, "--place-h": `${layout.height}px`, "--columns": layout.columns, "--node-columns": layout.nodeColumns };
    for (const [name, value] of Object.entries(style)) this.board.style.setProperty(name, value);
    const panels = [...nodes].map(([node, own]) => h("div", { class: "mw-xnode", role: "group", "aria-label": `node ${node}` }, h("div", { class: "mw-xnode-head" }, `node ${node}`), h("div", { class: "mw-xplaces" }, ...own.map((number) => this.place(number, places[number], layout, esp)))));
    this.board.replaceChildren(...panels);
    this.selected = new Set([...this.selected].filter((key) => this.chips.has(key)));
    if (!this.element(this.at)) this.at = this.elsewhere();
    this.element(this.at)?.setAttribute("tabindex", "0");
    this.markSelected();
  }

  /** Where the keyboard goes on when its chip is gone: to the same expert elsewhere, else to the first chip. */
  elsewhere() {
    const expert = typeof this.at === "string" ? `${parse(this.at)[0]}@` : "";
    const keys = [...this.chips.keys()];
    return keys.find((key) => expert && key.startsWith(expert)) ?? keys[0] ?? -1;
  }

  place(number, { name, devices, held, chips: copies, level, load, share, bar, memory }, { size, width, barred, footed }, esp) {
    const tags = devices.map((device) => this.tag(device, esp === 1));
    const experts = count(held.length, "expert");
    const words = footed ? `${name}, ${memory} a layer` : `${name}: ${experts}, ${share} of the load (${load}), ${memory} a layer`;
    const head = h("div", { class: "mw-xplace-head" }, h("span", { class: "mw-xtags" }, ...tags), h("span", { class: "mw-xload" }, load));
    const chips = held.map((expert, at) => this.chip(expert, number, name, size, copies[at]));
    const parts = [head, barred ? loadBar(bar, this.picture.even) : null, h("div", { class: "mw-xchips" }, ...chips), footed ? h("div", { class: "mw-xplace-foot" }, [experts, share, width < PLACE.width ? "" : memory].filter(Boolean).join(" · ")) : null];
    const box = h("div", { class: "mw-xplace", "data-place": number, "data-words": words, role: held.length ? "presentation" : "option", "aria-label": held.length ? null : `${name}, no experts`, "aria-selected": held.length ? null : "false", tabindex: held.length ? null : -1, style: { "--load": `var(--load-${level})` } }, ...parts);
    return box;
  }

  tag(device, alone) {
    const element = h("span", { class: "mw-xdevice", "data-device": device }, alone ? `dev ${device}` : String(device));
    this.tags.set(device, element);
    return element;
  }

  chip(expert, place, name, size, { level, size: part, share, words, copies }) {
    const side = Math.max(CHIP.least, Math.round(size * (0.62 + 0.38 * part)));
    const told = [side >= Math.max(CHIP.numbered, CHIP.digit * String(expert).length + 4) && h("b", {}, String(expert)), side >= CHIP.told && h("small", {}, share)].filter(Boolean);
    const chip = h("div", { class: "mw-xchip", role: "option", tabindex: -1, "data-key": keyOf(expert, place), "data-expert": expert, "aria-selected": "false", "aria-label": `${words}; here on ${name}`, style: { width: `${side}px`, height: `${side}px`, "--load": `var(--load-${level})`, "--on-load": `var(--on-load-${level})` } }, ...told);
    chip.toggleAttribute("data-copied", copies > 1);
    chip.toggleAttribute("data-small", side < 19);
    chip.toggleAttribute("data-large", side >= CHIP.large);
    this.chips.set(keyOf(expert, place), chip);
    return chip;
  }

  drawSide() {
    const { figures, reason, problem, about, terms } = this.picture;
    const rows = figures.flatMap(({ key, label, value, small, help }) => [h("dt", {}, h("span", tipped(help), label)), h("dd", { "data-figure": key }, h("b", {}, value), " ", h("span", { class: "mw-quiet" }, small))]);
    const words = [problem && h("p", { class: "mw-xproblem", role: "alert" }, `${problem}.`), reason && h("p", { class: "mw-xreason" }, ...explained(reason, terms)), ...about.map((sentence) => h("p", { class: "mw-quiet" }, ...explained(sentence, reason ? {} : terms)))];
    const tips = () => [...this.costs.querySelectorAll("[data-tip]")];
    const at = tips().indexOf(this.root.getRootNode().activeElement);
    this.costs.replaceChildren(h("dl", {}, ...rows), ...words.filter(Boolean));
    this.reachTips();
    if (at >= 0) tips()[Math.min(at, tips().length - 1)]?.focus();
  }

  // ── words ──

  /** What is selected or has the keyboard, in the foot. */
  tell() {
    const { size } = this.selected;
    const chip = this.chips.get(this.at);
    const hovered = this.hovered;
    if (hovered) this.words.textContent = hovered;
    else if (size > 1) this.words.textContent = `${size} chips selected; drag them, Ctrl to replicate, Delete to remove replicas`;
    else if (size === 1 && chip) this.words.textContent = `${chip.ariaLabel}; ${this.groupsOf(parse(this.at)[1])}`;
    else this.words.textContent = "Drag an expert to another device; Ctrl replicates it. Drag over several to select them.";
    this.words.title = this.words.textContent; // a narrow window cuts it short
  }

  /** The groups of a place's first device, in words. */
  groupsOf(place) {
    const device = this.picture.places[place]?.devices[0];
    const found = Object.entries(this.picture.groups).map(([kind, groups]) => [kind, groups.find((group) => group.includes(device))]);
    const kinds = new Map(); // of the same devices, by them
    for (const [kind, group] of found) kinds.set(some(group), [...(kinds.get(some(group)) ?? []), `${kind} (${KINDS[kind]})`]);
    return [...kinds].map(([devices, names]) => `${names.join(" and ")} ${devices}`).join(", ");
  }

  /** Outline the devices that share a group with this one. */
  outline(device) {
    if (this.outlined === device) return;
    this.outlined = device;
    for (const tag of this.tags.values()) tag.removeAttribute("data-in");
    if (device === null) return;
    for (const [kind, groups] of Object.entries(this.picture.groups)) {
      const group = groups.find((members) => members.includes(device)) ?? [];
      for (const member of group) {
        const tag = this.tags.get(member);
        tag.setAttribute("data-in", `${tag.getAttribute("data-in") ?? ""} ${kind}`.trim());
      }
    }
  }

  // ── small things ──

  element(at) {
    return typeof at === "number" ? this.board.querySelector(`.mw-xplace[data-place="${-1 - at}"][tabindex]`) : this.chips.get(at);
  }

  placeElement(place) {
    return this.board.querySelector(`.mw-xplace[data-place="${place}"]`);
  }

  /** Take the keyboard, now that this is what is shown. */
  take() {
    this.wantsFocus = true;
    this.redraw();
  }

  /** On the chip; without any on what there is to do, or on what leads elsewhere. */
  focusAt() {
    const place = this.element(this.at) ?? this.board.querySelector("button") ?? this.head.querySelector('[aria-pressed="true"]');
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

// ── geometry ────────────────────────────────────────────────────────────────────────────────

/** How nodes and the places in them are put into rows, so that chips are large; places have the size that these need. */
function arrange(width, height, nodes, places, fullest) {
  let best = null;
  for (let nodeColumns = 1; nodeColumns <= nodes; nodeColumns++) {
    for (let columns = 1; columns <= places; columns++) {
      const rows = { node: Math.ceil(nodes / nodeColumns), place: Math.ceil(places / columns) };
      const node = [(width - (nodeColumns - 1) * NODE.gap) / nodeColumns, (height - (rows.node - 1) * NODE.gap) / rows.node];
      const wide = Math.floor((node[0] - 2 * NODE.pad - 2 - (columns - 1) * PLACE.gap) / columns);
      const high = Math.floor((node[1] - NODE.pad - 2 - NODE.head - (rows.place - 1) * PLACE.gap) / rows.place);
      const fits = wide >= PLACE.least[0] && high >= PLACE.least[1];
      const placed = { columns, nodeColumns, ...inside(Math.max(wide, PLACE.least[0]), Math.max(high, PLACE.least[1]), fullest) };
      const score = (fits ? 1e6 : 0) + 1e3 * placed.size + Math.min(wide, PLACE.width) + Math.min(high, PLACE.width);
      if (!best || score > best.score) best = { ...placed, score };
    }
  }
  return best;
}

/** What a place of at most this width and height shows, the largest chips of which the fullest one has room for all, and
    what it needs of the room that it has. */
function inside(wide, high, fullest) {
  for (const around of AROUND) {
    const { edge, gap } = around;
    const room = [wide - 2 * edge, high - 2 * edge - around.high];
    const across = (size) => Math.max(1, Math.floor((room[0] + gap) / (size + gap)));
    const taken = (number, size) => number * (size + gap) - gap;
    const down = (size) => taken(Math.ceil(fullest / across(size)), size);
    let size = CHIP.most;
    while (size > CHIP.least && (size > room[0] || down(size) > room[1])) size--;
    if (size < around.least || wide < around.wide) continue;
    const width = Math.min(wide, Math.max(PLACE.width, taken(Math.min(across(size), fullest + 1), size) + 2 * edge));
    return { ...around, size, width, height: Math.min(high, down(size) + 2 * edge + around.high) };
  }
}

// ── small pieces ────────────────────────────────────────────────────────────────────────────

const some = (group) => (group.length > 9 ? `${group.slice(0, 8).join(" ")} … ${group.at(-1)}` : group.join(" "));

/** How much of the longest bar a load is, with a tick at an even share. */
function loadBar(part, even) {
  const percent = (share) => `${(100 * share).toFixed(2)}%`;
  return h("div", { class: "mw-xbar", "aria-hidden": "true" }, h("i", { style: { width: percent(part) } }), h("b", { style: { left: percent(even) } }));
}

function legend() {
  const swatches = Array.from({ length: LEVELS }, (_, level) => h("i", { style: { background: `var(--load-${level})` } }));
  return h("span", { class: "mw-xlegend", role: "img", "aria-label": "Colours: from less load to more than an even share", tabindex: 0, ...tipped("The load of an expert, and of a device, against an even share: what it had if all had the same. The tick in the bar of a device is an even share.") }, "less", ...swatches, "more", h("span", {}, " than an even share"));
}
