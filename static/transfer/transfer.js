// A transfer: both cuts of its tensor, its unit tasks, the links' timeline, all plans side by side. Python plans
// (designer/canvases/transfer.py), this draws what it says and sends gestures. Here is what the parts share.

import { download } from "../kit/bars.js";
import { followTheme, h, perFrame, send } from "../kit/canvas.js";
import { Overlay, Tips } from "../kit/shell.js";
import { Form } from "./form.js";
import { Lanes } from "./lanes.js";
import { Cut } from "./mesh_grid.js";
import { Spec, help } from "./sharding_spec.js";
import { Tasks } from "./task_grid.js";
import { Table } from "./task_table.js";
import { Bar } from "./toolbar.js";

const TURNS = ["case", "open", "link", "undo", "redo"]; // gestures that put another document in place
const KEYS = { z: "undo", y: "redo", s: "save", o: "open" };

export function render({ model }) {
  const view = new Transfer(model);
  model.on("remove", () => view.remove());
  return view.root;
}

class Transfer {
  constructor(model) {
    this.model = model;
    this.picture = null; // what Python drew last of a sound transfer
    this.leaving = new AbortController();
    this.lit = null; // what the pointer or the keyboard is at: { task } or { side, places }
    this.pinned = null; // the same, kept until it is taken off
    this.looked = [null, null]; // the tasks that this is about, and the place itself
    this.awaited = []; // gestures in their order, and the parts that are to hear what became of them
    this.relight = perFrame(() => this.light());
    this.build();
    model.on("packed", () => this.draw());
    model.on(["fields", "troubles", "stale", "history", "title", "host_word", "fragment", "design_has"], () =>
      this.tell(),
    );
    model.on(["shows", "play"], () => this.lanes.turn());
    model.on(["shows", "table"], () => this.table.draw());
    model.on("msg:custom", (message) => this.told(message));
    this.listen();
    this.draw();
    this.tell();
    this.table.draw();
    this.overlay?.follow();
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
  }

  get isPage() {
    return this.model.mode === "page";
  }

  remove() {
    this.leaving.abort();
    this.lanes.remove();
    for (const part of this.grids) part.remove();
  }

  build() {
    this.bar = new Bar(this);
    this.specs = ["source", "destination"].map((side) => new Spec(this, side));
    this.cuts = { source: new Cut(this, "source"), destination: new Cut(this, "destination") };
    const { source, destination } = this.cuts;
    const tasks = new Tasks(this);
    this.grids = [source, tasks, destination];
    this.form = new Form(this);
    this.lanes = new Lanes(this);
    this.table = new Table(this);
    this.live = h("div", { class: "mw-sr", role: "status", "aria-live": "polite" });
    this.trouble = h("div", { class: "mw-tr-trouble mw-tr-general", role: "alert", hidden: true });
    this.body = h(
      "div",
      { class: "mw-tr-body" },
      card("source", "Source", [this.specs[0].element, source.element], help(this, "source")),
      card("tasks", "Unit tasks", [tasks.element], tasks.about),
      card("destination", "Destination", [this.specs[1].element, destination.element], help(this, "destination")),
      h(
        "section",
        { class: "mw-tr-card", "data-card": "form", "aria-label": "Meshes, tensor and links" },
        this.form.element,
      ),
      card(
        "lanes",
        "Links",
        [this.lanes.note, this.lanes.element],
        this.lanes.choice,
        this.lanes.about,
        this.lanes.help,
      ),
      card("plans", "Plans side by side", [this.table.element], this.table.about),
    );
    const inner = [this.bar.element, this.trouble, this.body, this.live];
    this.root = h("div", { class: "mw-canvas mw-shell mw-transfer", "data-mode": this.model.mode });
    this.root.mw = this; // for tests
    if (this.isPage) this.root.append(...inner);
    else
      this.root.append(
        (this.dialog = h("dialog", { class: "mw-dialog mw-tr-dialog", "aria-label": "Transfer" }, ...inner)),
      );
    if (this.dialog) this.overlay = new Overlay(this.model, this.dialog, () => this.opened());
    this.tips = new Tips(this.dialog ?? this.root);
  }

  opened() {
    this.pinned = this.lit = this.refused = null;
    this.form.forget();
    this.tell();
    this.lanes.focus();
  }

  // ── to and from Python ──

  /** `part.answered(refused)` hears what became of it. */
  send(type, gesture = {}, part = this) {
    const goes = send(this.model, { type, ...gesture });
    if (goes) this.awaited.push({ type, part });
    return goes;
  }

  told(message) {
    const data = message.data ?? message;
    if (data.type === "hops") this.lanes.learn({ ...data, hops: JSON.parse(data.hops) });
    else if (data.type === "download") download(data);
    else if (data.type === "answered") {
      const at = this.awaited.findIndex(({ type }) => type === data.gesture);
      if (at >= 0) this.awaited.splice(at, 1)[0].part.answered(data.refused);
      if (!data.refused && TURNS.includes(data.gesture)) this.form.forget();
    }
  }

