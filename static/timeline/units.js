// Numbers of a timeline with their units.

const THIN = "\u2009"; // between a number and its unit

/**
 * 0.00123 as "1.23 ms"; units are plain numbers.
 * @param {number} value
 * @param {string} unit
 */
export function amount(value, unit) {
  const size = Math.abs(value);
  if (unit !== "s") return short(value);
  if (size >= 1) return `${short(value)}${THIN}s`;
  if (size >= 1e-3) return `${short(value * 1e3)}${THIN}ms`;
  return size ? `${short(value * 1e6)}${THIN}µs` : `0${THIN}s`;
}

/** @param {number} value */
export function bytes(value) {
  return prefixed(value, "B");
}

/** @param {number} value */
export const flops = (value) => prefixed(value, "FLOP");
/** @type {[number, string]} */
const UNSCALED = [1, ""];
/** @type {[number, string][]} */
const PREFIXES = [
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

/**
 * @param {number} value
 * @param {string} unit
 */
function prefixed(value, unit) {
  const [size, prefix] = PREFIXES.find(([least]) => Math.abs(value) >= least) ?? UNSCALED;
  return `${short(value / size)}${THIN}${prefix}${unit}`;
}

/** @param {number} part */
export const percent = (part) => `${(100 * part).toFixed(Math.abs(part) < 0.0995 ? 1 : 0)}${THIN}%`;

/**
 * Writes numbers with from `least` to `most` digits after the point.
 * @param {number} least
 * @param {number} most
 */
export const numbers = (least, most) =>
  new Intl.NumberFormat("en", { minimumFractionDigits: least, maximumFractionDigits: most });

const SHORT = [0, 1, 2, 3].map((most) => numbers(0, most));

/**
 * Three digits that count.
 * @param {number} value
 */
function short(value) {
  const size = Math.abs(value);
  const digits = size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return SHORT[digits].format(value);
}
