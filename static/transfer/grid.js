// The tensor as a grid, cut by its source sharding, its destination sharding or its unit tasks. The grid is to scale,
// except that narrow pieces are widened. The colour of a piece is the host that holds it or sends it. Pieces that are
// not highlighted are paler.

/** @import { Attributes, Box } from "../kit/types" */
/** @import { Dim, Piece, Picture, Place, Rect } from "./types" */

import { pointIn } from "../kit/canvas.js";
import { closest, h, s } from "../kit/dom.js";
import { oncePerFrame } from "../kit/widget.js";
import { Raster } from "./raster.js";

const MARGIN = { left: 36, top: 18, right: 2, bottom: 2 };
const LABEL_DISTANCE = { across: 32, down: 18 }; // least distance of the numbers of cuts in CSS pixels
const DIGIT = 6.5; // width of a digit of these numbers in CSS pixels
const LABEL_GAP = 8; // CSS pixels beside a number
const NAME_SIZE = { across: 56, down: 34 }; // width of the name of a ruler in CSS pixels
const MANY = 600; // number of pieces from which the pieces are painted as one image
export const OPACITY = { tint: 0.24, strong: 0.5, faint: 0.08, pale: 0.28 }; // number of colours in the style sheet

/**
 * A grid of pieces with rulers. A subclass provides the pieces of the picture and their elements.
 * @template {Piece} P
 */
export class Grid {
  /** @type {Picture} */ picture;
  /** @type {SVGElement[]} */ groups = [];
  /** The element of the hovered piece, if the pieces are one image. @type {SVGElement | null} */ outlined = null;
  area = { x: 0, y: 0, width: 0, height: 0 };

  /**
   * @param {import("./transfer.js").Transfer} view @param {string} label @param {"source" | "destination" | ""} [side]
   */
  constructor(view, label, side = "") {
    this.view = view;
    this.side = side;
    this.svg = s("svg.mw-tr-grid", { role: "img", "aria-label": label });
    this.raster = new Raster();
    this.box = h("div.mw-tr-figure-box", {}, this.raster.canvas, this.svg);
    /** @type {HTMLElement} */
    this.element = this.box;
    this.redraw = oncePerFrame(() => {
      this.paint();
      this.highlight(view.highlighted.tasks, view.highlighted.place);
    });
    this.sizes = new ResizeObserver(() => this.redraw());
    this.sizes.observe(this.box);
    this.svg.addEventListener("pointermove", (event) => this.outlinePiece(event));
    this.svg.addEventListener("pointerdown", (event) => this.outlinePiece(event)); // a touch is not preceded by a move
    this.svg.addEventListener("pointerover", (event) => this.hover(closest(event, "[data-piece]")));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("click", (event) => this.click(event));
  }

  remove() {
    this.sizes.disconnect();
    this.redraw.cancel();
  }

  /** @param {Picture} picture */
  draw(picture) {
    this.picture = picture;
    this.paint();
  }

