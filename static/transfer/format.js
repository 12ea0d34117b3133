// Seconds, bytes and ranks as text.

/** @param {number} value */
export function seconds(value) {
  if (!value) return "0";
  const [scale, unit] =
    value >= 0.9995 ? [1, "s"] : value >= 0.9995e-3 ? [1e3, "ms"] : value >= 0.9995e-6 ? [1e6, "µs"] : [1e9, "ns"];
  return `${Number((value * scale).toPrecision(4))} ${unit}`;
}

/** @param {number} value */
export function bytes(value) {
  const [scale, unit] = value >= 1e9 ? [1e9, "GB"] : value >= 1e6 ? [1e6, "MB"] : value >= 1e3 ? [1e3, "kB"] : [1, "B"];
  return `${Number((value / scale).toPrecision(3))} ${unit}`;
}

/** @param {number[]} ranks */
export function listRanks(ranks) {
  return ranks.length > 8 ? `${ranks.slice(0, 8).join(", ")} and ${ranks.length - 8} more` : ranks.join(", ") || "none";
}
