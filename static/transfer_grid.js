// The tensor as a grid, cut as its source, its destination or its unit tasks have it: to scale, as far as no piece
// gets too narrow to be seen. A colour is a host; of a unit task, the host that sends it. What nobody looks at gets
// paler, and its letters get the colour of text, which reads on anything pale.

import { h, perFrame, s } from "static/canvas.js";
import { ink, rgb } from "static/palette.js";
import { Crowd, between } from "static/transfer_crowd.js";

const GUTTER = { left: 36, top: 18, right: 2, bottom: 2 };
const CHIP = { width: 22, height: 15, gap: 3 };
const LABEL_ROOM = { across: 32, down: 18 }; // CSS pixels between the numbers of cuts
const NAMED = { across: 56, down: 34 }; // CSS pixels of a ruler that its name takes
const FEW_CHIPS = 64; // of a box in pieces, so that each piece shows them
const MANY = 600; // pieces from which on they are painted as one picture
const SMALL = 96; // ranks of a mesh from which on they bear no numbers
const STRENGTH = { tint: 0.24, strong: 0.5, faint: 0.08, pale: 0.28 }; // of colours, as the style sheet has them

/** What both pictures share: a figure of its own size, rulers with the cuts, what is lit. */
class Grid {
  constructor(view, label) {
    this.view = view;
    this.svg = s("svg", { class: "mw-tr-grid", role: "img", "aria-label": label });
    this.crowd = new Crowd();
    this.box = h("div", { class: "mw-tr-figure-box" }, this.crowd.canvas, this.svg);
    this.element = this.box;
    this.redraw = perFrame(() => {
      this.paint();
      this.light(...this.view.looked);
    });
    this.sizes = new ResizeObserver(() => this.redraw());
    this.sizes.observe(this.box);
    this.svg.addEventListener("pointermove", (event) => this.single(event));
    this.svg.addEventListener("pointerdown", (event) => this.single(event)); // a finger moves over nothing before
    this.svg.addEventListener("pointerover", (event) => this.over(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("click", (event) => this.click(event));
  }

  remove() {
    this.sizes.disconnect();
    this.redraw.cancel();
  }

  draw(picture) {
    this.picture = picture;
    this.paint();
  }

  paint() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!this.picture || width < 60 || height < 40) return;
    const { columns, rows } = this.picture;
    this.area = { left: rows.length ? GUTTER.left : 2, top: columns.length ? GUTTER.top : 2 };
    Object.assign(this.area, { width: width - this.area.left - GUTTER.right, height: height - this.area.top - GUTTER.bottom });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const pieces = this.isCrowd ? this.pieces.map((piece) => ({ rects: piece.rects.map((rect) => this.at(rect)), fills: this.fills(piece) })) : [];
    this.crowd.draw(pieces, width, height);
    this.svg.replaceChildren(...this.rulers(this.picture[this.side]?.ends), ...(this.isCrowd ? [] : this.cells()));
    this.alone = null; // of a crowd, the piece under the pointer, as an element that can be pointed at
  }

  get isCrowd() {
    return this.pieces.length > MANY;
  }

  /** Of a crowd, make the piece under the pointer an element of the page, as all are of a few. */
  single({ target, offsetX, offsetY }) {
    if (!this.picture || !this.isCrowd || target.closest("[data-piece]")) return;
    this.alone?.remove();
    const piece = this.crowd.find(offsetX, offsetY);
    this.alone = piece < 0 ? null : this.outline(piece);
    if (!this.alone) return this.view.hover(null);
    this.svg.append(this.alone);
    this.over({ target: this.alone });
  }

  outline(piece) {
    const rects = this.crowd.pieces[piece].rects.map((at) => s("rect", { ...at, class: "mw-tr-outline" }));
    return s("g", { ...this.attributes(piece), "data-piece": piece }, ...rects);
  }

  leave() {
    this.alone?.remove();
    this.alone = null;
    this.view.hover(null);
  }

  /** A rectangle of the picture in CSS pixels. */
  at([left, top, right, bottom]) {
    const { area } = this;
    return { x: area.left + left * area.width, y: area.top + top * area.height, width: (right - left) * area.width, height: (bottom - top) * area.height };
  }

