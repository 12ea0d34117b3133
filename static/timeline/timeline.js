// The chart of timelines on a common axis, with the state that its parts share. Python (designer/views/timeline.py)
// sends columns in `packed`; pins and questions are sent to Python as messages.

/** @import { Point } from "../kit/types" */
/** @import { Layer } from "./data.js" */
/** @import { Arrow, Data, Flow, LinkedView, Place, Plan, TimelineModel } from "./types" */
/** @import { Switch } from "./toolbar.js" */

import { h } from "../kit/dom.js";
import { keepNames } from "../kit/language.js";
import { css } from "../kit/palette.js";
import { followTheme, oncePerFrame, watchPixelRatio } from "../kit/widget.js";
import { pixelRatio } from "../kit/zoom.js";
import { Asker } from "./ask.js";
import { Collapse } from "./collapse.js";
import { decode } from "./data.js";
import { Depth } from "./depth.js";
import { Edit } from "./edit.js";
import { boxOf, Colours, Frame, resizeCanvas } from "./frame.js";
import { halfWidth, laneNames, namesOf } from "./gutter.js";
import { Help } from "./help.js";
import { Input } from "./input.js";
import { LaneFilter } from "./lane_filter.js";
import { arrange, rowsOf } from "./layout.js";
import { Marks } from "./marks.js";
import { Overlay } from "./overlay.js";
import { Panel } from "./panel.js";
import { followLink, readLink } from "./permalink.js";
import { Picture } from "./picture.js";
import { PinBar } from "./pin_bar.js";
import { actionName, firstPlace, isHidden, partAt, placeAt, placeBeside, placeOf, twinOf } from "./place.js";
import { Search } from "./search.js";
import { Selection } from "./selection.js";
import { reportRows } from "./shown_rows.js";
import { nameTitle, slowReason, slowReasons } from "./slow_lanes.js";
import { announcement, summary } from "./text.js";
import { SWITCHES, Toolbar } from "./toolbar.js";
import { Tooltip } from "./tooltip.js";
import { View } from "./view.js";

const NOTICE_MS = 4000;

/** @param {{model: TimelineModel, el: HTMLElement}} options */
export function render({ model, el }) {
  const chart = new Chart(model);
  model.on("packed", () => chart.read());
  model.on(["stale", "empty"], () => chart.drawState());
  model.on(["flags", "notes", "can_note", "slow_lanes", ...SWITCHES], () => chart.refresh());
  model.on("opened", () => chart.resetLanes());
  el.style.height = "100%";
  requestAnimationFrame(() => model.on("remove", chart.connect()));
  return chart.root;
}

export class Chart {
  /** @type {Data} */ data = decode();
  /** Timelines that share their lanes. @type {Layer[][]} */ rows = [];
  /** @type {Plan} */ plan;
  /** Undefined before the first painting. @type {Frame} */ frame;
  /** @type {Colours} */ colours;
  coloursKey = "";
  /** @type {Arrow[]} */ arrows = [];
  stats = { paints: 0, paintMs: 0, decodeMs: 0 };

  /** The place under the pointer. @type {Place | null} */ hover = null;
  /** @type {Place | null} */ pinned = null;
  /** Place of the keyboard focus. @type {Place | null} */ focus = null;
  /** The focus when the block was pinned. @type {Place | null} */ pinnedFocus = null;
  /** @type {Point | null} */ pointer = null;
  isFocused = false; // true if the canvas has the keyboard focus
  isByKey = false; // true if the cursor is at the focused block instead of at the pointer
  flow = 0; // index of the flow in FLOWS that is shown
  /** The flow of the pinned block, computed when it is painted. @type {Flow | null} */ related = null;
  /** Keys of the pinned lanes. @type {Set<string>} */ kept = new Set();
  noticeTimer = 0;
  reportedRows = "[]"; // the layers and rows that Python knows, as JSON

