// Moves of blocks within the order of their mesh: the edit of a drag or a key press, and the new position of the
// blocks.

/** @import { Edit } from "./edit.js" */
/** @import { Drag, InsertionMark, OrderEdit } from "./types" */

import { clamp } from "../kit/numbers.js";
import { OP, lowerBound } from "./columns.js";
import { boxOf } from "./frame.js";

export class Moves {
  /** @param {Edit} edit */
  constructor(edit) {
    this.edit = edit;
  }

  /** The blocks in a rectangle of the canvas. @param {Drag} drag */
  blocksIn({ from, to }) {
    const { chart, layer } = this.edit;
    const { frame, plan } = chart;
    const [left, right] = [Math.min(from.x, to.x), Math.max(from.x, to.x)];
    const [top, bottom] = [Math.min(from.y, to.y), Math.max(from.y, to.y)];
    const isCrossed = (/** @type {{y: number, height: number}} */ { y, height }) => y <= bottom && y + height >= top;
    const found = [];
    for (const lane of plan.lanes) {
      if (lane.layer !== layer || !isCrossed(lane)) continue;
      const [first, last] = layer.range(0, lane.rank);
      let span = lowerBound(layer.end, frame.tick(left), first, last);
      for (; span < last && frame.x(layer.start[span]) <= right; span++)
        if (layer.op[span] <= OP.W && isCrossed(boxOf(frame, layer, span, lane))) found.push(span);
    }
    return found;
  }

  /** Move the selected blocks to the pointer. @param {Drag} drag */
  dragTo({ from, to, span }) {
    const { edit } = this;
    const { layer, selected } = edit;
    const rank = layer.rankOf(span);
    const moved = new Set(edit.selectedSpans);
    const mark = this.markAt(edit.chart.frame.tick(to.x), rank, moved);
    const { before, end } = mark;
    const by = this.countSlots(span, before < 0 ? end : before, moved);
    const isOneMesh = [...moved].every((each) => layer.rankOf(each) === rank);
    /** @type {OrderEdit} */
    const orderEdit = isOneMesh
      ? { kind: "move", blocks: selected, before: before < 0 ? null : edit.nameOf(before) }
      : { kind: "shift", blocks: selected, by };
    const isInPlace = by === 0 && this.isContiguous(moved, rank);
    this.show(isInPlace ? null : orderEdit, mark, to.x - from.x);
  }

  /**
   * Position after a move to a tick: before the first unmoved block whose middle is after the tick.
   * @param {number} tick @param {number} rank @param {Set<number>} moved @returns {InsertionMark}
   */
  markAt(tick, rank, moved) {
    const { layer } = this.edit;
    const [from, end] = layer.range(0, rank);
    let next = lowerBound(layer.end, tick, from, end);
    if (next < end && tick > (layer.start[next] + layer.end[next]) / 2) next++;
    while (next < end && (moved.has(next) || layer.halfOf(next) === 2)) next++;
    return { rank, before: next < end && layer.op[next] <= OP.W ? next : -1, end };
  }

  /** Go on with a move after the timeline has changed, such as by an earlier edit, if its blocks still exist. */
  follow() {
    const { edit, steps } = this;
    const { drag, selected } = edit;
    edit.preview = edit.moving = null;
    edit.selected = selected.filter((name) => edit.spanOf(name) >= 0);
    if (drag?.name) drag.span = edit.spanOf(drag.name);
    if (!edit.isReady || edit.selected.length < selected.length) edit.drag = null;
    else if (!drag && steps) this.step(steps);
    else if (drag?.moved && !drag.isRectangle) this.dragTo(drag);
  }

  /** Number of places by which keys have moved the selected blocks. */
  get steps() {
    const moving = this.edit.moving?.edit;
    return moving?.kind === "shift" ? (moving.by ?? 0) : 0;
  }

  /** Move the selected blocks by more places. @param {number} by */
  step(by) {
    const { edit } = this;
    const { focus } = edit.chart;
    if (!edit.selected.length && edit.isBlock(focus)) edit.selected = [edit.nameOf(focus.span)];
    if (!edit.selected.length) return;
    const places = this.steps + by;
    edit.chart.tooltip.hide();
    if (places) this.show({ kind: "shift", blocks: edit.selected, by: places }, this.markAfter(places));
    else edit.cancel();
  }

  /**
   * Show a move and request its effect.
   * @param {OrderEdit | null} orderEdit @param {InsertionMark} mark @param {number} [dx]
   */
  show(orderEdit, mark, dx) {
    const { edit } = this;
    const current = edit.moving?.edit;
    const isSame = JSON.stringify(orderEdit) === JSON.stringify(current);
    edit.moving = { edit: isSame && current ? current : orderEdit, mark, dx }; // request an effect once
    if (!orderEdit) edit.preview = null;
    edit.ask();
    edit.refresh();
  }

  /** True if a span is the first block of a slot that is not moved. @param {number} span @param {Set<number>} moved */
  isSlot(span, moved) {
    const { layer } = this.edit;
    return !moved.has(span) && layer.halfOf(span) < 2 && layer.op[span] <= OP.W;
  }

  /**
   * Number of unmoved slots between a block and a place; negative if the place is before the block.
   * @param {number} span @param {number} place @param {Set<number>} moved
   */
  countSlots(span, place, moved) {
    let count = 0;
    for (let other = Math.min(span, place); other < Math.max(span, place); other++)
      if (this.isSlot(other, moved)) count++;
    return place < span ? -count : count;
  }

  /** @param {Set<number>} moved @param {number} rank */
  isContiguous(moved, rank) {
    const own = [...moved].filter((span) => this.edit.layer.rankOf(span) === rank);
    return this.countSlots(Math.min(...own), Math.max(...own), moved) === 0;
  }

  /**
   * Position of the first selected block after a move by a number of places.
   * @param {number} places @returns {InsertionMark}
   */
  markAfter(places) {
    const { layer, selectedSpans } = this.edit;
    const first = Math.min(...selectedSpans);
    const rank = layer.rankOf(first);
    const [from, to] = layer.range(0, rank);
    const moved = new Set(selectedSpans);
    const slots = [];
    for (let span = from; span < to; span++) if (this.isSlot(span, moved)) slots.push(span);
    const at = slots.filter((span) => span < first).length;
    return { rank, before: slots[clamp(at + places, 0, slots.length)] ?? -1, end: to };
  }
}
