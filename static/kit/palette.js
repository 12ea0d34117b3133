// Colours as numbers. The palette itself is sent by Python (exports/pictures/palette.py).

/** @typedef {number[]} Colour red, green and blue from 0 to 255 */

/** "#rrggbb", "rgb(r g b)" or "rgb(r, g, b)" as three numbers from 0 to 255. @param {string} colour */
export function rgb(colour) {
  if (colour.startsWith("#")) return [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
  return (colour.match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
}

/** @param {Colour} colour @param {number} [alpha] */
export const css = ([r, g, b], alpha = 1) => `rgb(${Math.round(r)} ${Math.round(g)} ${Math.round(b)} / ${alpha})`;

/**
 * `colour` with a `part` (0 to 1) of `other`; both as three numbers.
 * @param {Colour} colour @param {Colour} other @param {number} part
 */
export const mix = (colour, other, part) => colour.map((value, channel) => value + (other[channel] - value) * part);

/** A colour as a pixel of an ImageData with 32-bit elements. @param {Colour} colour */
export const pixel = ([r, g, b]) => (0xff000000 | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;

/** Relative luminance of WCAG 2. @param {Colour} colour */
export function luminance(colour) {
  const [r, g, b] = colour.map((value) => {
    const part = value / 255;
    return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white, whichever has the higher contrast on a fill, which is at least 4.5:1. @param {Colour} fill */
export const ink = (fill) => (luminance(fill) > 0.179 ? "#000000" : "#ffffff");

export const WHITE = [255, 255, 255];
export const BLACK = [0, 0, 0];
