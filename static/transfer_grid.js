// The tensor as a grid, cut as its source, its destination or its unit tasks have it: to scale, as far as no piece
// gets too narrow to be seen. A colour is a host; of a unit task, the host that sends it.

import { clamp, h, perFrame, s } from "static/canvas.js";
import { ink, rgb } from "static/palette.js";

const GUTTER = { left: 36, top: 18, right: 2, bottom: 2 };
const CHIP = { width: 22, height: 15, gap: 3 };
const LABEL_ROOM = { across: 32, down: 18 }; // CSS pixels between the numbers of cuts
const NAMED = { across: 56, down: 34 }; // CSS pixels of a ruler that its name takes
const FEW_CHIPS = 64; // of a box in pieces, so that each piece shows them
const MOST_CHIPS = 1500; // of a picture: of more ranks, boxes tell how many hold them

/** What both pictures share: a figure of its own size, rulers with the cuts, what is lit. */
class Grid {
  constructor(view, label) {
    this.view = view;
    this.svg = s("svg", { class: "mw-tr-grid", role: "img", "aria-label": label });
    this.box = h("div", { class: "mw-tr-figure-box" }, this.svg);
    this.element = this.box;
    this.redraw = perFrame(() => this.paint());
    this.sizes = new ResizeObserver(() => this.redraw());
    this.sizes.observe(this.box);
    this.svg.addEventListener("pointerover", (event) => this.over(event));
    this.svg.addEventListener("pointerleave", () => this.view.hover(null));
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
    this.svg.replaceChildren(...this.rulers(this.picture[this.side]?.ends), ...this.cells());
    this.view.relight();
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
    this.mesh = h("div", { class: "mw-tr-mesh", role: "group", "aria-label": `Ranks of the ${side} mesh` });
    this.caption = h("div", { class: "mw-tr-caption" });
    this.element = h("div", { class: "mw-tr-side" }, this.box, h("div", { class: "mw-tr-below" }, this.mesh, this.caption));
    this.mesh.addEventListener("pointerover", (event) => this.over(event));
    this.mesh.addEventListener("pointerleave", () => this.view.hover(null));
    this.mesh.addEventListener("click", (event) => this.click(event));
  }

  draw(picture) {
    this.drawMesh(picture);
    super.draw(picture);
  }

  /** The mesh itself: its ranks in rows of its last axis. */
  drawMesh(picture) {
    const { shape, ranks, hosts } = picture[this.side];
    const columns = shape.at(-1);
    const small = ranks.length > 96;
    const cells = ranks.map((rank, place) => {
      const fill = this.colour(hosts[place]);
      const words = `rank ${rank}, ${this.view.model.host_word} ${hosts[place]}`;
      return h("span", { class: "mw-tr-rank", "data-places": place, title: words, style: { background: fill, color: ink(rgb(fill)) } }, small ? "" : String(rank));
    });
    this.mesh.toggleAttribute("data-small", small);
    this.mesh.style.setProperty("--columns", Math.min(columns, 64));
    this.mesh.replaceChildren(...cells);
    const lines = shape.length > 1 ? `axis ${shape.length - 1} →, ${shape.length > 2 ? "the others" : "axis 0"} ↓` : "axis 0 →";
    this.caption.replaceChildren(`mesh ${shape.join(" × ")}`, h("br"), lines);
  }

  cells() {
    const side = this.picture[this.side];
    const drawChips = side.ranks.length <= MOST_CHIPS;
    return side.boxes.map((box) => {
      const hosts = [...new Set(box.places.map((place) => side.hosts[place]))];
      const group = s("g", { class: "mw-tr-box", "data-places": box.places.join(" ") });
      box.rects.forEach((rect, number) => {
        const at = this.at(rect);
        hosts.forEach((host, stripe) => {
          const width = at.width / hosts.length;
          group.append(s("rect", { ...at, x: at.x + stripe * width, width, class: "mw-tr-tint", fill: this.colour(host) }));
        });
        group.append(s("rect", { ...at, class: "mw-tr-edge", "stroke-width": edge(at) }));
        if (drawChips && (!number || box.rects.length * box.places.length <= FEW_CHIPS)) group.append(...this.chips(at, box, side));
      });
      return group;
    });
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
        s("rect", { x, y, width: size, height: CHIP.height, rx: 3, fill, class: "mw-tr-chip", "data-rank": ranks[place] }),
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
    const group = event.target.closest(".mw-tr-box");
    if (group) group.dataset.tip = this.words(found.places);
    this.view.hover(found);
  }

