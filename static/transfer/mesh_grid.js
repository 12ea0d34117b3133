// The sharding of a tensor over a mesh: the parts of the tensor with their ranks, and the mesh itself.

/** @import { Box } from "../kit/types" */
/** @import { MeshPiece, MeshSide, Picture, Place, Side } from "./types" */

import { closest, consume, findAll, focusedElement, h, s } from "../kit/dom.js";
import { ink, rgb } from "../kit/palette.js";
import { listRanks } from "./format.js";
import { Grid, OPACITY, text } from "./grid.js";
import { gapOf } from "./raster.js";

const MANY_RANKS = 96; // number of ranks of a mesh from which the ranks have no numbers
const CHIP = { width: 22, height: 15, gap: 3 };
const FEW_CHIPS = 64; // largest number of chips of a box that are repeated in each of its pieces

/**
 * The sharding of a tensor over a mesh: a box for each distinct piece, with a chip for each rank that holds it.
 * @extends {Grid<MeshPiece>}
 */
export class MeshGrid extends Grid {
  at = 0; // the place of the rank with the tab stop
  /** @type {HTMLElement[]} */ ranks = [];
  /** @type {Map<number, MeshPiece>} */ boxOfPlace = new Map();

  /** @param {import("./transfer.js").Transfer} view @param {Side} side */
  constructor(view, side) {
    super(view, `The tensor on the ${side} mesh`, side);
    this.ownSide = side;
    const label = `Ranks of the ${side} mesh: arrow keys move the focus, Escape clears the selection`;
    this.mesh = h("div.mw-tr-mesh", { role: "grid", "aria-multiselectable": "true", "aria-label": label });
    this.caption = h("div.mw-tr-caption");
    const below = h("div.mw-tr-below", {}, this.mesh, this.caption);
    this.element = h("div.mw-tr-side", {}, this.box, below);
    this.mesh.addEventListener("pointerover", (event) => {
      const place = this.rankAt(event);
      if (place) closest(event, ".mw-tr-rank")?.setAttribute("data-tip", this.describePlaces(place.places));
      view.hover(place);
    });
    this.mesh.addEventListener("pointerleave", () => view.hover(null));
    this.mesh.addEventListener("click", (event) => {
      const place = this.rankAt(event);
      if (place) view.pin(place);
    });
    this.mesh.addEventListener("keydown", (event) => this.key(event));
    this.mesh.addEventListener("focusin", (event) =>
      this.onfocus(Number(closest(event, ".mw-tr-rank")?.dataset.place)),
    );
  }

  /** @returns {MeshSide} */
  get data() {
    return this.picture[this.ownSide];
  }

  /** @param {Picture} picture */
  draw(picture) {
    this.picture = picture;
    this.boxOfPlace = new Map(this.data.boxes.flatMap((box) => box.places.map((place) => [place, box])));
    this.drawMesh();
    super.draw(picture);
  }

  get pieces() {
    return this.data.boxes;
  }

  /** @param {MeshPiece} piece */
  fills({ places }) {
    const { hosts } = this.data;
    return [...new Set(places.map((place) => hosts[place]))].map((host) => this.colour(host));
  }

  /** @param {number} piece */
  attributes(piece) {
    return { class: "mw-tr-box", "data-piece": piece };
  }

  /** @param {number} piece */
  placeOf(piece) {
    return { side: this.ownSide, places: this.pieces[piece].places };
  }

  /** @param {number} piece */
  describe(piece) {
    return this.describePlaces(this.pieces[piece].places);
  }

  // ── the mesh ──

