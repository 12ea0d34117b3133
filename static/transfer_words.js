// Seconds and bytes in words, as the links' timeline tells them.

export function seconds(value) {
  if (!value) return "0";
  const [scale, unit] = value >= 0.9995 ? [1, "s"] : value >= 0.9995e-3 ? [1e3, "ms"] : value >= 0.9995e-6 ? [1e6, "µs"] : [1e9, "ns"];
  return `${Number((value * scale).toPrecision(4))} ${unit}`;
}

export function bytes(value) {
  const [scale, unit] = value >= 1e9 ? [1e9, "GB"] : value >= 1e6 ? [1e6, "MB"] : value >= 1e3 ? [1e3, "kB"] : [1, "B"];
  return `${Number((value / scale).toPrecision(3))} ${unit}`;
}