  base = h("canvas.mw-timeline-base", { "aria-hidden": "true" });
  over = h("canvas.mw-timeline-over", { "aria-hidden": "true" });
  probe = h("span.mw-timeline-probe");
  stale = h("div.mw-timeline-stale", { role: "status" });
  empty = h("div.mw-timeline-empty");
  notice = h("div.mw-timeline-notice", { role: "status", hidden: true });
  live = h("div.mw-sr", { "aria-live": "polite" });

  /** @param {TimelineModel} model */
  constructor(model) {
    this.model = model;
    this.repaint = oncePerFrame(() => this.paint());
    this.overpaint = oncePerFrame(() => this.overlay.paint());
    this.asker = new Asker(model);
    this.depth = new Depth(this);
    this.view = new View(this);
    this.picture = new Picture(this);
    this.overlay = new Overlay(this);
    this.tooltip = new Tooltip(this);
    this.marks = new Marks(this);
    this.selection = new Selection(this);
    this.search = new Search(this);
    this.filter = new LaneFilter(this);
    this.collapse = new Collapse(this);
    this.panel = new Panel(this);
    this.pinBar = new PinBar(this);
    this.help = new Help(this);
    this.edit = new Edit(this);
    this.toolbar = new Toolbar(this);
    const attributes = { tabindex: 0, role: "application", "aria-roledescription": "timeline" };
    const parts = [this.base, this.over, this.stale, this.empty, this.tooltip.element];
    this.stage = h("div.mw-timeline-stage", attributes, ...parts);
    this.root = this.build();
    this.input = new Input(this);
    /** The view of the page's link, shown after the first timeline has arrived. @type {LinkedView | null} */
    this.link = readLink(location.hash);
    this.read();
  }

  build() {
    const { toolbar, edit } = this;
    const tools = [h("div.mw-grow"), edit.button, ...toolbar.tools];
    const said = [this.depth.element, toolbar.legend, this.pinBar.element];
    const bar = h("div.mw-bar.mw-timeline-bar.mw-scroll-row", {}, ...said, ...tools);
    const fields = h("div.mw-timeline-fields", {}, this.filter.element, this.search.element);
    const above = [this.collapse.element, fields, toolbar.play.element, toolbar.groups, this.help.element];
    const lanes = h("div.mw-timeline-lanes", {}, this.stage, this.notice, ...above);
    const body = h("div.mw-timeline-body", {}, lanes, this.panel.element);
    return h("div.mw-canvas.mw-timeline", {}, bar, edit.element, body, this.live, this.probe);
  }

  /** Observe the surroundings of the chart: size, theme and link. Return a function that stops this. */
  connect() {
    const end = new AbortController();
    const { signal } = end;
    const resize = new ResizeObserver(() => {
      this.repaint();
      this.tooltip.move();
    });
    resize.observe(this.stage);
    const themes = new MutationObserver(() => this.repaint());
    themes.observe(this.root, { attributes: true, attributeFilter: ["data-theme"] });
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", () => this.repaint(), { signal });
    window.addEventListener("hashchange", () => followLink(this, readLink(location.hash)), { signal });
    const stops = [followTheme(this.root), watchPixelRatio(() => this.repaint())];
    this.edit.connect();
    window.meshwaveTimeline = { chart: this, actionName, boxOf, laneNames, slowReason };
    this.repaint();
    return () => {
      end.abort();
      resize.disconnect();
      themes.disconnect();
      for (const stop of stops) stop();
      this.panel.stop();
      this.repaint.cancel();
      this.overpaint.cancel();
      this.view.stop();
    };
  }

  // ── data ──

  get hasData() {
    return this.data.layers.length > 0;
  }

  read() {
    const before = this.data;
    const actions = [this.pinned, this.focus].map((place) => place && actionName(place));
    const began = performance.now();
    this.data = decode(this.model.packed);
    keepNames(namesOf(this.data.layers));
    this.stats.decodeMs = performance.now() - began;
    const isChange = before.layers.length > 0 && this.hasData;
    const ratio = isChange ? before.horizon / this.data.horizon : 1;
    if (!this.depth.onData(before, actions)) {
      if (isChange) this.view.rescale(ratio);
      else this.view.showWhole();
      [this.pinned, this.focus] = actions.map((action) => placeOf(this.data, action));
      this.depth.draw();
    }
    this.related = null;
    this.hover = null;
    this.tooltip.hide();
    this.arrangeRows();
    this.selection.keep(this.data, ratio);
    this.toolbar.play.keep(ratio);
    this.search.ask();
    this.edit.onData();
    this.refresh();
    if (this.link && this.hasData) requestAnimationFrame(() => followLink(this, this.link));
  }

