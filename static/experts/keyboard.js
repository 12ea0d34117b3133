// Keyboard control of the experts: arrow keys move the focus, Space picks a chip up, arrow keys move the chip, Enter
// drops it; W and S zoom.

import { ARROW_MOVES, closest, consume, findAll, setTabStop } from "../kit/dom.js";
import { boxOf } from "../kit/zoom.js";
import { parseKey } from "./gestures.js";

const LOAD_FACTOR = 1.5;

export class Keyboard {
  /** @param {import("./experts.js").Experts} experts */
  constructor(experts) {
    this.experts = experts;
    experts.root.addEventListener("keydown", (event) => this.key(event));
    experts.board.addEventListener("focusin", (event) => this.onfocus(/** @type {HTMLElement} */ (event.target)));
    experts.board.addEventListener("focusout", () => experts.places.outline(null));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { experts } = this;
    if (closest(event, "input, .mw-drop") || experts.picture.state !== "ready") return;
    if (closest(event, "button") && (event.key === " " || event.key === "Enter")) return;
    const isOnBoard = experts.board.contains(/** @type {Node} */ (event.target));
    const act = (isOnBoard && this.boardAction(event)) || this.action(event);
    if (!act) return;
    act();
    consume(event);
  }

  /** @param {KeyboardEvent} event */
  boardAction(event) {
    const { experts } = this;
    const { key, altKey, ctrlKey, shiftKey } = event;
    const arrow = ARROW_MOVES[key];
    const pickUpOrDrop = () => (experts.carried ? experts.putDown() : this.pickUp());
    if (arrow && !altKey)
      return () => (experts.carried ? this.moveCarried(...arrow) : this.moveFocus(...arrow, shiftKey));
    if (key === " " && ctrlKey) return () => typeof experts.at === "string" && experts.toggle(experts.at);
    if (key === " " || key === "Enter") return pickUpOrDrop;
    const keys = [...experts.places.chips.keys()];
    if (key === "Home") return () => this.focus(keys[0]);
    if (key === "End") return () => this.focus(keys[keys.length - 1]);
    return experts.zoom.keyAction(event, experts.places.element(experts.at) ?? experts.board);
  }

  /** @param {KeyboardEvent} event */
  action(event) {
    const { experts } = this;
    const key = event.key.toLowerCase();
    if (key === "escape") {
      if (experts.carried) return () => experts.cancelDrag();
      return experts.selected.size ? () => experts.select([]) : null;
    }
    if (event.ctrlKey || event.metaKey)
      return key === "a" ? () => experts.select(/** @type {string[]} */ ([...experts.places.chips.keys()])) : null;
    if (event.altKey) return null;
    /** @type {Record<string, () => void>} */
    const actions = {
      delete: () => experts.removeReplicas(),
      backspace: () => experts.removeReplicas(),
      r: () => (experts.carried ? this.toggleCopy() : experts.replicate()),
      b: () => (event.shiftKey ? experts.settings.blocks.click() : experts.settings.balance()),
      "+": () => experts.scaleLoad(LOAD_FACTOR),
      "=": () => experts.scaleLoad(LOAD_FACTOR),
      "-": () => experts.scaleLoad(1 / LOAD_FACTOR),
    };
    return actions[key] ?? null;
  }

  // ── the focus ──

  /** @param {string | number | null} at */
  focus(at) {
    const { experts } = this;
    experts.places.element(experts.at)?.setAttribute("tabindex", "-1");
    experts.at = at;
    const element = experts.places.element(at);
    if (element) setTabStop([element], element);
    element?.focus({ preventScroll: true });
    element?.scrollIntoView({ block: "nearest" });
    experts.drawMessage();
  }

  /** @param {HTMLElement} target */
  onfocus(target) {
    const { experts } = this;
    const at = atOf(target);
    if (at !== null && at !== experts.at) this.focus(at);
  }

  /**
   * Move the focus to the next chip or empty place; with Shift, also select the chip.
   * @param {number} right @param {number} down @param {boolean} selects
   */
  moveFocus(right, down, selects) {
    const { experts } = this;
    const here = experts.places.element(experts.at);
    const others = [...experts.places.chips.values(), ...findAll(experts.board, ".mw-xplace[tabindex]")];
    const next = here ? nearest(here, others, right, down) : others[0];
    if (!next) return;
    const from = experts.at;
    this.focus(atOf(next));
    const keys = selects ? [...experts.selected, from, experts.at] : [experts.at];
    experts.select(/** @type {string[]} */ ([...new Set(keys)].filter((key) => experts.places.chips.has(key))));
    experts.at = next.dataset.key ?? experts.at;
    const place = /** @type {HTMLElement} */ (next.closest(".mw-xplace")).dataset.place;
    experts.places.outline(experts.picture.places[Number(place)].devices[0]);
  }

  // ── moving chips ──

  pickUp() {
    const { experts } = this;
    const { at } = experts;
    if (typeof at !== "string" || !experts.places.chips.has(at)) return;
    experts.pickUp(experts.selectionAt(at), false, true);
    experts.holdOver(parseKey(at)[1]);
    this.showEffect();
  }

  /** @param {number} right @param {number} down */
  moveCarried(right, down) {
    const { experts } = this;
    const here = experts.places.placeElement(experts.carried?.to ?? null);
    const next = nearest(here, findAll(experts.board, ".mw-xplace"), right, down);
    if (!next) return;
    experts.holdOver(Number(next.dataset.place));
    next.scrollIntoView({ block: "nearest" });
    this.showEffect();
  }

  /** Switch between moving and replicating. */
  toggleCopy() {
    const { carried } = this.experts;
    if (carried) this.experts.holdOver(carried.to, !carried.copy);
    this.showEffect();
  }

  /** Show the effect of Enter beside the place. */
  showEffect() {
    const { experts } = this;
    const { carried } = experts;
    if (!carried?.byKey || carried.to === null) return;
    const { name } = experts.picture.places[carried.to];
    const action = `${carried.copy ? "replicate on" : "move to"} ${name}${carried.words ? `: ${carried.words}` : ""}`;
    const text = experts.isUnmoved(carried)
      ? "Arrow keys move the expert, Enter drops it, R replicates it"
      : (carried.refused ?? action);
    experts.pointAt(experts.places.placeElement(carried.to));
    experts.notice.show(text, experts.pointer, carried.refused ? "error" : "info");
    experts.notice.live.textContent = text;
  }
}

/** The key of a chip, or -1 - number for an empty place. @param {HTMLElement} element */
function atOf({ dataset }) {
  return dataset.key ?? (dataset.place === undefined ? null : -1 - Number(dataset.place));
}

/**
 * The nearest of `others` in a direction; elements straight ahead are preferred to elements aside.
 * @param {HTMLElement} here @param {HTMLElement[]} others @param {number} right @param {number} down
 */
function nearest(here, others, right, down) {
  const middle = (/** @type {HTMLElement} */ element) => {
    const { left, top, width, height } = boxOf(element);
    return [left + width / 2, top + height / 2];
  };
  const [x, y] = middle(here);
  let [best, distance] = [/** @type {HTMLElement | null} */ (null), Infinity];
  for (const other of others) {
    if (other === here) continue;
    const [otherX, otherY] = middle(other);
    const [dx, dy] = [otherX - x, otherY - y];
    const [ahead, aside] = right ? [dx * right, Math.abs(dy)] : [dy * down, Math.abs(dx)];
    if (ahead > 2 && ahead + 2.5 * aside < distance) [best, distance] = [other, ahead + 2.5 * aside];
  }
  return best;
}
