// The keyboard of edit mode.

/** Moves and chooses blocks by keys. */
export class EditKeys {
  /** @param {import("./edit.js").Edit} edit */
  constructor(edit) {
    this.edit = edit;
  }

  // ── the keyboard ──

  toggleKey(event) {
    if (
      event.key.toLowerCase() !== "e" ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      event.target !== this.edit.chart.stage ||
      !this.edit.chart.isDrawn
    )
      return;
    this.edit.turn();
    event.preventDefault();
    event.stopPropagation();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey) return;
    const act = this._actOf(event);
    if (!act) return;
    act();
    event.preventDefault();
    event.stopPropagation();
  }

  _actOf({ key, shiftKey, altKey }) {
    const { chart } = this.edit;
    const along = { ArrowLeft: -1, ArrowRight: 1 }[key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (along) return shiftKey || altKey ? () => this.edit.moves.step(along) : () => this._walk(along, 0);
    if (across && !shiftKey && !altKey) return () => this._walk(0, across);
    if (altKey) return null;
    if (key === "Enter" || key === " ") return () => this._enter(shiftKey);
    if (key === "Escape") return () => this._escape();
    const { repeat, everywhere, halves, slot, differences, repair } = this.edit.buttons;
    const pressed = { r: repeat, p: everywhere, x: halves, o: slot, v: differences, h: repair }[key.toLowerCase()];
    return pressed && !shiftKey
      ? () => !pressed.hidden && pressed.click()
      : chart.pinned
        ? () => chart.pin(null)
        : null;
  }

  _walk(along, across) {
    if (this.edit.moving) return;
    const { chart } = this.edit;
    if (!chart.focus || chart.focus.layer !== this.edit.layer)
      chart.focus = this.edit.chosenSpans.length ? { layer: this.edit.layer, span: this.edit.chosenSpans[0] } : null;
    chart.walk(along, across);
  }

  _enter(add) {
    const { focus } = this.edit.chart;
    if (this.edit.moving) return this.edit.drop();
    if (!this.edit.isBlock(focus)) return;
    if (add || this.edit.chosenSpans.includes(focus.span)) this.edit.toggle(focus.span);
    else this.edit.choose([focus.span]);
  }

  _escape() {
    if (this.edit.moving || this.edit.press || this.edit.rectangle) return this.edit.cancel();
    if (this.edit.chosen.length || this.edit.said) {
      this.edit.chosen = [];
      this.edit.said = null;
      return this.edit.refresh();
    }
    this.edit.turn(false);
  }
}