  paint() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!this.picture || width < 60 || height < 40) return;
    const { columns, rows } = this.picture;
    const left = Math.max(MARGIN.left, labelWidth(rows[0] ?? { cuts: [] }) + LABEL_GAP);
    const [x, y] = [rows.length ? left : 2, columns.length ? MARGIN.top : 2];
    this.area = { x, y, width: width - x - MARGIN.right, height: height - y - MARGIN.bottom };
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const pieces = this.isRaster
      ? this.pieces.map((piece) => ({ rects: piece.rects.map((rect) => this.boxOf(rect)), fills: this.fills(piece) }))
      : [];
    this.raster.set(pieces, width, height);
    this.groups = this.isRaster ? [] : this.pieces.map((piece, number) => this.group(piece, number));
    this.svg.replaceChildren(...this.rulers(), ...this.groups);
    this.outlined = null;
  }

  // ── what a subclass provides ──

  /** @returns {P[]} */
  get pieces() {
    return [];
  }

  /** @param {P} _piece @returns {string[]} */
  fills(_piece) {
    return [];
  }

  /** @param {number} _piece @returns {Attributes} */
  attributes(_piece) {
    return {};
  }

  /** @param {P} _piece @param {number} number @returns {SVGElement} */
  group(_piece, number) {
    return s("g", this.attributes(number));
  }

  /** @param {number} _piece @returns {Place} */
  placeOf(_piece) {
    throw new TypeError();
  }

  /** @param {number} _piece */
  describe(_piece) {
    return "";
  }

  /** @param {Set<number> | null} _tasks @param {Place | null} _place */
  highlight(_tasks, _place) {}

  // ── the pointer ──

  get isRaster() {
    return this.pieces.length > MANY;
  }

  /** @param {HTMLElement | null} element of a piece */
  hover(element) {
    if (element) element.dataset.tip = this.describe(Number(element.dataset.piece));
    this.view.hover(element ? this.placeOf(Number(element.dataset.piece)) : null);
  }

  /** @param {MouseEvent} event */
  click(event) {
    const piece = closest(event, "[data-piece]")?.dataset.piece;
    if (piece !== undefined) this.view.pin(this.placeOf(Number(piece)));
  }

  /**
   * If the pieces are painted as one image, make an element for the piece under the pointer.
   * @param {PointerEvent} event
   */
  outlinePiece(event) {
    if (!this.picture || !this.isRaster || closest(event, "[data-piece]")) return;
    this.outlined?.remove();
    const { x, y } = pointIn(event, this.svg);
    const piece = this.raster.find(x, y);
    this.outlined = piece < 0 ? null : this.outline(piece);
    if (this.outlined) this.svg.append(this.outlined);
    this.hover(/** @type {HTMLElement | null} */ (/** @type {Element | null} */ (this.outlined)));
  }

  /** @param {number} piece */
  outline(piece) {
    const rects = this.raster.pieces[piece].rects.map((box) => s("rect.mw-tr-outline", { ...box }));
    return s("g", this.attributes(piece), ...rects);
  }

  leave() {
    this.outlined?.remove();
    this.outlined = null;
    this.view.hover(null);
  }

  // ── geometry ──

  /** A rectangle in CSS pixels. @param {Rect} rect @returns {Box} */
  boxOf([left, top, right, bottom]) {
    const { x, y, width, height } = this.area;
    return { x: x + left * width, y: y + top * height, width: (right - left) * width, height: (bottom - top) * height };
  }

  /** The names and cuts of the outermost dim along each side; a mesh shows only its own cuts. */
  rulers() {
    const { area, picture } = this;
    const [column] = picture.columns;
    const [row] = picture.rows;
    /** @type {SVGElement[]} */
    const found = [];
    if (column) {
      const [name, ruler] = ["mw-tr-ruler-name", "mw-tr-ruler mw-tr-middle"];
      found.push(text(area.x, area.y - 6, `dim ${column.dim} →`, name));
      for (const { along, cut } of this.cuts(column, area.width, "across"))
        found.push(text(area.x + along, area.y - 6, cut, ruler));
    }
    if (row) {
      const [name, ruler] = ["mw-tr-ruler-name mw-tr-end", "mw-tr-ruler mw-tr-end"];
      found.push(text(area.x - 4, area.y + 10, `dim ${row.dim}`, name), text(area.x - 4, area.y + 22, "↓", name));
      for (const { along, cut } of this.cuts(row, area.height, "down"))
        found.push(text(area.x - 4, area.y + along + 4, cut, ruler));
    }
    return found;
  }

  /**
   * The numbers of the cuts for which there is room.
   * @param {Dim} dim @param {number} size @param {"across" | "down"} way
   */
  cuts({ dim, cuts, at }, size, way) {
    const width = way === "across" ? labelWidth({ cuts }) : 0;
    const distance = Math.max(LABEL_DISTANCE[way], width + LABEL_GAP);
    const most = size - Math.max(12, width / 2);
    const ends = this.side ? this.picture[this.side].ends[dim] : null;
    let last = -distance;
    const found = [];
    for (let i = 1; i < cuts.length - 1; i++) {
      const along = at[i] * size;
      const isInside = along >= NAME_SIZE[way] && along <= most;
      if (along - last < distance || !isInside || (ends && !ends.includes(cuts[i]))) continue;
      found.push({ along, cut: String(cuts[i]) });
      last = along;
    }
    return found;
  }

  /** @param {number} host */
  colour(host) {
    const { palette } = this.view.model;
    return palette[this.picture.hosts.indexOf(host) % palette.length];
  }
}

/** The width of the longest number of a cut in CSS pixels. @param {Pick<Dim, "cuts">} dim */
const labelWidth = ({ cuts }) => String(cuts.at(-2) ?? "").length * DIGIT;

/** @param {number} x @param {number} y @param {string} words @param {string} kind @param {string | null} [fill] */
export function text(x, y, words, kind, fill = null) {
  return s("text", { x, y, class: kind, fill }, words);
}