  answered(refused) {
    this.refused = refused;
    this.tell();
  }

  // ── drawing ──

  draw() {
    const { packed } = this.model;
    if (!packed) return;
    const picture = (this.picture = JSON.parse(packed));
    this.pinned = this.lit = null;
    this.looked = [null, null];
    for (const part of [...this.specs, ...this.grids, this.lanes]) part.draw(picture);
    this.table.draw();
    this.tell();
    this.light();
  }

  /** What is no picture: words, fields, what can be undone. */
  tell() {
    const { model } = this;
    const words = this.refused || model.troubles[""] || "";
    this.trouble.textContent = words;
    this.trouble.hidden = !words;
    this.root.toggleAttribute("data-stale", model.stale);
    this.bar.tell();
    this.form.tell();
    for (const spec of this.specs) spec.tell();
    if (this.isPage) this.keepLink();
  }

  /** The page's own link is what it shows, and never the token. */
  keepLink() {
    const { fragment } = this.model;
    if (!this.following && this.picture)
      history.replaceState(null, "", `${location.pathname}${fragment && `#${fragment}`}`);
  }

  // ── what is looked at ──

  hover(what) {
    this.lit = what;
    this.relight();
  }

  /** Keep something in the light, or let it go; `aloud` where nothing else says what it is. */
  pin(what, aloud = true) {
    this.pinned = same(what, this.pinned) ? null : what;
    this.relight();
    if (!aloud) return;
    const { task, side, places } = this.pinned ?? {};
    if (task !== undefined) this.live.textContent = this.lanes.words(task);
    else if (side) this.live.textContent = this.cuts[side].words(places);
  }

  light() {
    const { picture } = this;
    if (!picture) return;
    const shown = this.lit ?? this.pinned;
    const tasks = shown ? tasksOf(picture, shown) : null;
    this.looked = [tasks, shown];
    this.root.toggleAttribute("data-lit", Boolean(tasks));
    for (const part of [...this.grids, this.lanes]) part.light(tasks, shown);
  }

  // ── the whole page ──

  listen() {
    const { signal } = this.leaving;
    if (!this.isPage) {
      this.dialog.addEventListener("keydown", (event) => {
        this.key(event);
        event.stopPropagation(); // keys of the page below are not meant
      });
      return;
    }
    window.addEventListener("keydown", (event) => this.key(event), { signal });
    window.addEventListener("hashchange", () => this.follow(), { signal });
    window.addEventListener(
      "dragover",
      (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault(),
      { signal },
    );
    window.addEventListener("drop", (event) => this.drop(event), { signal });
    document.title = "Transfer lab · Meshwave";
    this.following = location.hash.length > 1;
    if (this.following) whenIdle(() => this.follow());
  }

  follow() {
    this.following = false;
    if (location.hash.length > 1 && location.hash.slice(1) !== this.model.fragment)
      this.send("link", { fragment: location.hash.slice(1) });
  }

  drop(event) {
    const [file] = event.dataTransfer?.files ?? [];
    if (!file) return;
    event.preventDefault();
    this.bar.read(file);
  }

  key(event) {
    if (event.defaultPrevented || !this.model.shown || !(event.ctrlKey || event.metaKey) || event.altKey) return;
    if (!this.isPage && !["z", "y"].includes(event.key.toLowerCase())) return;
    const target = event.composedPath()[0];
    const name = event.shiftKey ? event.key.toLowerCase() === "z" && "redo" : KEYS[event.key.toLowerCase()];
    if (!name || (target.tagName === "INPUT" && !target.atRest?.() && name !== "save" && name !== "open")) return;
    event.preventDefault();
    event.stopPropagation();
    if (name === "open") this.bar.pick();
    else this.send(name);
  }
}

/** The unit tasks that a place of the picture belongs to: itself, or all that a rank sends or gets. */
function tasksOf({ tasks, source, destination }, { task, side, places }) {
  if (task !== undefined) return new Set([task]);
  const ranks = new Set(places.map((place) => (side === "source" ? source : destination).ranks[place]));
  const of = (each) => (side === "source" ? each.senders : [...each.receivers, ...each.keepers]);
  return new Set(tasks.flatMap((each, number) => (of(each).some((rank) => ranks.has(rank)) ? [number] : [])));
}

function same(one, other) {
  return (
    Boolean(one && other) &&
    one.task === other.task &&
    one.side === other.side &&
    String(one.places) === String(other.places)
  );
}

function card(name, title, children, ...about) {
  return h(
    "section",
    { class: "mw-tr-card", "data-card": name, "aria-label": title },
    h("header", {}, h("h2", {}, title), ...about),
    ...children,
  );
}

/** Once the page's socket takes messages. */
function whenIdle(then) {
  const [page] = globalThis.Bokeh?.documents ?? [];
  if (page?.is_idle) then();
  else setTimeout(() => whenIdle(then), 30);
}
