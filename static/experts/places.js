// Places on the board: the devices of a node, with a chip for each of their experts.

/** @import { BoardLayout, ChipData, ExpertMark, Place } from "./types" */

import { signOf } from "../kit/differences.js";
import { find, h, setStyle } from "../kit/dom.js";
import { count } from "../kit/numbers.js";
import { keyOf, parseKey } from "./gestures.js";
import { CHIP, PLACE, arrange, headForm } from "./layout.js";

/**
 * A bar for a load, given as a part of the longest bar, with a tick at an even share.
 * @param {number} part @param {number} even
 */
function loadBar(part, even) {
  const percent = (/** @type {number} */ share) => `${(100 * share).toFixed(2)}%`;
  const bar = [h("i", { style: { width: percent(part) } }), h("b", { style: { left: percent(even) } })];
  return h("div.mw-xbar", { "aria-hidden": "true" }, ...bar);
}

export class Places {
  /** @type {Map<string | number | null, HTMLElement>} */ chips = new Map(); // by key
  /** @type {Map<number, HTMLElement>} */ tags = new Map(); // by device
  /** The device whose groups are outlined. @type {number | null} */ outlined = null;

  /** @param {import("./experts.js").Experts} experts */
  constructor(experts) {
    this.experts = experts;
  }

  draw() {
    const { board, picture, root, zoom } = this.experts;
    const { places } = picture;
    /** @type {Map<number, number[]>} */
    const nodes = new Map(); // numbers of places by node
    places.forEach(({ node }, number) => nodes.set(node, [...(nodes.get(node) ?? []), number]));
    const most = Math.max(...[...nodes.values()].map((own) => own.length));
    const fullest = Math.max(1, ...places.map(({ held }) => held.length));
    const layout = arrange(zoom.size.width, zoom.size.height, nodes.size, most, fullest);
    this.chips.clear();
    this.tags.clear();
    this.outlined = null;
    this.experts.hovered = "";
    const head = headForm(layout, places);
    root.dataset.heads = head;
    setStyle(board, {
      "--place-edge": `${layout.edge - 1}px`,
      "--chip-gap": `${layout.gap}px`,
      "--place-w": `${layout.width}px`,
      "--place-h": `${layout.height}px`,
      "--columns": layout.columns,
      "--node-columns": layout.nodeColumns,
    });
    const panels = [...nodes].map(([node, own]) =>
      h(
        "div.mw-xnode",
        { role: "group", "aria-label": `Node ${node}` },
        h("div.mw-xnode-head", {}, `node ${node}`),
        h("div.mw-xplaces", {}, ...own.map((number) => this.place(number, places[number], layout, head))),
      ),
    );
    board.replaceChildren(...panels);
    this.restore();
  }

  /** Restore the selection and the focus after a redraw, as far as the chips still exist. */
  restore() {
    const { experts } = this;
    experts.selected = new Set([...experts.selected].filter((key) => this.chips.has(key)));
    if (!this.element(experts.at)) experts.at = this.substitute(experts.at);
    this.element(experts.at)?.setAttribute("tabindex", "0");
    experts.markSelected();
  }

  /**
   * The chip to focus if a chip no longer exists: another replica of the expert, else the first chip.
   * @param {string | number | null} at
   */
  substitute(at) {
    const prefix = typeof at === "string" ? `${parseKey(at)[0]}@` : null;
    const keys = /** @type {string[]} */ ([...this.chips.keys()]);
    return keys.find((key) => prefix && key.startsWith(prefix)) ?? keys[0] ?? -1;
  }

