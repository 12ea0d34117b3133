// Numbers of a timeline with their units.

const THIN_SPACE = "\u2009"; // thin space between a number and its unit

/**
 * 0.00123 as "1.23 ms", and 340506 as "340506 s", as engine/units.py writes it; unit costs are plain numbers such as
 * "340,506".
 * @param {number} value @param {string} unit
 */
export function amount(value, unit) {
  const size = Math.abs(value);
  if (unit !== "s") return threeDigits(value, GROUPED);
  if (size >= 1) return `${threeDigits(value)}${THIN_SPACE}s`;
  if (size >= 1e-3) return `${threeDigits(value * 1e3)}${THIN_SPACE}ms`;
  return size ? `${threeDigits(value * 1e6)}${THIN_SPACE}µs` : `0${THIN_SPACE}s`;
}

/** A time as text where no axis or head of a table names its unit. @param {number} value @param {string} unit */
export function timeText(value, unit) {
  const text = amount(value, unit);
  if (unit === "s") return text;
  return `${text} ${text === "1" ? "unit" : "units"}`;
}

/** @param {number} value */
export const bytes = (value) => withPrefix(value, "B");

/** @param {number} value */
export const flops = (value) => withPrefix(value, "FLOP");

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

/** @param {number} value @param {string} unit */
function withPrefix(value, unit) {
  const [size, prefix] = PREFIXES.find(([least]) => Math.abs(value) >= least) ?? UNSCALED;
  return `${threeDigits(value / size)}${THIN_SPACE}${prefix}${unit}`;
}

/**
 * A formatter with from `least` to `most` decimals; only numbers without a unit have commas.
 * @param {number} least @param {number} most @param {boolean} useGrouping
 */
export const numberFormat = (least, most, useGrouping) =>
  new Intl.NumberFormat("en", { minimumFractionDigits: least, maximumFractionDigits: most, useGrouping });

const [PLAIN, GROUPED] = [false, true].map((isGrouped) => [0, 1, 2, 3].map((most) => numberFormat(0, most, isGrouped)));

/** Three significant digits. @param {number} value @param {Intl.NumberFormat[]} formats */
function threeDigits(value, formats = PLAIN) {
  const size = Math.abs(value);
  const digits = size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return formats[digits].format(value);
}
