// Dragging on the wave: layers across a boundary, stages from mesh to mesh. Python evaluates each position.

/** @import { Answer, Message } from "../kit/types" */

import { pointIn, trackPointer } from "../kit/canvas.js";
import { closest } from "../kit/dom.js";
import { clamp, count } from "../kit/numbers.js";
import { pointOf } from "../kit/zoom.js";

export const STALE = "These are the stages of the last valid design; fix the problems first";

/** @typedef {{type: string, boundary: number, count: number}} TryLayers */
/** @typedef {{type: string, stage: number, replica: number, mesh: number}} TryStage */
/** @typedef {TryLayers | TryStage} Question */

/** @param {Question} a @param {Question} b */
const isSame = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export class Gestures {
  /** Layers that are being moved across a boundary. @type {{boundary: number, from: number, count: number} | null} */
  layerDrag = null;

  /**
   * A stage that is being moved to another mesh by the pointer or by keys.
   * @type {{stage: number, replica: number, home: number, mesh: number, from: number, byKey?: boolean,
   * words?: string, kind?: string} | null}
   */
  stageDrag = null;

  /** Layers per stage that are shown until Python responds. @type {number[] | null} */ pending = null;

  /**
   * A dropped stage that is shown until Python responds.
   * @type {{stage: number, replica: number, mesh: number} | null}
   */
  dropped = null;

  /**
   * Questions to Python during a drag: the question about the unmoved state, the last question, true if a response to
   * it is outstanding, and the last response about layers.
   * @type {{rest: Question, asked: Question, awaited: boolean, layers?: number[], shares?: number[]} | null}
   */
  trial = null;

  /** @type {(() => void) | undefined} */ untrack;

  /** @param {import("./wave.js").Wave} wave */
  constructor(wave) {
    this.wave = wave;
  }

  get isActive() {
    return Boolean(this.layerDrag ?? this.stageDrag);
  }

  // ── trials, which Python evaluates and shows in the timeline ──

  /**
   * The question about the drag in progress, and the question about the unmoved state.
   * @returns {{question: Question, rest: Question} | null}
   */
  get questions() {
    const { layerDrag, stageDrag } = this;
    if (layerDrag) {
      const question = { type: "try_layers", boundary: layerDrag.boundary, count: layerDrag.count };
      return { question, rest: { ...question, count: 0 } };
    }
    if (!stageDrag) return null;
    const { stage, replica, mesh, home } = stageDrag;
    const question = { type: "try_stage", stage, replica, mesh };
    return { question, rest: { ...question, mesh: home } };
  }

  /** Send questions to Python one at a time; of intermediate questions, only the last is sent. */
  ask() {
    if (!this.questions) return;
    const { question, rest } = this.questions;
    this.trial ??= { rest, asked: rest, awaited: false };
    if (this.trial.awaited || isSame(this.trial.asked, question)) return;
    Object.assign(this.trial, { asked: question, awaited: true });
    this.wave.send(question.type, question);
  }

  /** @param {Answer} answer */
  onAnswer({ gesture, refused }) {
    const { trial, stageDrag } = this;
    if (!trial || trial.asked.type !== gesture) return; // a response to an earlier drag
    trial.awaited = false;
    if (refused && "mesh" in trial.asked && stageDrag?.mesh === trial.asked.mesh) this.showStageDrag(refused, "error");
    this.ask();
  }

  /**
   * Continue the drag after a change elsewhere, such as the costs of an earlier edit, or cancel it if the stages have
   * changed.
   * @param {boolean} isSameShape
   */
  onChange(isSameShape) {
    if (!isSameShape) return this.cancel();
    if (this.trial && !this.trial.awaited) this.trial.asked = this.trial.rest; // the page shows the open design again
    this.ask();
  }

  /** @param {Message} tried the tried layers of every stage and the resulting shares */
  onLayersTried({ layers, shares }) {
    if (!this.trial) return;
    Object.assign(this.trial, { layers, shares });
    this.wave.redraw();
  }

  /** @param {Message} tried a description of the change by a stage on a mesh */
  onStageTried({ mesh, words }) {
    if (this.stageDrag?.mesh === mesh && mesh !== this.stageDrag?.home) this.showStageDrag(words);
  }

  /** Show the open design again, unless the trial becomes an edit. @param {boolean} isEdit */
  endTrial(isEdit) {
    const { trial } = this;
    if (trial && (trial.awaited || !isSame(trial.asked, trial.rest)) && !isEdit)
      this.wave.send(trial.rest.type, trial.rest);
    this.trial = null;
  }

  // ── the pointer ──

  /** @param {PointerEvent} event */
  press(event) {
    const stage = closest(event, ".mw-stage");
    const grip = closest(event, ".mw-grip");
    if (event.button !== 0) return;
    this.wave.notice.hide();
    this.wave.tip.hide();
    if (grip || stage) event.preventDefault();
    if (stage) this.pressStage(event, Number(stage.dataset.stage), Number(stage.dataset.replica), Boolean(grip));
    if (!grip) return;
    this.pending = null;
    this.layerDrag = { boundary: Number(grip.dataset.boundary), from: pointOf(event).x, count: 0 };
    this.track(
      (event) => this.dragLayers(event),
      () => this.dropLayers(),
    );
    this.dragLayers(event);
  }

  /** @param {PointerEvent} event @param {number} stage @param {number} replica @param {boolean} isOnGrip */
  pressStage(event, stage, replica, isOnGrip) {
    this.wave.boxes[stage].focus({ preventScroll: true });
    if (isOnGrip) return;
    if (this.wave.picture.stale) return this.wave.notice.announce(STALE, pointIn(event, this.wave.root));
    const home = this.wave.picture.routes[replica][stage];
    this.stageDrag = { stage, replica, home, mesh: home, from: pointOf(event).y };
    this.track(
      (event) => this.dragStage(event),
      () => this.dropStage(),
    );
  }

  /** @param {(event: PointerEvent) => void} onmove @param {() => void} onrelease */
  track(onmove, onrelease) {
    this.untrack?.();
    this.untrack = trackPointer({ onmove, onrelease, oncancel: () => this.cancel() });
  }

  // ── a stage ──

  /** @param {PointerEvent} event */
  dragStage(event) {
    if (!this.stageDrag) return;
    const { home, from } = this.stageDrag;
    const { layout, picture } = this.wave;
    this.wave.pointer = pointIn(event, this.wave.root);
    const lanes = Math.round((pointOf(event).y - from) / layout.lane);
    this.moveStageTo(clamp(home + lanes, 0, picture.meshes.length - 1));
  }

  /** Move the dragged stage over a mesh, and show the resulting step in the timeline. @param {number} mesh */
  moveStageTo(mesh) {
    const { stageDrag } = this;
    if (!stageDrag) return;
    const stays = mesh === stageDrag.mesh;
    stageDrag.mesh = mesh;
    if (mesh === stageDrag.home) this.wave.notice.hide();
    else if (stays) this.showStageDrag(stageDrag.words, stageDrag.kind);
    else this.showStageDrag();
    this.ask();
    this.wave.redraw();
  }

  /** Show the mesh under the dragged stage, and the change or the reason for a refusal, beside the pointer. */
  showStageDrag(words = "", kind = "info") {
    const { stageDrag } = this;
    if (!stageDrag) return;
    const { picture, notice } = this.wave;
    Object.assign(stageDrag, { words, kind });
    const becomesCustom = picture.schedule === "custom" ? "" : `; ${picture.title} becomes a custom order`;
    const keys = stageDrag.byKey ? ". Enter drops it, Esc cancels" : "";
    const move = `Stage ${stageDrag.stage} to mesh ${picture.meshes[stageDrag.mesh].name}`;
    const change = words ? `${move}: ${words}` : move;
    const text = kind === "error" ? change : `${change}${becomesCustom}${keys}`;
    notice.show(text, this.wave.pointer, kind);
    notice.live.textContent = stageDrag.byKey && words ? text : "";
  }

  dropStage() {
    if (!this.stageDrag) return;
    const { stage, replica, home, mesh } = this.stageDrag;
    const isMoved = mesh !== home;
    this.dropped = isMoved ? { stage, replica, mesh } : null;
    this.endTrial(isMoved);
    this.cancel();
    if (isMoved) this.wave.send("move_stage", { stage, replica, mesh });
  }

  // ── layers ──

  /** @param {PointerEvent} event */
  dragLayers(event) {
    if (!this.layerDrag) return;
    const { boundary, from } = this.layerDrag;
    const { layers } = this.wave.picture;
    this.wave.pointer = pointIn(event, this.wave.root);
    // a drag to the right enlarges the left stage: layers move to the left
    const wanted = -Math.round((pointOf(event).x - from) / Math.max(this.wave.layout.perLayer, 1));
    this.layerDrag.count = clamp(wanted, -(layers[boundary + 1] - 1), layers[boundary] - 1);
    const isLimited = wanted !== this.layerDrag.count;
    const now = this.wave.layers;
    const words = [boundary, boundary + 1].map((stage) => `stage ${stage}: ${count(now[stage], "layer")}`).join(", ");
    const limit = isLimited ? `; stage ${wanted > 0 ? boundary : boundary + 1} needs at least one layer` : "";
    this.wave.notice.show(words + limit, this.wave.pointer, isLimited ? "error" : "info");
    this.ask();
    this.wave.redraw();
  }

  dropLayers() {
    if (!this.layerDrag) return;
    const { boundary, count: moved } = this.layerDrag;
    this.untrack?.();
    this.pending = moved ? this.wave.layers : null;
    this.layerDrag = null;
    this.endTrial(moved !== 0);
    this.wave.notice.hide();
    if (moved) this.wave.send("move_layers", { boundary, count: moved });
    this.wave.redraw();
  }

  cancel() {
    this.untrack?.();
    this.layerDrag = this.stageDrag = null;
    this.endTrial(false);
    this.pending = null;
    this.wave.notice.hide();
    this.wave.redraw();
  }
}