  /** The outermost dim along each side, and where it is cut; `ends` leaves out the cuts of others. */
  rulers(ends = {}) {
    const { area, picture } = this;
    const found = [];
    const ruler = ({ dim, cuts, at }, size, way, put) => {
      let last = -LABEL_ROOM[way];
      cuts.forEach((cut, place) => {
        const along = at[place] * size;
        if (!place || place === cuts.length - 1 || along - last < LABEL_ROOM[way] || along < NAMED[way] || along > size - 12 || (ends[dim] && !ends[dim].includes(cut))) return;
        found.push(put(along, String(cut)));
        last = along;
      });
    };
    const [column] = picture.columns;
    const [row] = picture.rows;
    if (column) {
      found.push(text(area.left, area.top - 6, `dim ${column.dim} →`, "mw-tr-ruler-name"));
      ruler(column, area.width, "across", (along, words) => text(area.left + along, area.top - 6, words, "mw-tr-ruler mw-tr-middle"));
    }
    if (row) {
      found.push(text(area.left - 4, area.top + 10, `dim ${row.dim}`, "mw-tr-ruler-name mw-tr-end"), text(area.left - 4, area.top + 22, "↓", "mw-tr-ruler-name mw-tr-end"));
      ruler(row, area.height, "down", (along, words) => text(area.left - 4, area.top + along + 4, words, "mw-tr-ruler mw-tr-end"));
    }
    return found;
  }

  colour(host) {
    const { palette } = this.view.model;
    return palette[this.view.picture.hosts.indexOf(host) % palette.length];
  }
}

/** A mesh's cut: a box for each distinct piece, with a chip for each rank that holds it. */
export class Cut extends Grid {
  constructor(view, side) {
    super(view, `The tensor as the ${side} holds it`);
    this.side = side;
    this.here = 0; // the place of the rank that the keyboard is at, or would come to
    const label = `Ranks of the ${side} mesh: arrows walk them, Escape leaves them`;
    this.mesh = h("div", { class: "mw-tr-mesh", role: "grid", "aria-multiselectable": "true", "aria-label": label });
    this.caption = h("div", { class: "mw-tr-caption" });
    this.element = h("div", { class: "mw-tr-side" }, this.box, h("div", { class: "mw-tr-below" }, this.mesh, this.caption));
    this.mesh.addEventListener("pointerover", (event) => this.over(event));
    this.mesh.addEventListener("pointerleave", () => this.view.hover(null));
    this.mesh.addEventListener("click", (event) => this.click(event));
    this.mesh.addEventListener("keydown", (event) => this.key(event));
    this.mesh.addEventListener("focusin", (event) => this.reach(Number(event.target.dataset.places)));
  }

  draw(picture) {
    this.picture = picture;
    this.boxOf = new Map(picture[this.side].boxes.flatMap((box) => box.places.map((place) => [place, box])));
    this.drawMesh(picture);
    super.draw(picture);
  }

  get pieces() {
    return this.picture[this.side].boxes;
  }

  fills({ places }) {
    const { hosts } = this.picture[this.side];
    return [...new Set(places.map((place) => hosts[place]))].map((host) => this.colour(host));
  }

  attributes(piece) {
    return { class: "mw-tr-box", "data-places": this.pieces[piece].places.join(" ") };
  }

  /** The mesh itself: its ranks in rows of its last axis. One that holds nothing of the tensor is hollow. */
  drawMesh(picture) {
    const { shape, ranks, hosts } = picture[this.side];
    const columns = shape.at(-1);
    const small = ranks.length > SMALL;
    const hasKeys = this.mesh.contains(this.mesh.getRootNode().activeElement);
    this.here = Math.min(this.here, ranks.length - 1);
    this.ranks = ranks.map((rank, place) => {
      const fill = this.colour(hosts[place]);
      const style = { "--fill": fill, "--ink": ink(rgb(fill)) };
      const says = { role: "gridcell", tabindex: place === this.here ? 0 : -1, "aria-label": this.words([place]) };
      return h("span", { class: "mw-tr-rank", ...says, "data-places": place, "data-empty": !this.boxOf.has(place), style }, small ? "" : String(rank));
    });
    this.mesh.toggleAttribute("data-small", small);
    this.mesh.style.setProperty("--columns", Math.min(columns, 64));
    this.mesh.style.setProperty("--widest", `${Math.max(26, 8 + 7 * String(Math.max(...ranks)).length)}px`);
    const first = this.ranks.filter((_, place) => place % columns === 0);
    this.mesh.replaceChildren(...first.map((_, row) => h("div", { class: "mw-tr-row", role: "row" }, ...this.ranks.slice(row * columns, (row + 1) * columns))));
    if (hasKeys) this.ranks[this.here].focus({ preventScroll: true });
    const lines = shape.length > 1 ? `axis ${shape.length - 1} →, ${shape.length > 2 ? "the others" : "axis 0"} ↓` : "axis 0 →";
    this.caption.replaceChildren(`mesh ${shape.join(" × ")}`, h("br"), lines);
  }