  /** Draw the ranks in rows of the last axis. A rank without a part of the tensor is hollow. */
  drawMesh() {
    const { shape, ranks, hosts } = this.data;
    const columns = shape[shape.length - 1];
    const isSmall = ranks.length > MANY_RANKS;
    const hadFocus = this.mesh.contains(focusedElement(this.mesh));
    this.at = Math.min(this.at, ranks.length - 1);
    this.ranks = ranks.map((rank, place) => {
      const fill = this.colour(hosts[place]);
      const attributes = { role: "gridcell", "data-place": place, "data-empty": !this.boxOfPlace.has(place) };
      const focusable = { tabindex: place === this.at ? 0 : -1, "aria-label": this.describePlaces([place]) };
      const style = { "--fill": fill, "--ink": ink(rgb(fill)) };
      return h("span.mw-tr-rank", { ...attributes, ...focusable, style }, isSmall ? "" : String(rank));
    });
    this.mesh.toggleAttribute("data-small", isSmall);
    this.mesh.style.setProperty("--columns", String(Math.min(columns, 64)));
    this.mesh.style.setProperty("--widest", `${Math.max(26, 8 + 7 * String(Math.max(...ranks)).length)}px`);
    const rows = Array.from({ length: Math.ceil(ranks.length / columns) }, (_, row) =>
      h("div.mw-tr-row", { role: "row" }, ...this.ranks.slice(row * columns, (row + 1) * columns)),
    );
    this.mesh.replaceChildren(...rows);
    if (hadFocus) this.ranks[this.at].focus({ preventScroll: true });
    const down = shape.length > 2 ? "other axes ↓" : "axis 0 ↓";
    const axes = shape.length > 1 ? `axis ${shape.length - 1} →, ${down}` : "axis 0 →";
    this.caption.replaceChildren(`mesh ${shape.join(" × ")}`, h("br"), axes);
  }

  // ── boxes ──

  /** @param {MeshPiece} piece @param {number} number */
  group(piece, number) {
    const group = s("g", this.attributes(number));
    const fills = this.fills(piece);
    piece.rects.forEach((rect, part) => {
      const box = this.boxOf(rect);
      const width = box.width / fills.length;
      const stripes = fills.map((fill, i) => s("rect.mw-tr-tint", { ...box, x: box.x + i * width, width, fill }));
      group.append(...stripes, s("rect.mw-tr-edge", { ...box, "stroke-width": gapOf(box) }));
      if (!part || piece.rects.length * piece.places.length <= FEW_CHIPS) group.append(...this.chips(box, piece));
    });
    return group;
  }

  /**
   * A chip for each rank that holds a piece, as far as there is room.
   * @param {Box} box @param {MeshPiece} piece
   */
  chips(box, { places }) {
    const { ranks, hosts } = this.data;
    const letters = Math.max(...places.map((place) => String(ranks[place]).length));
    const width = Math.min(CHIP.width, box.width - 6);
    const across = width < 4 + 6 * letters ? 0 : Math.max(1, Math.floor((box.width - 4) / (CHIP.width + CHIP.gap)));
    const room = across * Math.floor((box.height - 3) / (CHIP.height + CHIP.gap));
    if (room <= 0) return [];
    const shown = places.length > room ? places.slice(0, room - 1) : places;
    const x = (/** @type {number} */ number) => box.x + 4 + (number % across) * (CHIP.width + CHIP.gap);
    const y = (/** @type {number} */ number) => box.y + 4 + Math.floor(number / across) * (CHIP.height + CHIP.gap);
    const chips = shown.flatMap((place, i) => {
      const fill = this.colour(hosts[place]);
      const chip = { x: x(i), y: y(i), width, height: CHIP.height, rx: 3, style: { "--fill": fill } };
      const middle = x(i) + width / 2;
      return [
        s("rect.mw-tr-chip", { ...chip, "data-rank": ranks[place] }),
        text(middle, y(i) + CHIP.height - 4, String(ranks[place]), "mw-tr-chip-words mw-tr-middle", ink(rgb(fill))),
      ];
    });
    const [rest, end] = [places.length - shown.length, shown.length];
    return rest ? [...chips, text(x(end), y(end) + CHIP.height - 4, `+${rest}`, "mw-tr-more")] : chips;
  }

  /**
   * Description of the part of the tensor that ranks hold; all given ranks hold the same part.
   * @param {number[]} places
   */
  describePlaces(places) {
    const { ranks, hosts } = this.data;
    const box = this.boxOfPlace.get(places[0]);
    const held = box ? `[${box.box}], ${box.size}` : "holds no part of this tensor";
    if (places.length > 1) return `${held}, on ranks ${listRanks(places.map((place) => ranks[place]))}`;
    const rank = `rank ${ranks[places[0]]}, ${this.view.model.host_word} ${hosts[places[0]]}`;
    return box ? `${held}, on ${rank}` : `${rank} ${held}`;
  }

