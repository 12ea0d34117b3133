// The keyboard on the wave: arrows walk the stages, with Alt they move layers and stages.

import { clamp } from "../kit/numbers.js";
import { NOT_SOUND } from "./gestures.js";

/** Walks the stages and moves layers and stages by keys. */
export class Keyboard {
  /** @param {import("./wave.js").Wave} wave */
  constructor(wave) {
    this.wave = wave;
  }

  reached(target) {
    if (target.matches(".mw-skip")) this.wave.skips.focused(target);
    else if (target.matches('.mw-stage[data-replica="0"]')) this.focused(Number(target.dataset.stage));
  }

  left(target) {
    if (target.matches(".mw-skip")) this.wave.skips.point(null);
    else if (target.matches(".mw-stage") && this.wave.gestures.carried?.keyed) this.wave.gestures.cancel();
  }

  focused(stage) {
    this.wave.boxes[this.wave.focus]?.setAttribute("tabindex", "-1");
    this.wave.focus = stage;
    this.wave.boxes[stage].setAttribute("tabindex", "0");
  }

  key(event) {
    if (this.wave.gestures.carried?.keyed && this.carriedKey(event)) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const last = this.wave.picture.layers.length - 1;
    if (event.key === "Home" || event.key === "End") this.wave.boxes[event.key === "Home" ? 0 : last].focus();
    else if (event.altKey && across) this.toMesh(across);
    else if (!step) return;
    else if (event.altKey) this.give(step);
    else this.wave.boxes[clamp(this.wave.focus + step, 0, last)].focus();
    event.preventDefault();
    event.stopPropagation();
  }

  /** Carry the stage in focus to the mesh above or below. */
  toMesh(by) {
    const stage = this.wave.focus;
    const { routes, meshes, stale } = this.wave.picture;
    const [box, at] = [this.wave.root.getBoundingClientRect(), this.wave.boxes[stage].getBoundingClientRect()];
    this.wave.pointer = { x: at.left - box.left, y: at.bottom - box.top - 12 };
    const home = routes[0][stage];
    const mesh = (this.wave.gestures.carried?.mesh ?? home) + by;
    if (stale) this.wave.notice.say(NOT_SOUND, this.wave.pointer.x, this.wave.pointer.y);
    else if (!meshes[mesh])
      this.wave.notice.say("there is no mesh on that side", this.wave.pointer.x, this.wave.pointer.y);
    else {
      this.wave.gestures.carried ??= { stage, replica: 0, home, mesh: home, keyed: true };
      this.wave.gestures.carryTo(mesh);
    }
  }

  /** Enter drops a stage that the keyboard carries, Escape leaves it where it was; nothing else is done meanwhile. */
  carriedKey(event) {
    if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) return false;
    if (event.key === "Tab" || event.ctrlKey || event.metaKey) return this.wave.gestures.cancel();
    if (event.key === "Enter" || event.key === " ") this.wave.gestures.put();
    else if (event.key === "Escape") this.wave.gestures.cancel();
    event.preventDefault();
    event.stopPropagation();
    return true;
  }

  /** Give a layer of the stage in focus to its neighbour on a side. */
  give(side) {
    const { layers } = this.wave.picture;
    const to = this.wave.focus + side;
    const [box, at] = [
      this.wave.root.getBoundingClientRect(),
      this.wave.boxes[this.wave.focus].getBoundingClientRect(),
    ];
    this.wave.pointer = { x: at.left - box.left, y: at.bottom - box.top - 12 };
    const say = (text) => this.wave.notice.say(text, this.wave.pointer.x, this.wave.pointer.y);
    if (to < 0 || to >= layers.length) say(`stage ${this.wave.focus} has no neighbour there`);
    else if (layers[this.wave.focus] <= 1) say(`stage ${this.wave.focus} keeps at least one layer`);
    else
      this.wave.send("move_layers", side > 0 ? { boundary: this.wave.focus, count: 1 } : { boundary: to, count: -1 });
  }
}
