// Places of the board: devices of a node, with a chip for each expert that they hold.

import { h } from "../kit/canvas.js";
import { count } from "../kit/numbers.js";
import { keyOf, parse } from "./gestures.js";
import { CHIP, PLACE, arrange } from "./layout.js";

/** How much of the longest bar a load is, with a tick at an even share. */
function loadBar(part, even) {
  const percent = (share) => `${(100 * share).toFixed(2)}%`;
  return h(
    "div",
    { class: "mw-xbar", "aria-hidden": "true" },
    h("i", { style: { width: percent(part) } }),
    h("b", { style: { left: percent(even) } }),
  );
}

/** Draws the places of the board with their chips, and finds them. */
export class Places {
  /** @param {import("./experts.js").Experts} experts */
  constructor(experts) {
    this.experts = experts;
    this.chips = new Map(); // key: element
    this.tags = new Map(); // device: element
    this.outlined = null; // the device whose groups are outlined
  }

  drawBoard() {
    const { places, esp } = this.experts.picture;
    const nodes = new Map();
    places.forEach((place, number) => nodes.set(place.node, [...(nodes.get(place.node) ?? []), number]));
    const most = Math.max(...[...nodes.values()].map((own) => own.length));
    const fullest = Math.max(1, ...places.map(({ held }) => held.length));
    const layout = arrange(this.experts.board.clientWidth, this.experts.board.clientHeight, nodes.size, most, fullest);
    this.chips.clear();
    this.tags.clear();
    this.outlined = this.experts.hovered = null; // of what is gone
    this.experts.root.dataset.heads = layout.headed ? (layout.width < 22 * esp + 48 ? "load" : "all") : "none";
    const style = {
      "--place-edge": `${layout.edge - 1}px`,
      "--chip-gap": `${layout.gap}px`,
      "--place-w": `${layout.width}px`,
      "--place-h": `${layout.height}px`,
      "--columns": layout.columns,
      "--node-columns": layout.nodeColumns,
    };
    for (const [name, value] of Object.entries(style)) this.experts.board.style.setProperty(name, value);
    const panels = [...nodes].map(([node, own]) =>
      h(
        "div",
        { class: "mw-xnode", role: "group", "aria-label": `node ${node}` },
        h("div", { class: "mw-xnode-head" }, `node ${node}`),
        h("div", { class: "mw-xplaces" }, ...own.map((number) => this.place(number, places[number], layout, esp))),
      ),
    );
    this.experts.board.replaceChildren(...panels);
    this.experts.selected = new Set([...this.experts.selected].filter((key) => this.chips.has(key)));
    if (!this.element(this.experts.at)) this.experts.at = this.elsewhere();
    this.element(this.experts.at)?.setAttribute("tabindex", "0");
    this.experts.markSelected();
  }

  /** Where the keyboard goes on when its chip is gone: to the same expert elsewhere, else to the first chip. */
  elsewhere() {
    const expert = typeof this.experts.at === "string" ? `${parse(this.experts.at)[0]}@` : "";
    const keys = [...this.chips.keys()];
    return keys.find((key) => expert && key.startsWith(expert)) ?? keys[0] ?? -1;
  }

  place(
    number,
    { name, devices, held, chips: copies, level, load, share, bar, memory },
    { size, width, barred, footed },
    esp,
  ) {
    const tags = devices.map((device) => this.tag(device, esp === 1));
    const experts = count(held.length, "expert");
    const words = footed
      ? `${name}, ${memory} a layer`
      : `${name}: ${experts}, ${share} of the load (${load}), ${memory} a layer`;
    const head = h(
      "div",
      { class: "mw-xplace-head" },
      h("span", { class: "mw-xtags" }, ...tags),
      h("span", { class: "mw-xload" }, load),
    );
    const chips = held.map((expert, at) => this.chip(expert, number, name, size, copies[at]));
    const parts = [
      head,
      barred ? loadBar(bar, this.experts.picture.even) : null,
      h("div", { class: "mw-xchips" }, ...chips),
      footed
        ? h(
            "div",
            { class: "mw-xplace-foot" },
            [experts, share, width < PLACE.width ? "" : memory].filter(Boolean).join(" · "),
          )
        : null,
    ];
    const box = h(
      "div",
      {
        class: "mw-xplace",
        "data-place": number,
        "data-words": words,
        role: held.length ? "presentation" : "option",
        "aria-label": held.length ? null : `${name}, no experts`,
        "aria-selected": held.length ? null : "false",
        tabindex: held.length ? null : -1,
        style: { "--load": `var(--load-${level})` },
      },
      ...parts,
    );
    return box;
  }

  tag(device, alone) {
    const element = h("span", { class: "mw-xdevice", "data-device": device }, alone ? `dev ${device}` : String(device));
    this.tags.set(device, element);
    return element;
  }

  chip(expert, place, name, size, { level, size: part, share, words, copies }) {
    const side = Math.max(CHIP.least, Math.round(size * (0.62 + 0.38 * part)));
    const told = [
      side >= Math.max(CHIP.numbered, CHIP.digit * String(expert).length + 4) && h("b", {}, String(expert)),
      side >= CHIP.told && h("small", {}, share),
    ].filter(Boolean);
    const chip = h(
      "div",
      {
        class: "mw-xchip",
        role: "option",
        tabindex: -1,
        "data-key": keyOf(expert, place),
        "data-expert": expert,
        "aria-selected": "false",
        "aria-label": `${words}; here on ${name}`,
        style: {
          width: `${side}px`,
          height: `${side}px`,
          "--load": `var(--load-${level})`,
          "--on-load": `var(--on-load-${level})`,
        },
      },
      ...told,
    );
    chip.toggleAttribute("data-copied", copies > 1);
    chip.toggleAttribute("data-small", side < 19);
    chip.toggleAttribute("data-large", side >= CHIP.large);
    this.chips.set(keyOf(expert, place), chip);
    return chip;
  }

  /** Outline the devices that share a group with this one. */
  outline(device) {
    if (this.outlined === device) return;
    this.outlined = device;
    for (const tag of this.tags.values()) tag.removeAttribute("data-in");
    if (device === null) return;
    for (const [kind, groups] of Object.entries(this.experts.picture.groups)) {
      const group = groups.find((members) => members.includes(device)) ?? [];
      for (const member of group) {
        const tag = this.tags.get(member);
        tag.setAttribute("data-in", `${tag.getAttribute("data-in") ?? ""} ${kind}`.trim());
      }
    }
  }

  // ── small things ──

  element(at) {
    return typeof at === "number"
      ? this.experts.board.querySelector(`.mw-xplace[data-place="${-1 - at}"][tabindex]`)
      : this.chips.get(at);
  }

  placeElement(place) {
    return this.experts.board.querySelector(`.mw-xplace[data-place="${place}"]`);
  }
}