  // ── the pointer and the keyboard on the mesh ──

  /** @param {Event} event */
  rankAt(event) {
    const place = closest(event, ".mw-tr-rank")?.dataset.place;
    return place === undefined ? null : { side: this.ownSide, places: [Number(place)] };
  }

  /** Arrow keys move the focus, and pin each rank as a press does. @param {KeyboardEvent} event */
  key(event) {
    if (!this.picture || event.ctrlKey || event.metaKey || event.altKey) return;
    const { at } = this;
    const { shape } = this.data;
    const columns = shape[shape.length - 1];
    const first = at - (at % columns);
    const place = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: at + columns,
      ArrowUp: at - columns,
      Home: first,
      End: first + columns - 1,
      Enter: at,
      " ": at,
    }[event.key];
    if (event.key === "Escape" && this.view.pinned) this.view.pin(null);
    else if (place === undefined) return;
    else this.focusRank(place);
    consume(event);
  }

  /** @param {number} place */
  focusRank(place) {
    if (!this.ranks[place]) return;
    this.ranks[place].focus({ preventScroll: true });
    this.ranks[place].scrollIntoView({ block: "nearest" });
    const { pinned } = this.view;
    const isPinned = pinned?.side === this.ownSide && String(pinned.places) === String(place);
    if (!isPinned) this.view.pin({ side: this.ownSide, places: [place] }, false);
  }

  /** @param {number} place */
  onfocus(place) {
    this.ranks[this.at].tabIndex = -1;
    this.at = place;
    this.ranks[place].tabIndex = 0;
    this.ranks[place].dataset.tip = this.ranks[place].ariaLabel ?? "";
  }

  // ── highlighting ──

  /**
   * Highlight the boxes and ranks that `tasks` send or receive, or the boxes and ranks of a place of this mesh.
   * @param {Set<number> | null} tasks @param {Place | null} place
   */
  highlight(tasks, place) {
    if (!this.picture) return;
    const { ranks } = this.data;
    const { touched, senders } = this.ranksOf(tasks, place);
    const own = place?.side === this.ownSide ? new Set(place.places) : null;
    const isOn = (/** @type {number} */ place) => (own ? own.has(place) : touched.has(ranks[place]));
    const { pinned } = this.view;
    const selected = new Set(pinned?.side === this.ownSide ? pinned.places : []);
    this.ranks.forEach((element, place) => {
      const isSelected = String(selected.has(place));
      if (element.ariaSelected !== isSelected) element.ariaSelected = isSelected;
      element.toggleAttribute("data-on", isOn(place));
      element.toggleAttribute("data-sends", senders.has(ranks[place]));
    });
    this.highlightBoxes(
      this.pieces.map(({ places }) => places.some(isOn)),
      senders,
      tasks !== null,
    );
  }

  /** @param {boolean[]} isOn @param {Set<number>} senders @param {boolean} isHighlighting */
  highlightBoxes(isOn, senders, isHighlighting) {
    if (this.isRaster) {
      const { tint, strong, faint } = OPACITY;
      return this.raster.paint((piece) => (isHighlighting ? (isOn[piece] ? strong : faint) : tint));
    }
    this.groups.forEach((group, number) => group.toggleAttribute("data-on", isOn[number]));
    for (const chip of findAll(this.svg, ".mw-tr-chip"))
      chip.toggleAttribute("data-sends", senders.has(Number(chip.dataset.rank)));
  }

  /**
   * The ranks of this mesh that tasks involve, and the ranks that send a selected task.
   * @param {Set<number> | null} tasks @param {Place | null} place
   */
  ranksOf(tasks, place) {
    const involved = [...(tasks ?? [])].map((number) => this.picture.tasks[number]);
    const isSource = this.ownSide === "source";
    const touched = new Set(
      involved.flatMap(({ senders, receivers, keepers }) => (isSource ? senders : [...receivers, ...keepers])),
    );
    const hasSender = isSource && place?.task !== undefined;
    return { touched, senders: new Set(hasSender ? involved.map(({ sender }) => sender) : []) };
  }
}