  /** Choose the timelines that share lanes; in edit mode, no timeline is drawn over the edited order. */
  arrangeRows() {
    this.rows = rowsOf(this.data, this.edit.isOn, this.collapse.isSeparate);
    for (const name of /** @type {const} */ (["pinned", "focus", "hover"]))
      if (!this.isShown(this[name])) this[name] = null;
    if (this.isDrawn) this.plan = this.layout(); // the overlay may be painted before the picture
    this.toolbar.drawLegend();
  }

  /** @param {Place | null} place */
  isShown(place) {
    return place !== null && this.rows.flat().includes(place.layer);
  }

  /** The timeline of the open design: the last layer that is not drawn over another layer. */
  get openLayer() {
    return this.data.layers.findLast((layer) => !layer.over);
  }

  /** @param {Switch} name */
  toggle(name) {
    this.model[name] = !this.model[name];
    this.panel.isClosed = false;
    this.refresh();
  }

  refresh() {
    this.toolbar.refresh();
    this.pinBar.draw();
    this.panel.fill();
    this.filter.drawCount();
    this.drawState();
    this.repaint();
  }

  /** Show whether the timeline is empty or of an earlier design. */
  drawState() {
    const { model, hasData } = this;
    const isStale = model.stale !== "" && hasData;
    this.stale.textContent = model.stale;
    this.stale.hidden = !isStale;
    this.root.toggleAttribute("data-stale", isStale && !this.data.layers.some(({ blocked }) => blocked));
    this.empty.textContent = hasData ? "" : model.stale || model.empty;
    this.empty.hidden = hasData;
    const label = [summary(this.data.layers), ...slowReasons(this)].join(" ");
    this.stage.setAttribute("aria-label", hasData ? label : model.empty);
  }

  // ── painting ──

  get isDrawn() {
    return Boolean(this.frame && this.hasData);
  }

  /** Arrange all parts for the current view. */
  layout() {
    const { data, model } = this;
    const held = model.show_memory ? data.layers.filter((layer) => layer.hasMemory) : [];
    const linked = (model.show_links && data.layers.find((layer) => layer.links)) || null;
    const { clientWidth: width, clientHeight: height } = this.stage;
    const { rows, kept, view } = this;
    const { isShown } = this.filter;
    const sizes = { view, width, height, words: halfWidth(this) };
    const plan = arrange({ rows, held, linked, kept, isShown, ...this.collapse.shown, ...sizes });
    this.view.scroll = plan.scroll;
    return plan;
  }

  /** Arrange the lanes after some were hidden or shown. */
  rearrange() {
    if (!this.isDrawn) return;
    this.plan = this.layout();
    if (this.focus && isHidden(this, this.focus)) this.focus = null;
    this.repaint();
  }

  paint() {
    const began = performance.now();
    if (!this.stage.clientWidth || !this.stage.clientHeight) return;
    this.readColours();
    const ratio = pixelRatio();
    this.plan = this.layout();
    for (const canvas of [this.base, this.over]) resizeCanvas(canvas, this.plan, ratio);
    const context = /** @type {CanvasRenderingContext2D} */ (this.base.getContext("2d", { alpha: false }));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = css(this.colours.background);
    context.fillRect(0, 0, this.plan.width, this.plan.height);
    this.frame = new Frame(this.view, this.plan.size, ratio, this.colours);
    const { arrows = [], ...counts } = this.hasData ? this.picture.paint(context) : {};
    this.arrows = arrows;
    Object.assign(this.stats, counts);
    this.stats.paintMs = performance.now() - began;
    this.stats.paints++;
    this.collapse.drawButtons();
    reportRows(this);
    this.overlay.paint();
  }

