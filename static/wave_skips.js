// Skip connections over the wave: an arc from the stage that makes tensors to the later one that takes them. What
// travels is said by Python; here it is drawn, and told to who points at an arc or walks there.

import { clamp, s } from "static/canvas.js";

const STEP = 6; // px from an arc to the next one over it, at most
const ROOM = [9, 30]; // px over the lanes for arcs that pass over all of them
const NEAR = 5; // px from which an arc is pointed at
const MANY = 12; // arcs, of which more are paler
const APART = 7; // px between the stages of arcs that are drawn; of closer ones every so many, the rest when pointed at
const HEADED = 11; // px between stages from which on an arc has a head
const HELP = "skip connections: left and right walk from one to the next";

/** What arcs need over the lanes: px, and from one to the next. */
export function roomOver(skips, routes) {
  if (!skips.length) return { room: 0, step: 0 };
  const most = Math.max(...stack(skips, routes).map(({ lane, number }) => (lane === 0 ? number : 0)));
  const room = clamp(most * STEP, ...ROOM);
  return { room, step: Math.min(STEP, room / Math.max(1, most)) };
}

/** Of each arc the highest lane that it passes over, and its number over that lane, counted from it: inner ones are lower. */
function stack(skips, routes) {
  const placed = [];
  const order = [...skips.keys()].sort((a, b) => skips[a].to - skips[a].from - (skips[b].to - skips[b].from) || a - b);
  for (const at of order) {
    const { from, to } = skips[at];
    const lane = Math.min(...routes.flatMap((route) => route.slice(from, to + 1)));
    const inside = placed.filter((other) => other.lane === lane && other.from >= from && other.to <= to);
    placed[at] = { from, to, lane, number: 1 + Math.max(0, ...inside.map(({ number }) => number)) };
  }
  return placed;
}

/** Two quarters of ellipses that meet over the middle of the ends. */
function bow({ slots, y, tallest, step }, { from, to, replica }, { lane, number }, routes) {
  const end = (stage) => ({ x: slots[stage].middle, y: y(routes[replica][stage]) - slots[stage].height / 2 });
  const [a, b] = [end(from), end(to)];
  return { a, b, crown: { x: (a.x + b.x) / 2, y: Math.max(1, Math.min(a.y, b.y, y(lane) - tallest / 2) - 2 - step * number) } };
}

const quarter = ({ x, y }, crown) => ({ rx: Math.abs(crown.x - x), ry: Math.max(0.1, y - crown.y) });

function outline({ a, b, crown }) {
  const turn = (to, { rx, ry }) => `A${r(rx)} ${r(ry)} 0 0 1 ${r(to.x)} ${r(to.y)}`;
  return `M${r(a.x)} ${r(a.y)}${turn(crown, quarter(a, crown))}${turn(b, quarter(b, crown))}`;
}

/** How far a point is from an arc, in px to a side, up or down. */
function away({ a, b, crown }, { x, y }) {
  if (x < a.x - NEAR || x > b.x + NEAR) return Infinity;
  const end = x < crown.x ? a : b;
  const { rx, ry } = quarter(end, crown);
  const [across, up] = [(x - crown.x) / rx, (y - end.y) / ry];
  const below = Math.abs(across) <= 1 ? Math.abs(end.y - ry * Math.sqrt(1 - across ** 2) - y) : Infinity;
  const beside = up <= 0 && up >= -1 ? Math.abs(rx * Math.sqrt(1 - up ** 2) - Math.abs(x - crown.x)) : Infinity;
  return Math.min(below, beside);
}

const r = (number) => Math.round(number * 10) / 10;

export class Skips {
  constructor(wave) {
    this.wave = wave;
    this.arcs = []; // { element, skip, drawn }: what it stands for, and where
    this.at = 0; // the one that takes the keyboard
    this.group = s("g", { role: "group", "aria-label": HELP });
    this.group.addEventListener("keydown", (event) => this.key(event));
  }

