// Search for blocks. Python parses the query; the matches are found and shown here.

/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { Query } from "./types" */

import { button } from "../kit/controls.js";
import { h } from "../kit/dom.js";
import { css } from "../kit/palette.js";
import { boxOf } from "./frame.js";
import { AXIS } from "./layout.js";
import { Matches } from "./matches.js";
import { matchingSpans } from "./query.js";
import { announcement } from "./text.js";

const ASK_DELAY_MS = 90; // delay of the search after the last typed letter

const MOST_SHOWN = 6000; // largest number of visible matches that are highlighted; others are marked on the axis only

export class Search {
  /** @type {Query | null} */ query = null;
  /** Spans of the layer, by their start. @type {number[]} */ hits = [];
  /** @type {Layer} */ layer;
  at = -1;
  timer = 0;
  answered = ""; // text whose matches are known
  waiting = 0; // step to take when the matches of the current text are known

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    this.matches = new Matches(this);
    this.field = h("input.mw-timeline-find", {
      type: "search",
      placeholder: "3F7, F7, B of stage 2, mesh C",
      spellcheck: "false",
      "aria-label": "Find blocks",
    });
    this.count = h("span.mw-timeline-hits", { role: "status" });
    const iconButton = (/** @type {string} */ label, /** @type {string[]} */ ...[content, key]) =>
      button(label, { content, kind: "mw-icon", title: `${label} (${key})` });
    const [previous, next, close] = [
      iconButton("Previous match", "‹", "Shift+Enter"),
      iconButton("Next match", "›", "Enter"),
      iconButton("Close", "×", "Esc"),
    ];
    previous.addEventListener("click", () => this.step(-1));
    next.addEventListener("click", () => this.step(1));
    close.addEventListener("click", () => this.close());
    const table = button("Table", {
      title: "List the matches with their durations",
      onclick: () => this.matches.toggle(),
    });
    const parts = [this.field, this.count, previous, next, table, close];
    this.element = h("div.mw-timeline-search", { role: "search", hidden: true }, ...parts);
    this.field.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.waiting = 0; // the step was for the earlier text
      this.timer = setTimeout(() => this.ask(), ASK_DELAY_MS);
    });
    this.field.addEventListener("keydown", (event) => this.key(event));
  }

  get text() {
    return this.element.hidden ? "" : this.field.value.trim();
  }

  open() {
    this.element.hidden = false;
    this.field.focus();
    this.field.select();
  }

  close() {
    this.element.hidden = true;
    this.matches.close();
    this.ask();
    this.chart.stage.focus();
  }

  /** Search for a text as if it were typed. @param {string} text */
  run(text) {
    this.element.hidden = false;
    this.field.value = text;
    this.ask();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    event.stopPropagation();
    if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
  }

  /** Search for the current text. */
  ask() {
    clearTimeout(this.timer);
    const { openLayer, asker } = this.chart;
    const { text } = this;
    const answer = (/** @type {Query | null} */ query, refused = "") => {
      this.answered = text;
      this.setQuery(query, refused);
      const { waiting } = this;
      this.waiting = 0;
      if (waiting) this.step(waiting);
    };
    if (text && openLayer) return asker.ask("find", openLayer, { text }, answer);
    asker.forget("find");
    answer(null);
  }

  /** @param {Query | null} query @param {string} [refused] */
  setQuery(query, refused = "") {
    const { openLayer } = this.chart;
    this.query = query;
    this.at = -1;
    this.hits = query && openLayer ? matchingSpans(openLayer, query) : [];
    if (openLayer) this.layer = openLayer;
    this.element.toggleAttribute("data-refused", Boolean(refused));
    this.drawCount(refused);
    this.matches.refresh();
    this.chart.overpaint();
  }

  drawCount(refused = "") {
    const total = this.hits.length;
    const found = this.at >= 0 ? `${this.at + 1} of ${total}` : `${total} found`;
    const text = total ? found : "no matches";
    this.count.textContent = refused || (this.query ? text : "");
    this.count.title = refused;
  }

  /** Go to the next or the previous match; the first step goes to the first match in view. @param {number} by */
  step(by) {
    if (this.text !== this.answered) {
      this.waiting = by;
      return this.ask();
    }
    const { hits } = this;
    if (!hits.length) return;
    const at = this.at < 0 ? this.firstInView(by) : this.at + by;
    this.goTo((at + hits.length) % hits.length);
  }

  /** Go to a match and pin it. @param {number} span */
  choose(span) {
    this.goTo(this.hits.indexOf(span));
    this.chart.pinBar.pin({ layer: this.layer, span });
  }

  /** @param {number} at index of the match */
  goTo(at) {
    const { hits, layer, chart } = this;
    this.at = at;
    const place = { layer, span: hits[at] };
    if (!layer.isTransfer(place.span)) chart.focus = place;
    chart.related = null;
    const text = announcement(place, chart.model.palette, null);
    chart.live.textContent = `${at + 1} of ${hits.length}: ${text}`;
    this.drawCount();
    this.matches.markCurrent();
    chart.view.reveal(place);
    chart.overpaint();
  }

  /** @param {number} by */
  firstInView(by) {
    const first = this.hits.findIndex((span) => this.layer.start[span] >= this.chart.view.from);
    if (by > 0) return Math.max(first, 0);
    return (first < 0 ? this.hits.length : first) - 1;
  }

  /** The matches in view, or null if there are too many to distinguish. */
  hitsInView() {
    const { frame } = this.chart;
    const found = this.hits.filter((span) => frame.isVisible(this.layer, span));
    return found.length <= MOST_SHOWN ? found : null;
  }

  /**
   * Mark matches on the axis, and thin matches in their lanes.
   * @param {CanvasRenderingContext2D} context @param {number[] | null} shown
   */
  paint(context, shown) {
    const { frame, colours, plan } = this.chart;
    const { layer } = this;
    context.fillStyle = css(colours.accent);
    const marked = new Set();
    for (const span of this.hits) {
      const x = Math.round(frame.x((layer.start[span] + layer.end[span]) / 2));
      if (x < frame.left || x > frame.right || marked.has(x)) continue;
      marked.add(x);
      context.fillRect(x, AXIS - 4, 1.5, 4);
    }
    for (const span of shown ?? []) {
      const lane = plan.laneOf(layer, layer.rankOf(span));
      if (!frame.isLaneClear(lane) || layer.isTransfer(span)) continue;
      const { x, y, width, height } = boxOf(frame, layer, span, lane);
      if (width < 3) context.fillRect(x, y, Math.max(1, width), height);
    }
  }
}
