// Pointer gestures on the experts: dragging chips to another device, selecting chips with a rectangle, and describing
// the hovered element.

/** @import { Point } from "../kit/types" */
/** @import { Replica } from "./types" */

import { pointIn, trackPointer } from "../kit/canvas.js";
import { closest, h, setStyle } from "../kit/dom.js";
import { boxOf, pointOf } from "../kit/zoom.js";

const DRAG_PX = 4; // a press that moves by fewer CSS pixels is a click

/** The key of a chip. @param {number} expert @param {number} place */
export const keyOf = (expert, place) => `${expert}@${place}`;

/** @param {string} key */
export const parseKey = (key) => /** @type {Replica} */ (key.split("@").map(Number));

/**
 * A press in progress: the key of the chip under it, whether it adds to the selection, its start, and the previous
 * selection.
 * @typedef {{key?: string, adds: boolean, at: Point, from: Point, before: string[], isDrag: boolean}} Press
 */

/** @param {MouseEvent} event */
const hasControl = (event) => event.ctrlKey || event.metaKey;

export class Gestures {
  /** @type {Press | null} */ press = null;
  /** @type {(() => void) | undefined} */ untrack;
  ghost = h("div.mw-xghost", { hidden: true, "aria-hidden": "true" });
  rectangle = h("div.mw-xband", { hidden: true, "aria-hidden": "true" });

  /** @param {import("./experts.js").Experts} experts */
  constructor(experts) {
    this.experts = experts;
    const { board, root } = experts;
    root.append(this.ghost, this.rectangle);
    board.addEventListener("pointerdown", (event) => this.onpress(event));
    board.addEventListener("pointerover", (event) => this.hover(event));
    board.addEventListener("pointerleave", () => this.hover(null));
  }

  // ── a press ──

  /** @param {PointerEvent} event */
  onpress(event) {
    const { board, notice, picture, carried } = this.experts;
    const isOnScrollBar = event.target === board && pointIn(event, board).x > board.clientWidth;
    if (event.button !== 0 || closest(event, "button, input") || isOnScrollBar || picture.state !== "ready") return;
    event.preventDefault();
    notice.hide();
    if (carried) this.experts.cancelDrag();
    this.begin(event);
  }

  /** @param {PointerEvent} event */
  begin(event) {
    const { experts } = this;
    const key = closest(event, ".mw-xchip")?.dataset.key;
    const adds = hasControl(event) || event.shiftKey;
    this.press = {
      key,
      adds,
      at: pointOf(event),
      from: pointIn(event, experts.root),
      before: adds ? [...experts.selected] : [],
      isDrag: false,
    };
    if (key) {
      if (!adds && !experts.selected.has(key)) experts.select([key]);
      experts.keyboard.focus(key);
    } else if (!adds) {
      const place = closest(event, ".mw-xplace[tabindex]");
      experts.select([]);
      if (place) experts.keyboard.focus(-1 - Number(place.dataset.place));
    }
    this.track();
  }

  track() {
    this.untrack?.();
    this.untrack = trackPointer({
      onmove: (event) => this.move(event),
      onrelease: () => this.release(),
      oncancel: () => this.stop(),
      onkey: ({ key, type }) => (key === "Control" || key === "Meta") && this.setCopy(type === "keydown"),
    });
  }

  /** @param {PointerEvent} event */
  move(event) {
    const { press, experts } = this;
    if (!press) return;
    experts.pointer = pointIn(event, experts.root);
    if (!press.isDrag) {
      if (Math.hypot(pointOf(event).x - press.at.x, pointOf(event).y - press.at.y) < DRAG_PX) return;
      press.isDrag = true;
      if (press.key) this.beginDrag(press.key, hasControl(event));
      else this.rectangle.hidden = false;
    }
    if (press.key) this.drag(event);
    else this.selectRectangle(press);
  }

  /** @param {string} key @param {boolean} copy */
  beginDrag(key, copy) {
    const { experts } = this;
    const chips = experts.selectionAt(key);
    if (experts.selected.size < 2) experts.select([key]);
    experts.pickUp(chips, copy);
    const shown = chips.slice(0, 4).map(([expert]) => h("span", {}, String(expert)));
    this.ghost.replaceChildren(...shown, chips.length > 4 ? `+${chips.length - 4}` : "");
    this.ghost.hidden = false;
  }

