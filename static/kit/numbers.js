// Rounding, limiting and formatting of numbers.

/** @param {number} value @param {number} low @param {number} high */
export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** @param {number} number @param {string} one @param {string} [many] */
export const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

/** A share as engine/units.py writes it: "3.2%", "249%", "under 0.1%". @param {number} part */
export function percent(part) {
  if (part > 0 && part < 0.0005) return "under 0.1%";
  const value = 100 * part;
  return `${value.toFixed(Math.abs(value) < 99.95 ? 1 : 0).replace(/\B(?=(\d{3})+$)/g, ",")}%`;
}

/** 1, 2 or 5 times a power of ten, not below `value`. @param {number} value */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((digit) => digit * power >= value * 0.9999) ?? 10);
}
