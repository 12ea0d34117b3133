// The words beside the pointer or the focus: everything known of a place.

import { h } from "../kit/canvas.js";
import { clamp } from "../kit/numbers.js";
import { twinOf } from "./place.js";
import { facts } from "./text.js";

const AWAY = 14; // CSS pixels from what they are about
const SHORT = 18; // letters
const EDGE = 4; // CSS pixels from the edge of the canvas

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
    const twin = place.span >= 0 && !place.link ? twinOf(chart, place) : null;
    const list = h("dl", {});
    for (const [name, value] of facts(place, names, twin)) list.append(...fact(name, String(value)));
    const { label, source } = place.layer;
    const whose =
      chart.data.layers.length > 1 ? h("div", { class: "mw-timeline-tip-whose" }, `${label}, ${source}`) : "";
    this.why = h("p", { class: "mw-timeline-tip-why" });
    this.element.replaceChildren(this._title(place), list, this.why, whose);
    this.element.hidden = false;
    this.at = { x, y };
    this.place = place;
    this.stand();
    this._explain(place);
  }

  /** Why a lane stands still there, or before a block, in Python's words. */
  _explain({ layer, span, rank, tick, memory, link }) {
    const { asker, live } = this.chart;
    asker.forget("idle");
    if (link) return this._limit(layer, link);
    if (layer.labels || memory !== undefined || layer.isTransfer(span) || layer.isReduction(span)) return;
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

  /** Which port limits a message that passes a lane of links, in Python's words. */
  _limit(layer, { share }) {
    if (share < 0) return;
    const span = layer.flow_span[layer.link_flow[share]];
    if (this.limited?.layer === layer && this.limited.share === share) return this._say(this.limited.words);
    const asked = {
      ...this._named(layer, span),
      start: layer.link_start[share] * layer.scale,
      end: layer.link_end[share] * layer.scale,
    };
    this.chart.asker.ask("limit", layer, asked, (found) => {
      this.limited = { layer, share, words: found ?? "" };
      if (this.place?.link?.share === share) this._say(this.limited.words);
    });
  }

  /** An action by its name, as Python knows it. */
  _named(layer, span) {
    return {
      rank: layer.rankOf(span),
      op: layer.op[span],
      stage: layer.stage[span],
      microbatch: layer.microbatch[span],
      other: layer.otherOf(span),
    };
  }

  _say(words) {
    if (this.element.hidden) return;
    this.why.textContent = sentence(words);
    this.stand();
  }

  _title({ layer, span, memory, link }) {
    const title = h("div", { class: "mw-timeline-tip-title" });
    if (span < 0) {
      title.append(h("b", {}, link ? "Idle port" : memory !== undefined ? "Memory of a device" : "Idle"));
      return title;
    }
    const { names, words } = this.chart.model.palette;
    const op = names[layer.op[span]];
    const own = layer.kinds ? layer.kinds[op] : words[op];
    const text = layer.isTransfer(span) ? `${own} of microbatch ${layer.microbatch[span]}` : own;
    title.append(h("i", { "data-kind": op }), h("b", {}, layer.notation(span, names)), ` ${text}`);
    return title;
  }

  /** Stand beside the place: never over its lane, and below the lanes where there is room for that. */
  stand() {
    const { element, chart } = this;
    if (element.hidden) return;
    const { offsetWidth: width, offsetHeight: height } = element;
    const { clientWidth, clientHeight } = chart.stage;
    const [x, y] = [this.at.x, this._top(height, clientHeight)];
    const left = x + AWAY + width + EDGE < clientWidth ? x + AWAY : x - AWAY - width;
    const inside = clamp(left, EDGE, Math.max(EDGE, clientWidth - width - EDGE));
    element.style.transform = `translate(${Math.round(inside)}px, ${Math.round(y)}px)`;
  }

  _top(height, room) {
    const { frame, plan } = this.chart;
    const { layer, span, rank, memory, link } = this.place;
    const lowest = room - height - EDGE;
    if (link) return Math.max(EDGE, this.at.y - AWAY - height);
    const spanned =
      span >= 0 && layer.isTransfer(span) ? [layer.rankOf(span), layer.peerOf(span)] : [rank ?? layer.rankOf(span)];
    const lanes = memory === undefined ? spanned.map((of) => plan.laneOf(layer, of)).filter(Boolean) : [];
    if (!lanes.length) return Math.max(EDGE, this.at.y - AWAY - height);
    const top = Math.min(...lanes.map(({ whole }) => whole[0]));
    const bottom = Math.max(...lanes.map(({ whole }) => whole[0] + whole[1]));
    if (bottom + EDGE <= lowest) return Math.min(Math.max(bottom + EDGE, frame.bottom + EDGE), lowest);
    return Math.max(EDGE, top - height - EDGE);
  }
}

/** A name and a value: two that are short stand in one row. */
function fact(name, value) {
  const wide = value.length > SHORT ? "mw-timeline-tip-wide" : null;
  return [h("dt", { class: wide }, name), h("dd", { class: wide }, value)];
}

const sentence = (words) => (words ? `${words[0].toUpperCase()}${words.slice(1)}.` : "");
