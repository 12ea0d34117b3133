// Keyboard control of edit mode.

/** @import { Edit } from "./edit.js" */

import { ARROW_STEPS, consume } from "../kit/dom.js";

/** Moves and selects blocks with keys. */
export class EditKeys {
  /** @param {Edit} edit */
  constructor(edit) {
    this.edit = edit;
  }

  /** Switch edit mode on or off by E. @param {KeyboardEvent} event */
  toggleMode(event) {
    const { chart } = this.edit;
    const isE = event.key.toLowerCase() === "e" && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (!isE || event.target !== chart.stage || !chart.isDrawn) return;
    this.edit.toggle();
    consume(event);
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const act = event.ctrlKey || event.metaKey ? null : this.actionOf(event);
    if (!act) return;
    act();
    consume(event);
  }

  /** @param {KeyboardEvent} event */
  actionOf({ key, shiftKey, altKey }) {
    const { edit } = this;
    const step = ARROW_STEPS[key];
    if (step) return this.arrowAction(step, key === "ArrowLeft" || key === "ArrowRight", shiftKey || altKey);
    if (altKey) return null;
    const enter = () => this.enter(shiftKey);
    const action = { Enter: enter, " ": enter, Escape: () => this.escape() }[key];
    if (action) return action;
    const { repeat, everywhere, halves, slot, differences, repair } = edit.buttons;
    const button = { r: repeat, p: everywhere, x: halves, o: slot, v: differences, h: repair }[key.toLowerCase()];
    if (button && !shiftKey) return () => button.hidden || button.click();
    return edit.chart.pinned ? () => edit.chart.pin(null) : null;
  }

  /** @param {number} step @param {boolean} isAlong the lane @param {boolean} isMove */
  arrowAction(step, isAlong, isMove) {
    if (!isMove) return () => (isAlong ? this.moveFocus(step, 0) : this.moveFocus(0, step));
    return isAlong ? () => this.edit.moves.step(step) : null;
  }

  /** @param {number} along @param {number} across */
  moveFocus(along, across) {
    const { chart, layer, selectedSpans, moving } = this.edit;
    if (moving) return;
    if (chart.focus?.layer !== layer) chart.focus = selectedSpans.length ? { layer, span: selectedSpans[0] } : null;
    chart.moveFocus(along, across);
  }

  /** @param {boolean} add */
  enter(add) {
    const { edit } = this;
    const { focus } = edit.chart;
    if (edit.moving) return edit.drop();
    if (!edit.isBlock(focus)) return;
    if (add || edit.selectedSpans.includes(focus.span)) edit.toggleBlock(focus.span);
    else edit.select([focus.span]);
  }

  escape() {
    const { edit } = this;
    if (edit.moving || edit.drag) return edit.cancel();
    if (!edit.selected.length && !edit.result) return edit.toggle(false);
    edit.selected = [];
    edit.result = null;
    edit.refresh();
  }
}
