// Geometry of the experts: the sizes of nodes, places and chips on the board.

/** @import { BoardLayout, Frame, PlaceLayout } from "./types" */

// CSS pixels: smallest sizes of chips that show a number, a large number, and a share
export const CHIP = { most: 64, least: 6, numbered: 14, digit: 6, large: 30, shared: 44 };
export const PLACE = { width: 172, least: [34, 24], gap: 4 };

/** @type {Frame[]} */
const FRAMES = [
  // the most detailed frame first; each requires a size of chips and a width of the place
  { headed: true, barred: true, footed: true, least: 26, wide: 112, edge: 6, high: 41, gap: 4 },
  { headed: true, barred: true, footed: false, least: 20, wide: 72, edge: 6, high: 26, gap: 4 },
  { headed: true, barred: false, footed: false, least: 16, wide: 48, edge: 4, high: 17, gap: 3 },
];
/** @type {Frame} */
const BARE = { headed: false, barred: false, footed: false, least: 0, wide: 0, edge: 3, high: 0, gap: 2 };

const NODE = { pad: 6, head: 15, gap: 8 };

/**
 * Arrange nodes and the places in them in rows, so that chips are as large as possible.
 * @param {number} width @param {number} height @param {number} nodes @param {number} places the largest number of
 * places of a node
 * @param {number} fullest the largest number of experts of a place @returns {BoardLayout}
 */
export function arrange(width, height, nodes, places, fullest) {
  let [best, bestScore] = [/** @type {BoardLayout | null} */ (null), -Infinity];
  for (let nodeColumns = 1; nodeColumns <= nodes; nodeColumns++) {
    for (let columns = 1; columns <= places; columns++) {
      const rows = { node: Math.ceil(nodes / nodeColumns), place: Math.ceil(places / columns) };
      const node = [
        (width - (nodeColumns - 1) * NODE.gap) / nodeColumns,
        (height - (rows.node - 1) * NODE.gap) / rows.node,
      ];
      const wide = Math.floor((node[0] - 2 * NODE.pad - 2 - (columns - 1) * PLACE.gap) / columns);
      const high = Math.floor((node[1] - NODE.pad - 2 - NODE.head - (rows.place - 1) * PLACE.gap) / rows.place);
      const fits = wide >= PLACE.least[0] && high >= PLACE.least[1];
      const place = arrangePlace(Math.max(wide, PLACE.least[0]), Math.max(high, PLACE.least[1]), fullest);
      const score = (fits ? 1e6 : 0) + 1e3 * place.size + Math.min(wide, PLACE.width) + Math.min(high, PLACE.width);
      if (score > bestScore) [best, bestScore] = [{ columns, nodeColumns, ...place }, score];
    }
  }
  return /** @type {BoardLayout} */ (best);
}

const HEAD = { letter: 6.8, tag: 4, gap: 4, between: 6 }; // CSS pixels per letter of a wide font

/**
 * The longest form of heading that fits all places: the names of devices and the load, the numbers of devices and the
 * load, the load alone, or nothing.
 * @param {BoardLayout} layout @param {{devices: number[], load: string}[]} places
 * @returns {"names" | "numbers" | "load" | "none"}
 */
export function headForm({ headed, width, edge }, places) {
  if (!headed) return "none";
  const fits = (/** @type {string} */ word) =>
    places.every(({ devices, load }) => {
      const tags = devices.map((device) => HEAD.letter * `${word}${device}`.length + HEAD.tag + HEAD.gap);
      const room = width - 2 * edge - HEAD.between - HEAD.letter * load.length;
      return tags.reduce((sum, tag) => sum + tag, 0) <= room;
    });
  if (places[0].devices.length === 1 && fits("dev ")) return "names";
  return fits("") ? "numbers" : "load";
}

/**
 * The frame and the chips of a place of at most this size, and the size that the place needs.
 * @param {number} wide @param {number} high @param {number} fullest @returns {PlaceLayout}
 */
function arrangePlace(wide, high, fullest) {
  for (const frame of FRAMES) {
    const place = fill(frame, wide, high, fullest);
    if (place.size >= frame.least && wide >= frame.wide) return place;
  }
  return fill(BARE, wide, high, fullest);
}

/** @param {Frame} frame @param {number} wide @param {number} high @param {number} fullest @returns {PlaceLayout} */
function fill(frame, wide, high, fullest) {
  const { edge, gap } = frame;
  const room = [wide - 2 * edge, high - 2 * edge - frame.high];
  const across = (/** @type {number} */ size) => Math.max(1, Math.floor((room[0] + gap) / (size + gap)));
  const length = (/** @type {number} */ count, /** @type {number} */ size) => count * (size + gap) - gap;
  const down = (/** @type {number} */ size) => length(Math.ceil(fullest / across(size)), size);
  let size = CHIP.most;
  while (size > CHIP.least && (size > room[0] || down(size) > room[1])) size--;
  const width = Math.min(wide, Math.max(PLACE.width, length(Math.min(across(size), fullest + 1), size) + 2 * edge));
  return { ...frame, size, width, height: Math.min(high, down(size) + 2 * edge + frame.high) };
}
