// Search: what a person types is read by Python, here its hits are found, shown and stepped through.

import { button, h } from "../kit/canvas.js";
import { css } from "../kit/palette.js";
import { box } from "./frame.js";
import { AXIS } from "./layout.js";
import { spansOf } from "./query.js";
import { spoken } from "./text.js";

const ASK_AFTER = 90; // milliseconds after the last letter

const MOST_SHOWN = 6000; // hits in view beyond these are only marked on the axis

export class Search {
  constructor(chart) {
    this.chart = chart;
    this.query = null; // numbers that Python made of the words
    this.hits = []; // spans of the layer, by their start
    this.at = -1;
    this.field = h("input", {
      type: "search",
      class: "mw-timeline-find",
      placeholder: "3F7, F7, B of stage 2, mesh C",
      spellcheck: "false",
      "aria-label": "Find blocks",
    });
    this.count = h("span", { class: "mw-timeline-hits", role: "status" });
    const step = (label, content, by) =>
      button(label, {
        content,
        kind: "mw-icon",
        title: `${label} (${by > 0 ? "Enter" : "Shift+Enter"})`,
        onclick: () => this.step(by),
      });
    this.element = h(
      "div",
      { class: "mw-timeline-search", role: "search", hidden: true },
      this.field,
      this.count,
      step("previous hit", "‹", -1),
      step("next hit", "›", 1),
      button("close search", { content: "×", kind: "mw-icon", title: "Close (Esc)", onclick: () => this.close() }),
    );
    this.field.addEventListener("input", () => this._askSoon());
    this.field.addEventListener("keydown", (event) => this._key(event));
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
    this._take(null);
    this.chart.stage.focus();
  }

  /** Search for words as if they were typed. */
  run(text) {
    this.element.hidden = false;
    this.field.value = text;
    this._ask();
  }

  /** The timeline changed: the same search in it. */
  renew() {
    if (!this.text) return this._take(null);
    this._ask();
  }

  _key(event) {
    event.stopPropagation();
    if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
  }

  _askSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this._ask(), ASK_AFTER);
  }

  _ask() {
    clearTimeout(this.timer);
    const text = this.field.value.trim();
    const layer = this.chart.openLayer;
    if (!text || !layer) return this._take(null);
    this.chart.asker.ask("find", layer, { text }, (query, refused) => this._take(query, refused));
  }

  _take(query, refused = "") {
    const layer = this.chart.openLayer;
    this.query = query;
    this.layer = layer;
    this.at = -1;
    this.hits = query && layer ? spansOf(layer, query) : [];
    this.element.toggleAttribute("data-refused", Boolean(refused));
    this._say(refused);
    this.chart.overpaint();
  }

  _say(refused = "") {
    const total = this.hits.length;
    const found = total ? (this.at >= 0 ? `${this.at + 1} of ${total}` : `${total} found`) : "nothing found";
    this.count.textContent = refused || (this.query ? found : "");
    this.count.title = refused;
  }

  /** Go to the next hit or the one before; first to the one that is next in view. */
  step(by) {
    const { hits, layer, chart } = this;
    if (!hits.length) return;
    if (this.at < 0) {
      const first = hits.findIndex((span) => layer.start[span] >= chart.view.from);
      this.at = by > 0 ? Math.max(first, 0) : (first < 0 ? hits.length : first) - 1;
    } else {
      this.at += by;
    }
    this.at = (this.at + hits.length) % hits.length;
    const place = { layer, span: hits[this.at] };
    if (!layer.isTransfer(place.span)) chart.focus = place;
    chart.related = null;
    chart.live.textContent = `${this.at + 1} of ${hits.length}: ${spoken(place, chart.model.palette, null)}`;
    this._say();
    chart.view.reveal(place);
    chart.overpaint();
  }

  /** Whether hits stand out against the rest. */
  get isShown() {
    return this.hits.length > 0;
  }

  /** The hits in view, or null where there are too many to tell apart. */
  seen() {
    const { frame } = this.chart;
    const found = this.hits.filter((span) => frame.isSeen(this.layer, span));
    return found.length <= MOST_SHOWN ? found : null;
  }

  /** Where on the axis there are hits, and a frame around the one that was stepped to. */
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
      const at = box(frame, layer, span, lane);
      if (at.width < 3) context.fillRect(at.x, at.y, Math.max(1, at.width), at.height);
    }
  }
}
