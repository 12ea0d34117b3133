// The wave canvas: stages from left to right in their order, each on the lane of its mesh, joined by the path of a
// microbatch. Dragging the handle between two stages moves layers, dragging a stage moves it to another mesh.

/** @import { Answer, Message } from "../kit/types" */
/** @import { Layout, Picture, WaveModel } from "./types" */

import { Canvas, Notice, pointIn } from "../kit/canvas.js";
import { closest, h, s } from "../kit/dom.js";
import { contextMenu, receiveKeys } from "../kit/key_targets.js";
import { count, percent } from "../kit/numbers.js";
import { oncePerFrame, plainData } from "../kit/widget.js";
import { ScrolledZoom } from "../kit/zooming.js";
import { Controls } from "./controls.js";
import { Differences } from "./differences.js";
import { EQUAL_SHARES, WaveDrawing } from "./drawing.js";
import { Gestures } from "./gestures.js";
import { Keyboard } from "./keyboard.js";
import { arrange, moveLayers } from "./layout.js";
import { Skips } from "./skips.js";

/** @param {{model: WaveModel}} args */
export const render = ({ model }) => new Wave(model).root;

/** @extends {Canvas<WaveModel>} */
export class Wave extends Canvas {
  focus = 0; // number of the stage with the tab stop
  /** @type {SVGGElement[]} */ boxes = [];
  /** @type {Layout} */ layout;
  drawnKey = ""; // the stages that are drawn; see stagesKey
  shape = ""; // shapeKey of the last change

