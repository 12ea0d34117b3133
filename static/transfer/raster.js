// Many pieces of a tensor as one image, since an element of the page for each piece would take seconds.

/** @import { RasterPiece } from "./types" */

import { h } from "../kit/dom.js";
import { pixelRatio } from "../kit/zoom.js";

export class Raster {
  canvas = h("canvas.mw-tr-crowd", { "aria-hidden": "true" });
  /** @type {RasterPiece[]} */ pieces = [];

  /**
   * Set the pieces, in CSS pixels. The fills of a piece are stripes side by side.
   * @param {RasterPiece[]} pieces @param {number} width @param {number} height
   */
  set(pieces, width, height) {
    const ratio = pixelRatio();
    this.pieces = pieces;
    Object.assign(this.canvas, {
      width: Math.round(width * ratio),
      height: Math.round(height * ratio),
      hidden: !pieces.length,
    });
  }

  /** Paint the pieces with the opacity of each. @param {(piece: number) => number} opacity */
  paint(opacity) {
    const context = this.canvas.getContext("2d");
    if (!this.pieces.length || !context) return;
    const ratio = pixelRatio();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    // whole pixels of the screen are filled many times faster than fractional pixels
    const whole = (/** @type {number} */ length) => Math.round(length * ratio) / ratio;
    context.clearRect(0, 0, this.canvas.width / ratio, this.canvas.height / ratio);
    this.pieces.forEach(({ rects, fills }, number) => {
      context.globalAlpha = opacity(number);
      fills.forEach((fill, stripe) => {
        context.fillStyle = fill;
        for (const rect of rects) {
          const [gap, width] = [whole(Math.max(1 / ratio, gapOf(rect))), rect.width / fills.length];
          const [left, top] = [whole(rect.x + stripe * width), whole(rect.y)];
          const right = whole(rect.x + (stripe + 1) * width) - gap;
          const bottom = whole(rect.y + rect.height) - gap;
          context.fillRect(left, top, Math.max(1 / ratio, right - left), Math.max(1 / ratio, bottom - top));
        }
      });
    });
  }

  /** The number of the piece at a point, or -1. @param {number} x @param {number} y */
  find(x, y) {
    return this.pieces.findIndex(({ rects }) =>
      rects.some((rect) => x >= rect.x && x < rect.x + rect.width && y >= rect.y && y < rect.y + rect.height),
    );
  }
}

/** The gap between pieces in CSS pixels, smaller between small ones. @param {{width: number, height: number}} rect */
export const gapOf = ({ width, height }) => Math.max(0.5, Math.min(2, Math.min(width, height) / 10));
