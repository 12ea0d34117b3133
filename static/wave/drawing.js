// The wave as SVG: lanes, the path of a microbatch, stages and the handles between them.

import { meshColour } from "../kit/canvas.js";
import { findAll, s } from "../kit/dom.js";
import { clamp, count, percent } from "../kit/numbers.js";
import { hopPath, place } from "./layout.js";

const STAGES_HELP =
  "Stages: arrow keys move the focus. Alt+Left and Alt+Right move a layer to the adjacent stage. Alt+Up and " +
  "Alt+Down move the stage to another mesh: Enter drops it there, Escape cancels";

export const EQUAL_SHARES = "unit costs divide the model evenly among the stages, unless their layers are set by hand";

/** @param {string} text @param {number} length */
const shorten = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

export class WaveDrawing {
  /** @param {import("./wave.js").Wave} wave */
  constructor(wave) {
    this.wave = wave;
    this.id = Math.random().toString(36).slice(2, 8); // prefix of the gradients' IDs, which are global on the page
    this.back = s("g", { "aria-hidden": "true" });
    this.path = s("g", { "aria-hidden": "true" });
    this.stages = s("g", { role: "group", "aria-label": STAGES_HELP });
    this.grips = s("g", { "aria-hidden": "true" });
    this.stages.addEventListener("keydown", (event) => wave.keyboard.key(event));
  }

  drawBack() {
    const { edge, width, height } = this.wave.layout;
    const parts = [...this.lanes(), ...this.groups(), ...this.axis()];
    if (this.wave.picture.equal) {
      const at = { x: width - edge.right, y: 10, "text-anchor": "end" };
      parts.push(s("text.mw-axis.mw-equal", at, s("title", {}, EQUAL_SHARES), "unit costs: equal stages"));
    }
    parts.push(s("text.mw-axis", { x: edge.left - 10, y: height - 3, "text-anchor": "end" }, "stage"));
    this.back.replaceChildren(...parts);
  }

  lanes() {
    const { edge, y, width, lane } = this.wave.layout;
    const every = Math.ceil(13 / lane); // number of lanes per name
    const size = clamp(lane * 0.8, 8, 14);
    return this.wave.picture.meshes.flatMap(({ name }, mesh) => {
      const style = { "--c": meshColour(this.wave.model.palette, mesh) };
      const middle = y(mesh);
      const line = { x1: edge.left - 6, x2: width - edge.right, y1: middle, y2: middle, style };
      if (mesh % every) return [s("line.mw-lane", line)];
      const number = { x: 9, y: middle + size * 0.27, "text-anchor": "middle" };
      return [
        s("line.mw-lane", line),
        s("rect.mw-lane-badge", { x: 0, y: middle - size / 2, width: 18, height: size, rx: 4, style }),
        s("text.mw-lane-rank", { ...number, style: { "font-size": `${size * 0.76}px` } }, String(mesh)),
        s(
          "text.mw-lane-name",
          { x: 24, y: middle + size * 0.3, style: { "font-size": `${clamp(size, 8, 12)}px` } },
          shorten(name, 11),
        ),
      ];
    });
  }

  /** Edges and names of waves or chunks. */
  groups() {
    const { edge, height, slots } = this.wave.layout;
    return this.wave.picture.groups.flatMap(({ label, first, end }) => {
      const [from, to] = [slots[first], slots[end - 1]];
      const isWide = to.x + to.size - from.x > 44;
      return [
        ...(first ? [s("line.mw-wave-edge", { x1: from.x, x2: from.x, y1: 2, y2: height - edge.bottom })] : []),
        ...(isWide ? [s("text.mw-axis", { x: from.x + 5, y: 10 }, label)] : []),
      ];
    });
  }

  /** Numbers of stages, as far as there is room. */
  axis() {
    const { slots, pitch, height } = this.wave.layout;
    const numberWidth = 9 + 6 * String(slots.length - 1).length;
    const step = [1, 2, 4, 8, 16, 32, 64, 128].find((number) => number * pitch >= numberWidth) ?? 256;
    return slots.flatMap(({ middle }, stage) =>
      stage % step ? [] : [s("text.mw-axis", { x: middle, y: height - 3, "text-anchor": "middle" }, String(stage))],
    );
  }

  drawPath() {
    const { layout, picture } = this.wave;
    const width = clamp(layout.lane * 0.11, 1.2, 4.5);
    const parts = this.wave.routes.flatMap((route, replica) =>
      route.slice(0, -1).flatMap((a, stage) => {
        const b = route[stage + 1];
        const isLocal = a === b;
        const stroke = isLocal ? this.lineColour(a) : `url(#${this.gradientId(a, b)})`;
        const style = { "stroke-width": `${isLocal ? Math.max(1, width * 0.6) : width}px`, stroke };
        const kind = `mw-hop${isLocal ? " mw-local" : ""}${replica ? " mw-replica" : ""}`;
        const d = hopPath(layout, route, stage);
        const crossesNodes = picture.meshes[a].node !== picture.meshes[b].node && layout.pitch > 14;
        return [s("path", { class: kind, d, style }), ...(crossesNodes ? [s("path.mw-far", { d })] : [])];
      }),
    );
    this.path.replaceChildren(this.gradients(), ...parts);
  }

  /** The colour of a mesh for lines, with a contrast of at least 3:1 to the page. @param {number} mesh */
  lineColour(mesh) {
    return `color-mix(in oklab, ${meshColour(this.wave.model.palette, mesh)} 85%, light-dark(#000000, #ffffff))`;
  }

  /** @param {number} a @param {number} b */
  gradientId(a, b) {
    return `mw-${this.id}-${a}-${b}`;
  }

