// Edit mode: blocks of the open design are taken by pointer or keys and moved within the order of their mesh.
// Python (designer/state/order_edits.py) tells what a move would do while it is made, and makes one edit of a drop.
// A block is named by `[op, stage, microbatch]`, which it keeps however the timeline changes.

import { button, h, send } from "../kit/canvas.js";
import { OP, firstFrom } from "./columns.js";
import { EditKeys } from "./edit_keys.js";
import { Moves } from "./edit_moves.js";
import { EditPainter } from "./edit_paint.js";
import { consequence, stands } from "./edit_text.js";
import { box } from "./frame.js";
import { placeAt } from "./place.js";

const DRAG_PX = 4; // a press that moves less is a click

export class Edit {
  constructor(chart) {
    this.chart = chart;
    this.isOn = false;
    this.chosen = []; // names of blocks
    this.state = null; // how things stand, as Python tells it
    this.moving = null; // an edit in flight: { edit, mark, dx }
    this.preview = null; // what Python says of it
    this.trial = null; // what it says of a stage that is carried to another mesh; the timeline shows that step already
    this.asked = 0;
    this.open = null; // the question that is not answered yet
    this.said = null; // words of the last edit, { words, kind }
    this.painter = new EditPainter(this);
    this.moves = new Moves(this);
    this.keys = new EditKeys(this);
    this._build();
    chart.model.on("msg:custom", (message) => this._told(message.data ?? message));
  }

  _build() {
    const act = (label, key, title, onclick) =>
      button(label, {
        title: `${title} (${key})`,
        onclick: () => (onclick(), this.chart.stage.focus({ preventScroll: true })),
      });
    this.button = button("Edit order", {
      kind: "mw-timeline-toggle",
      title: "Move blocks by hand (E)",
      onclick: () => this.turn(),
    });
    this.buttons = {
      repeat: act("Repeat this", "R", "Put these blocks of every microbatch as they stand here", () =>
        this._commit("repeat"),
      ),
      everywhere: act("All repetitions", "P", "The same for every repetition of the steady state", () =>
        this._commit("everywhere"),
      ),
      halves: act("Split", "X", "Part a backward into input and weight gradient, or join the two", () =>
        this._commit("halves"),
      ),
      slot: act("One slot", "O", "Let a forward and a backward overlap in one slot, or part them", () =>
        this._commit("slot"),
      ),
      differences: act("Differences", "V", "Mark what was moved", () =>
        this._send("differences", { on: !this.state?.difference }),
      ),
      repair: act("Repair", "H", "Make the order legal again by the smallest change", () => this._send("repair")),
    };
    this.buttons.repair.classList.add("mw-primary");
    this.words = h("div", { class: "mw-order-words", role: "status" });
    this.element = h(
      "div",
      { class: "mw-order", role: "group", "aria-label": "Edit order", hidden: true },
      this.words,
      ...Object.values(this.buttons),
    );
  }

  /** Listen in front of everything else, once the chart stands. */
  connect() {
    const { root, stage } = this.chart;
    const listen = (type, then) =>
      root.addEventListener(type, (event) => this.isReady && stage.contains(event.target) && then.call(this, event), {
        capture: true,
      });
    listen("pointerdown", this._down);
    listen("pointermove", this._move);
    listen("pointerup", this._up);
    listen("pointercancel", () => this.cancel());
    listen("keydown", (event) => this.keys.key(event));
    root.addEventListener("keydown", (event) => this.keys.toggleKey(event), { capture: true });
    this.refresh();
  }

  get isReady() {
    return this.isOn && this.chart.isDrawn && Boolean(this.layer);
  }

  /** The timeline of the open design: what can be edited. */
  get layer() {
    return this.chart.data?.layers.findLast((layer) => layer.source === "predicted" && !layer.over);
  }

  /** Turn edit mode on or off. */
  turn(on = !this.isOn) {
    if (!this.chart.model.can_edit || (on && this.chart.depth.isDeep)) return;
    this.isOn = on;
    this.chosen = [];
    this.said = null;
    this.moving = this.preview = this.rectangle = this.press = null;
    if (on && this.chart.pinned) this.chart.pin(null);
    if (on && this.chart.area.chosen?.layer.over) this.chart.area.leave();
    this.chart.arrangeRows();
    this.chart.tip.hide();
    this._send("turn", { on });
    this.refresh();
    this.chart.refresh();
    this.chart.stage.focus({ preventScroll: true });
  }

  /** The timeline is another one. */
  arrived() {
    this.preview = this.moving = this.press = null;
    this.chosen = this.chosen.filter((name) => this.spanOf(name) >= 0);
    this.refresh();
  }

  // ── names and spans ──

  spanOf([op, stage, mb]) {
    return this.layer?.find(op, stage, mb) ?? -1;
  }

