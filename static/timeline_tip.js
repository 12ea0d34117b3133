// The words beside the pointer or the focus: everything known of a place.

import { h } from "static/canvas.js";
import { facts } from "static/timeline_words.js";
import { twinOf } from "static/timeline_place.js";

const AWAY = 16; // CSS pixels from what they are about

export class Tip {
  constructor(chart) {
    this.chart = chart;
    this.element = h("div", { class: "mw-timeline-tip", "aria-hidden": "true" });
    this.hide();
  }

  hide() {
    this.element.hidden = true;
  }

  /** Tell of a place, beside a point of the canvas. */
  show(place, x, y) {
    const { chart } = this;
    const { names } = chart.model.palette;
    const twin = place.span >= 0 ? twinOf(chart, place) : null;
    const list = h("dl", {});
    for (const [name, value] of facts(place, names, twin)) list.append(h("dt", {}, name), h("dd", {}, String(value)));
    const { label, source } = place.layer;
    const whose = chart.data.layers.length > 1 ? h("div", { class: "mw-timeline-tip-whose" }, `${label}, ${source}`) : "";
    this.why = h("p", { class: "mw-timeline-tip-why" });
    this.element.replaceChildren(this._title(place), list, this.why, whose);
    this.element.hidden = false;
    this.at = { x, y };
    this._stand();
    this._explain(place);
  }

  /** Why a lane stands still there, or before a block, in Python's words. */
  _explain({ layer, span, rank, tick, memory }) {
    const { asker, live } = this.chart;
    asker.forget("idle");
    if (memory !== undefined || layer.isTransfer(span) || layer.isReduction(span)) return;
    const lane = rank ?? layer.rankOf(span);
    const waited = span >= 0 ? layer.waited(span).ticks : 0;
    if (span >= 0 && waited < 2) return;
    const at = span >= 0 ? layer.start[span] - waited / 2 : tick;
    const gap = `${layer.number} ${lane} ${span >= 0 ? span : layer.next(lane, tick)}`;
    if (this.told?.layer === layer && this.told.gap === gap) return this._say(this.told.words);
    asker.ask("idle", layer, { rank: lane, at: at * layer.scale }, (found) => {
      this.told = { layer, gap, words: found?.words ?? "" };
      this._say(this.told.words);
      if (this.chart.focused && found) live.textContent = `${live.textContent} ${sentence(found.words)}`;
    });
  }

  _say(words) {
    if (this.element.hidden) return;
    this.why.textContent = sentence(words);
    this._stand();
  }

  _title({ layer, span, memory }) {
    const title = h("div", { class: "mw-timeline-tip-title" });
    if (span < 0) {
      title.append(h("b", {}, memory !== undefined ? "Memory of a device" : "Idle"));
      return title;
    }
    const { names, words } = this.chart.model.palette;
    const op = names[layer.op[span]];
    const text = layer.isTransfer(span) ? `${words[op]} of microbatch ${layer.microbatch[span]}` : words[op];
    title.append(h("i", { "data-kind": op }), h("b", {}, layer.notation(span, names)), ` ${text}`);
    return title;
  }

  _stand() {
    const { x, y } = this.at;
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const { clientWidth, clientHeight } = this.chart.stage;
    const left = x + AWAY + width < clientWidth ? x + AWAY : Math.max(4, x - AWAY - width);
    const top = y + AWAY + height < clientHeight ? y + AWAY : Math.max(4, Math.min(y - 12 - height, clientHeight - height - 4));
    this.element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }
}

const sentence = (words) => (words ? `${words[0].toUpperCase()}${words.slice(1)}.` : "");
