// Timelines over one another on one axis. Python decides (designer/views/timeline.py), this file draws:
// columns come down in `packed`, what a person pins and asks goes up as messages. Here is what the parts share;
// each part is a file of its own: layout, view, picture, overlay, input, tip, area, marks, search, panel, link.

import { followTheme, h, onRatio, perFrame } from "../kit/canvas.js";
import { count } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { Asker } from "./ask.js";
import { decode } from "./data.js";
import { debug } from "./debug.js";
import { Depth } from "./depth.js";
import { Edit } from "./edit.js";
import { Colours, Frame } from "./frame.js";
import { Help } from "./help.js";
import { Input } from "./input.js";
import { arrange, laneKey, rowsOf } from "./layout.js";
import { Marks } from "./marks.js";
import { Overlay } from "./overlay.js";
import { Panel } from "./panel.js";
import { followLink, readLink } from "./permalink.js";
import { Picture } from "./picture.js";
import { PinBar } from "./pin_bar.js";
import { firstPlace, laneAt, nameOf, placeAt, placeBeside, placeOf, twinOf } from "./place.js";
import { Search } from "./search.js";
import { Area } from "./selection.js";
import { spoken } from "./text.js";
import { SWITCHES, Toolbar } from "./toolbar.js";
import { Tip } from "./tooltip.js";
import { amount } from "./units.js";
import { View } from "./view.js";

const SAID_FOR = 4000; // milliseconds

export function render({ model, el }) {
  const chart = new Chart(model);
  const changed = (name, then) => model.on(`change:${name}`, then);
  changed("packed", () => chart.read());
  for (const name of ["stale", "empty", ...SWITCHES]) changed(name, () => chart.refresh());
  model.on("remove", () => chart.remove());
  el.style.height = "100%";
  requestAnimationFrame(() => chart.connect());
  return chart.root;
}

export class Chart {
  constructor(model) {
    this.model = model;
    this.data = null;
    this.hover = this.pinned = this.focus = null; // places, see place.js
    this.pinnedFrom = null; // the focus when it was pinned
    this.flow = 0; // which of FLOWS is shown of the pinned block
    this.kept = new Set(); // keys of the lanes that stand on top
    this.arrows = [];
    this.stats = { paints: 0, paintMs: 0 };
    this.repaint = perFrame(() => this.paint());
    this.overpaint = perFrame(() => this.overlay.paint());
    this.asker = new Asker(model);
    this.depth = new Depth(this);
    this.view = new View(this);
    this.picture = new Picture(this);
    this.overlay = new Overlay(this);
    this.tip = new Tip(this);
    this.marks = new Marks(this);
    this.area = new Area(this);
    this.search = new Search(this);
    this.panel = new Panel(this);
    this.pinbar = new PinBar(this);
    this.help = new Help(this);
    this.edit = new Edit(this);
    this._build();
    this.input = new Input(this);
    this.link = readLink(location.hash); // followed when there is something to show
    this.read();
  }

  _build() {
    this.base = h("canvas", { class: "mw-timeline-base", "aria-hidden": "true" });
    this.over = h("canvas", { class: "mw-timeline-over", "aria-hidden": "true" });
    this.probe = h("span", { class: "mw-timeline-probe" });
    this.words = h("div", { class: "mw-timeline-stale", role: "status" });
    this.empty = h("div", { class: "mw-timeline-empty" });
    this.live = h("div", { class: "mw-sr", "aria-live": "polite" });
    this.stage = h(
      "div",
      { class: "mw-timeline-stage", tabindex: "0", role: "application", "aria-roledescription": "timeline" },
      this.base,
      this.over,
      this.words,
      this.empty,
      this.tip.element,
    );
    this.toolbar = new Toolbar(this);
    const bar = h(
      "div",
      { class: "mw-bar mw-timeline-bar" },
      this.depth.element,
      this.toolbar.legend,
      this.pinbar.element,
      h("div", { class: "mw-grow" }),
      this.edit.button,
      ...Object.values(this.toolbar.buttons),
    );
    this.said = h("div", { class: "mw-timeline-said", role: "status", hidden: true });
    const lanes = h(
      "div",
      { class: "mw-timeline-lanes" },
      this.stage,
      this.search.element,
      this.said,
      this.help.element,
    );
    const body = h("div", { class: "mw-timeline-body" }, lanes, this.panel.element);
    this.root = h("div", { class: "mw-canvas mw-timeline" }, bar, this.edit.element, body, this.live, this.probe);
  }

  toggle(name) {
    this.model[name] = !this.model[name];
    this.panel.isClosed = false;
    this.refresh();
  }