  /** @param {WaveModel} model */
  constructor(model) {
    super(model);
    this.controls = new Controls(this);
    this.drawing = new WaveDrawing(this);
    this.gestures = new Gestures(this);
    this.keyboard = new Keyboard(this);
    this.skips = new Skips(this);
    this.differences = new Differences(this);
    const { back, path, stages, grips } = this.drawing;
    this.svg = s(
      "svg.mw-wave-drawing",
      { role: "none" },
      back,
      path,
      this.skips.group,
      stages,
      this.differences.group,
      grips,
    );
    this.svg.addEventListener("pointerdown", (event) => this.gestures.press(event));
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => this.gestures.layerDrag || this.skips.show(null));
    this.none = h("div.mw-wave-none.mw-quiet", {}, "No stages: they are being computed, or the design has problems");
    this.board = h("div.mw-wave-board", {}, this.svg, this.none, this.controls.computing);
    this.zoom = new ScrolledZoom(this.board, { draw: () => this.draw(), cancel: () => this.gestures.cancel() });
    // not on the SVG element, which would become a tab stop by listening to these events
    this.board.addEventListener("focusin", ({ target }) =>
      this.keyboard.onfocusin(/** @type {HTMLElement} */ (target)),
    );
    this.board.addEventListener("focusout", ({ target }) =>
      this.keyboard.onfocusout(/** @type {HTMLElement} */ (target)),
    );
    const label = { "aria-label": "Pipeline: schedule and stages" };
    const parts = [this.controls.row.element, this.controls.element, this.board, this.differences.line.element];
    this.root = h("section.mw-canvas.mw-wave", label, ...parts);
    this.start();
    receiveKeys("Wave", () => this.boxes[this.focus]);
    this.root.append(contextMenu("Wave", this.board, (target) => this.commandsAt(target)));
    this.tip = new Notice(this.root);
    this.shape = this.shapeKey;
    this.redrawControls = oncePerFrame(() => this.drawControls());
    model.on(["picture", "choices", "palette"], () => this.onchange());
    model.on("progress", () => this.controls.drawProgress());
  }

  remove() {
    super.remove();
    this.redrawControls.cancel();
    this.gestures.untrack?.();
  }

  /** Move the focus to a stage, and return the commands for it. @param {HTMLElement} target */
  commandsAt(target) {
    const stage = /** @type {SVGElement | null} */ (target.closest(".mw-stage"))?.dataset.stage;
    if (stage === undefined) return [];
    if (this.gestures.isActive) this.gestures.cancel();
    this.keyboard.setFocus(Number(stage));
    return this.model.commands;
  }

  // ── messages from Python ──

  onchange() {
    if (this.gestures.isActive) this.gestures.onChange(this.shape === this.shapeKey);
    this.shape = this.shapeKey;
    this.endChange();
  }

  /** Draw the design without the change that a gesture has sent; the stages only if they differ from what is drawn. */
  endChange() {
    const { gestures } = this;
    const hadChange = gestures.pending || gestures.dropped;
    gestures.pending = gestures.dropped = null;
    if (hadChange || this.stagesKey !== this.drawnKey) this.redraw();
    else this.redrawControls();
  }

  /** @param {Message} message */
  receive(message) {
    if (message.type === "tried") this.gestures.onLayersTried(message);
    else if (message.type === "carried") this.gestures.onStageTried(message);
    else if (message.type === "answered") this.onAnswer(/** @type {Answer} */ (message));
  }

  /** @param {Answer} answer */
  onAnswer(answer) {
    const { gesture, refused } = answer;
    if (gesture === "try_layers" || gesture === "try_stage") return this.gestures.onAnswer(answer);
    if (gesture === "microbatches") this.controls.microbatches.acknowledge();
    else if (gesture === "dial") this.controls.dialStepper?.acknowledge();
    if (refused) this.announce(refused);
    this.endChange();
  }

  /** @returns {Picture} */
  get picture() {
    return plainData(this.model, "picture");
  }

  /** The layers of each stage, including the drag in progress. */
  get layers() {
    const { layers } = this.picture;
    const { layerDrag, pending } = this.gestures;
    return layerDrag ? moveLayers(layers, layerDrag.boundary, layerDrag.count) : (pending ?? layers);
  }

  /** The mesh of each stage of each replica, including the drag in progress. */
  get routes() {
    const { routes } = this.picture;
    const moved = this.gestures.stageDrag ?? this.gestures.dropped;
    if (!moved) return routes;
    return routes.map((route, replica) =>
      route.map((mesh, stage) => (stage === moved.stage && replica === moved.replica ? moved.mesh : mesh)),
    );
  }

  // ── drawing ──

  draw() {
    this.drawControls();
    this.drawStages();
  }

  drawControls() {
    const { picture } = this;
    if (!picture.layers) return;
    this.controls.row.set(plainData(this.model, "choices"), plainData(this.model, "pictures"), picture.schedule);
    this.controls.draw();
    this.root.toggleAttribute("data-stale", picture.stale);
    this.svg.toggleAttribute("hidden", !picture.layers.length);
    this.none.hidden = picture.layers.length > 0 || Boolean(this.model.progress.state);
    this.controls.drawProgress();
  }

  drawStages() {
    const { width, height } = this.zoom.size;
    const { picture } = this;
    const isDrawn = width && height && picture.layers?.length;
    this.drawnKey = isDrawn ? this.stagesKey : "";
    if (!isDrawn) return;
    this.layout = arrange(picture, this.layers, width, height);
    this.svg.setAttribute("width", String(width));
    this.svg.setAttribute("height", String(height));
    this.drawing.drawBack();
    this.drawing.drawPath();
    this.drawing.drawBoxes();
    this.skips.draw(this.layout, this.routes);
    this.differences.draw();
    this.drawing.drawGrips();
  }

  /** Text that changes with the stages and where they are, but not with their costs. */
  get shapeKey() {
    const { layers, routes, meshes } = this.picture;
    return JSON.stringify([layers, routes, meshes]);
  }

  /** Text that changes with the stages of the design, as they are drawn. */
  get stagesKey() {
    const { layers, shares, routes, meshes, groups, skips, equal, stale } = this.picture;
    const rounded = shares?.map((share) => share.toFixed(6)); // the last digits change with the number of microbatches
    return JSON.stringify([layers, rounded, routes, meshes, groups, skips, equal, stale, this.model.palette]);
  }

  /**
   * The share of a stage in the cost. While layers are dragged, it is computed by Python, and estimated from the
   * number of layers until the response arrives.
   * @param {number} stage
   */
  share(stage) {
    const { layers, shares } = this.picture;
    const { trial } = this.gestures;
    if (trial?.shares && trial.layers?.join() === this.layers.join()) return trial.shares[stage];
    return layers[stage] ? (shares[stage] * this.layers[stage]) / layers[stage] : shares[stage];
  }

  /** @param {number} stage */
  describe(stage) {
    const { meshes, routes, equal } = this.picture;
    const names = routes.map((route) => meshes[route[stage]].name);
    const where = `${names.length > 1 ? "meshes" : "mesh"} ${names.join(" and ")}`;
    const cost = `${count(this.layers[stage], "layer")}, ${percent(this.share(stage))} of the compute time`;
    const more = `${this.skips.describe(stage)}${this.differences.describe(stage)}`;
    return `Stage ${stage} on ${where}: ${cost}${equal ? `; ${EQUAL_SHARES}` : ""}${more}`;
  }

  /** @param {PointerEvent} event */
  hover(event) {
    if (this.gestures.isActive) return;
    const stage = closest(event, ".mw-stage");
    const arc = stage ? null : this.skips.nearest(pointIn(event, this.svg));
    this.skips.mark(arc);
    const text = stage ? this.describe(Number(stage.dataset.stage)) : arc?.skip.words;
    if (text) this.tip.show(text, pointIn(event, this.root));
    else this.tip.hide();
  }
}
