// Geometry of the experts: how nodes, places and chips share the room.

// px; from the last two its number is large, and its share is told
export const CHIP = { most: 64, least: 6, numbered: 14, digit: 6, large: 30, told: 44 };
export const PLACE = { width: 172, least: [34, 24], gap: 4 };
const AROUND = [
  // what stands around the chips of a place, the most first, as long as the chips have at least this size
  { headed: true, barred: true, footed: true, least: 26, wide: 112, edge: 6, high: 41, gap: 4 },
  { headed: true, barred: true, footed: false, least: 20, wide: 72, edge: 6, high: 26, gap: 4 },
  { headed: true, barred: false, footed: false, least: 16, wide: 48, edge: 4, high: 17, gap: 3 },
  { headed: false, barred: false, footed: false, least: 0, wide: 0, edge: 3, high: 0, gap: 2 },
];

const NODE = { pad: 6, head: 15, gap: 8 };

/**
 * How nodes and the places in them are put into rows, so that chips are large; places have the size that these need.
 */
export function arrange(width, height, nodes, places, fullest) {
  let best = null;
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
      const placed = {
        columns,
        nodeColumns,
        ...inside(Math.max(wide, PLACE.least[0]), Math.max(high, PLACE.least[1]), fullest),
      };
      const score = (fits ? 1e6 : 0) + 1e3 * placed.size + Math.min(wide, PLACE.width) + Math.min(high, PLACE.width);
      if (!best || score > best.score) best = { ...placed, score };
    }
  }
  return best;
}

/**
 * What a place of at most this width and height shows, the largest chips of which the fullest one has room for all, and
 * what it needs of the room that it has.
 */
function inside(wide, high, fullest) {
  for (const around of AROUND) {
    const { edge, gap } = around;
    const room = [wide - 2 * edge, high - 2 * edge - around.high];
    const across = (size) => Math.max(1, Math.floor((room[0] + gap) / (size + gap)));
    const taken = (number, size) => number * (size + gap) - gap;
    const down = (size) => taken(Math.ceil(fullest / across(size)), size);
    let size = CHIP.most;
    while (size > CHIP.least && (size > room[0] || down(size) > room[1])) size--;
    if (size < around.least || wide < around.wide) continue;
    const width = Math.min(wide, Math.max(PLACE.width, taken(Math.min(across(size), fullest + 1), size) + 2 * edge));
    return { ...around, size, width, height: Math.min(high, down(size) + 2 * edge + around.high) };
  }
}