  connect() {
    this.sizes = new ResizeObserver(() => {
      this.repaint();
      this.tip.stand();
    });
    this.sizes.observe(this.stage);
    this.unfollow = followTheme(this.root);
    this.themes = new MutationObserver(() => this.repaint());
    this.themes.observe(this.root, { attributes: true, attributeFilter: ["data-theme"] });
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.onscheme = () => this.repaint();
    this.scheme.addEventListener("change", this.onscheme);
    this.unwatchRatio = onRatio(() => this.repaint());
    this.onhash = () => followLink(this, readLink(location.hash));
    window.addEventListener("hashchange", this.onhash);
    this.edit.connect();
    window.meshwaveTimeline = debug(this);
    this.repaint();
  }

  remove() {
    this.sizes?.disconnect();
    this.themes?.disconnect();
    this.unfollow?.();
    this.unwatchRatio?.();
    this.scheme?.removeEventListener("change", this.onscheme);
    window.removeEventListener("hashchange", this.onhash);
    this.panel.stop();
    this.repaint.cancel();
    this.overpaint.cancel();
    this.view.stop();
  }

  // data

  read() {
    const before = this.data;
    const kept = [this.pinned, this.focus].map(nameOf);
    const began = performance.now();
    this.data = decode(this.model.packed);
    this.stats.decodeMs = performance.now() - began;
    const ratio = before && this.data ? before.horizon / this.data.horizon : 1;
    if (!this.depth.arrived(before, kept)) {
      if (before && this.data) this.view.rescale(ratio);
      else this.view.showWhole();
      [this.pinned, this.focus] = kept.map((name) => placeOf(this.data, name));
      this.depth.renew();
    }
    this.related = null; // of the pinned span: found when it is painted
    this.hover = null;
    this.tip.hide();
    this.arrangeRows();
    this.area.keep(this.data, ratio);
    this.search.renew();
    this.edit.arrived();
    this.refresh();
    if (this.link && this.data) requestAnimationFrame(() => followLink(this, this.link));
  }

  /** Which timelines stand in which lanes: in edit mode nothing lies over the order that is edited. */
  arrangeRows() {
    this.rows = rowsOf(this.data, this.edit.isOn);
    for (const name of ["pinned", "focus", "hover"]) if (!this.isShown(this[name])) this[name] = null;
    if (this.isDrawn) this.plan = this.layout(); // what lies over the picture may be painted before it
    this.toolbar.drawLegend();
  }

  isShown(place) {
    return Boolean(place) && this.rows.flat().includes(place.layer);
  }

  /** The timeline that a person works on: the last that is not laid over another. */
  get openLayer() {
    return this.data?.layers.findLast((layer) => !layer.over) ?? null;
  }

  refresh() {
    const { model, data } = this;
    this.toolbar.refresh();
    this.pinbar.show();
    this.panel.fill();
    this.words.textContent = model.stale;
    this.words.hidden = !model.stale || !data;
    this.root.toggleAttribute("data-stale", Boolean(model.stale && data));
    this.empty.textContent = model.stale && !data ? model.stale : model.empty;
    this.empty.hidden = Boolean(data);
    this.stage.setAttribute("aria-label", this._summary());
    this.repaint();
  }

  _summary() {
    if (!this.data) return this.model.empty;
    const said = this.data.layers.map(
      (layer) =>
        `${layer.label}, ${layer.source}: ${count(layer.ranks, "mesh", "meshes")}, ` +
        `${amount(layer.makespan, layer.unit)}`,
    );
    return (
      `${said.join("; ")}. J and K walk the blocks, Enter pins, W A S D and arrows move, 0 shows all, question mark ` +
      "lists the keys."
    );
  }

  // painting

  get isDrawn() {
    return Boolean(this.frame && this.data);
  }

  /** Where everything stands in the view as it is; scrolls back what is scrolled too far. */
  layout() {
    const layers = this.data?.layers ?? [];
    const held = this.model.show_memory ? layers.filter((layer) => layer.hasMemory) : [];
    const { clientWidth: width, clientHeight: height } = this.stage;
    const linked = (this.model.show_links && layers.find((layer) => layer.links)) || null;
    const plan = arrange({ rows: this.rows, held, linked, kept: this.kept, view: this.view, width, height });
    this.view.scroll = plan.scroll;
    return plan;
  }

  paint() {
    const began = performance.now();
    if (!this.stage.clientWidth || !this.stage.clientHeight) return;
    this._readColours();
    const ratio = window.devicePixelRatio || 1;
    this.plan = this.layout();
    for (const canvas of [this.base, this.over]) fitCanvas(canvas, this.plan, ratio);
    const context = this.base.getContext("2d", { alpha: false });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = css(this.colours.background);
    context.fillRect(0, 0, this.plan.width, this.plan.height);
    this.frame = new Frame(this.view, this.plan.size, ratio, this.colours);
    this.arrows = [];
    if (this.data) {
      const { arrows, ...counted } = this.picture.paint(context);
      this.arrows = arrows;
      Object.assign(this.stats, counted);
    }
    this.stats.paintMs = performance.now() - began;
    this.stats.paints++;
    this.overlay.paint();
  }

