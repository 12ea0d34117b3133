// The wave: stages from left to right in their order, each on the lane of its mesh, joined by
// the path that a microbatch takes. Layers move from stage to stage by dragging what parts them, and a stage
// from mesh to mesh by dragging it there.

import { Drawing, Notice, button, clamp, count, h, keepFocus, meshColour, plain, s, stepper, trackPointer } from "static/canvas.js";
import { ScheduleRow } from "static/schedules.js";
import { Skips, roomOver } from "static/wave_skips.js";

const EQUAL = 0.4; // part of the width that stages share equally; the rest goes by layers
const BOX = { part: 0.62, width: 112, height: 44 }; // of its slot; px at most
const STAGES_HELP =
  "stages: arrows walk, Alt with left or right gives a layer to the neighbour, Alt with up or down carries the stage to that mesh, where Enter drops it and Escape leaves it";
const NOT_SOUND = "these are the stages of the last sound design; solve its problems first";
const EQUAL_SHARES = "unit costs price every stage the same while its layers are not set by hand, also where they do not divide";

export const render = ({ model }) => new Wave(model).root;

// ── geometry ────────────────────────────────────────────────────────────────────────────────

/** Slots, boxes and lanes of a picture in a box of px. */
function arrange(picture, layers, width, height) {
  const { meshes, routes, shares } = picture;
  const stages = layers.length;
  const { room, step } = roomOver(picture.skips, routes);
  const named = Math.max(...meshes.map(({ name }) => name.length));
  const edge = { left: clamp(34 + 7 * named, 46, 110), right: 10, top: picture.groups.length || picture.equal ? 15 : 3, bottom: 16 };
  edge.top += room;
  const lane = (height - edge.top - edge.bottom) / meshes.length;
  const total = layers.reduce((sum, number) => sum + number, 0) || 1;
  const span = width - edge.left - edge.right;
  const perLayer = ((1 - EQUAL) * span) / total;
  const most = Math.max(...shares, 1e-12);
  const tallest = clamp(lane * 0.8, 2, BOX.height);
  const slots = [];
  let x = edge.left;
  layers.forEach((number, stage) => {
    const size = (EQUAL * span) / stages + perLayer * number;
    const height = tallest * clamp(shares[stage] / most, Math.min(1, 16 / tallest), 1); // low ones still hold their number
    slots.push({ x, size, middle: x + size / 2, width: Math.min(BOX.width, size * BOX.part), height });
    x += size;
  });
  const y = (mesh) => edge.top + (mesh + 0.5) * lane;
  return { edge, lane, perLayer, slots, y, width, height, routes, pitch: span / stages, tallest, step };
}

/** From stage to stage: a curve between lanes, a small crest where the mesh stays the same. */
function hop(layout, route, stage) {
  const [a, b] = [layout.slots[stage], layout.slots[stage + 1]];
  const [ya, yb] = [layout.y(route[stage]), layout.y(route[stage + 1])];
  const [xa, xb] = [a.middle + a.width / 2, b.middle - b.width / 2];
  const middle = (xa + xb) / 2;
  if (ya !== yb) return `M${r(xa)} ${r(ya)}C${r(middle + 2)} ${r(ya)} ${r(middle - 2)} ${r(yb)} ${r(xb)} ${r(yb)}`;
  const came = stage > 0 ? Math.sign(route[stage] - route[stage - 1]) : 0;
  const out = (came || 1) * Math.min(layout.lane * 0.3, 11);
  return `M${r(xa)} ${r(ya)}C${r(xa + (xb - xa) * 0.2)} ${r(ya + out)} ${r(xb - (xb - xa) * 0.2)} ${r(ya + out)} ${r(xb)} ${r(ya)}`;
}

const r = (number) => Math.round(number * 10) / 10;

/** Give a shape its place, by attributes that are numbers. */
function place(shape, numbers) {
  for (const [name, number] of Object.entries(numbers)) shape.setAttribute(name, r(number));
}

// ── the widget ──────────────────────────────────────────────────────────────────────────────