  nameOf(span) {
    const { layer } = this;
    return [layer.op[span], layer.stage[span], layer.microbatch[span]];
  }

  get chosenSpans() {
    return this.chosen.map((name) => this.spanOf(name)).filter((span) => span >= 0);
  }

  isBlock(place) {
    return (
      place?.layer === this.layer &&
      !place.link &&
      place.span >= 0 &&
      place.span < this.layer.blocks &&
      this.layer.op[place.span] <= OP.W
    );
  }

  choose(spans, { add = false } = {}) {
    const found = new Map((add ? this.chosen : []).map((name) => [String(name), name]));
    for (const span of spans) found.set(String(this.nameOf(span)), this.nameOf(span));
    this.chosen = [...found.values()];
    this.said = null;
    this.refresh();
  }

  toggle(span) {
    const name = this.nameOf(span);
    const rest = this.chosen.filter((other) => String(other) !== String(name));
    this.chosen = rest.length < this.chosen.length ? rest : [...rest, name];
    this.said = null;
    this.refresh();
  }

  // ── Python ──

  _send(what, rest = {}) {
    this.asked++;
    send(this.chart.model, { type: "order", do: what, number: this.asked, ...rest });
    return this.asked;
  }

  /** Ask what the move in flight would do: one question at a time, the latest wins. */
  ask() {
    const edit = this.moving?.edit;
    if (edit && !this.open) this.open = { edit, number: this._send("preview", { edit }) };
  }

  _told(message) {
    if (message.type !== "order") return;
    if (message.told === "trial") this._tries(message);
    else if (message.told === "state") this._stands(message);
    else if (message.told === "done") this.said = { words: message.words || `Done: ${message.label}`, kind: "done" };
    else this._answered(message);
    this.refresh();
    if (this.said) this.chart.live.textContent = this.said.words;
  }

  /** How things stand; what was said of the last edit is no longer true after an undo. */
  _stands(message) {
    this.state = message;
    if (this.said?.kind === "done") this.said = null;
  }

  /** What a stage on its way changes; without words it is dropped or let go of. */
  _tries(message) {
    this.trial = message.label ? { ...message, delays: new Float32Array(message.delay) } : null;
    if (this.trial) this.chart.live.textContent = consequence(this.trial, this.layer).textContent;
  }

  /** Whether the timeline is the one that the words of a trial are about. */
  get isTried() {
    return Boolean(this.trial && this.layer?.digest === this.trial.digest);
  }

  _answered(message) {
    const { open } = this;
    if (message.told === "refused") this.said = { words: message.words, kind: "no" };
    if (message.number !== open?.number) return;
    this.open = null;
    if (open.edit !== this.moving?.edit) return this.ask();
    if (message.told === "refused") {
      this.moving = this.preview = null;
    } else {
      this.preview = { ...message, delays: message.delay ? new Float32Array(message.delay) : null };
      this.chart.live.textContent = consequence(this.preview, this.layer).textContent;
    }
  }

  _commit(kind) {
    if (this.chosen.length) this._send("commit", { edit: { kind, blocks: this.chosen } });
  }

  // ── moving ──

  /** Put the move that is shown into the order. */
  drop() {
    const { edit } = this.moving ?? {};
    this.moving = this.preview = this.press = null;
    if (edit) {
      this.said = { words: "Drawing the order …", kind: "done" };
      this._send("commit", { edit });
    }
    this.refresh();
  }

  cancel() {
    this.moving = this.preview = this.press = this.rectangle = null;
    this.refresh();
  }

  // ── the pointer ──

  _at(event) {
    const area = this.chart.stage.getBoundingClientRect();
    return { x: event.clientX - area.left, y: event.clientY - area.top };
  }

  _down(event) {
    if (event.button !== 0) return;
    const at = this._at(event);
    const place = placeAt(this.chart, at);
    if (event.shiftKey)
      this.rectangle = { from: at, to: at, span: this.isBlock(place) ? place.span : -1, moved: false };
    else if (this.isBlock(place)) this._press(place, at, event.ctrlKey || event.metaKey);
    else return;
    this.chart.stage.setPointerCapture(event.pointerId);
    event.stopPropagation();
  }

  _press(place, at, add) {
    this.chart.focus = { layer: place.layer, span: place.span };
    const isChosen = this.chosenSpans.includes(place.span);
    if (add) return this.toggle(place.span);
    if (!isChosen) this.choose([place.span]);
    this.press = { at, span: place.span, moved: false };
  }

  _move(event) {
    const held = this.press ?? this.rectangle;
    if (!held) return;
    const at = this._at(event);
    event.stopPropagation();
    const from = held.at ?? held.from;
    held.moved ||= Math.hypot(at.x - from.x, at.y - from.y) >= DRAG_PX;
    if (!held.moved) return;
    this.chart.tip.hide();
    this.chart.hover = this.chart.pointer = null;
    if (this.press) return this.moves.dragTo(at);
    this.rectangle.to = at;
    this.refresh();
  }