  _readColours() {
    this.probe.style.color = "var(--bg)";
    const background = getComputedStyle(this.probe).color;
    if (this._coloursFor === `${background} ${this.root.dataset.theme}`) return;
    this._coloursFor = `${background} ${this.root.dataset.theme}`;
    const found = new Colours(this.probe, this.model.palette);
    this.colours = found;
    const { style } = this.root;
    found.ops.forEach((colour, op) => style.setProperty(`--op-${this.model.palette.names[op]}`, css(colour)));
    for (const name of ["idle", "hatch", "memory", "warning"]) style.setProperty(`--${name}`, css(found[name]));
  }

  // pointer, focus and pin

  /** The pointer is at a point of the canvas, or nowhere. */
  point(at) {
    this.pointer = at;
    this.isByKey = false;
    this.hover = at && placeAt(this, at);
    const named = at && at.x < this.frame.left && laneAt(this, at);
    this.stage.dataset.over =
      this.hover?.span >= 0 ? "span" : named ? "name" : at && at.y < this.frame.top ? "axis" : "";
    this.stage.title = named ? "Keep this lane on top, or put it back (U)" : "";
    this.overpaint();
    if (this.hover) this.tip.show(this.hover, at.x, at.y);
    else this.tip.hide();
  }

  setFocused(focused) {
    this.focused = focused;
    this.isByKey &&= focused;
    this.overpaint();
  }

  /** Move the keyboard's focus `along` its lane or to the lane `across`. */
  walk(along, across) {
    const from = this.focus ?? this.pinned;
    const next = from ? placeBeside(this, from, along, across) : firstPlace(this);
    if (next) this._focusOn(next);
    if (next && this.area.anchor) this.area.reach(next);
  }

  _focusOn(place) {
    this.focus = place;
    this.focused = true;
    this.live.textContent = spoken(place, this.model.palette, twinOf(this, place));
    this.view.bringIn(place);
    this.overpaint();
    this.tellOf(place);
  }

  /** Words about a place, beside it. */
  tellOf(place) {
    const { layer, span } = place;
    const lane = this.plan.laneOf(layer, layer.rankOf(span));
    this.isByKey = true; // the cursor's line stands there
    this.overpaint();
    this.tip.show(place, Math.max(this.frame.x(layer.start[span]), this.frame.left) + 8, lane.y + lane.height);
  }

  /** Pin a place, or nothing; the same place again takes the pin off. */
  pin(place) {
    this.pinbar.pin(place);
  }

  /** Pin the block in focus; where it is pinned, open what is behind it. */
  enter() {
    const { focus, pinned, depth } = this;
    const same =
      pinned && (!focus || focus === this.pinnedFrom || (focus.layer === pinned.layer && focus.span === pinned.span));
    if (same && depth.canOpen(pinned)) depth.open(pinned);
    else if (focus) this.pin(focus);
  }

  /** Go to the area, or to the block in focus. */
  showChosen() {
    const place = this.focus ?? this.pinned;
    if (this.area.chosen) this.area.show();
    else if (place) this.view.show(place);
  }

  // lanes kept on top

  /** Keep a lane on top, or put it back. */
  keep({ layer, rank }) {
    const row = this.rows.find((row) => row.includes(layer))[0];
    const key = laneKey(row, rank);
    if (!this.kept.delete(key)) this.kept.add(key);
    const state = this.kept.has(key) ? "kept on top" : "back in its place";
    this.live.textContent = `Mesh ${layer.meshes[rank]} is ${state}.`;
    this.repaint();
  }

  /** The lane under the pointer, else that of the block in focus. */
  keepHere() {
    const under = this.pointer && laneAt(this, this.pointer);
    const place = this.focus ?? this.pinned;
    if (under) this.keep(under);
    else if (place) this.keep({ layer: place.layer, rank: place.layer.rankOf(place.span) });
  }

  /** Close or undo one thing at a time, what came last first. */
  escape() {
    if (this.help.isOpen) this.help.toggle(false);
    else if (this.area.chosen || this.area.mode) this.area.leave();
    else if (!this.search.element.hidden) this.search.close();
    else if (this.pinned) this.pin(null);
    else if (this.panel.isOpen) this.panel.close();
    else if (this.depth.isDeep) this.depth.back();
    else this.tip.hide();
  }

  /** Words over the lanes, for a while. */
  say(words) {
    clearTimeout(this.saying);
    this.said.textContent = words;
    this.said.hidden = false;
    this.saying = setTimeout(() => (this.said.hidden = true), SAID_FOR);
  }
}

function fitCanvas(canvas, { width, height }, ratio) {
  const [wide, tall] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== tall) Object.assign(canvas, { width: wide, height: tall });
}