class Wave extends Drawing {
  constructor(model) {
    super(model);
    this.focus = 0; // the stage that takes the keyboard
    this.gesture = null; // a boundary in flight: { boundary, from, count }
    this.carried = null; // a stage in flight: { stage, replica, home, mesh }, and where it was taken: { from }, or { keyed }
    this.pending = null; // layers shown until Python has answered
    this.landed = null; // a stage that was dropped, until Python has answered
    this.trial = null; // what is tried while something is dragged: { rest, asked, awaited, and of layers also layers, shares }
    this.boxes = [];
    this.build();
    model.on(["picture", "choices", "palette"], () => this.arrived());
    model.on("progress", () => this.drawProgress());
  }

  remove() {
    super.remove();
    this.unlisten?.();
  }

  build() {
    const refuse = (reason, element) => reason && this.sayAt(element, reason);
    this.row = new ScheduleRow({ onchoose: (name) => this.send("schedule", { name }), onrefuse: refuse });
    this.dialBox = h("span", { class: "mw-dial" });
    this.microbatches = stepper({ label: "microbatches", one: "microbatch", onchange: (value) => this.send("microbatches", { value }), onrefuse: refuse });
    this.toggleBox = h("span", { class: "mw-toggles" });
    this.words = h("span", { class: "mw-quiet mw-grow mw-words" });
    this.balance = button("Balance", { title: "Share the layers out by their cost", onclick: () => this.send("balance", {}) });
    this.balance.refuse = (reason) => this.sayAt(this.balance, reason);
    this.computing = h("div", { class: "mw-computing", hidden: true });
    this.back = s("g", { "aria-hidden": "true" });
    this.path = s("g", { "aria-hidden": "true" });
    this.skips = new Skips(this);
    this.stages = s("g", { role: "group", "aria-label": STAGES_HELP });
    this.grips = s("g", { "aria-hidden": "true" });
    this.svg = s("svg", { class: "mw-wave-drawing", role: "none" }, this.back, this.path, this.skips.group, this.stages, this.grips);
    this.none = h("div", { class: "mw-wave-none mw-quiet" }, "No stages: the design has problems");
    this.board = h("div", { class: "mw-wave-board" }, this.svg, this.none, this.computing);
    this.stages.addEventListener("keydown", (event) => this.key(event));
    this.board.addEventListener("focusin", ({ target }) => this.reached(target)); // here: one of SVG that listened would be a stop of Tab
    this.board.addEventListener("focusout", ({ target }) => this.left(target));
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => this.gesture || this.skips.point(null));
    this.root = h(
      "section",
      { class: "mw-canvas mw-wave", "aria-label": "Pipeline: schedule and stages" },
      this.row.element,
      h("div", { class: "mw-bar" }, this.dialBox, this.microbatches, this.toggleBox, this.words, this.balance),
      this.board,
    );
    this.start();
    this.tip = new Notice(this.root);
  }

  // ── Python ──

  arrived() {
    if (this.gesture || this.carried) this.cancel();
    this.pending = this.landed = null;
    this.redraw();
  }

  told(message) {
    if (message.type === "tried") return this.tried(message);
    if (message.type === "carried") return this.toldOfCarried(message);
    if (message.type !== "answered") return;
    if (message.gesture === "try_layers" || message.gesture === "try_stage") return this.triedOne(message);
    ({ microbatches: this.microbatches, dial: this.dialStepper })[message.gesture]?.answered();
    this.pending = this.landed = null;
    if (message.refused) this.notice.say(message.refused, this.pointer.x, this.pointer.y);
    this.redraw();
  }

  // ── what the gesture in flight would make of the step ──

  /** What to ask of the gesture in flight, which Python shows in the timeline. */
  get question() {
    if (this.gesture) return { type: "try_layers", boundary: this.gesture.boundary, count: this.gesture.count };
    const { stage, replica, mesh } = this.carried;
    return { type: "try_stage", stage, replica, mesh };
  }

  /** The same with nothing moved: the step as it stands. */
  get rest() {
    return this.gesture ? { ...this.question, count: 0 } : { ...this.question, mesh: this.carried.home };
  }

  /** Ask Python; one question at a time, and of those in between only the last. */
  ask() {
    const { question, rest } = this;
    this.trial ??= { rest, asked: rest, awaited: false };
    if (this.trial.awaited || same(this.trial.asked, question)) return;
    Object.assign(this.trial, { asked: question, awaited: true });
    this.send(question.type, question);
  }

  triedOne({ gesture, refused }) {
    const { trial, carried } = this;
    if (trial?.asked.type !== gesture) return; // of a gesture that is over
    trial.awaited = false;
    if (refused && carried?.mesh === trial.asked.mesh) this.tellCarried(refused, "no");
    if (this.gesture || carried) this.ask();
  }

  tried({ layers, shares }) {
    if (!this.trial) return;
    Object.assign(this.trial, { layers, shares });
    this.redraw();
  }

  toldOfCarried({ mesh, words }) {
    if (this.carried?.mesh === mesh && mesh !== this.carried.home) this.tellCarried(words);
  }

  /** Show the step as it stands again, unless what was tried becomes an edit. */
  endTrial(kept) {
    const { trial } = this;
    if (trial && (trial.awaited || !same(trial.asked, trial.rest)) && !kept) this.send(trial.rest.type, trial.rest);
    this.trial = null;
  }

  get picture() {
    return plain(this.model, "picture");
  }

  /** Layers per stage as they are, or as the gesture in flight would have them. */
  get layers() {
    const { layers } = this.picture;
    if (!this.gesture) return this.pending ?? layers;
    return shifted(layers, this.gesture.boundary, this.gesture.count);
  }

  /** The mesh of each stage of each replica, as it is or as the stage in flight would have it. */
  get routes() {
    const { routes } = this.picture;
    const carried = this.carried ?? this.landed;
    if (!carried) return routes;
    return routes.map((route, replica) => route.map((mesh, stage) => (stage === carried.stage && replica === carried.replica ? carried.mesh : mesh)));
  }

  // ── drawing ──

  draw() {
    const { clientWidth: width, clientHeight: height } = this.board;
    const { picture } = this;
    if (!width || !height || !picture.layers) return;
    this.row.set(plain(this.model, "choices"), plain(this.model, "pictures"), picture.schedule);
    this.drawControls();
    this.root.toggleAttribute("data-stale", picture.stale);
    this.svg.toggleAttribute("hidden", !picture.layers.length);
    this.none.hidden = picture.layers.length > 0 || Boolean(this.model.progress.state);
    this.drawProgress();
    if (!picture.layers.length) return;
    this.layout = arrange(picture, this.layers, width, height);
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", height);
    this.drawBack();
    this.drawPath();
    this.drawBoxes();
    this.skips.draw(this.layout, this.routes);
    this.drawGrips();
  }

  drawControls() {
    const { picture } = this;
    this.drawDial(picture.dial);
    this.microbatches.set(picture.microbatches, { least: 1, most: picture.most_microbatches });
    this.drawToggles(picture.toggles);
    const total = picture.layers.reduce((sum, number) => sum + number, 0);
    const copies = picture.routes.length > 1 ? `, ${picture.routes.length} replicas` : "";
    this.words.textContent = picture.layers.length ? `${count(picture.layers.length, "stage")}, ${count(total, "layer")}${copies}` : "";
    if (this.words.scrollWidth > this.words.clientWidth) this.words.textContent = ""; // half a word says nothing
    this.balance.allow(!picture.balanced, picture.balanced ? "The layers are shared out by their cost already" : "Share the layers out by their cost");
  }

  /** How far a computation is, with a button that ends it. */
  drawProgress() {
    keepFocus(this.computing, () => this.drawComputing(), this.row.stop);
  }

  drawComputing() {
    const { state, share = 0, said } = this.model.progress;
    this.computing.hidden = !state;
    if (!state) return;
    if (state !== this.progressState) {
      const again = button("Compute again", { onclick: () => this.send("compute", { do: "again" }) });
      const stop = button("Stop", { title: "End the computation; the last good design stays on the page", onclick: () => this.send("compute", { do: "stop" }) });
      this.progressBar = h("div", { class: "mw-progress-bar", role: "progressbar", "aria-label": "computation", "aria-valuemin": 0, "aria-valuemax": 100 }, h("div"));
      this.progressWords = h("span", { class: "mw-progress-words", role: "status" });
      this.computing.replaceChildren(this.progressWords, ...(state === "runs" ? [this.progressBar, stop] : [again]));
      this.progressState = state;
    }
    this.progressWords.textContent = said;
    this.progressBar.setAttribute("aria-valuenow", Math.round(100 * share));
    this.progressBar.firstChild.style.width = `${100 * share}%`;
    this.none.hidden ||= Boolean(state);
  }

  drawDial(dial) {
    if (dial?.key !== this.dial?.key) {
      const refuse = (reason, element) => reason && this.sayAt(element, reason);
      this.dialStepper = dial && stepper({ label: dial.label, one: dial.label.replace(/s$/, ""), onchange: (value) => this.send("dial", { value }), onrefuse: refuse });
      this.dialBox.replaceChildren(...(dial ? [this.dialStepper] : []));
    }
    this.dial = dial;
    this.dialBox.hidden = !dial;
    this.dialStepper?.set(dial.value, { least: 1, most: dial.most, more: dial.reason ?? undefined });
  }

  /** The switches of options stay what they are while a picture follows the other: a press may begin on one of them and
      end after the next. */
  drawToggles(toggles) {
    const names = JSON.stringify(toggles.map(({ key, words }) => [key, words]));
    if (names !== this.toggleNames) {
      this.toggleNames = names;
      this.toggles = toggles.map(({ key, words }) => this.segments(key, words));
      this.toggleBox.replaceChildren(...this.toggles);
    }
    this.toggleBox.hidden = !toggles.length;
    toggles.forEach((toggle, place) => this.toggles[place].set(toggle));
  }

  segments(key, words) {
    let held = null;
    const buttons = words.map((word) => {
      const segment = button(word, { kind: "mw-segment", onclick: () => word !== held && this.send("option", { key, value: word }) });
      segment.refuse = (text) => this.sayAt(segment, text);
      return segment;
    });
    const element = h("span", { class: "mw-segments", role: "group", "aria-label": key }, ...buttons);
    element.set = ({ value, help, reason }) => {
      held = value;
      buttons.forEach((segment, place) => {
        segment.setAttribute("aria-pressed", String(words[place] === value));
        segment.allow(!reason, reason ?? help);
      });
    };
    return element;
  }

  drawBack() {
    const { edge, y, width, height, lane, slots } = this.layout;
    const { meshes, groups } = this.picture;
    const parts = [];
    const every = Math.ceil(13 / lane);
    meshes.forEach(({ name }, mesh) => {
      const colour = meshColour(this.model.palette, mesh);
      parts.push(s("line", { class: "mw-lane", x1: edge.left - 6, x2: width - edge.right, y1: y(mesh), y2: y(mesh), style: { "--c": colour } }));
      if (mesh % every) return;
      const size = clamp(lane * 0.8, 8, 14);
      parts.push(
        s("rect", { class: "mw-lane-badge", x: 0, y: y(mesh) - size / 2, width: 18, height: size, rx: 4, style: { "--c": colour } }),
        s("text", { class: "mw-lane-rank", x: 9, y: y(mesh) + size * 0.27, "text-anchor": "middle", style: { "font-size": `${size * 0.76}px` } }, String(mesh)),
        s("text", { class: "mw-lane-name", x: 24, y: y(mesh) + size * 0.3, style: { "font-size": `${clamp(size, 8, 12)}px` } }, shortened(name, 11)),
      );
    });
    for (const { label, first, end } of groups) {
      const [from, to] = [slots[first], slots[end - 1]];
      if (first) parts.push(s("line", { class: "mw-wave-edge", x1: from.x, x2: from.x, y1: 2, y2: height - edge.bottom }));
      if (to.x + to.size - from.x > 44) parts.push(s("text", { class: "mw-axis", x: from.x + 5, y: 10 }, label));
    }
    const wide = 9 + 6 * String(slots.length - 1).length; // px that the longest number and its distance take
    const step = [1, 2, 4, 8, 16, 32, 64, 128].find((number) => number * this.layout.pitch >= wide) ?? 256;
    slots.forEach((slot, stage) => {
      if (stage % step === 0) parts.push(s("text", { class: "mw-axis", x: slot.middle, y: height - 3, "text-anchor": "middle" }, String(stage)));
    });
    if (this.picture.equal) {
      parts.push(s("text", { class: "mw-axis mw-equal", x: width - edge.right, y: 10, "text-anchor": "end" }, s("title", {}, EQUAL_SHARES), "priced as equal shares"));
    }
    parts.push(s("text", { class: "mw-axis", x: edge.left - 10, y: height - 3, "text-anchor": "end" }, "stage"));
    this.back.replaceChildren(...parts);
  }

  drawPath() {
    const { layout, picture } = this;
    const parts = [this.gradients()];
    const thick = clamp(layout.lane * 0.11, 1.2, 4.5);
    this.routes.forEach((route, replica) => {
      for (let stage = 0; stage + 1 < route.length; stage++) {
        const [a, b] = [route[stage], route[stage + 1]];
        const local = a === b;
        const stroke = local ? this.lineColour(a) : `url(#${this.gradient(a, b)})`;
        const style = { "stroke-width": `${local ? Math.max(1, thick * 0.6) : thick}px`, stroke };
        const kind = `mw-hop${local ? " mw-local" : ""}${replica ? " mw-replica" : ""}`;
        parts.push(s("path", { class: kind, d: hop(layout, route, stage), style }));
        if (!local && picture.meshes[a].node !== picture.meshes[b].node && layout.pitch > 14) {
          parts.push(s("path", { class: "mw-far", d: hop(layout, route, stage) }));
        }
      }
    });
    this.path.replaceChildren(...parts);
  }

  /** Of a mesh, as strong as a line has to be: 3 to 1 against the page. */
  lineColour(mesh) {
    return `color-mix(in oklab, ${meshColour(this.model.palette, mesh)} 85%, light-dark(#000000, #ffffff))`;
  }

  gradient(a, b) {
    return `mw-${this.id}-${a}-${b}`;
  }

  get id() {
    return (this.unique ??= Math.random().toString(36).slice(2, 8));
  }

  /** From the colour of one mesh to that of the next, once a pair. */
  gradients() {
    const pairs = new Map();
    for (const route of this.routes) {
      for (let stage = 0; stage + 1 < route.length; stage++) {
        if (route[stage] !== route[stage + 1]) pairs.set(`${route[stage]}-${route[stage + 1]}`, [route[stage], route[stage + 1]]);
      }
    }
    const stops = (a, b) => [a, b].map((mesh, end) => s("stop", { offset: `${20 + 60 * end}%`, style: { "stop-color": this.lineColour(mesh) } }));
    return s("defs", {}, ...[...pairs.values()].map(([a, b]) => s("linearGradient", { id: this.gradient(a, b) }, ...stops(a, b))));
  }

  drawBoxes() {
    const { layers } = this;
    const { routes } = this;
    const wanted = routes.length * layers.length;
    while (this.boxes.length > wanted) this.boxes.pop().remove();
    while (this.boxes.length < wanted) {
      const box = s("g", { class: "mw-stage" }, s("rect"), s("text", { class: "mw-layers", "text-anchor": "middle" }), s("text", { class: "mw-share", "text-anchor": "middle" }));
      this.boxes.push(box);
      this.stages.append(box);
    }
    this.focus = clamp(this.focus, 0, layers.length - 1);
    routes.forEach((route, replica) => {
      for (let stage = 0; stage < layers.length; stage++) this.drawBox(this.boxes[replica * layers.length + stage], stage, replica, route[stage]);
    });
  }

  drawBox(box, stage, replica, mesh) {
    const { slots, y } = this.layout;
    const { middle, width, height } = slots[stage];
    const layers = this.layers[stage];
    const [rect, number, share] = box.children;
    const top = y(mesh) - height / 2;
    const given = this.gesture?.count && (stage === this.gesture.boundary || stage === this.gesture.boundary + 1);
    const changed = given || (stage === this.carried?.stage && replica === this.carried.replica);
    box.dataset.stage = stage;
    box.dataset.replica = replica;
    box.setAttribute("class", `mw-stage${replica ? " mw-replica" : ""}${changed ? " mw-changed" : ""}`);
    box.style.setProperty("--c", meshColour(this.model.palette, mesh));
    if (replica) box.setAttribute("aria-hidden", "true");
    else {
      box.removeAttribute("aria-hidden");
      box.setAttribute("role", "img");
      box.setAttribute("aria-label", this.describe(stage));
      box.setAttribute("tabindex", stage === this.focus ? 0 : -1);
    }
    if (replica) box.removeAttribute("tabindex");
    place(rect, { x: middle - width / 2, y: top, width, height, rx: Math.min(7, width / 4, height / 3) });
    const two = width >= 40 && height >= 27;
    const one = width >= 7 + 6.5 * String(layers).length && height >= 12;
    const part = percent(this.share(stage));
    const words = width >= 62 ? count(layers, "layer") : String(layers);
    number.textContent = one ? (width >= 100 && !two ? `${words} · ${part}` : words) : "";
    share.textContent = two ? part : "";
    for (const [text, at] of [[number, two ? -2 : 4], [share, 10]]) {
      text.setAttribute("x", r(middle));
      text.setAttribute("y", r(y(mesh) + at));
    }
  }

  /** A stage's share of the cost; while layers are dragged, as it was tried, until then in proportion to them. */
  share(stage) {
    const { layers, shares } = this.picture;
    if (this.trial?.layers?.join() === this.layers.join()) return this.trial.shares[stage];
    return layers[stage] ? (shares[stage] * this.layers[stage]) / layers[stage] : shares[stage];
  }

  describe(stage) {
    const { meshes, routes } = this.picture;
    const on = routes.map((route) => meshes[route[stage]].name);
    return `stage ${stage} on ${on.length > 1 ? "meshes" : "mesh"} ${on.join(" and ")}: ${count(this.layers[stage], "layer")}, ${percent(this.share(stage))} of the compute${this.picture.equal ? `; ${EQUAL_SHARES}` : ""}${this.skips.of(stage)}`;
  }

  /** What parts two stages can be taken anywhere between them, where there is room to take it. */
  drawGrips() {
    const { slots, pitch } = this.layout;
    const { children } = this.grips;
    const wanted = pitch < 11 || this.picture.stale ? 0 : slots.length - 1;
    while (children.length > wanted) this.grips.lastChild.remove();
    while (children.length < wanted) this.grips.append(this.grip(children.length));
    [...children].forEach((grip, boundary) => this.drawGrip(grip, boundary));
  }

  grip(boundary) {
    const title = s("title", {}, `drag to move layers between stage ${boundary} and ${boundary + 1}`);
    const parts = [s("rect", { class: "mw-grip-area" }, title), s("line", { class: "mw-grip-line" }), s("rect", { class: "mw-grip-pill", width: 5, rx: 2.5 })];
    return s("g", { class: "mw-grip", "data-boundary": boundary }, ...parts);
  }

  drawGrip(grip, boundary) {
    const { slots, edge, height, y, lane } = this.layout;
    const [before, slot] = [slots[boundary], slots[boundary + 1]];
    const [from, to] = [before.middle + before.width / 2, slot.middle - slot.width / 2];
    const x = (from + to) / 2;
    const wide = Math.max(8, to - from);
    const [route] = this.routes;
    const middle = (y(route[boundary]) + y(route[boundary + 1])) / 2;
    const long = Math.min(20, lane * 0.8);
    const [area, line, pill] = grip.children;
    place(area, { x: x - wide / 2, y: edge.top, width: wide, height: height - edge.top - edge.bottom });
    place(line, { x1: slot.x, x2: slot.x, y1: edge.top, y2: height - edge.bottom });
    place(pill, { x: x - 2.5, y: middle - long / 2, height: long });
    grip.classList.toggle("mw-held", this.gesture?.boundary === boundary);
  }

  // ── the pointer ──

  press(event) {
    if (event.button !== 0) return;
    const stage = event.target.closest(".mw-stage");
    const grip = event.target.closest(".mw-grip");
    this.notice.hide();
    this.tip.hide();
    if (stage) {
      event.preventDefault();
      this.boxes[Number(stage.dataset.stage)].focus({ preventScroll: true });
      if (!grip && this.picture.stale) this.notice.say(NOT_SOUND, ...Object.values(this.within(event)));
      else if (!grip) this.take(Number(stage.dataset.stage), Number(stage.dataset.replica), event);
    }
    if (!grip) return;
    event.preventDefault();
    this.pending = null;
    this.gesture = { boundary: Number(grip.dataset.boundary), from: event.clientX, count: 0 };
    this.follow((event) => this.drag(event), () => this.release());
    this.drag(event);
  }

  /** Take a stage, to be put on another mesh. */
  take(stage, replica, event) {
    const home = this.picture.routes[replica][stage];
    this.carried = { stage, replica, home, mesh: home, from: event.clientY };
    this.follow((moved) => this.carry(moved), () => this.put());
  }

  carry(event) {
    const { carried, layout } = this;
    this.pointer = this.within(event);
    this.carryTo(clamp(carried.home + Math.round((event.clientY - carried.from) / layout.lane), 0, this.picture.meshes.length - 1));
  }

  /** Hold the stage over a mesh, and show in the timeline what comes of it there. */
  carryTo(mesh) {
    const { carried } = this;
    const stays = mesh === carried.mesh;
    carried.mesh = mesh;
    if (mesh === carried.home) this.notice.hide();
    else this.tellCarried(stays ? carried.words : "", stays ? carried.kind : "tell");
    this.ask();
    this.redraw();
  }

  /** Say at the pointer where the stage is held, and what that makes of the step or why it cannot be. */
  tellCarried(words = "", kind = "tell") {
    const { carried, picture } = this;
    Object.assign(carried, { words, kind });
    const turns = picture.schedule === "custom" ? "" : `; ${picture.title} becomes a custom order`;
    const keys = carried.keyed ? ". Enter drops it, Esc leaves it" : "";
    const going = `stage ${carried.stage} to mesh ${picture.meshes[carried.mesh].name}`;
    const text = kind === "no" ? `${going}: ${words}` : `${going}${words ? `: ${words}` : ""}${turns}${keys}`;
    this.notice.show(text, this.pointer.x, this.pointer.y, kind);
    this.notice.live.textContent = carried.keyed && words ? text : "";
  }

  put() {
    const { stage, replica, home, mesh } = this.carried;
    const moves = mesh !== home;
    this.landed = moves ? { stage, replica, mesh } : null;
    this.endTrial(moves);
    this.cancel();
    if (moves) this.send("move_stage", { stage, replica, mesh });
  }

  follow(moved, released) {
    this.unlisten?.();
    this.unlisten = trackPointer({ moved, released, cancel: () => this.cancel() });
  }

  drag(event) {
    const { boundary, from } = this.gesture;
    const { layers } = this.picture;
    this.pointer = this.within(event);
    // to the right the left stage grows: layers come over from the right one
    const wanted = -Math.round((event.clientX - from) / Math.max(this.layout.perLayer, 1));
    this.gesture.count = clamp(wanted, -(layers[boundary + 1] - 1), layers[boundary] - 1);
    const stopped = wanted !== this.gesture.count;
    const now = this.layers;
    const words = [boundary, boundary + 1].map((stage) => `stage ${stage}: ${count(now[stage], "layer")}`).join(", ");
    const end = stopped ? `; stage ${wanted > 0 ? boundary : boundary + 1} keeps at least one` : "";
    this.notice.show(words + end, this.pointer.x, this.pointer.y, stopped ? "no" : "tell");
    this.ask();
    this.redraw();
  }

  release() {
    const { boundary, count: moved } = this.gesture;
    this.unlisten?.();
    this.pending = moved ? this.layers : null;
    this.gesture = null;
    this.endTrial(moved !== 0);
    this.notice.hide();
    if (moved) this.send("move_layers", { boundary, count: moved });
    this.redraw();
  }

  cancel() {
    this.unlisten?.();
    this.gesture = this.carried = null;
    this.endTrial(false);
    this.pending = null;
    this.notice.hide();
    this.redraw();
  }

  hover(event) {
    if (this.gesture || this.carried) return;
    const stage = event.target.closest(".mw-stage");
    const board = this.svg.getBoundingClientRect();
    const arc = stage ? null : this.skips.near({ x: event.clientX - board.left, y: event.clientY - board.top });
    this.skips.mark(arc);
    if (stage) this.tip.show(this.describe(Number(stage.dataset.stage)), ...Object.values(this.within(event)));
    else if (arc) this.tip.show(arc.skip.words, ...Object.values(this.within(event)));
    else this.tip.hide();
  }

  // ── the keyboard ──

  reached(target) {
    if (target.matches(".mw-skip")) this.skips.focused(target);
    else if (target.matches('.mw-stage[data-replica="0"]')) this.focused(Number(target.dataset.stage));
  }

  left(target) {
    if (target.matches(".mw-skip")) this.skips.point(null);
    else if (target.matches(".mw-stage") && this.carried?.keyed) this.cancel();
  }

  focused(stage) {
    this.boxes[this.focus]?.setAttribute("tabindex", "-1");
    this.focus = stage;
    this.boxes[stage].setAttribute("tabindex", "0");
  }

  key(event) {
    if (this.carried?.keyed && this.carriedKey(event)) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const last = this.picture.layers.length - 1;
    if (event.key === "Home" || event.key === "End") this.boxes[event.key === "Home" ? 0 : last].focus();
    else if (event.altKey && across) this.toMesh(across);
    else if (!step) return;
    else if (event.altKey) this.give(step);
    else this.boxes[clamp(this.focus + step, 0, last)].focus();
    event.preventDefault();
    event.stopPropagation();
  }

  /** Carry the stage in focus to the mesh above or below. */
  toMesh(by) {
    const stage = this.focus;
    const { routes, meshes, stale } = this.picture;
    const [box, at] = [this.root.getBoundingClientRect(), this.boxes[stage].getBoundingClientRect()];
    this.pointer = { x: at.left - box.left, y: at.bottom - box.top - 12 };
    const home = routes[0][stage];
    const mesh = (this.carried?.mesh ?? home) + by;
    if (stale) this.notice.say(NOT_SOUND, this.pointer.x, this.pointer.y);
    else if (!meshes[mesh]) this.notice.say("there is no mesh on that side", this.pointer.x, this.pointer.y);
    else {
      this.carried ??= { stage, replica: 0, home, mesh: home, keyed: true };
      this.carryTo(mesh);
    }
  }

  /** Enter drops a stage that the keyboard carries, Escape leaves it where it was; nothing else is done meanwhile. */
  carriedKey(event) {
    if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) return false;
    if (event.key === "Tab" || event.ctrlKey || event.metaKey) return this.cancel();
    if (event.key === "Enter" || event.key === " ") this.put();
    else if (event.key === "Escape") this.cancel();
    event.preventDefault();
    event.stopPropagation();
    return true;
  }

  /** Give a layer of the stage in focus to its neighbour on a side. */
  give(side) {
    const { layers } = this.picture;
    const to = this.focus + side;
    const [box, at] = [this.root.getBoundingClientRect(), this.boxes[this.focus].getBoundingClientRect()];
    this.pointer = { x: at.left - box.left, y: at.bottom - box.top - 12 };
    const say = (text) => this.notice.say(text, this.pointer.x, this.pointer.y);
    if (to < 0 || to >= layers.length) say(`stage ${this.focus} has no neighbour there`);
    else if (layers[this.focus] <= 1) say(`stage ${this.focus} keeps at least one layer`);
    else this.send("move_layers", side > 0 ? { boundary: this.focus, count: 1 } : { boundary: to, count: -1 });
  }
}

// ── small pieces ────────────────────────────────────────────────────────────────────────────

/** Layers after `moved` of them went over a boundary to the right (to the left if negative). */
function shifted(layers, boundary, moved) {
  return layers.map((number, stage) => number + (stage === boundary ? -moved : stage === boundary + 1 ? moved : 0));
}

/** Whether two questions ask the same. */
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

const percent = (share) => `${(100 * share).toFixed(share >= 0.0995 ? 0 : 1)} %`;

const shortened = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
