// The wave as SVG: lanes, the path of a microbatch, stages and the grips between them.

import { meshColour, s } from "../kit/canvas.js";
import { clamp, count } from "../kit/numbers.js";
import { r } from "./arcs.js";
import { hop, percent, place } from "./layout.js";

const STAGES_HELP =
  "stages: arrows walk, Alt with left or right gives a layer to the neighbour, Alt with up or down carries the " +
  "stage to that mesh, where Enter drops it and Escape leaves it";

export const EQUAL_SHARES =
  "unit costs price every stage the same while its layers are not set by hand, also where they do not divide";

const shortened = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

/** Draws lanes, the path, the boxes of stages and the grips between them. */
export class WaveDrawing {
  /** @param {import("./wave.js").Wave} wave */
  constructor(wave) {
    this.wave = wave;
    this.id = Math.random().toString(36).slice(2, 8); // of its gradients, which the page shares
    this.back = s("g", { "aria-hidden": "true" });
    this.path = s("g", { "aria-hidden": "true" });
    this.stages = s("g", { role: "group", "aria-label": STAGES_HELP });
    this.grips = s("g", { "aria-hidden": "true" });
    this.stages.addEventListener("keydown", (event) => wave.keyboard.key(event));
  }

  drawBack() {
    const { edge, y, width, height, lane, slots } = this.wave.layout;
    const { meshes, groups } = this.wave.picture;
    const parts = [];
    const every = Math.ceil(13 / lane);
    meshes.forEach(({ name }, mesh) => {
      const colour = meshColour(this.wave.model.palette, mesh);
      parts.push(
        s("line", {
          class: "mw-lane",
          x1: edge.left - 6,
          x2: width - edge.right,
          y1: y(mesh),
          y2: y(mesh),
          style: { "--c": colour },
        }),
      );
      if (mesh % every) return;
      const size = clamp(lane * 0.8, 8, 14);
      parts.push(
        s("rect", {
          class: "mw-lane-badge",
          x: 0,
          y: y(mesh) - size / 2,
          width: 18,
          height: size,
          rx: 4,
          style: { "--c": colour },
        }),
        s(
          "text",
          {
            class: "mw-lane-rank",
            x: 9,
            y: y(mesh) + size * 0.27,
            "text-anchor": "middle",
            style: { "font-size": `${size * 0.76}px` },
          },
          String(mesh),
        ),
        s(
          "text",
          { class: "mw-lane-name", x: 24, y: y(mesh) + size * 0.3, style: { "font-size": `${clamp(size, 8, 12)}px` } },
          shortened(name, 11),
        ),
      );
    });
    for (const { label, first, end } of groups) {
      const [from, to] = [slots[first], slots[end - 1]];
      if (first)
        parts.push(s("line", { class: "mw-wave-edge", x1: from.x, x2: from.x, y1: 2, y2: height - edge.bottom }));
      if (to.x + to.size - from.x > 44) parts.push(s("text", { class: "mw-axis", x: from.x + 5, y: 10 }, label));
    }
    const wide = 9 + 6 * String(slots.length - 1).length; // px that the longest number and its distance take
    const step = [1, 2, 4, 8, 16, 32, 64, 128].find((number) => number * this.wave.layout.pitch >= wide) ?? 256;
    slots.forEach((slot, stage) => {
      if (stage % step === 0)
        parts.push(
          s("text", { class: "mw-axis", x: slot.middle, y: height - 3, "text-anchor": "middle" }, String(stage)),
        );
    });
    if (this.wave.picture.equal) {
      parts.push(
        s(
          "text",
          { class: "mw-axis mw-equal", x: width - edge.right, y: 10, "text-anchor": "end" },
          s("title", {}, EQUAL_SHARES),
          "priced as equal shares",
        ),
      );
    }
    parts.push(s("text", { class: "mw-axis", x: edge.left - 10, y: height - 3, "text-anchor": "end" }, "stage"));
    this.back.replaceChildren(...parts);
  }

  drawPath() {
    const { layout, picture } = this.wave;
    const parts = [this.gradients()];
    const thick = clamp(layout.lane * 0.11, 1.2, 4.5);
    this.wave.routes.forEach((route, replica) => {
      for (let stage = 0; stage + 1 < route.length; stage++) {
        const [a, b] = [route[stage], route[stage + 1]];
        const local = a === b;
        const stroke = local ? this.lineColour(a) : `url(#${this.gradient(a, b)})`;
        const style = { "stroke-width": `${local ? Math.max(1, thick * 0.6) : thick}px`, stroke };
        const kind = `mw-hop${local ? " mw-local" : ""}${replica ? " mw-replica" : ""}`;
        parts.push(s("path", { class: kind, d: hop(layout, route, stage), style }));
        if (!local && picture.meshes[a].node !== picture.meshes[b].node && layout.pitch > 14) {
          parts.push(s("path", { class: "mw-far", d: hop(layout, route, stage) }));
        }
      }
    });
    this.path.replaceChildren(...parts);
  }

  /** Of a mesh, as strong as a line has to be: 3 to 1 against the page. */
  lineColour(mesh) {
    return `color-mix(in oklab, ${meshColour(this.wave.model.palette, mesh)} 85%, light-dark(#000000, #ffffff))`;
  }

  gradient(a, b) {
    return `mw-${this.id}-${a}-${b}`;
  }