  readColours() {
    const { probe, root, model } = this;
    probe.style.color = "var(--bg)";
    const key = `${getComputedStyle(probe).color} ${root.dataset.theme}`;
    if (key === this.coloursKey) return;
    this.coloursKey = key;
    const colours = new Colours(probe, model.palette);
    this.colours = colours;
    const properties = /** @type {const} */ (["idle", "hatch", "memory", "warning"]);
    colours.ops.forEach((colour, op) => root.style.setProperty(`--op-${model.palette.names[op]}`, css(colour)));
    for (const name of properties) root.style.setProperty(`--${name}`, css(colours[name]));
  }

  // ── pointer, focus and pin ──

  /** Handle the pointer at a point of the canvas; null if it left the canvas. @param {Point | null} at */
  point(at) {
    const { stage } = this;
    this.pointer = at;
    this.isByKey = false;
    this.hover = at && placeAt(this, at);
    stage.dataset.over = at ? partAt(this, at) : "";
    stage.title = stage.dataset.over === "name" && at ? nameTitle(this, at) : "";
    this.overpaint();
    if (at && this.hover) this.tooltip.show(this.hover, at.x, at.y);
    else this.tooltip.hide();
  }

  /** @param {boolean} isFocused */
  setFocused(isFocused) {
    this.isFocused = isFocused;
    this.isByKey &&= isFocused;
    this.overpaint();
  }

  /** Move the focus `along` its lane or to the lane `across`. @param {number} along @param {number} across */
  moveFocus(along, across) {
    const from = this.focus ?? this.pinned;
    const next = from ? placeBeside(this, from, along, across) : firstPlace(this);
    if (!next) return;
    this.focus = next;
    this.isFocused = true;
    this.live.textContent = announcement(next, this.model.palette, twinOf(this, next));
    this.view.panTo(next);
    this.showTooltip(next);
    this.selection.extendTo(next);
  }

  /** Show the tooltip of a place beside it. @param {Place} place */
  showTooltip(place) {
    const { layer, span } = place;
    const lane = this.plan.laneOf(layer, layer.rankOf(span));
    this.isByKey = true;
    this.overpaint();
    this.tooltip.show(place, Math.max(this.frame.x(layer.start[span]), this.frame.left) + 8, lane.y + lane.height);
  }

  /** Pin a place, or nothing; a pinned place is unpinned. @param {Place | null} place */
  pin(place) {
    this.pinBar.toggle(place);
  }

  /** Pin the focused block; if it is pinned, open its layers. */
  enter() {
    const { focus, pinned, depth } = this;
    const isPinned =
      !focus || focus === this.pinnedFocus || (focus.layer === pinned?.layer && focus.span === pinned.span);
    if (pinned && isPinned && depth.canOpen(pinned)) depth.open(pinned);
    else if (focus) this.pin(focus);
  }

  /** Go to the selected area, or to the focused block. */
  showSelected() {
    const place = this.focus ?? this.pinned;
    if (this.selection.area) this.selection.zoom();
    else if (place) this.view.show(place);
  }

  /** Unpin all lanes, show lanes that were hidden, and stop playing, for another design. */
  resetLanes() {
    this.kept.clear();
    this.filter.set("");
    this.collapse.reset();
    this.toolbar.play.stop();
  }

  /** Close the topmost panel or clear the latest selection. */
  escape() {
    const { help, selection, search, filter, panel, depth, toolbar } = this;
    if (help.isOpen) help.toggle(false);
    else if (toolbar.play.isOn) toolbar.play.stop();
    else if (selection.area || selection.isMode) selection.leave();
    else if (!search.element.hidden) search.close();
    else if (this.pinned) this.pin(null);
    else if (filter.text) filter.close();
    else if (panel.isOpen) panel.close();
    else if (depth.isDeep) depth.back();
    else this.tooltip.hide();
  }

  /** Show text above the lanes for some seconds. @param {string} text */
  announce(text) {
    clearTimeout(this.noticeTimer);
    this.notice.textContent = text;
    this.notice.hidden = false;
    this.noticeTimer = setTimeout(() => (this.notice.hidden = true), NOTICE_MS);
  }
}
