// Line icons.

import { s } from "./dom.js";

/** @type {Record<string, string[]>} */
const ICONS = {
  open: ["M1.75 12.5v-9h4l1.5 2h5.5v2", "M1.75 12.5l2-5h10.5l-2 5z"],
  examples: ["M2.5 2.5h4.2v4.2H2.5zM9.3 2.5h4.2v4.2H9.3zM2.5 9.3h4.2v4.2H2.5zM9.3 9.3h4.2v4.2H9.3z"],
  gallery: ["M2 3h6.5M4.5 6.3H12M2 9.7h4M7.5 9.7H14M5.5 13h6"],
  transfer: [
    "M1.75 3h4.5v4.25h-4.5zM1.75 8.75h4.5V13h-4.5zM9.75 3h4.5v10h-4.5z",
    "M6.25 5.1h3.5M6.25 10.9h3.5M9.75 8h4.5",
  ],
  compare: ["M2.5 3h4.2v10H2.5zM9.3 3h4.2v10H9.3z"],
  save: ["M8 2v8M4.75 7 8 10.25 11.25 7", "M2.5 10.5v3h11v-3"],
  saveAs: ["M7 2v7M4 6.5 7 9.5l1.5-1.5", "M2.5 10v3.5h5", "M9.5 13.5l.4-1.9 3-3 1.5 1.5-3 3z"],
  share: ["M8 10V2M4.75 5 8 1.75 11.25 5", "M5 7.5H2.5v6h11v-6H11"],
  versions: ["M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5z", "M8 4.5V8l2.5 1.75"],
  undo: ["M6 3 2.5 6.5 6 10", "M2.5 6.5h7a3.75 3.75 0 0 1 0 7.5H6"],
  redo: ["M10 3l3.5 3.5L10 10", "M13.5 6.5h-7a3.75 3.75 0 0 0 0 7.5H10"],
  light: [
    "M8 5.1a2.9 2.9 0 1 0 0 5.8 2.9 2.9 0 0 0 0-5.8z",
    "M8 1v1.4M8 13.6V15M1 8h1.4M13.6 8H15M3.05 3.05l1 1M11.95 11.95l1 1M3.05 12.95l1-1M11.95 4.05l1-1",
  ],
  dark: ["M13.2 9.6A5.7 5.7 0 0 1 6.4 2.8a5.7 5.7 0 1 0 6.8 6.8z"],
  system: ["M1.75 2.75h12.5v8.5H1.75z", "M5.5 13.75h5M8 11.25v2.5"],
  help: [
    "M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5z",
    "M6.2 6.2a1.85 1.85 0 1 1 2.6 1.7c-.5.25-.8.6-.8 1.2v.2M8 11.4v.05",
  ],
  down: ["M4.5 6.5 8 10l3.5-3.5"],
  close: ["M4 4l8 8M12 4l-8 8"],
  pin: ["M5.5 1.75h5M6.25 1.75v4.5L4.25 9h7.5l-2-2.75v-4.5M8 9v5.25"],
  check: ["M3 8.5l3.25 3.25L13 5"],
  error: ["M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5z", "M5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4"],
  warning: ["M8 2 14.5 13.5h-13z", "M8 6.25v3.5M8 11.6v.05"],
  rise: ["M8 13V3.5M4 7.25 8 3.25l4 4"],
  fall: ["M8 3v9.5M4 8.75l4 4 4-4"],
  same: ["M3.5 6h9M3.5 10h9"],
};

/** An icon of 16 x 16 px in the colour of its text, hidden from screen readers. @param {string} name */
export const icon = (name) =>
  s(
    "svg.mw-svg",
    { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true", "data-icon": name },
    ...ICONS[name].map((d) => s("path", { d })),
  );
