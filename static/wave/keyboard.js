// Keyboard control of the wave canvas: arrow keys move the focus, Alt+arrow keys move layers and stages, W and S zoom.

import { consume } from "../kit/dom.js";
import { clamp } from "../kit/numbers.js";
import { STALE } from "./gestures.js";

export class Keyboard {
  /** @param {import("./wave.js").Wave} wave */
  constructor(wave) {
    this.wave = wave;
  }

  /** @param {HTMLElement} target */
  onfocusin(target) {
    if (target.matches(".mw-skip")) this.wave.skips.onfocus(target);
    else if (target.matches('.mw-stage[data-replica="0"]')) this.setFocus(Number(target.dataset.stage));
  }

  /** @param {HTMLElement} target */
  onfocusout(target) {
    if (target.matches(".mw-skip")) this.wave.skips.show(null);
    else if (target.matches(".mw-stage") && this.wave.gestures.stageDrag?.byKey) this.wave.gestures.cancel();
  }

  /** @param {number} stage */
  setFocus(stage) {
    this.wave.boxes[this.wave.focus]?.setAttribute("tabindex", "-1");
    this.wave.focus = stage;
    this.wave.boxes[stage].setAttribute("tabindex", "0");
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (this.wave.gestures.stageDrag?.byKey && this.stageDragKey(event)) return;
    const act = this.actionOf(event);
    if (!act) return;
    act();
    consume(event);
  }

  /** @param {KeyboardEvent} event */
  actionOf(event) {
    const { boxes, focus, zoom } = this.wave;
    const { key, altKey } = event;
    const last = this.wave.picture.layers.length - 1;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (key === "Home" || key === "End") return () => boxes[key === "Home" ? 0 : last].focus();
    if (across && altKey) return () => this.moveStage(across);
    if (!step) return zoom.keyAction(event, boxes[focus]);
    return altKey ? () => this.giveLayer(step) : () => boxes[clamp(focus + step, 0, last)].focus();
  }

  /** Move the focused stage to the mesh above or below. @param {number} by */
  moveStage(by) {
    const { wave } = this;
    const { gestures, focus: stage } = wave;
    const { routes, meshes, stale } = wave.picture;
    wave.pointAt(wave.boxes[stage]);
    const home = routes[0][stage];
    const mesh = (gestures.stageDrag?.mesh ?? home) + by;
    if (stale) return wave.announce(STALE);
    if (!meshes[mesh]) return wave.announce("There is no mesh in this direction");
    gestures.stageDrag ??= { stage, replica: 0, home, mesh: home, from: 0, byKey: true };
    gestures.moveStageTo(mesh);
  }

  /** Handle a key while keys move a stage; return whether it was handled. @param {KeyboardEvent} event */
  stageDragKey(event) {
    const { gestures } = this.wave;
    if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) return false;
    if (event.key === "Tab" || event.ctrlKey || event.metaKey) {
      gestures.cancel();
      return false;
    }
    if (event.key === "Enter" || event.key === " ") gestures.dropStage();
    else if (event.key === "Escape") gestures.cancel();
    consume(event);
    return true;
  }

  /** Move a layer of the focused stage to an adjacent stage. @param {number} side */
  giveLayer(side) {
    const { wave } = this;
    const { layers } = wave.picture;
    const to = wave.focus + side;
    wave.pointAt(wave.boxes[wave.focus]);
    if (to < 0 || to >= layers.length) wave.announce(`Stage ${wave.focus} has no adjacent stage on this side`);
    else if (layers[wave.focus] <= 1) wave.announce(`Stage ${wave.focus} needs at least one layer`);
    else wave.send("move_layers", side > 0 ? { boundary: wave.focus, count: 1 } : { boundary: to, count: -1 });
  }
}
