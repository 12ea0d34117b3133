// Edit mode: blocks of the open design are moved by pointer or keys within the order of their mesh. Python
// (designer/state/order_edits.py) previews each move and turns a drop into an edit. Blocks are identified by
// `[op, stage, microbatch]`, which stays the same when the timeline changes.

/** @import { Message, Point } from "../kit/types" */
/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { BlockName, Drag, InsertionMark, OrderEdit, OrderState, Place, Preview, Trial } from "./types" */

import { pointIn } from "../kit/canvas.js";
import { button } from "../kit/controls.js";
import { h, listenWhile } from "../kit/dom.js";
import { send } from "../kit/widget.js";
import { OP } from "./columns.js";
import { EditKeys } from "./edit_keys.js";
import { Moves } from "./edit_moves.js";
import { EditPainter } from "./edit_paint.js";
import { effectLine, stateLine } from "./edit_text.js";
import { placeAt } from "./place.js";

/** The move in progress; without an edit it changes nothing. */
/** @typedef {{edit: OrderEdit | null, mark: InsertionMark, dx?: number}} Moving */

const DRAG_PX = 4; // a press that moves by fewer CSS pixels is a click

export class Edit {
  isOn = false;
  /** @type {BlockName[]} */ selected = [];
  /** @type {OrderState | null} */ state = null;
  /** @type {Moving | null} */ moving = null;
  /** The effect of the move. @type {Preview | null} */ preview = null;
  /**
   * The effect of dragging a stage to another mesh; the timeline shows the resulting step already.
   * @type {Trial | null}
   */
  trial = null;
  /** The result of the last edit. @type {{words: string, isError: boolean} | null} */ result = null;
  /** @type {Drag | null} */ drag = null;
  number = 0; // number of the last message
  /** The preview request in flight. @type {{edit: OrderEdit, number: number} | null} */ open = null;

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    this.painter = new EditPainter(this);
    this.moves = new Moves(this);
    this.keys = new EditKeys(this);
    this.button = button("Edit order", {
      kind: "mw-timeline-toggle",
      title: "Move blocks by hand (E)",
      onclick: () => this.toggle(),
    });
    this.buttons = this.buildButtons();
    this.text = h("div.mw-order-text", { role: "status" });
    const attributes = { role: "group", "aria-label": "Edit order", hidden: true };
    this.element = h("div.mw-order", attributes, this.text, ...Object.values(this.buttons));
    chart.model.on("msg:custom", (message) => this.receive(message));
  }

  buildButtons() {
    const tool = (
      /** @type {string} */ label,
      /** @type {string} */ key,
      /** @type {string} */ title,
      /** @type {() => void} */ act,
    ) => {
      const onclick = () => {
        act();
        this.chart.stage.focus({ preventScroll: true });
      };
      return button(label, { title: `${title} (${key})`, onclick });
    };
    const commit = (/** @type {string} */ kind) => () => this.commit(kind);
    const buttons = {
      repeat: tool("Repeat", "R", "Order these blocks in the same way for every microbatch", commit("repeat")),
      everywhere: tool(
        "All repetitions",
        "P",
        "Order these blocks in the same way in every repetition of the steady state",
        commit("everywhere"),
      ),
      halves: tool("Split", "X", "Split a backward into input and weight gradient, or join both", commit("halves")),
      slot: tool(
        "One slot",
        "O",
        "Overlap a forward with a backward in one slot, or run them separately",
        commit("slot"),
      ),
      differences: tool("Differences", "V", "Mark moved blocks", () =>
        this.send("differences", { on: !this.state?.difference }),
      ),
      repair: tool("Repair", "H", "Make the order valid with the fewest moves", () => this.send("repair")),
    };
    buttons.repair.classList.add("mw-primary");
    return buttons;
  }

  /** Receive events before the other parts of the chart. */
  connect() {
    const { root, stage } = this.chart;
    listenWhile(
      root,
      ({ target }) => this.isReady && stage.contains(/** @type {Node} */ (target)),
      {
        pointerdown: (event) => this.press(event),
        pointermove: (event) => this.move(event),
        pointerup: (event) => this.release(event),
        pointercancel: () => this.cancel(),
        keydown: (event) => this.keys.press(event),
      },
      { capture: true },
    );
    root.addEventListener("keydown", (event) => this.keys.toggleMode(event), { capture: true });
    this.refresh();
  }

  get isReady() {
    return this.isOn && this.chart.isDrawn && this.predicted !== undefined;
  }

  /** The timeline of the open design. */
  get predicted() {
    return this.chart.data.layers.findLast((layer) => layer.source === "predicted" && !layer.over);
  }

  /** The timeline of the open design, which exists while edit mode can be used. */
  get layer() {
    return /** @type {Layer} */ (this.predicted);
  }

  toggle(isOn = !this.isOn) {
    const { chart } = this;
    if (!chart.model.can_edit || (isOn && chart.depth.isDeep)) return;
    this.isOn = isOn;
    this.selected = [];
    this.result = this.moving = this.preview = this.drag = null;
    if (isOn) chart.toolbar.play.stop(); // it would cover the blocks
    if (isOn && chart.pinned) chart.pin(null);
    if (isOn) chart.selection.leaveMeasured();
    chart.arrangeRows();
    chart.tooltip.hide();
    this.send("turn", { on: isOn });
    this.refresh();
    chart.refresh();
    chart.stage.focus({ preventScroll: true });
  }

  /** Follow a new timeline. */
  onData() {
    this.moves.follow();
    this.refresh();
  }

  // ── blocks ──

  /** @param {BlockName} name */
  spanOf([op, stage, mb]) {
    return this.predicted?.find(op, stage, mb) ?? -1;
  }

  /** @param {number} span @returns {BlockName} */
  nameOf(span) {
    const { layer } = this;
    return [layer.op[span], layer.stage[span], layer.microbatch[span]];
  }

  get selectedSpans() {
    return this.selected.map((name) => this.spanOf(name)).filter((span) => span >= 0);
  }

  /**
   * True if a place is a block of the open design that computes.
   * @param {Place | null} place @returns {place is Place}
   */
  isBlock(place) {
    if (!place || place.layer !== this.predicted || place.link || place.span < 0) return false;
    return place.span < place.layer.blocks && place.layer.op[place.span] <= OP.W;
  }

  /** Select these blocks, or add them to the selected ones. @param {number[]} spans */
  select(spans, { add = false } = {}) {
    const names = [...(add ? this.selected : []), ...spans.map((span) => this.nameOf(span))];
    this.selected = [...new Map(names.map((name) => [String(name), name])).values()];
    this.result = null;
    this.refresh();
  }

  /** @param {number} span */
  toggleBlock(span) {
    const name = this.nameOf(span);
    const rest = this.selected.filter((other) => String(other) !== String(name));
    this.selected = rest.length < this.selected.length ? rest : [...rest, name];
    this.result = null;
    this.refresh();
  }

  // ── messages ──

  /** @param {string} action @param {object} [rest] */
  send(action, rest = {}) {
    this.number++;
    send(this.chart.model, { type: "order", do: action, number: this.number, ...rest });
    return this.number;
  }

  /** Request the effect of the move. Only one request is outstanding at a time; the latest is sent last. */
  ask() {
    const edit = this.moving?.edit;
    if (edit && !this.open) this.open = { edit, number: this.send("preview", { edit }) };
  }

  /** @param {Message} message */
  receive(message) {
    if (message.type !== "order") return;
    if (message.told === "trial") this.setTrial(message);
    else if (message.told === "state") this.setState(/** @type {any} */ (message));
    else if (message.told === "done")
      this.result = { words: message.words || `Done: ${message.label}`, isError: false };
    else this.onAnswer(message);
    this.refresh();
    if (this.result) this.chart.live.textContent = this.result.words;
  }

  /** Set a new state; the result of the last edit is outdated after an undo. @param {OrderState} state */
  setState(state) {
    this.state = state;
    if (!this.result?.isError) this.result = null;
  }

  /** Show the effect of a dragged stage; without a label, remove it. @param {Message} message */
  setTrial(message) {
    this.trial = message.label ? /** @type {any} */ ({ ...message, delays: new Float32Array(message.delay) }) : null;
    if (this.trial) this.readAloud(this.trial);
  }

  /** True if the timeline shows the step of the trial. */
  get isTried() {
    return Boolean(this.trial && this.predicted?.digest === this.trial.digest);
  }

  /** @param {Message} message */
  onAnswer(message) {
    const { open } = this;
    const isRefused = message.told === "refused";
    if (isRefused) this.result = { words: message.words, isError: true };
    if (!open || message.number !== open.number) return;
    this.open = null;
    if (open.edit !== this.moving?.edit) return this.ask();
    if (isRefused) {
      this.moving = this.preview = null;
    } else {
      const delays = message.delay ? new Float32Array(message.delay) : null;
      this.preview = /** @type {any} */ ({ ...message, delays });
      if (this.preview) this.readAloud(this.preview);
    }
  }

  /** @param {Preview} preview */
  readAloud(preview) {
    this.chart.live.textContent = effectLine(preview, this.layer.unit).textContent;
  }

  /** @param {string} kind */
  commit(kind) {
    if (this.selected.length) this.send("commit", { edit: { kind, blocks: this.selected } });
  }

  // ── moving ──

  /** Commit the move that is shown. */
  drop() {
    const edit = this.moving?.edit;
    this.moving = this.preview = this.drag = null;
    if (edit) {
      this.result = { words: "Moving blocks …", isError: false };
      this.send("commit", { edit });
    }
    this.refresh();
  }

  cancel() {
    this.moving = this.preview = this.drag = null;
    this.refresh();
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0) return;
    const { chart } = this;
    const at = pointIn(event, chart.stage);
    const place = placeAt(chart, at);
    const isRectangle = event.shiftKey;
    if (!isRectangle && !this.isBlock(place)) return;
    const span = this.isBlock(place) ? place.span : -1;
    const drag = { isRectangle, from: at, to: at, span, name: span < 0 ? null : this.nameOf(span), moved: false };
    if (isRectangle) this.drag = drag;
    else this.pressBlock(drag, event.ctrlKey || event.metaKey);
    chart.stage.setPointerCapture(event.pointerId);
    event.stopPropagation();
  }

  /** @param {Drag} drag @param {boolean} add */
  pressBlock(drag, add) {
    const { span } = drag;
    this.chart.focus = { layer: this.layer, span };
    if (add) return this.toggleBlock(span);
    if (!this.selectedSpans.includes(span)) this.select([span]);
    this.drag = drag;
  }

  /** @param {PointerEvent} event */
  move(event) {
    const { drag, chart } = this;
    if (!drag) return;
    event.stopPropagation();
    drag.to = pointIn(event, chart.stage);
    drag.moved ||= Math.hypot(drag.to.x - drag.from.x, drag.to.y - drag.from.y) >= DRAG_PX;
    if (!drag.moved) return;
    chart.tooltip.hide();
    chart.hover = chart.pointer = null;
    if (drag.isRectangle) this.refresh();
    else this.moves.dragTo(drag);
  }

  /** @param {PointerEvent} event */
  release(event) {
    const { drag } = this;
    if (!drag) return;
    event.stopPropagation();
    this.drag = null;
    if (drag.isRectangle && drag.moved) this.select(this.moves.blocksIn(drag), { add: true });
    else if (drag.isRectangle && drag.span >= 0) this.toggleBlock(drag.span);
    else if (drag.moved) this.drop();
    this.refresh();
  }

  // ── what is shown ──

  refresh() {
    const { chart, isOn, trial } = this;
    this.button.hidden = !chart.model.can_edit || !chart.hasData || chart.depth.isDeep;
    this.button.setAttribute("aria-pressed", String(isOn));
    this.element.hidden = !isOn && !trial;
    this.element.toggleAttribute("data-trial", !isOn);
    chart.stage.toggleAttribute("data-editing", isOn);
    chart.stage.toggleAttribute("data-moving", this.moving !== null);
    if (trial) {
      for (const button of Object.values(this.buttons)) button.hidden = true;
      this.setLine(effectLine(trial, this.layer.unit));
    } else if (isOn) {
      this.offerButtons();
      this.offerSlots();
      this.setLine(this.preview ? effectLine(this.preview, this.layer.unit) : stateLine(this));
    }
    chart.overpaint();
  }

  /** Show the buttons that can be used now. */
  offerButtons() {
    const { state, buttons } = this;
    const isRefused = Boolean(state?.refused);
    const isBlocked = this.moving !== null || isRefused;
    for (const name of /** @type {const} */ (["repeat", "everywhere", "halves", "slot"]))
      buttons[name].hidden = !this.selected.length || isBlocked;
    buttons.differences.hidden = !state?.is_custom || isRefused;
    buttons.differences.setAttribute("aria-pressed", String(Boolean(state?.difference)));
    buttons.repair.hidden = !state?.fault || isBlocked;
  }

  /** Label the two slot buttons with their effect on the selected blocks, or hide them. */
  offerSlots() {
    const { halves, slot } = this.buttons;
    const ops = new Set(this.selected.map(([op]) => op));
    const isShared = this.selectedSpans.some((span) => this.layer.halfOf(span));
    const isBackward = ops.has(OP.B) || ops.has(OP.I);
    halves.hidden ||= !isBackward && !ops.has(OP.W);
    rename(halves, ops.has(OP.B) ? "Split" : "Join");
    slot.hidden ||= !isShared && !(ops.has(OP.F) && isBackward);
    rename(slot, isShared ? "Two slots" : "One slot");
  }

  /** @param {HTMLElement} line */
  setLine(line) {
    this.text.replaceChildren(line);
    this.text.title = [...line.childNodes].map(({ textContent }) => textContent).join(" ");
  }

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    if (this.trial && this.isTried) this.painter.paintTrial(context, this.trial);
    else if (this.isReady && !this.trial) this.painter.paint(context);
  }
}

/** @param {HTMLElement} element @param {string} label */
function rename(element, label) {
  element.textContent = label;
  element.setAttribute("aria-label", label);
}