  _up(event) {
    const { press, rectangle } = this;
    if (!press && !rectangle) return;
    event.stopPropagation();
    this.press = this.rectangle = null;
    if (press?.moved) this.drop();
    else if (rectangle?.moved) this.choose(this._within(rectangle), { add: true });
    else if (rectangle?.span >= 0) this.toggle(rectangle.span);
    this.refresh();
  }

  /** The blocks that a rectangle of the canvas touches. */
  _within({ from, to }) {
    const { frame, plan } = this.chart;
    const [left, right] = [Math.min(from.x, to.x), Math.max(from.x, to.x)];
    const [top, bottom] = [Math.min(from.y, to.y), Math.max(from.y, to.y)];
    const found = [];
    for (const lane of plan.lanes) {
      if (lane.layer !== this.layer || lane.y > bottom || lane.y + lane.height < top) continue;
      const [first, last] = this.layer.range(0, lane.rank);
      for (
        let span = firstFrom(this.layer.end, frame.tick(left), first, last);
        span < last && frame.x(this.layer.start[span]) <= right;
        span++
      ) {
        const at = box(frame, this.layer, span, lane);
        if (this.layer.op[span] <= OP.W && at.y <= bottom && at.y + at.height >= top) found.push(span);
      }
    }
    return found;
  }

  // ── what is shown ──

  refresh() {
    const { chart, state, buttons, isOn } = this;
    this.button.hidden = !chart.model.can_edit || !chart.data || chart.depth.isDeep;
    this.button.setAttribute("aria-pressed", String(isOn));
    this.element.hidden = !isOn && !this.trial;
    this.element.toggleAttribute("data-trial", !isOn);
    chart.stage.toggleAttribute("data-editing", isOn);
    chart.stage.toggleAttribute("data-moving", Boolean(this.moving));
    if (this.trial) {
      for (const other of Object.values(buttons)) other.hidden = true;
      this._say(consequence(this.trial, this.layer));
    } else if (isOn) {
      this._offer(Boolean(state?.refused));
      this._offerSlots();
      this._say(this.preview ? consequence(this.preview, this.layer) : stands(this));
    }
    chart.overpaint();
  }

  /** Show the buttons that can be used now. */
  _offer(refused) {
    const { state, buttons } = this;
    const waits = Boolean(this.moving || refused);
    for (const name of ["repeat", "everywhere", "halves", "slot"]) buttons[name].hidden = !this.chosen.length || waits;
    buttons.differences.hidden = !state?.is_custom || refused;
    buttons.differences.setAttribute("aria-pressed", String(Boolean(state?.difference)));
    buttons.repair.hidden = !state?.fault || waits;
  }

  /** Name what splitting and sharing would do to the blocks that are chosen, or hide it. */
  _offerSlots() {
    const { halves, slot } = this.buttons;
    const ops = this.chosen.map(([op]) => op);
    const shares = this.chosenSpans.some((span) => this.layer.halfOf(span));
    halves.hidden ||= !ops.some((op) => op >= OP.B && op <= OP.W);
    rename(halves, ops.includes(OP.B) ? "Split" : "Join");
    slot.hidden ||= !shares && !(ops.includes(OP.F) && ops.some((op) => op === OP.B || op === OP.I));
    rename(slot, shares ? "Part" : "One slot");
  }

  _say(line) {
    this.words.replaceChildren(line);
    this.words.title = line.textContent;
  }

  paint(context) {
    if (this.isTried) this.painter.paintTrial(context, this.trial);
    else if (this.isReady && !this.trial) this.painter.paint(context);
  }

  /** A few facts for tests. */
  get facts() {
    const names = this.chart.model.palette.names;
    const said = ([op, stage, mb]) => `${stage}${names[op]}${mb}`;
    const { preview, state } = this;
    return {
      on: this.isOn,
      chosen: this.chosen.map(said),
      moving: this.moving?.edit ?? null,
      preview: preview && {
        fault: preview.fault ?? "",
        later: preview.later,
        ring: (preview.ring ?? []).map(({ at }) => said(at)),
        makespan: preview.makespan,
      },
      ring: (state?.ring ?? []).map(({ at }) => said(at)),
      fault: state?.fault ?? "",
      trial: this.isTried ? { makespan: this.trial.makespan, later: this.trial.later } : null,
      moved: (state?.difference?.blocks ?? []).map(said),
      waits: Boolean(this.open),
    };
  }
}

function rename(element, label) {
  element.textContent = label;
  element.setAttribute("aria-label", label);
}
