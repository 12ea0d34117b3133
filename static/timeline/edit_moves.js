// Moves of blocks within the order of their mesh: where they land, and what Python is asked.

import { clamp } from "../kit/numbers.js";
import { OP, firstFrom } from "./columns.js";

/** Turns a place of the pointer, or a press of a key, into a move within the order. */
export class Moves {
  /** @param {import("./edit.js").Edit} edit */
  constructor(edit) {
    this.edit = edit;
  }

  /** The move to where the pointer is: before the block whose middle is next, among those that stay. */
  dragTo(at) {
    const { layer, press } = this.edit;
    const rank = layer.rankOf(press.span);
    const [from, to] = layer.range(0, rank);
    const tick = this.edit.chart.frame.tick(at.x);
    const chosen = new Set(this.edit.chosenSpans);
    let next = firstFrom(layer.end, tick, from, to);
    if (next < to && tick > (layer.start[next] + layer.end[next]) / 2) next++;
    while (next < to && (chosen.has(next) || layer.halfOf(next) === 2)) next++;
    const before = next < to && layer.op[next] <= OP.W ? next : -1;
    const places = this._places(press.span, before < 0 ? to : before, chosen);
    const stays = places === 0 && this._isTogether(chosen, rank);
    const alone = [...chosen].every((span) => layer.rankOf(span) === rank);
    const edit = alone
      ? { kind: "move", blocks: this.edit.chosen, before: before < 0 ? null : this.edit.nameOf(before) }
      : { kind: "shift", blocks: this.edit.chosen, by: places };
    const same = this.edit.moving && JSON.stringify(edit) === JSON.stringify(this.edit.moving.edit);
    this.edit.moving = {
      edit: stays ? null : same ? this.edit.moving.edit : edit,
      mark: { rank, before, end: to },
      dx: at.x - press.at.x,
    };
    if (stays) this.edit.preview = null;
    this.edit.ask();
    this.edit.refresh();
  }

  /** How many slots that stay lie between a block and a place; negative backwards. */
  _places(span, place, chosen) {
    const { layer } = this.edit;
    const [low, high] = [Math.min(span, place), Math.max(span, place)];
    let count = 0;
    for (let other = low; other < high; other++)
      if (!chosen.has(other) && layer.halfOf(other) < 2 && layer.op[other] <= OP.W) count++;
    return place < span ? -count : count;
  }

  _isTogether(chosen, rank) {
    const own = [...chosen].filter((span) => this.edit.layer.rankOf(span) === rank);
    return this._places(Math.min(...own), Math.max(...own), chosen) === 0;
  }

  /** Move what is chosen by a place more, by keys. */
  step(by) {
    const { focus } = this.edit.chart;
    if (!this.edit.chosen.length && this.edit.isBlock(focus)) this.edit.chosen = [this.edit.nameOf(focus.span)];
    if (!this.edit.chosen.length) return;
    const places = (this.edit.moving?.edit?.kind === "shift" ? this.edit.moving.edit.by : 0) + by;
    this.edit.chart.tip.hide();
    this.edit.moving = places
      ? { edit: { kind: "shift", blocks: this.edit.chosen, by: places }, mark: this._markOf(places) }
      : null;
    if (!places) this.edit.preview = null;
    this.edit.ask();
    this.edit.refresh();
  }

  /** Where the first of the chosen lands, so many places on. */
  _markOf(places) {
    const { layer } = this.edit;
    const first = Math.min(...this.edit.chosenSpans);
    const rank = layer.rankOf(first);
    const [from, to] = layer.range(0, rank);
    const chosen = new Set(this.edit.chosenSpans);
    const slots = [];
    for (let span = from; span < to; span++)
      if (layer.halfOf(span) < 2 && layer.op[span] <= OP.W && !chosen.has(span)) slots.push(span);
    const stood = slots.filter((span) => span < first).length;
    const before = slots[clamp(stood + places, 0, slots.length)] ?? -1;
    return { rank, before, end: to };
  }
}