  draw(layout, routes) {
    const { skips } = this.wave.picture;
    const held = this.arcs.findIndex(({ element }) => element === this.group.getRootNode().activeElement);
    const { marked } = this;
    const words = marked?.skip.words;
    while (this.arcs.length > skips.length) this.arcs.pop().element.remove();
    while (this.arcs.length < skips.length) this.arcs.push(this.arc());
    this.at = clamp(this.at, 0, Math.max(0, skips.length - 1));
    const places = stack(skips, routes);
    skips.forEach((skip, number) => this.drawArc(this.arcs[number], skip, bow(layout, skip, places[number], routes), layout.pitch, number));
    const every = Math.ceil(APART / layout.pitch) * routes.length;
    this.arcs.forEach(({ element }, number) => element.toggleAttribute("data-between", number % every >= routes.length));
    this.group.toggleAttribute("data-many", skips.length > MANY);
    this.group.toggleAttribute("hidden", !skips.length);
    const stays = marked && this.arcs.includes(marked) && marked.skip.words === words;
    if (marked && !stays) this.wave.tip.hide();
    this.marked = undefined; // so that its ends are marked anew
    this.mark(stays ? marked : null);
    if (held >= skips.length) (this.arcs[this.at]?.element ?? this.wave.boxes[this.wave.focus])?.focus(); // its own is gone
    else if (held >= 0) this.point(this.arcs[held]);
  }

  arc() {
    const element = s("g", { role: "img" }, s("path", { class: "mw-skip-line" }), s("path", { class: "mw-skip-head" }));
    this.group.append(element);
    return { element };
  }

  drawArc(arc, skip, drawn, pitch, number) {
    const { element } = arc;
    const [line, head] = element.children;
    Object.assign(arc, { skip, drawn });
    element.setAttribute("class", `mw-skip${skip.replica ? " mw-replica" : ""}`);
    element.dataset.way = skip.way;
    element.setAttribute("aria-label", skip.words);
    element.setAttribute("tabindex", number === this.at ? 0 : -1);
    line.setAttribute("d", outline(drawn));
    head.setAttribute("d", pitch < HEADED ? "" : `M${r(drawn.b.x)} ${r(drawn.b.y - 0.5)}l-2.6 -5h5.2z`);
  }

  /** Which stages a stage skips to, and from which it takes skips, in words. */
  of(stage) {
    const first = this.wave.picture.skips.filter(({ replica }) => replica === 0);
    const to = first.filter(({ from }) => from === stage).map((skip) => skip.to);
    const from = first.filter((skip) => skip.to === stage).map((skip) => skip.from);
    return `${to.length ? `; skips to stage ${to.join(" and ")}` : ""}${from.length ? `; takes what skips from stage ${from.join(" and ")}` : ""}`;
  }

  // ── the pointer and the keyboard ──

  /** The arc at a place of the drawing, if one is near. */
  near(place) {
    const found = this.arcs.map((arc) => ({ arc, distance: away(arc.drawn, place) })).filter(({ distance }) => distance <= NEAR);
    return found.sort((one, other) => one.distance - other.distance)[0]?.arc ?? null;
  }

  /** Show one arc, and its ends, among the others; null for none. */
  mark(arc) {
    const { boxes, picture } = this.wave;
    if (this.marked === arc) return;
    for (const each of this.arcs) each.element.toggleAttribute("data-marked", each === arc);
    const ends = arc ? [arc.skip.from, arc.skip.to].map((stage) => boxes[arc.skip.replica * picture.layers.length + stage]) : [];
    for (const box of boxes) box.toggleAttribute("data-linked", ends.includes(box));
    this.marked = arc;
  }

  /** Mark an arc and say what it is over its middle. */
  point(arc) {
    this.mark(arc);
    if (!arc) return this.wave.tip.hide();
    const { svg, root, tip } = this.wave;
    const [board, box] = [svg.getBoundingClientRect(), root.getBoundingClientRect()];
    tip.show(arc.skip.words, board.left - box.left + arc.drawn.crown.x, board.top - box.top + arc.drawn.crown.y);
  }

  focused(element) {
    this.arcs[this.at]?.element.setAttribute("tabindex", -1);
    this.at = this.arcs.findIndex((arc) => arc.element === element);
    element.setAttribute("tabindex", 0);
    this.point(this.arcs[this.at]);
  }

  key(event) {
    const last = this.arcs.length - 1;
    const to = { ArrowLeft: this.at - 1, ArrowUp: this.at - 1, ArrowRight: this.at + 1, ArrowDown: this.at + 1, Home: 0, End: last }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    this.arcs[clamp(to, 0, last)].element.focus();
    event.preventDefault();
    event.stopPropagation();
  }
}