  cells() {
    const side = this.picture[this.side];
    this.groups = side.boxes.map((box, number) => {
      const group = s("g", this.attributes(number));
      const fills = this.fills(box);
      box.rects.forEach((rect, part) => {
        const at = this.at(rect);
        fills.forEach((fill, stripe) => {
          const width = at.width / fills.length;
          group.append(s("rect", { ...at, x: at.x + stripe * width, width, class: "mw-tr-tint", fill }));
        });
        group.append(s("rect", { ...at, class: "mw-tr-edge", "stroke-width": between(at) }));
        if (!part || box.rects.length * box.places.length <= FEW_CHIPS) group.append(...this.chips(at, box, side));
      });
      return group;
    });
    return this.groups;
  }

  chips(at, { places }, { ranks, hosts }) {
    const letters = Math.max(...places.map((place) => String(ranks[place]).length));
    const size = Math.min(CHIP.width, at.width - 6);
    const across = size < 4 + 6 * letters ? 0 : Math.max(1, Math.floor((at.width - 4) / (CHIP.width + CHIP.gap)));
    const down = Math.floor((at.height - 3) / (CHIP.height + CHIP.gap));
    if (!across || !down) return [];
    const fits = across * down;
    const shown = places.length > fits ? places.slice(0, fits - 1) : places;
    const corner = (number) => [at.x + 4 + (number % across) * (CHIP.width + CHIP.gap), at.y + 4 + Math.floor(number / across) * (CHIP.height + CHIP.gap)];
    const found = shown.flatMap((place, number) => {
      const [x, y] = corner(number);
      const fill = this.colour(hosts[place]);
      return [
        s("rect", { x, y, width: size, height: CHIP.height, rx: 3, class: "mw-tr-chip", "data-rank": ranks[place], style: { "--fill": fill } }),
        text(x + size / 2, y + CHIP.height - 4, String(ranks[place]), "mw-tr-chip-words mw-tr-middle", ink(rgb(fill))),
      ];
    });
    if (shown.length < places.length) {
      const [x, y] = corner(shown.length);
      found.push(text(x, y + CHIP.height - 4, `+${places.length - shown.length}`, "mw-tr-more"));
    }
    return found;
  }

  placesAt(event) {
    const places = event.target.closest("[data-places]")?.dataset.places;
    return places === undefined ? null : { side: this.side, places: places.split(" ").map(Number) };
  }

  over(event) {
    const found = this.placesAt(event);
    const group = event.target.closest("[data-places]");
    if (group) group.dataset.tip = this.words(found.places);
    this.view.hover(found);
  }

  /** A box or a rank in words; the tip that stands beside it is written when somebody looks. */
  words(places) {
    const { ranks, hosts } = this.picture[this.side];
    const box = this.boxOf.get(places[0]);
    const held = box ? `[${box.box}], ${box.size}` : "holds nothing of this tensor";
    if (places.length > 1) return `${held}, on ranks ${some(places.map((place) => ranks[place]))}`;
    const rank = `rank ${ranks[places[0]]}, ${this.view.model.host_word} ${hosts[places[0]]}`;
    return box ? `${held}, on ${rank}` : `${rank} ${held}`;
  }

  click(event) {
    const found = this.placesAt(event);
    if (found) this.view.pin(found);
  }

  /** Arrows walk the ranks, and each is kept in the light as a press on it would. */
  key(event) {
    if (!this.picture || event.ctrlKey || event.metaKey || event.altKey) return;
    const { here: at } = this;
    const columns = this.picture[this.side].shape.at(-1);
    const first = at - (at % columns);
    const place = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + columns, ArrowUp: at - columns, Home: first, End: first + columns - 1, Enter: at, " ": at }[event.key];
    if (event.key === "Escape" && this.view.pinned) this.view.pin(null);
    else if (place === undefined) return;
    else this.walk(place);
    event.preventDefault();
    event.stopPropagation();
  }

  walk(place) {
    if (!this.ranks[place]) return;
    this.ranks[place].focus({ preventScroll: true });
    this.ranks[place].scrollIntoView({ block: "nearest" });
    if (this.view.pinned?.side !== this.side || String(this.view.pinned.places) !== String(place)) this.view.pin({ side: this.side, places: [place] }, false);
  }

  /** The keyboard came to a rank, which its label says; a tip says it to the eye. */
  reach(place) {
    this.ranks[this.here].tabIndex = -1;
    this.here = place;
    this.ranks[place].tabIndex = 0;
    this.ranks[place].dataset.tip = this.ranks[place].ariaLabel;
  }

  /** Light the boxes that have to do with `tasks`, and the rank that sends. */
  light(tasks, shown) {
    if (!this.picture) return;
    const { ranks } = this.picture[this.side];
    const touched = new Set();
    const senders = new Set();
    for (const number of tasks ?? []) {
      const task = this.picture.tasks[number];
      for (const rank of this.side === "source" ? task.senders : [...task.receivers, ...task.keepers]) touched.add(rank);
      if (this.side === "source" && shown.task !== undefined) senders.add(task.sender);
    }
    const own = shown?.side === this.side ? new Set(shown.places) : null;
    const isOn = (place) => (own ? own.has(place) : touched.has(ranks[place]));
    const pinned = new Set(this.view.pinned?.side === this.side ? this.view.pinned.places : []);
    this.ranks.forEach((each, place) => {
      if (each.ariaSelected !== String(pinned.has(place))) each.ariaSelected = String(pinned.has(place));
      each.toggleAttribute("data-on", isOn(place));
      each.toggleAttribute("data-sends", senders.has(ranks[place]));
    });
    const boxOn = this.pieces.map(({ places }) => places.some(isOn));
    if (this.isCrowd) return this.crowd.paint((piece) => (!tasks ? STRENGTH.tint : boxOn[piece] ? STRENGTH.strong : STRENGTH.faint));
    this.groups?.forEach((group, number) => group.toggleAttribute("data-on", boxOn[number]));
    for (const chip of this.svg.querySelectorAll(".mw-tr-chip")) chip.toggleAttribute("data-sends", senders.has(Number(chip.dataset.rank)));
  }
}

