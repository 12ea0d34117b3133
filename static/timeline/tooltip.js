// The tooltip with all facts about a place.

/** @import { Point } from "../kit/types" */
/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { Place } from "./types" */

import { h } from "../kit/dom.js";
import { clamp } from "../kit/numbers.js";
import { twinOf } from "./place.js";
import { facts } from "./text.js";

const DISTANCE = 14; // distance from the place in CSS pixels
const SHORT = 18; // largest number of letters of a value that shares its row
const MARGIN = 4; // least distance from the edge of the canvas in CSS pixels

export class Tooltip {
  element = h("div.mw-timeline-tip", { "aria-hidden": "true", hidden: true });
  reason = h("p.mw-timeline-tip-why");
  /** @type {Point} */ at = { x: 0, y: 0 };
  /** @type {Place} */ place;
  /** The last answer of Python about a gap or a share. @type {{layer: Layer, key: string, words: string} | null} */
  answer = null;

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
  }

  hide() {
    this.element.hidden = true;
  }

  /**
   * Show the facts about a place beside a point of the canvas.
   * @param {Place} place @param {number} x @param {number} y
   */
  show(place, x, y) {
    const { chart } = this;
    const twin = place.span >= 0 && !place.link ? twinOf(chart, place) : null;
    const rows = facts(place, chart.model.palette.names, twin).flatMap(([name, value]) => fact(name, value));
    const { label, source } = place.layer;
    const hasOthers = chart.data.layers.length > 1;
    const whose = hasOthers ? h("div.mw-timeline-tip-whose", {}, `${label}, ${source}`) : "";
    this.reason = h("p.mw-timeline-tip-why");
    this.element.replaceChildren(this.title(place), h("dl", {}, ...rows), this.reason, whose);
    this.element.hidden = false;
    this.at = { x, y };
    this.place = place;
    this.move();
    chart.asker.forget("idle");
    if (place.link) this.explainLimit(place.layer, place.link.share);
    else this.explainGap(place);
  }

  /** Show why a lane is idle at a place, or before a block. @param {Place} place */
  explainGap({ layer, span, rank = 0, tick = 0, memory }) {
    if (layer.labels || memory !== undefined) return;
    if (span < 0) return this.explainIdle(layer, rank, layer.next(rank, tick), tick);
    if (layer.isTransfer(span) || layer.isCollective(span)) return;
    const idle = layer.waited(span).ticks;
    if (idle >= 2) this.explainIdle(layer, layer.rankOf(span), span, layer.start[span] - idle / 2);
  }

  /** @param {Layer} layer @param {number} rank @param {number} next block @param {number} tick */
  explainIdle(layer, rank, next, tick) {
    this.explain("idle", layer, `${rank} ${next}`, { rank, at: tick * layer.scale });
  }

  /** Show which port limits a message in a link lane. @param {Layer} layer @param {number} share */
  explainLimit(layer, share) {
    if (share < 0) return;
    const span = layer.flow_span[layer.link_flow[share]];
    this.explain("limit", layer, `share ${share}`, {
      rank: layer.rankOf(span),
      op: layer.op[span],
      stage: layer.stage[span],
      microbatch: layer.microbatch[span],
      other: layer.otherOf(span),
      start: layer.link_start[share] * layer.scale,
      end: layer.link_end[share] * layer.scale,
    });
  }

  /**
   * Request an explanation from Python and show it, unless it is the last answer.
   * @param {string} what @param {Layer} layer @param {string} key @param {object} question
   */
  explain(what, layer, key, question) {
    const { asker, live } = this.chart;
    if (this.answer?.layer === layer && this.answer.key === key) return this.showReason(this.answer.words);
    const { place } = this;
    const told = live.textContent;
    asker.ask(what, layer, question, (found) => {
      const words = found?.words ?? found ?? "";
      this.answer = { layer, key, words };
      if (this.place !== place && what === "limit") return;
      this.showReason(words);
      const continues = what === "idle" && this.chart.isFocused && live.textContent === told;
      if (continues && words) live.textContent = `${told} ${sentence(words)}`;
    });
  }

  /** @param {string} words */
  showReason(words) {
    if (this.element.hidden) return;
    this.reason.textContent = sentence(words);
    this.move();
  }

  /** @param {Place} place */
  title({ layer, span, memory, link }) {
    const { names, words } = this.chart.model.palette;
    if (span < 0) {
      const name = link ? "Idle port" : memory !== undefined ? "Memory per device" : "Idle";
      return h("div.mw-timeline-tip-title", {}, h("b", {}, name));
    }
    const op = names[layer.op[span]];
    const word = layer.kinds?.[op] ?? words[op];
    const text = layer.isTransfer(span) ? `${word} of microbatch ${layer.microbatch[span]}` : word;
    const action = h("b", {}, layer.notation(span, names));
    return h("div.mw-timeline-tip-title", {}, h("i", { "data-kind": op }), action, ` ${text}`);
  }

  /** Place the tooltip: never over the lane of its place, and below the lanes if there is room. */
  move() {
    const { element, chart } = this;
    if (element.hidden) return;
    const { offsetWidth: width, offsetHeight: height } = element;
    const { clientWidth, clientHeight } = chart.stage;
    const { x } = this.at;
    const y = this.top(height, clientHeight);
    const left = x + DISTANCE + width + MARGIN < clientWidth ? x + DISTANCE : x - DISTANCE - width;
    const inside = clamp(left, MARGIN, Math.max(MARGIN, clientWidth - width - MARGIN));
    element.style.transform = `translate(${Math.round(inside)}px, ${Math.round(y)}px)`;
  }

  /** @param {number} height @param {number} room */
  top(height, room) {
    const { frame } = this.chart;
    const lanes = this.lanes();
    if (!lanes.length) return Math.max(MARGIN, this.at.y - DISTANCE - height);
    const lowest = room - height - MARGIN;
    const top = Math.min(...lanes.map(({ whole }) => whole[0]));
    const bottom = Math.max(...lanes.map(({ whole }) => whole[0] + whole[1]));
    if (bottom + MARGIN <= lowest) return Math.min(Math.max(bottom + MARGIN, frame.bottom + MARGIN), lowest);
    return Math.max(MARGIN, top - height - MARGIN);
  }

  /** The lanes that the tooltip must not cover. */
  lanes() {
    const { plan } = this.chart;
    const { layer, span, rank, memory, link } = this.place;
    if (link || memory !== undefined) return [];
    const isTransfer = span >= 0 && layer.isTransfer(span);
    const ranks = isTransfer ? [layer.rankOf(span), layer.peerOf(span)] : [rank ?? layer.rankOf(span)];
    return ranks.map((rank) => plan.laneOf(layer, rank)).filter(Boolean);
  }
}

/** A name and a value; short ones share a row. @param {string} name @param {string} value */
function fact(name, value) {
  const kind = value.length > SHORT ? "mw-timeline-tip-wide" : null;
  return [h("dt", { class: kind }, name), h("dd", { class: kind }, value)];
}

/** @param {string} words */
const sentence = (words) => (words ? `${words[0].toUpperCase()}${words.slice(1)}.` : "");