  /** A colour gradient for each pair of meshes that the path joins. */
  gradients() {
    /** @type {Map<string, [number, number]>} */
    const pairs = new Map();
    for (const route of this.wave.routes)
      route.slice(0, -1).forEach((a, stage) => {
        const b = route[stage + 1];
        if (a !== b) pairs.set(this.gradientId(a, b), [a, b]);
      });
    const gradients = [...pairs].map(([id, meshes]) => {
      const stops = meshes.map((mesh, end) =>
        s("stop", { offset: `${20 + 60 * end}%`, style: { "stop-color": this.lineColour(mesh) } }),
      );
      return s("linearGradient", { id }, ...stops);
    });
    return s("defs", {}, ...gradients);
  }

  drawBoxes() {
    const { layers, routes, boxes } = this.wave;
    const wanted = routes.length * layers.length;
    while (boxes.length > wanted) boxes.pop()?.remove();
    while (boxes.length < wanted) {
      const texts = ["layers", "share"].map((kind) => s(`text.mw-${kind}`, { "text-anchor": "middle" }));
      const box = s("g.mw-stage", {}, s("rect"), ...texts);
      boxes.push(box);
      this.stages.append(box);
    }
    this.wave.focus = clamp(this.wave.focus, 0, layers.length - 1);
    routes.forEach((route, replica) => {
      for (let stage = 0; stage < layers.length; stage++)
        this.drawBox(boxes[replica * layers.length + stage], stage, replica, route[stage]);
    });
  }

  /** @param {SVGElement} box @param {number} stage @param {number} replica @param {number} mesh */
  drawBox(box, stage, replica, mesh) {
    const { slots, y } = this.wave.layout;
    const { middle, width, height } = slots[stage];
    const changed = this.isChanged(stage, replica) ? " mw-changed" : "";
    box.dataset.stage = String(stage);
    box.dataset.replica = String(replica);
    box.setAttribute("class", `mw-stage${replica ? " mw-replica" : ""}${changed}`);
    box.style.setProperty("--c", meshColour(this.wave.model.palette, mesh));
    if (replica) {
      box.setAttribute("aria-hidden", "true");
      box.removeAttribute("tabindex");
    } else {
      box.removeAttribute("aria-hidden");
      box.setAttribute("role", "img");
      box.setAttribute("aria-label", this.wave.describe(stage));
      box.setAttribute("tabindex", stage === this.wave.focus ? "0" : "-1");
    }
    const rx = Math.min(7, width / 4, height / 3);
    place(box.children[0], { x: middle - width / 2, y: y(mesh) - height / 2, width, height, rx });
    this.drawTexts(box, stage, y(mesh));
  }

  /** True if the gesture in progress changes a stage. @param {number} stage @param {number} replica */
  isChanged(stage, replica) {
    const { layerDrag, stageDrag } = this.wave.gestures;
    if (layerDrag?.count && (stage === layerDrag.boundary || stage === layerDrag.boundary + 1)) return true;
    return stage === stageDrag?.stage && replica === stageDrag.replica;
  }

  /** The layers and the share of a stage. @param {SVGElement} box @param {number} stage @param {number} y */
  drawTexts(box, stage, y) {
    const { slots, label } = this.wave.layout;
    const { middle } = slots[stage];
    const layers = this.wave.layers[stage];
    const [, number, share] = box.children;
    const hasShare = label.endsWith("share");
    number.textContent = label === "none" ? "" : label.startsWith("layers") ? count(layers, "layer") : String(layers);
    share.textContent = hasShare ? percent(this.wave.share(stage)) : "";
    place(number, { x: middle, y: y + (hasShare ? -2 : 4) });
    place(share, { x: middle, y: y + 10 });
  }

  /** Handles between stages, if they are large enough to be pressed. */
  drawGrips() {
    const { slots, pitch } = this.wave.layout;
    const { children } = this.grips;
    const wanted = pitch < 11 || this.wave.picture.stale ? 0 : slots.length - 1;
    while (children.length > wanted) this.grips.lastChild?.remove();
    while (children.length < wanted) this.grips.append(makeGrip(children.length));
    findAll(this.grips, ".mw-grip").forEach((grip, boundary) => this.drawGrip(grip, boundary));
  }

  /** @param {Element} grip @param {number} boundary */
  drawGrip(grip, boundary) {
    const { slots, edge, height, y, lane } = this.wave.layout;
    const [before, slot] = [slots[boundary], slots[boundary + 1]];
    const [from, to] = [before.middle + before.width / 2, slot.middle - slot.width / 2];
    const x = (from + to) / 2;
    const width = Math.max(8, to - from);
    const [route] = this.wave.routes;
    const middle = (y(route[boundary]) + y(route[boundary + 1])) / 2;
    const length = Math.min(20, lane * 0.8);
    const [area, line, pill] = grip.children;
    place(area, { x: x - width / 2, y: edge.top, width, height: height - edge.top - edge.bottom });
    place(line, { x1: slot.x, x2: slot.x, y1: edge.top, y2: height - edge.bottom });
    place(pill, { x: x - 2.5, y: middle - length / 2, height: length });
    grip.classList.toggle("mw-held", this.wave.gestures.layerDrag?.boundary === boundary);
  }
}

/** @param {number} boundary */
function makeGrip(boundary) {
  const title = s("title", {}, `Drag to move layers between stage ${boundary} and stage ${boundary + 1}`);
  const parts = [
    s("rect.mw-grip-area", {}, title),
    s("line.mw-grip-line"),
    s("rect.mw-grip-pill", { width: 5, rx: 2.5 }),
  ];
  return s("g.mw-grip", { "data-boundary": boundary }, ...parts);
}
