// The wave: stages from left to right in their order, each on the lane of its mesh, joined by
// the path that a microbatch takes. Layers move from stage to stage by dragging what parts them, and a stage
// from mesh to mesh by dragging it there.

import { Drawing, Notice, h, plain, s } from "../kit/canvas.js";
import { count } from "../kit/numbers.js";
import { Controls } from "./controls.js";
import { EQUAL_SHARES, WaveDrawing } from "./drawing.js";
import { Gestures } from "./gestures.js";
import { Keyboard } from "./keyboard.js";
import { arrange, percent, shifted } from "./layout.js";
import { Skips } from "./skips.js";

export const render = ({ model }) => new Wave(model).root;

export class Wave extends Drawing {
  constructor(model) {
    super(model);
    this.focus = 0; // the stage that takes the keyboard
    this.boxes = [];
    this.build();
    model.on(["picture", "choices", "palette"], () => this.arrived());
    model.on("progress", () => this.controls.drawProgress());
  }

  remove() {
    super.remove();
    this.gestures.unlisten?.();
  }

  build() {
    this.controls = new Controls(this);
    this.drawing = new WaveDrawing(this);
    this.gestures = new Gestures(this);
    this.keyboard = new Keyboard(this);
    this.skips = new Skips(this);
    this.svg = s(
      "svg",
      { class: "mw-wave-drawing", role: "none" },
      this.drawing.back,
      this.drawing.path,
      this.skips.group,
      this.drawing.stages,
      this.drawing.grips,
    );
    this.none = h("div", { class: "mw-wave-none mw-quiet" }, "No stages: the design has problems");
    this.board = h("div", { class: "mw-wave-board" }, this.svg, this.none, this.controls.computing);
    // here: one of SVG that listened would be a stop of Tab
    this.board.addEventListener("focusin", ({ target }) => this.keyboard.reached(target));
    this.board.addEventListener("focusout", ({ target }) => this.keyboard.left(target));
    this.svg.addEventListener("pointerdown", (event) => this.gestures.press(event));
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => this.gestures.shift || this.skips.point(null));
    this.root = h(
      "section",
      { class: "mw-canvas mw-wave", "aria-label": "Pipeline: schedule and stages" },
      this.controls.row.element,
      this.controls.element,
      this.board,
    );
    this.start();
    this.tip = new Notice(this.root);
  }

  // ── Python ──

  arrived() {
    if (this.gestures.shift || this.gestures.carried) this.gestures.cancel();
    this.gestures.pending = this.gestures.landed = null;
    this.redraw();
  }

  told(message) {
    if (message.type === "tried") return this.gestures.tried(message);
    if (message.type === "carried") return this.gestures.toldOfCarried(message);
    if (message.type !== "answered") return;
    if (message.gesture === "try_layers" || message.gesture === "try_stage") return this.gestures.triedOne(message);
    ({ microbatches: this.controls.microbatches, dial: this.controls.dialStepper })[message.gesture]?.answered();
    this.gestures.pending = this.gestures.landed = null;
    if (message.refused) this.notice.say(message.refused, this.pointer.x, this.pointer.y);
    this.redraw();
  }

  get picture() {
    return plain(this.model, "picture");
  }

  /** Layers per stage as they are, or as the gesture in flight would have them. */
  get layers() {
    const { layers } = this.picture;
    if (!this.gestures.shift) return this.gestures.pending ?? layers;
    return shifted(layers, this.gestures.shift.boundary, this.gestures.shift.count);
  }

  /** The mesh of each stage of each replica, as it is or as the stage in flight would have it. */
  get routes() {
    const { routes } = this.picture;
    const carried = this.gestures.carried ?? this.gestures.landed;
    if (!carried) return routes;
    return routes.map((route, replica) =>
      route.map((mesh, stage) => (stage === carried.stage && replica === carried.replica ? carried.mesh : mesh)),
    );
  }

  // ── drawing ──

  draw() {
    const { clientWidth: width, clientHeight: height } = this.board;
    const { picture } = this;
    if (!width || !height || !picture.layers) return;
    this.controls.row.set(plain(this.model, "choices"), plain(this.model, "pictures"), picture.schedule);
    this.controls.drawControls();
    this.root.toggleAttribute("data-stale", picture.stale);
    this.svg.toggleAttribute("hidden", !picture.layers.length);
    this.none.hidden = picture.layers.length > 0 || Boolean(this.model.progress.state);
    this.controls.drawProgress();
    if (!picture.layers.length) return;
    this.layout = arrange(picture, this.layers, width, height);
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", height);
    this.drawing.drawBack();
    this.drawing.drawPath();
    this.drawing.drawBoxes();
    this.skips.draw(this.layout, this.routes);
    this.drawing.drawGrips();
  }

  /** A stage's share of the cost; while layers are dragged, as it was tried, until then in proportion to them. */
  share(stage) {
    const { layers, shares } = this.picture;
    if (this.gestures.trial?.layers?.join() === this.layers.join()) return this.gestures.trial.shares[stage];
    return layers[stage] ? (shares[stage] * this.layers[stage]) / layers[stage] : shares[stage];
  }

  describe(stage) {
    const { meshes, routes } = this.picture;
    const on = routes.map((route) => meshes[route[stage]].name);
    return (
      `stage ${stage} on ${on.length > 1 ? "meshes" : "mesh"} ${on.join(" and ")}: ` +
      `${count(this.layers[stage], "layer")}, ${percent(this.share(stage))} of the ` +
      `compute${this.picture.equal ? `; ${EQUAL_SHARES}` : ""}${this.skips.of(stage)}`
    );
  }

  hover(event) {
    if (this.gestures.shift || this.gestures.carried) return;
    const stage = event.target.closest(".mw-stage");
    const board = this.svg.getBoundingClientRect();
    const arc = stage ? null : this.skips.near({ x: event.clientX - board.left, y: event.clientY - board.top });
    this.skips.mark(arc);
    if (stage) this.tip.show(this.describe(Number(stage.dataset.stage)), ...Object.values(this.within(event)));
    else if (arc) this.tip.show(arc.skip.words, ...Object.values(this.within(event)));
    else this.tip.hide();
  }
}
