// A tensor as a mesh holds it: who has which part, and the mesh itself.

import { h, s } from "../kit/canvas.js";
import { ink, rgb } from "../kit/palette.js";
import { between } from "./crowding.js";
import { some } from "./format.js";
import { Grid, STRENGTH, text } from "./grid.js";

export const SMALL = 96; // ranks of a mesh from which on they bear no numbers

/** A mesh's cut: a box for each distinct piece, with a chip for each rank that holds it. */
export class Cut extends Grid {
  constructor(view, side) {
    super(view, `The tensor as the ${side} holds it`, side);
    this.here = 0; // the place of the rank that the keyboard is at, or would come to
    const label = `Ranks of the ${side} mesh: arrows walk them, Escape leaves them`;
    this.mesh = h("div", { class: "mw-tr-mesh", role: "grid", "aria-multiselectable": "true", "aria-label": label });
    this.caption = h("div", { class: "mw-tr-caption" });
    this.element = h(
      "div",
      { class: "mw-tr-side" },
      this.box,
      h("div", { class: "mw-tr-below" }, this.mesh, this.caption),
    );
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
      return h(
        "span",
        { class: "mw-tr-rank", ...says, "data-places": place, "data-empty": !this.boxOf.has(place), style },
        small ? "" : String(rank),
      );
    });
    this.mesh.toggleAttribute("data-small", small);
    this.mesh.style.setProperty("--columns", Math.min(columns, 64));
    this.mesh.style.setProperty("--widest", `${Math.max(26, 8 + 7 * String(Math.max(...ranks)).length)}px`);
    const first = this.ranks.filter((_, place) => place % columns === 0);
    this.mesh.replaceChildren(
      ...first.map((_, row) =>
        h("div", { class: "mw-tr-row", role: "row" }, ...this.ranks.slice(row * columns, (row + 1) * columns)),
      ),
    );
    if (hasKeys) this.ranks[this.here].focus({ preventScroll: true });
    const lines =
      shape.length > 1 ? `axis ${shape.length - 1} →, ${shape.length > 2 ? "the others" : "axis 0"} ↓` : "axis 0 →";
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
    const corner = (number) => [
      at.x + 4 + (number % across) * (CHIP.width + CHIP.gap),
      at.y + 4 + Math.floor(number / across) * (CHIP.height + CHIP.gap),
    ];
    const found = shown.flatMap((place, number) => {
      const [x, y] = corner(number);
      const fill = this.colour(hosts[place]);
      return [
        s("rect", {
          x,
          y,
          width: size,
          height: CHIP.height,
          rx: 3,
          class: "mw-tr-chip",
          "data-rank": ranks[place],
          style: { "--fill": fill },
        }),
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
    else this.walk(place);
    event.preventDefault();
    event.stopPropagation();
  }

  walk(place) {
    if (!this.ranks[place]) return;
    this.ranks[place].focus({ preventScroll: true });
    this.ranks[place].scrollIntoView({ block: "nearest" });
    if (this.view.pinned?.side !== this.side || String(this.view.pinned.places) !== String(place))
      this.view.pin({ side: this.side, places: [place] }, false);
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
      for (const rank of this.side === "source" ? task.senders : [...task.receivers, ...task.keepers])
        touched.add(rank);
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
    if (this.isCrowd)
      return this.crowd.paint((piece) => (!tasks ? STRENGTH.tint : boxOn[piece] ? STRENGTH.strong : STRENGTH.faint));
    this.groups?.forEach((group, number) => group.toggleAttribute("data-on", boxOn[number]));
    for (const chip of this.svg.querySelectorAll(".mw-tr-chip"))
      chip.toggleAttribute("data-sends", senders.has(Number(chip.dataset.rank)));
  }
}

export const CHIP = { width: 22, height: 15, gap: 3 };
export const FEW_CHIPS = 64; // of a box in pieces, so that each piece shows them