/** The unit tasks: each distinct slice once, in the colour of the host that sends it. */
export class Tasks extends Grid {
  constructor(view) {
    super(view, "The unit tasks of the transfer");
    this.about = h("span", { class: "mw-quiet" });
  }

  draw(picture) {
    this.picture = picture;
    const stays = picture.tasks.some((task) => !task.receivers.length) && (this.isCrowd ? "pale: stays" : "outlined: stays");
    this.about.textContent = [`colour: its sender's ${this.view.model.host_word}`, stays, ...nested(picture)].filter(Boolean).join("; ");
    this.about.dataset.tip = this.about.textContent; // where the card is too narrow for it
    super.draw(picture);
  }

  get pieces() {
    return this.picture.tasks;
  }

  fills({ host }) {
    return [this.colour(host)];
  }

  attributes(task) {
    return { class: `mw-tr-task${this.pieces[task].receivers.length ? "" : " mw-tr-stays"}`, "data-task": task };
  }

  cells() {
    this.groups = this.pieces.map((task, number) => {
      const [fill] = this.fills(task);
      const stays = !task.receivers.length;
      const letters = stays ? null : ink(rgb(fill));
      const group = s("g", { ...this.attributes(number), style: { "--fill": fill } });
      task.rects.forEach((rect, part) => {
        const at = this.at(rect);
        group.append(s("rect", { ...(stays ? inset(at) : at), class: "mw-tr-cell", "stroke-width": between(at) }));
        if (part) return;
        const [x, y] = [at.x + at.width / 2, at.y + at.height / 2];
        const roomy = at.height > 30 && at.width > 64;
        if (at.width > 7 + 7 * String(number).length && at.height > 12) group.append(text(x, y + (roomy ? -1 : 4), String(number), "mw-tr-number mw-tr-middle", letters));
        if (roomy) group.append(text(x, y + 13, stays ? "stays" : task.size, "mw-tr-size mw-tr-middle", letters));
      });
      return group;
    });
    return this.groups;
  }

  over(event) {
    const found = event.target.closest("[data-task]");
    if (found) found.dataset.tip = this.view.lanes.words(Number(found.dataset.task));
    this.view.hover(found ? { task: Number(found.dataset.task) } : null);
  }

  click(event) {
    const found = event.target.closest("[data-task]");
    if (found) this.view.pin({ task: Number(found.dataset.task) });
  }

  light(tasks) {
    if (!this.picture) return;
    if (this.isCrowd) return this.crowd.paint((task) => (this.pieces[task].receivers.length && (!tasks || tasks.has(task)) ? 1 : STRENGTH.pale));
    this.groups?.forEach((group, number) => group.toggleAttribute("data-on", Boolean(tasks?.has(number))));
  }
}

/** Which dims lie inside which, where more than two are cut. */
function nested({ rows, columns }) {
  return [rows, columns].flatMap(([outer, ...inner]) => inner.map(({ dim }) => `dim ${dim} inside dim ${outer.dim}`));
}

const inset = ({ x, y, width, height }) => ({ x: x + 1.5, y: y + 1.5, width: Math.max(0, width - 3), height: Math.max(0, height - 3) });

export function some(ranks) {
  return ranks.length > 8 ? `${ranks.slice(0, 8).join(", ")} and ${ranks.length - 8} more` : ranks.join(", ") || "nobody";
}

function text(x, y, words, kind, fill = null) {
  return s("text", { x, y, class: kind, fill }, words);
}
