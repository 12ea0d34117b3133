// Gestures of the wave: layers move over a boundary, stages from mesh to mesh, and Python tells what comes of it.

import { trackPointer } from "../kit/canvas.js";
import { clamp, count } from "../kit/numbers.js";

export const NOT_SOUND = "these are the stages of the last sound design; solve its problems first";

/** Whether two questions ask the same. */
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** Moves layers and stages by the pointer, and asks Python while they move. */
export class Gestures {
  /** @param {import("./wave.js").Wave} wave */
  constructor(wave) {
    this.wave = wave;
    this.shift = null; // layers on their way over a boundary: { boundary, from, count }
    /**
     * A stage on its way, and where it was taken or that keys carry it.
     * @type {{stage: number, replica: number, home: number, mesh: number, from?: number, keyed?: boolean,
     *   words?: string, kind?: string} | null}
     */
    this.carried = null;
    this.pending = null; // layers shown until Python has answered
    this.landed = null; // a stage that was dropped, until Python has answered
    // what is tried while something is dragged: { rest, asked, awaited, and of layers also layers, shares }
    this.trial = null;
  }

  // ── what the gesture in flight would make of the step ──

  /** What to ask of the gesture in flight, which Python shows in the timeline. */
  get question() {
    if (this.shift) return { type: "try_layers", boundary: this.shift.boundary, count: this.shift.count };
    const { stage, replica, mesh } = this.carried;
    return { type: "try_stage", stage, replica, mesh };
  }

  /** The same with nothing moved: the step as it stands. */
  get rest() {
    return this.shift ? { ...this.question, count: 0 } : { ...this.question, mesh: this.carried.home };
  }

  /** Ask Python; one question at a time, and of those in between only the last. */
  ask() {
    const { question, rest } = this;
    this.trial ??= { rest, asked: rest, awaited: false };
    if (this.trial.awaited || same(this.trial.asked, question)) return;
    Object.assign(this.trial, { asked: question, awaited: true });
    this.wave.send(question.type, question);
  }

  triedOne({ gesture, refused }) {
    const { trial, carried } = this;
    if (trial?.asked.type !== gesture) return; // of a gesture that is over
    trial.awaited = false;
    if (refused && carried?.mesh === trial.asked.mesh) this.tellCarried(refused, "no");
    if (this.shift || carried) this.ask();
  }

  tried({ layers, shares }) {
    if (!this.trial) return;
    Object.assign(this.trial, { layers, shares });
    this.wave.redraw();
  }

  toldOfCarried({ mesh, words }) {
    if (this.carried?.mesh === mesh && mesh !== this.carried.home) this.tellCarried(words);
  }

  /** Show the step as it stands again, unless what was tried becomes an edit. */
  endTrial(kept) {
    const { trial } = this;
    if (trial && (trial.awaited || !same(trial.asked, trial.rest)) && !kept)
      this.wave.send(trial.rest.type, trial.rest);
    this.trial = null;
  }

  // ── the pointer ──

  press(event) {
    if (event.button !== 0) return;
    const stage = event.target.closest(".mw-stage");
    const grip = event.target.closest(".mw-grip");
    this.wave.notice.hide();
    this.wave.tip.hide();
    if (stage) {
      event.preventDefault();
      this.wave.boxes[Number(stage.dataset.stage)].focus({ preventScroll: true });
      if (!grip && this.wave.picture.stale) this.wave.notice.say(NOT_SOUND, ...Object.values(this.wave.within(event)));
      else if (!grip) this.take(Number(stage.dataset.stage), Number(stage.dataset.replica), event);
    }
    if (!grip) return;
    event.preventDefault();
    this.pending = null;
    this.shift = { boundary: Number(grip.dataset.boundary), from: event.clientX, count: 0 };
    this.follow(
      (event) => this.drag(event),
      () => this.release(),
    );
    this.drag(event);
  }

  /** Take a stage, to be put on another mesh. */
  take(stage, replica, event) {
    const home = this.wave.picture.routes[replica][stage];
    this.carried = { stage, replica, home, mesh: home, from: event.clientY };
    this.follow(
      (moved) => this.carry(moved),
      () => this.put(),
    );
  }

  carry(event) {
    const { carried } = this;
    const { layout } = this.wave;
    this.wave.pointer = this.wave.within(event);
    this.carryTo(
      clamp(
        carried.home + Math.round((event.clientY - carried.from) / layout.lane),
        0,
        this.wave.picture.meshes.length - 1,
      ),
    );
  }

  /** Hold the stage over a mesh, and show in the timeline what comes of it there. */
  carryTo(mesh) {
    const { carried } = this;
    const stays = mesh === carried.mesh;
    carried.mesh = mesh;
    if (mesh === carried.home) this.wave.notice.hide();
    else this.tellCarried(stays ? carried.words : "", stays ? carried.kind : "tell");
    this.ask();
    this.wave.redraw();
  }

  /** Say at the pointer where the stage is held, and what that makes of the step or why it cannot be. */
  tellCarried(words = "", kind = "tell") {
    const { carried } = this;
    const { picture } = this.wave;
    Object.assign(carried, { words, kind });
    const turns = picture.schedule === "custom" ? "" : `; ${picture.title} becomes a custom order`;
    const keys = carried.keyed ? ". Enter drops it, Esc leaves it" : "";
    const going = `stage ${carried.stage} to mesh ${picture.meshes[carried.mesh].name}`;
    const text = kind === "no" ? `${going}: ${words}` : `${going}${words ? `: ${words}` : ""}${turns}${keys}`;
    this.wave.notice.show(text, this.wave.pointer.x, this.wave.pointer.y, kind);
    this.wave.notice.live.textContent = carried.keyed && words ? text : "";
  }

  put() {
    const { stage, replica, home, mesh } = this.carried;
    const moves = mesh !== home;
    this.landed = moves ? { stage, replica, mesh } : null;
    this.endTrial(moves);
    this.cancel();
    if (moves) this.wave.send("move_stage", { stage, replica, mesh });
  }

  follow(moved, released) {
    this.unlisten?.();
    this.unlisten = trackPointer({ moved, released, cancel: () => this.cancel() });
  }

  drag(event) {
    const { boundary, from } = this.shift;
    const { layers } = this.wave.picture;
    this.wave.pointer = this.wave.within(event);
    // to the right the left stage grows: layers come over from the right one
    const wanted = -Math.round((event.clientX - from) / Math.max(this.wave.layout.perLayer, 1));
    this.shift.count = clamp(wanted, -(layers[boundary + 1] - 1), layers[boundary] - 1);
    const stopped = wanted !== this.shift.count;
    const now = this.wave.layers;
    const words = [boundary, boundary + 1].map((stage) => `stage ${stage}: ${count(now[stage], "layer")}`).join(", ");
    const end = stopped ? `; stage ${wanted > 0 ? boundary : boundary + 1} keeps at least one` : "";
    this.wave.notice.show(words + end, this.wave.pointer.x, this.wave.pointer.y, stopped ? "no" : "tell");
    this.ask();
    this.wave.redraw();
  }

  release() {
    const { boundary, count: moved } = this.shift;
    this.unlisten?.();
    this.pending = moved ? this.wave.layers : null;
    this.shift = null;
    this.endTrial(moved !== 0);
    this.wave.notice.hide();
    if (moved) this.wave.send("move_layers", { boundary, count: moved });
    this.wave.redraw();
  }

  cancel() {
    this.unlisten?.();
    this.shift = this.carried = null;
    this.endTrial(false);
    this.pending = null;
    this.wave.notice.hide();
    this.wave.redraw();
  }
}