  /** @param {PointerEvent} event */
  drag(event) {
    const { experts } = this;
    const root = /** @type {Document | ShadowRoot} */ (experts.root.getRootNode());
    /** @type {HTMLElement | null | undefined} */
    const under = root.elementFromPoint(event.clientX, event.clientY)?.closest(".mw-xplace");
    experts.holdOver(under ? Number(under.dataset.place) : null, hasControl(event));
    const { x, y } = experts.pointer;
    setStyle(this.ghost, { left: `${x + 8}px`, top: `${y - 28}px` });
    this.showEffect();
  }

  /** @param {boolean} copy */
  setCopy(copy) {
    const { experts } = this;
    if (!experts.carried) return;
    experts.holdOver(experts.carried.to, copy);
    this.showEffect();
  }

  /** Show the effect of a drop beside the pointer. */
  showEffect() {
    const { experts, press } = this;
    if (!press?.isDrag || !experts.carried) return;
    const { to, refused, words, copy } = experts.carried;
    const text = to === null ? "" : (refused ?? words);
    if (text) experts.notice.show(text, experts.pointer, refused ? "error" : "info");
    else experts.notice.hide();
    this.ghost.dataset.copy = String(copy);
  }

  /**
   * Select the chips that the rectangle touches, in addition to the previous selection if the press adds to it.
   * @param {Press} press
   */
  selectRectangle(press) {
    const { experts } = this;
    const [a, b] = [press.from, experts.pointer];
    const [left, top] = [Math.min(a.x, b.x), Math.min(a.y, b.y)];
    const [width, height] = [Math.abs(a.x - b.x), Math.abs(a.y - b.y)];
    setStyle(this.rectangle, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    const root = boxOf(experts.root);
    const box = new DOMRect(left + root.left, top + root.top, width, height);
    const touched = [...experts.places.chips.values()]
      .filter((chip) => overlaps(boxOf(chip), box))
      .map((chip) => chip.dataset.key ?? "");
    experts.select([...new Set([...press.before, ...touched])]);
  }

  release() {
    const { press, experts } = this;
    const { carried } = experts;
    this.end();
    if (carried) return experts.putDown();
    if (!press?.key || press.isDrag) return;
    if (press.adds) experts.toggle(press.key);
    else experts.select([press.key]);
    experts.keyboard.focus(press.key);
  }

  /** Cancel the drag. */
  stop() {
    const { press } = this;
    this.end();
    if (press && this.experts.carried) this.experts.cancelDrag();
  }

  end() {
    this.untrack?.();
    this.press = null;
    this.ghost.hidden = this.rectangle.hidden = true;
  }

  /** True if a redraw removed none of the chips that are pressed or carried. */
  canGoOn() {
    const { press, experts } = this;
    const { carried, places } = experts;
    const keys = carried ? carried.chips.map((replica) => keyOf(...replica)) : press?.key ? [press.key] : [];
    return keys.every((key) => places.chips.has(key));
  }

  // ── hovering ──

  /** @param {PointerEvent | null} event null if the pointer left the board */
  hover(event) {
    const { experts } = this;
    if (this.press || experts.picture.state !== "ready") return;
    const chip = event && closest(event, ".mw-xchip");
    experts.places.markReplicas(chip?.dataset.expert);
    const place = event && closest(event, ".mw-xplace");
    if (place && !chip) return this.hoverPlace(place, closest(event, ".mw-xdevice"));
    experts.places.outline(null);
    experts.hovered = chip?.ariaLabel ?? "";
    experts.drawMessage();
  }

  /** @param {HTMLElement} place @param {HTMLElement | null} tag the tag of one of its devices */
  hoverPlace({ dataset }, tag) {
    const { experts } = this;
    const number = Number(dataset.place);
    experts.places.outline(tag ? Number(tag.dataset.device) : experts.picture.places[number].devices[0]);
    experts.hovered = `${dataset.words}; ${experts.groupsOf(number)}`;
    experts.drawMessage();
  }
}

/** @param {DOMRect} a @param {DOMRect} b */
const overlaps = (a, b) => a.left < b.right && a.right > b.left && a.top < b.bottom && a.bottom > b.top;
