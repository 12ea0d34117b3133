// The view while it is painted: its colours, and where ticks and blocks stand in it.

import { BLACK, WHITE, css, ink, luminance, mix, pixel, rgb } from "../kit/palette.js";
import { OP } from "./columns.js";

// CSS pixels: a lane from here on has shapes; lower ones are painted in bands while they are dense
export const TALL = 9;

const SURFACES = ["idle", "hatch", "memory", "warning"]; // from the palette; the others from the style sheet
const VARIABLES = {
  background: "--bg",
  raised: "--raised",
  text: "--text",
  muted: "--muted",
  line: "--line",
  strong: "--line-strong",
  accent: "--accent",
};

/** All colours of a picture, read off the page as it is now. */
export class Colours {
  /** @type {[number, number, number]} */ background;

  constructor(probe, palette) {
    const read = (value) => {
      probe.style.color = value;
      return rgb(getComputedStyle(probe).color);
    };
    for (const [name, variable] of Object.entries(VARIABLES)) this[name] = read(`var(${variable})`);
    this.theme = luminance(this.background) < 0.2 ? "dark" : "light";
    for (const name of SURFACES) this[name] = read(`var(--mw-${name}, ${palette.surfaces[this.theme][name]})`);
    this.ops = palette.names.map((name) =>
      read(`var(--mw-op-${name.toLowerCase()}, ${palette.ops[this.theme][name] ?? "#888888"})`),
    );
    this.meshes = palette.meshes.map((colour, place) => read(`var(--mw-mesh-${place}, ${colour})`));
    this.font = getComputedStyle(probe).fontFamily;
    this._fills = new Map();
  }

  mesh(rank) {
    return css(this.meshes[rank % this.meshes.length]);
  }

  /** Colours of an op by shade: as text, as a pixel, its separator, its three numbers, and the ink on it. */
  fills(op, tints) {
    const key = `${op} ${tints}`;
    if (!this._fills.has(key))
      this._fills.set(
        key,
        tints.map((tint) => this._fill(op, op <= OP.W ? tint : 0)),
      );
    return this._fills.get(key);
  }

  _fill(op, tint) {
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

/** What there is to know of a view while its lanes are painted; x in CSS pixels from the left of the lanes. */
export class Frame {
  /** @type {number} */ from;
  /** @type {number} */ to;
  // the lanes in CSS pixels; those that are scrolled begin at split
  /** @type {number} */ left;
  /** @type {number} */ top;
  /** @type {number} */ right;
  /** @type {number} */ bottom;
  /** @type {number} */ split;

  constructor(view, size, ratio, colours) {
    this.from = view.from;
    this.to = view.to;
    this.ratio = ratio;
    this.colours = colours;
    Object.assign(this, size);
    this.scale = (this.right - this.left) / (view.to - view.from); // CSS pixels a tick
  }

  x(tick) {
    return this.left + (tick - this.from) * this.scale;
  }

  tick(x) {
    return this.from + (x - this.left) / this.scale;
  }

  isSeen(layer, span) {
    return layer.end[span] >= this.from && layer.start[span] <= this.to;
  }

  /** Whether some of a lane is in view; one that is scrolled goes below those that are kept on top. */
  isLaneSeen({ y, height, kept }) {
    return y + height > (kept ? this.top : this.split) && y < (kept ? this.split : this.bottom);
  }

  /** Whether half of a lane or more is in view. */
  isLaneClear({ y, height, kept }) {
    return kept || (y + height / 2 >= this.split && y + height / 2 <= this.bottom);
  }

  /** The part with the lanes that are kept on top, and the part that is scrolled. */
  get parts() {
    const { left, right, top, split, bottom } = this;
    return [
      { left, right, top, bottom: split },
      { left, right, top: split, bottom },
    ];
  }
}

/** Where a block is drawn: its left, top, width and height in CSS pixels. */
export function box(frame, layer, span, lane) {
  const left = frame.x(layer.start[span]);
  const width = Math.max(1, frame.x(layer.end[span]) - left);
  const half = layer.halfOf(span);
  if (half)
    return {
      x: left,
      y: lane.y + (half - 1) * (lane.height / 2),
      width,
      height: lane.height / 2 - (half === 1 && lane.height > 12 ? 1 : 0),
    };
  if (!layer.isReduction(span)) return { x: left, y: lane.y, width, height: lane.height };
  const height = Math.min(0.24 * lane.height, 6);
  return { x: left, y: lane.y + lane.height - height, width, height };
}
