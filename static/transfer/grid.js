// The tensor as a grid, cut as its source, its destination or its unit tasks have it: to scale, as far as no piece
// gets too narrow to be seen. A colour is a host; of a unit task, the host that sends it. What nobody looks at gets
// paler, and its letters get the colour of text, which reads on anything pale.

import { h, perFrame, s } from "../kit/canvas.js";
import { Crowd } from "./crowding.js";

const GUTTER = { left: 36, top: 18, right: 2, bottom: 2 };
const LABEL_ROOM = { across: 32, down: 18 }; // CSS pixels between the numbers of cuts
const NAMED = { across: 56, down: 34 }; // CSS pixels of a ruler that its name takes
const MANY = 600; // pieces from which on they are painted as one picture
export const STRENGTH = { tint: 0.24, strong: 0.5, faint: 0.08, pale: 0.28 }; // of colours, as the style sheet has them

/** What both pictures share: a figure of its own size, rulers with the cuts, what is lit. */
export class Grid {
  constructor(view, label, side = "") {
    this.view = view;
    this.side = side;
    this.svg = s("svg", { class: "mw-tr-grid", role: "img", "aria-label": label });
    this.crowd = new Crowd();
    this.box = h("div", { class: "mw-tr-figure-box" }, this.crowd.canvas, this.svg);
    this.element = this.box;
    this.redraw = perFrame(() => {
      this.paint();
      const [tasks, shown] = this.view.looked;
      this.light(tasks, shown);
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
    Object.assign(this.area, {
      width: width - this.area.left - GUTTER.right,
      height: height - this.area.top - GUTTER.bottom,
    });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const pieces = this.isCrowd
      ? this.pieces.map((piece) => ({ rects: piece.rects.map((rect) => this.at(rect)), fills: this.fills(piece) }))
      : [];
    this.crowd.draw(pieces, width, height);
    this.svg.replaceChildren(...this.rulers(this.picture[this.side]?.ends), ...(this.isCrowd ? [] : this.cells()));
    this.alone = null; // of a crowd, the piece under the pointer, as an element that can be pointed at
  }

  // ── what a picture has of its own ──

  /** @returns {{rects: [number, number, number, number][]}[]} */
  get pieces() {
    return [];
  }

  /** @returns {string[]} */
  fills(_piece) {
    return [];
  }

  /** @returns {Record<string, unknown>} */
  attributes(_piece) {
    return {};
  }

  /** @returns {SVGElement[]} */
  cells() {
    return [];
  }

  over(_event) {}

  click(_event) {}

  /** @param {Set<number> | null} _tasks @param {unknown} [_shown] */
  light(_tasks, _shown) {}

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
    return {
      x: area.left + left * area.width,
      y: area.top + top * area.height,
      width: (right - left) * area.width,
      height: (bottom - top) * area.height,
    };
  }

  /** The outermost dim along each side, and where it is cut; `ends` leaves out the cuts of others. */
  rulers(ends = {}) {
    const { area, picture } = this;
    const found = [];
    const ruler = ({ dim, cuts, at }, size, way, put) => {
      let last = -LABEL_ROOM[way];
      cuts.forEach((cut, place) => {
        const along = at[place] * size;
        if (
          !place ||
          place === cuts.length - 1 ||
          along - last < LABEL_ROOM[way] ||
          along < NAMED[way] ||
          along > size - 12 ||
          (ends[dim] && !ends[dim].includes(cut))
        )
          return;
        found.push(put(along, String(cut)));
        last = along;
      });
    };
    const [column] = picture.columns;
    const [row] = picture.rows;
    if (column) {
      found.push(text(area.left, area.top - 6, `dim ${column.dim} →`, "mw-tr-ruler-name"));
      ruler(column, area.width, "across", (along, words) =>
        text(area.left + along, area.top - 6, words, "mw-tr-ruler mw-tr-middle"),
      );
    }
    if (row) {
      found.push(
        text(area.left - 4, area.top + 10, `dim ${row.dim}`, "mw-tr-ruler-name mw-tr-end"),
        text(area.left - 4, area.top + 22, "↓", "mw-tr-ruler-name mw-tr-end"),
      );
      ruler(row, area.height, "down", (along, words) =>
        text(area.left - 4, area.top + along + 4, words, "mw-tr-ruler mw-tr-end"),
      );
    }
    return found;
  }

  colour(host) {
    const { palette } = this.view.model;
    return palette[this.view.picture.hosts.indexOf(host) % palette.length];
  }
}

export function text(x, y, words, kind, fill = null) {
  return s("text", { x, y, class: kind, fill }, words);
}