  /** From the colour of one mesh to that of the next, once a pair. */
  gradients() {
    const pairs = new Map();
    for (const route of this.wave.routes) {
      for (let stage = 0; stage + 1 < route.length; stage++) {
        if (route[stage] !== route[stage + 1])
          pairs.set(`${route[stage]}-${route[stage + 1]}`, [route[stage], route[stage + 1]]);
      }
    }
    const stops = (a, b) =>
      [a, b].map((mesh, end) =>
        s("stop", { offset: `${20 + 60 * end}%`, style: { "stop-color": this.lineColour(mesh) } }),
      );
    return s(
      "defs",
      {},
      ...[...pairs.values()].map(([a, b]) => s("linearGradient", { id: this.gradient(a, b) }, ...stops(a, b))),
    );
  }

  drawBoxes() {
    const { layers } = this.wave;
    const { routes } = this.wave;
    const wanted = routes.length * layers.length;
    while (this.wave.boxes.length > wanted) this.wave.boxes.pop().remove();
    while (this.wave.boxes.length < wanted) {
      const box = s(
        "g",
        { class: "mw-stage" },
        s("rect"),
        s("text", { class: "mw-layers", "text-anchor": "middle" }),
        s("text", { class: "mw-share", "text-anchor": "middle" }),
      );
      this.wave.boxes.push(box);
      this.stages.append(box);
    }
    this.wave.focus = clamp(this.wave.focus, 0, layers.length - 1);
    routes.forEach((route, replica) => {
      for (let stage = 0; stage < layers.length; stage++)
        this.drawBox(this.wave.boxes[replica * layers.length + stage], stage, replica, route[stage]);
    });
  }

  drawBox(box, stage, replica, mesh) {
    const { slots, y } = this.wave.layout;
    const { middle, width, height } = slots[stage];
    const [rect] = box.children;
    const changed = this.isChanged(stage, replica) ? " mw-changed" : "";
    box.dataset.stage = stage;
    box.dataset.replica = replica;
    box.setAttribute("class", `mw-stage${replica ? " mw-replica" : ""}${changed}`);
    box.style.setProperty("--c", meshColour(this.wave.model.palette, mesh));
    if (replica) {
      box.setAttribute("aria-hidden", "true");
      box.removeAttribute("tabindex");
    } else {
      box.removeAttribute("aria-hidden");
      box.setAttribute("role", "img");
      box.setAttribute("aria-label", this.wave.describe(stage));
      box.setAttribute("tabindex", stage === this.wave.focus ? 0 : -1);
    }
    place(rect, {
      x: middle - width / 2,
      y: y(mesh) - height / 2,
      width,
      height,
      rx: Math.min(7, width / 4, height / 3),
    });
    this.drawWords(box, stage, y(mesh));
  }

  /** Whether the gesture in flight changes a stage. */
  isChanged(stage, replica) {
    const { shift, carried } = this.wave.gestures;
    if (shift?.count && (stage === shift.boundary || stage === shift.boundary + 1)) return true;
    return stage === carried?.stage && replica === carried.replica;
  }

  /** Layers and share of a stage, as far as its box has room for them. */
  drawWords(box, stage, y) {
    const { middle, width, height } = this.wave.layout.slots[stage];
    const layers = this.wave.layers[stage];
    const [, number, share] = box.children;
    const two = width >= 40 && height >= 27;
    const one = width >= 7 + 6.5 * String(layers).length && height >= 12;
    const part = percent(this.wave.share(stage));
    const words = width >= 62 ? count(layers, "layer") : String(layers);
    number.textContent = one ? (width >= 100 && !two ? `${words} · ${part}` : words) : "";
    share.textContent = two ? part : "";
    for (const [text, at] of [
      [number, two ? -2 : 4],
      [share, 10],
    ]) {
      text.setAttribute("x", r(middle));
      text.setAttribute("y", r(y + at));
    }
  }

  /** What parts two stages can be taken anywhere between them, where there is room to take it. */
  drawGrips() {
    const { slots, pitch } = this.wave.layout;
    const { children } = this.grips;
    const wanted = pitch < 11 || this.wave.picture.stale ? 0 : slots.length - 1;
    while (children.length > wanted) this.grips.lastChild.remove();
    while (children.length < wanted) this.grips.append(this.grip(children.length));
    [...children].forEach((grip, boundary) => this.drawGrip(grip, boundary));
  }

  grip(boundary) {
    const title = s("title", {}, `drag to move layers between stage ${boundary} and ${boundary + 1}`);
    const parts = [
      s("rect", { class: "mw-grip-area" }, title),
      s("line", { class: "mw-grip-line" }),
      s("rect", { class: "mw-grip-pill", width: 5, rx: 2.5 }),
    ];
    return s("g", { class: "mw-grip", "data-boundary": boundary }, ...parts);
  }

  drawGrip(grip, boundary) {
    const { slots, edge, height, y, lane } = this.wave.layout;
    const [before, slot] = [slots[boundary], slots[boundary + 1]];
    const [from, to] = [before.middle + before.width / 2, slot.middle - slot.width / 2];
    const x = (from + to) / 2;
    const wide = Math.max(8, to - from);
    const [route] = this.wave.routes;
    const middle = (y(route[boundary]) + y(route[boundary + 1])) / 2;
    const long = Math.min(20, lane * 0.8);
    const [area, line, pill] = grip.children;
    place(area, { x: x - wide / 2, y: edge.top, width: wide, height: height - edge.top - edge.bottom });
    place(line, { x1: slot.x, x2: slot.x, y1: edge.top, y2: height - edge.bottom });
    place(pill, { x: x - 2.5, y: middle - long / 2, height: long });
    grip.classList.toggle("mw-held", this.wave.gestures.shift?.boundary === boundary);
  }
}
