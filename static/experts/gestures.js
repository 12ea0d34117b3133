// The pointer on the experts: chips are dragged to another device, a band selects several, hovering tells.

import { h, trackPointer } from "../kit/canvas.js";

const DRAG_PX = 4; // a press that moves less is a click

/** A chip's name: an expert, and the place that holds this replica. */
export const keyOf = (expert, place) => `${expert}@${place}`;

export const parse = (key) => key.split("@").map(Number);

export class Hand {
  constructor(experts) {
    this.experts = experts;
    this.press = null; // a button that is down
    const { board, root } = experts;
    this.ghost = h("div", { class: "mw-xghost", hidden: true, "aria-hidden": "true" });
    this.band = h("div", { class: "mw-xband", hidden: true, "aria-hidden": "true" });
    root.append(this.ghost, this.band);
    board.addEventListener("pointerdown", (event) => this.down(event));
    board.addEventListener("pointerover", (event) => this.over(event));
    board.addEventListener("pointerleave", () => this.over(null));
  }

  // ── a press ──

  down(event) {
    const { experts } = this;
    if (event.button !== 0 || event.target.closest("button, input") || experts.picture.state !== "ready") return;
    if (event.target === experts.board && event.offsetX > experts.board.clientWidth) return; // its scroll bar
    event.preventDefault();
    experts.notice.hide();
    if (experts.carried) experts.letGo();
    const chip = event.target.closest(".mw-xchip");
    const place = event.target.closest(".mw-xplace");
    const adds = event.ctrlKey || event.metaKey || event.shiftKey;
    this.press = {
      key: chip?.dataset.key,
      adds,
      at: [event.clientX, event.clientY],
      from: experts.within(event),
      before: adds ? [...experts.selected] : [],
      began: false,
    };
    if (chip) {
      if (!adds && !experts.selected.has(chip.dataset.key)) experts.select([chip.dataset.key]);
      this.focus(chip.dataset.key);
    } else if (!adds) {
      experts.select([]);
      if (place?.hasAttribute("tabindex")) this.focus(-1 - Number(place.dataset.place));
    }
    this.listen();
  }

  focus(at) {
    this.experts.keys.focus(at);
  }

  listen() {
    this.unlisten?.();
    this.unlisten = trackPointer({
      moved: (event) => this.move(event),
      released: () => this.up(),
      cancel: () => this.stop(),
      pressed: ({ key, type }) => (key === "Control" || key === "Meta") && this.turn(type === "keydown"),
    });
  }

  move(event) {
    const { press, experts } = this;
    experts.pointer = experts.within(event);
    if (!press.began && Math.hypot(event.clientX - press.at[0], event.clientY - press.at[1]) < DRAG_PX) return;
    if (!press.began) this.begin(event);
    if (press.key) this.drag(event);
    else this.stretch();
  }

  begin(event) {
    const { press, experts } = this;
    press.began = true;
    if (!press.key) return void (this.band.hidden = false);
    const chips = experts.about(press.key);
    if (experts.selected.size < 2) experts.select([press.key]);
    experts.pickUp(chips, event.ctrlKey || event.metaKey);
    const shown = chips.slice(0, 4).map(([expert]) => h("span", {}, String(expert)));
    this.ghost.replaceChildren(...shown, chips.length > 4 ? `+${chips.length - 4}` : "");
    this.ghost.hidden = false;
  }

  /** Over which place the chips are; Ctrl makes replicas of them. */
  drag(event) {
    const { experts } = this;
    const under = experts.root.getRootNode().elementFromPoint(event.clientX, event.clientY)?.closest?.(".mw-xplace");
    experts.hold(under ? Number(under.dataset.place) : null, event.ctrlKey || event.metaKey);
    const { x, y } = experts.pointer;
    Object.assign(this.ghost.style, { left: `${x + 8}px`, top: `${y - 28}px` });
    this.retell();
  }

  turn(copy) {
    const { experts } = this;
    if (!experts.carried) return;
    experts.hold(experts.carried.to, copy);
    this.retell();
  }

  /** Say near the pointer what a drop would do. */
  retell() {
    const { experts, press } = this;
    if (!press?.began || !experts.carried) return;
    const { to, refused, words } = experts.carried;
    const told = to === null ? "" : (refused ?? words);
    if (told) experts.notice.show(told, experts.pointer.x, experts.pointer.y, refused ? "no" : "tell");
    else experts.notice.hide();
    this.ghost.dataset.copy = String(experts.carried.copy);
  }

  /** The band selects what it touches, besides what was selected before where it adds. */
  stretch() {
    const { press, experts } = this;
    const [a, b] = [press.from, experts.pointer];
    const box = {
      left: Math.min(a.x, b.x),
      top: Math.min(a.y, b.y),
      width: Math.abs(a.x - b.x),
      height: Math.abs(a.y - b.y),
    };
    for (const [name, value] of Object.entries(box)) this.band.style[name] = `${value}px`;
    const root = experts.root.getBoundingClientRect();
    const touched = [...experts.places.chips]
      .filter(([, chip]) => touches(chip.getBoundingClientRect(), box, root))
      .map(([key]) => key);
    experts.select([...new Set([...press.before, ...touched])]);
  }

  up() {
    const { press, experts } = this;
    const { carried } = experts;
    this.end();
    if (carried) return experts.putDown();
    if (press.began || !press.key) return;
    if (press.adds) toggle(experts, press.key);
    else experts.select([press.key]);
    this.focus(press.key);
  }

  /** Give up what is in hand. */
  stop() {
    const { press } = this;
    this.end();
    if (press && this.experts.carried) this.experts.letGo();
  }

  end() {
    this.unlisten?.();
    this.unlisten = null;
    this.press = null;
    this.ghost.hidden = this.band.hidden = true;
  }

  // ── hovering ──

  over(event) {
    const { experts } = this;
    if (this.press || experts.picture.state !== "ready") return;
    const chip = event?.target.closest(".mw-xchip");
    const place = event?.target.closest(".mw-xplace");
    const tag = event?.target.closest(".mw-xdevice");
    for (const [key, element] of experts.places.chips)
      element.toggleAttribute("data-same", Boolean(chip) && parse(key)[0] === Number(chip.dataset.expert));
    const device = tag
      ? Number(tag.dataset.device)
      : place
        ? experts.picture.places[place.dataset.place].devices[0]
        : null;
    experts.places.outline(chip ? null : device);
    const number = place ? Number(place.dataset.place) : -1;
    experts.hovered = chip ? chip.ariaLabel : place ? `${place.dataset.words}; ${experts.groupsOf(number)}` : "";
    experts.tell();
  }
}

/** Take a chip into the selection, or out of it. */
export function toggle(experts, key) {
  const keys = new Set(experts.selected);
  if (!keys.delete(key)) keys.add(key);
  experts.select([...keys]);
}

const touches = (rect, box, root) =>
  rect.left - root.left < box.left + box.width &&
  rect.right - root.left > box.left &&
  rect.top - root.top < box.top + box.height &&
  rect.bottom - root.top > box.top;
