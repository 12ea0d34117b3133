// Very many pieces of a tensor as one picture: an element of the page for each of them would take seconds.

import { h } from "../kit/canvas.js";

export class Crowd {
  constructor() {
    this.canvas = h("canvas", { class: "mw-tr-crowd", "aria-hidden": "true" });
    this.pieces = [];
  }

  /** Pieces as `{ rects, fills }`, rectangles in CSS pixels; the fills of a piece are stripes side by side. */
  draw(pieces, width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.pieces = pieces;
    this.ratio = ratio;
    Object.assign(this.canvas, {
      width: Math.round(width * ratio),
      height: Math.round(height * ratio),
      hidden: !pieces.length,
    });
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.size = [width, height];
  }

  /** `strength` gives how much of a piece's colour is seen, from 0 to 1. */
  paint(strength) {
    const { context, ratio } = this;
    // pixels of the screen, which are filled many times faster than parts of them
    const whole = (length) => Math.round(length * ratio) / ratio;
    if (!this.pieces.length) return;
    context.clearRect(0, 0, ...this.size);
    this.pieces.forEach(({ rects, fills }, number) => {
      context.globalAlpha = strength(number);
      fills.forEach((fill, stripe) => {
        context.fillStyle = fill;
        for (const rect of rects) {
          const [gap, width] = [whole(Math.max(1 / ratio, between(rect))), rect.width / fills.length];
          const [left, top] = [whole(rect.x + stripe * width), whole(rect.y)];
          context.fillRect(
            left,
            top,
            Math.max(1 / ratio, whole(rect.x + (stripe + 1) * width) - left - gap),
            Math.max(1 / ratio, whole(rect.y + rect.height) - top - gap),
          );
        }
      });
    });
  }

  /** The number of the piece at a point, or -1. */
  find(x, y) {
    const holds = (rect) => x >= rect.x && x < rect.x + rect.width && y >= rect.y && y < rect.y + rect.height;
    return this.pieces.findIndex(({ rects }) => rects.some(holds));
  }
}

/** CSS pixels between pieces, fewer where these are small. */
export const between = ({ width, height }) => Math.max(0.5, Math.min(2, Math.min(width, height) / 10));