  /** A box in words; the tip that stands beside it is written when somebody looks. */
  words(places) {
    const { boxes, ranks } = this.picture[this.side];
    const box = boxes.find((each) => each.places[0] === places[0]);
    return `[${box.box}], ${box.size}, on ${places.length === 1 ? "rank" : "ranks"} ${some(places.map((place) => ranks[place]))}`;
  }

  click(event) {
    const found = this.placesAt(event);
    if (found) this.view.pin(found);
  }

  /** Light the boxes that have to do with `tasks`, and the rank that sends. */
  light(tasks, shown) {
    if (!this.picture) return;
    const side = this.picture[this.side];
    const touched = new Set();
    const senders = new Set();
    for (const number of tasks ?? []) {
      const task = this.picture.tasks[number];
      for (const rank of this.side === "source" ? task.senders : [...task.receivers, ...task.keepers]) touched.add(rank);
      if (this.side === "source" && shown.task !== undefined) senders.add(task.sender);
    }
    const own = shown?.side === this.side ? new Set(shown.places) : null;
    for (const each of this.element.querySelectorAll("[data-places]")) {
      const places = each.dataset.places.split(" ").map(Number);
      each.toggleAttribute("data-on", places.some((place) => (own ? own.has(place) : touched.has(side.ranks[place]))));
      each.toggleAttribute("data-sends", each.classList.contains("mw-tr-rank") && senders.has(side.ranks[places[0]]));
    }
    for (const chip of this.svg.querySelectorAll(".mw-tr-chip")) chip.toggleAttribute("data-sends", senders.has(Number(chip.dataset.rank)));
  }
}

/** The unit tasks: each distinct slice once, in the colour of the host that sends it. */
export class Tasks extends Grid {
  constructor(view) {
    super(view, "The unit tasks of the transfer");
    this.about = h("span", { class: "mw-quiet" });
  }

  cells() {
    const { tasks } = this.picture;
    this.about.textContent = [`colour: the ${this.view.model.host_word} that sends it`, ...nested(this.picture)].join("; ");
    const letter = tasks.length < MOST_CHIPS;
    this.groups = tasks.map((task, number) => {
      const fill = this.colour(task.host);
      const letters = ink(rgb(fill));
      const group = s("g", { class: "mw-tr-task", "data-task": number });
      task.rects.forEach((rect, part) => {
        const at = this.at(rect);
        group.append(s("rect", { ...at, fill, class: "mw-tr-cell", "stroke-width": edge(at) }));
        if (part || !letter) return;
        const [x, y] = [at.x + at.width / 2, at.y + at.height / 2];
        const roomy = at.height > 30 && at.width > 64;
        if (at.width > 7 + 7 * String(number).length && at.height > 12) group.append(text(x, y + (roomy ? -1 : 4), String(number), "mw-tr-number mw-tr-middle", letters));
        if (roomy) group.append(text(x, y + 13, task.size, "mw-tr-size mw-tr-middle", letters));
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
    for (const each of this.svg.querySelectorAll("[data-on]")) if (!tasks?.has(Number(each.dataset.task))) each.removeAttribute("data-on");
    for (const task of tasks ?? []) this.groups[task]?.setAttribute("data-on", "");
  }
}

/** Which dims lie inside which, where more than two are cut. */
function nested({ rows, columns }) {
  return [rows, columns].flatMap(([outer, ...inner]) => inner.map(({ dim }) => `dim ${dim} inside dim ${outer.dim}`));
}

/** Between pieces, thinner where these are small. */
const edge = ({ width, height }) => clamp(Math.min(width, height) / 10, 0.5, 2);

export function some(ranks) {
  return ranks.length > 8 ? `${ranks.slice(0, 8).join(", ")} and ${ranks.length - 8} more` : ranks.join(", ") || "nobody";
}

function text(x, y, words, kind, fill = null) {
  return s("text", { x, y, class: kind, fill }, words);
}
