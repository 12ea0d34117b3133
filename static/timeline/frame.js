// The colours of a view, and the positions of its ticks and blocks.

/** @import { Box } from "../kit/types" */
/** @import { Layer } from "./data.js" */
/** @import { Edges, Fill, Lane, Palette } from "./types" */

import { BLACK, WHITE, css, ink, luminance, mix, pixel, rgb } from "../kit/palette.js";
import { OP } from "./columns.js";

// least height in CSS pixels of a lane with blocks as shapes; lower dense lanes are painted in bands
export const TALL = 9;

/** All colours of a picture, read from the page. */
export class Colours {
  /** @type {Map<string, Fill[]>} */ shades = new Map();

  /** @param {HTMLElement} probe @param {Palette} palette */
  constructor(probe, palette) {
    const read = (/** @type {string} */ value) => {
      probe.style.color = value;
      return rgb(getComputedStyle(probe).color);
    };
    this.background = read("var(--bg)");
    this.text = read("var(--text)");
    this.muted = read("var(--muted)");
    this.line = read("var(--line)");
    this.strong = read("var(--line-strong)");
    this.accent = read("var(--accent)");
    this.danger = read("var(--danger)");
    this.theme = luminance(this.background) < 0.2 ? "dark" : "light";
    const surface = (/** @type {string} */ name) => read(`var(--mw-${name}, ${palette.surfaces[this.theme][name]})`);
    this.idle = surface("idle");
    this.hatch = surface("hatch");
    this.memory = surface("memory");
    this.warning = surface("warning");
    this.ops = palette.names.map((name) =>
      read(`var(--mw-op-${name.toLowerCase()}, ${palette.ops[this.theme][name] ?? "#888888"})`),
    );
    this.meshes = palette.meshes.map((colour, i) => read(`var(--mw-mesh-${i}, ${colour})`));
    this.font = getComputedStyle(probe).fontFamily;
  }

  /** @param {number} rank */
  mesh(rank) {
    return css(this.meshes[rank % this.meshes.length]);
  }

  /** The colours of an op, by shade. @param {number} op @param {number[]} tints */
  fills(op, tints) {
    const key = `${op} ${tints}`;
    const known = this.shades.get(key);
    if (known) return known;
    const fills = tints.map((tint) => this.fill(op, op <= OP.W ? tint : 0));
    this.shades.set(key, fills);
    return fills;
  }

  /** @param {number} op @param {number} tint */
  fill(op, tint) {
    const colour = mix(this.ops[op], WHITE, tint);
    return {
      css: css(colour),
      rgb: colour,
      pixel: pixel(colour),
      edge: pixel(mix(colour, this.background, 0.55)),
      deep: css(mix(colour, BLACK, 0.28)),
      ink: ink(colour),
    };
  }
}

/** The geometry of a view while its lanes are painted: ticks as CSS pixels, and the visible part. */
export class Frame {
  /** @param {{from: number, to: number}} view @param {Edges} edges @param {number} ratio @param {Colours} colours */
  constructor(view, { left, top, split, right, bottom }, ratio, colours) {
    this.from = view.from;
    this.to = view.to;
    this.left = left;
    this.top = top;
    this.split = split;
    this.right = right;
    this.bottom = bottom;
    this.ratio = ratio;
    this.colours = colours;
    this.scale = (right - left) / (view.to - view.from); // CSS pixels per tick
  }

  /** @param {number} tick */
  x(tick) {
    return this.left + (tick - this.from) * this.scale;
  }

  /** @param {number} x */
  tick(x) {
    return this.from + (x - this.left) / this.scale;
  }

  /** @param {Layer} layer @param {number} span */
  isVisible(layer, span) {
    return layer.end[span] >= this.from && layer.start[span] <= this.to;
  }

  /** True if part of a lane is in view; scrolling lanes are hidden behind pinned lanes. @param {Lane} lane */
  isLaneVisible({ y, height, kept }) {
    return y + height > (kept ? this.top : this.split) && y < (kept ? this.split : this.bottom);
  }

  /** True if half of a lane or more is in view. @param {Lane} lane */
  isLaneClear({ y, height, kept }) {
    return kept || (y + height / 2 >= this.split && y + height / 2 <= this.bottom);
  }

  /** The part with the pinned lanes, and the part with the scrolling lanes. */
  get parts() {
    const { left, right, top, split, bottom } = this;
    return [
      { left, right, top, bottom: split },
      { left, right, top: split, bottom },
    ];
  }
}

/**
 * The box of a block in CSS pixels.
 * @param {Frame} frame @param {Layer} layer @param {number} span @param {Lane} lane @returns {Box}
 */
export function boxOf(frame, layer, span, lane) {
  const x = frame.x(layer.start[span]);
  const width = Math.max(1, frame.x(layer.end[span]) - x);
  const half = layer.halfOf(span);
  if (half) {
    const gap = half === 1 && lane.height > 12 ? 1 : 0;
    return { x, y: lane.y + (half - 1) * (lane.height / 2), width, height: lane.height / 2 - gap };
  }
  if (!layer.isCollective(span)) return { x, y: lane.y, width, height: lane.height };
  const height = Math.min(0.24 * lane.height, 6);
  return { x, y: lane.y + lane.height - height, width, height };
}

/**
 * Give a canvas the size of a plan, in device pixels.
 * @param {HTMLCanvasElement} canvas @param {{width: number, height: number}} size @param {number} ratio
 */
export function resizeCanvas(canvas, size, ratio) {
  const [width, height] = [Math.round(size.width * ratio), Math.round(size.height * ratio)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
}
