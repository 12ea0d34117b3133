// The keyboard on the experts: arrows go from chip to chip, Space picks up, arrows carry, Enter puts down.

import { parse, toggle } from "./gestures.js";

const ARROWS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
const HOTTER = 1.5;

export class Keys {
  constructor(experts) {
    this.experts = experts;
    experts.root.addEventListener("keydown", (event) => this.key(event));
    experts.board.addEventListener("focusin", (event) => this.focused(event.target));
    experts.board.addEventListener("focusout", () => experts.places.outline(null));
  }

  key(event) {
    const { experts } = this;
    if (event.target.closest("input, .mw-menu") || experts.picture.state !== "ready") return;
    const inBoard = experts.board.contains(event.target);
    const onButton = event.target.closest("button") && (event.key === " " || event.key === "Enter");
    const does = onButton ? null : (inBoard && this.onBoard(event)) || this.anywhere(event);
    if (!does) return;
    does();
    event.preventDefault();
    event.stopPropagation();
  }

  onBoard(event) {
    const { experts } = this;
    const arrow = ARROWS[event.key];
    const holds = experts.carried;
    if (arrow && !event.altKey) return () => (holds ? this.carry(...arrow) : this.walk(...arrow, event.shiftKey));
    if (event.key === " ")
      return () => (event.ctrlKey ? toggle(experts, experts.at) : holds ? experts.putDown() : this.pickUp());
    if (event.key === "Enter") return () => (holds ? experts.putDown() : this.pickUp());
    if (event.key === "Home" || event.key === "End")
      return () => this.focus([...experts.places.chips.keys()].at(event.key === "Home" ? 0 : -1));
    return null;
  }

  anywhere(event) {
    const { experts } = this;
    const key = event.key.toLowerCase();
    if (key === "escape" && (experts.carried || experts.selected.size))
      return () => (experts.carried ? experts.letGo() : experts.select([]));
    if (event.ctrlKey || event.metaKey)
      return key === "a" ? () => experts.select([...experts.places.chips.keys()]) : null;
    if (event.altKey) return null;
    const does = {
      delete: () => experts.removeReplicas(),
      backspace: () => experts.removeReplicas(),
      r: () => (experts.carried ? this.turn() : experts.replicate()),
      b: () => (event.shiftKey ? experts.settings.blocks.click() : experts.settings.balance()),
      "+": () => experts.heat(HOTTER),
      "=": () => experts.heat(HOTTER),
      "-": () => experts.heat(1 / HOTTER),
    };
    return does[key] ?? null;
  }

  // ── the focus ──

  focus(at) {
    const { experts } = this;
    experts.places.element(experts.at)?.setAttribute("tabindex", "-1");
    experts.at = at;
    const element = experts.places.element(at);
    element?.setAttribute("tabindex", "0");
    element?.focus({ preventScroll: true });
    element?.scrollIntoView({ block: "nearest" });
    experts.tell();
  }

  focused(target) {
    const { experts } = this;
    const at = target.dataset.key ?? (target.dataset.place === undefined ? null : -1 - Number(target.dataset.place));
    if (at !== null && at !== experts.at) this.focus(at);
  }

  /** To the next chip, or place without any, in a direction; with Shift it is selected too. */
  walk(right, down, selects) {
    const { experts } = this;
    const here = experts.places.element(experts.at);
    const others = [...experts.places.chips.values(), ...experts.board.querySelectorAll(".mw-xplace[tabindex]")];
    const next = here ? nearest(here, others, right, down) : others[0];
    if (!next) return;
    const from = experts.at;
    this.focus(next.dataset.key ?? -1 - Number(next.dataset.place));
    const keys = selects ? [...experts.selected, from, experts.at] : [experts.at];
    experts.select([...new Set(keys)].filter((key) => experts.places.chips.has(key)));
    experts.at = next.dataset.key ?? experts.at;
    const place = next.closest(".mw-xplace").dataset.place;
    experts.places.outline(experts.picture.places[place].devices[0]);
  }

  // ── carrying ──

  pickUp() {
    const { experts } = this;
    if (!experts.places.chips.has(experts.at)) return;
    const chips = experts.about(experts.at);
    experts.pickUp(chips, false, true);
    experts.hold(parse(experts.at)[1]);
    this.retell();
  }

  carry(right, down) {
    const { experts } = this;
    const here = experts.places.placeElement(experts.carried.to);
    const next = nearest(here, [...experts.board.querySelectorAll(".mw-xplace")], right, down);
    if (!next) return;
    experts.hold(Number(next.dataset.place));
    next.scrollIntoView({ block: "nearest" });
    this.retell();
  }

  /** Move instead of replicate, or the other way round. */
  turn() {
    const { carried } = this.experts;
    this.experts.hold(carried.to, !carried.copy);
    this.retell();
  }

  retell() {
    const { experts } = this;
    const { carried } = experts;
    if (!carried?.byKey) return;
    const { name } = experts.picture.places[carried.to];
    const verb = carried.copy ? "replicate on" : "move to";
    const words = experts.stays(carried)
      ? "arrows carry it, Enter puts it down, R makes a replica"
      : (carried.refused ?? `${verb} ${name}${carried.words ? `: ${carried.words}` : ""}`);
    const { x, y } = experts.pointAt(experts.places.placeElement(carried.to));
    experts.notice.show(words, x, y, carried.refused ? "no" : "tell");
    experts.notice.live.textContent = words;
  }
}

/** The element of `others` that lies next in a direction; what is straight ahead before what is aside. */
function nearest(here, others, right, down) {
  const middle = (element) => {
    const { left, top, width, height } = element.getBoundingClientRect();
    return [left + width / 2, top + height / 2];
  };
  const [x, y] = middle(here);
  let best = null;
  for (const other of others) {
    if (other === here) continue;
    const [dx, dy] = middle(other).map((value, axis) => value - [x, y][axis]);
    const [ahead, aside] = right ? [dx * right, Math.abs(dy)] : [dy * down, Math.abs(dx)];
    if (ahead <= 2) continue;
    const distance = ahead + 2.5 * aside;
    if (!best || distance < best.distance) best = { other, distance };
  }
  return best?.other;
}