  /** @param {number} number @param {Place} place @param {BoardLayout} layout @param {string} head */
  place(number, place, layout, head) {
    const { name, devices, held, level, load, share, bar, memory } = place;
    const experts = count(held.length, "expert");
    const words = layout.footed
      ? `${name}, ${memory} per layer`
      : `${name}: ${experts}, ${share} of the load (${load}), ${memory} per layer`;
    const tags = devices.map((device) => this.tag(device, head === "names" ? `dev ${device}` : String(device)));
    /** @type {HTMLElement[]} */
    const chips = held.map((expert, i) => this.chip(expert, number, name, layout.size, place.chips[i]));
    chips.push(...this.mark(number));
    const foot = [experts, share, layout.width < PLACE.width ? "" : memory].filter(Boolean).join(" · ");
    const isEmpty = !held.length;
    return h(
      "div.mw-xplace",
      {
        "data-place": number,
        "data-words": words,
        role: isEmpty ? "option" : "presentation",
        "aria-label": isEmpty && `${name}, no experts`,
        "aria-selected": isEmpty && "false",
        tabindex: isEmpty && -1,
        style: { "--load": `var(--load-${level})` },
      },
      h("div.mw-xplace-head", {}, h("span.mw-xtags", {}, ...tags), h("span.mw-xload", {}, load)),
      layout.barred && loadBar(bar, this.experts.picture.even),
      h("div.mw-xchips", {}, ...chips),
      layout.footed && h("div.mw-xplace-foot", {}, foot),
    );
  }

  /**
   * Mark the chips that the pinned design does not have on a place, and return outlines of those that only it has.
   * @param {number} number
   */
  mark(number) {
    const marks = /** @type {ExpertMark[]} */ (this.experts.differences.marks);
    return marks.flatMap(({ kind, expert, place, words }) => {
      if (place !== number) return [];
      if (kind === "added") this.chips.get(keyOf(expert, place))?.setAttribute("data-mark", signOf(kind));
      return kind === "removed" ? [h("span.mw-xwas", { title: words }, `${signOf(kind)}${expert}`)] : [];
    });
  }

  /** @param {number} device @param {string} text */
  tag(device, text) {
    const element = h("span.mw-xdevice", { "data-device": device }, text);
    this.tags.set(device, element);
    return element;
  }

  /** @param {number} expert @param {number} place @param {string} name @param {number} size @param {ChipData} data */
  chip(expert, place, name, size, { level, size: part, share, words, copies }) {
    const side = Math.max(CHIP.least, Math.round(size * (0.62 + 0.38 * part)));
    const hasNumber = side >= Math.max(CHIP.numbered, CHIP.digit * String(expert).length + 4);
    const key = keyOf(expert, place);
    const chip = h(
      "div.mw-xchip",
      {
        role: "option",
        tabindex: -1,
        "data-key": key,
        "data-expert": expert,
        "data-copied": copies > 1,
        "data-small": side < 19,
        "data-large": side >= CHIP.large,
        "aria-selected": "false",
        "aria-label": `${words}; on ${name}`,
        style: {
          width: `${side}px`,
          height: `${side}px`,
          "--load": `var(--load-${level})`,
          "--on-load": `var(--on-load-${level})`,
        },
      },
      hasNumber && h("b", {}, String(expert)),
      side >= CHIP.shared && h("small", {}, share),
    );
    this.chips.set(key, chip);
    return chip;
  }

  /** Mark all replicas of an expert, or none. @param {string | undefined} expert */
  markReplicas(expert) {
    for (const chip of this.chips.values()) chip.toggleAttribute("data-same", chip.dataset.expert === expert);
  }

  /** Outline the devices that share a group with a device, or none. @param {number | null} device */
  outline(device) {
    if (this.outlined === device) return;
    this.outlined = device;
    for (const tag of this.tags.values()) tag.removeAttribute("data-in");
    if (device === null) return;
    for (const [kind, groups] of Object.entries(this.experts.picture.groups)) {
      for (const member of groups.find((members) => members.includes(device)) ?? []) {
        const tag = this.tags.get(member);
        tag?.setAttribute("data-in", `${tag.getAttribute("data-in") ?? ""} ${kind}`.trim());
      }
    }
  }

  /** The chip of a key, or the empty place of -1 - number. @param {string | number | null} at */
  element(at) {
    return typeof at === "number"
      ? find(this.experts.board, `.mw-xplace[data-place="${-1 - at}"][tabindex]`)
      : this.chips.get(at);
  }

  /** @param {number | null} place */
  placeElement(place) {
    return /** @type {HTMLElement} */ (find(this.experts.board, `.mw-xplace[data-place="${place}"]`));
  }
}
