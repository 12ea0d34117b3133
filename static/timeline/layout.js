// The positions of lanes, titles, link lanes and memory strips on the canvas.

/** @import { Layer } from "./data.js" */
/** @import { Band, Data, Lane, Plan, RowTitle, Section, ViewWindow } from "./types" */

import { clamp } from "../kit/numbers.js";
import { TICKS } from "./columns.js";
import { TALL } from "./frame.js";
import { groupsOf, laneKey, sectionsOf } from "./sections.js";
import { linkNeeds, memoryNeeds, placeLinks, placeMemory } from "./strip_layout.js";

const LONG_NAME = 4; // characters of a mesh's name that fit beside "measured"
// CSS pixels
const LONG_WORDS = 58; // width of the words that name the halves of a lane, above which they have more room
const WIDE_NAMES = 150; // width of long names, of those of lanes inside a block, and of groups
export const AXIS = 22;
const LOWEST = 1.5; // least height of a lane; if there is too little room, the lanes scroll
const BAND = 12; // least height of a band, in which low lanes are painted together
const HIGH = 48; // height of lanes beside which memory and links get the height that they want
const HIGHEST = 96; // largest height of a lane, if there is room left
const ROOMY = 26; // height to which lanes grow on zooming in, and height of pinned lanes
const BELOW_KEPT = 5; // gap between the pinned lanes and the scrolling lanes
const BOTTOM = 4;
const HIDDEN = -1000; // y of hidden lanes
// largest parts of the height
const MOST_KEPT = 0.45; // for the pinned lanes

/**
 * Contents to arrange: rows of layers that share their lanes, layers whose memory is shown, the layer whose links
 * are shown, keys of lanes kept on top, a test for the other lanes to show, the criterion that groups lanes,
 * keys of the sections whose lanes are replaced by a summary.
 * @typedef {{rows: Layer[][], held: Layer[], linked: Layer | null, kept: Set<string>, isShown: LaneTest,
 *   grouping: string, collapsed: Set<string>, view: ViewWindow, width: number, height: number, words?: number
 * }} Arrangement
 */

/** @typedef {(layer: Layer, rank: number) => boolean} LaneTest */
/** Lanes of a row. @typedef {{row: Layer[], ranks: number[]}} Part */

/** Arrange all parts of the chart in CSS pixels. @param {Arrangement} arrangement @returns {Plan} */
export function arrange({ rows, held, linked, kept, isShown, grouping, collapsed, view, width, height, words = 0 }) {
  const gutter = gutterWidth(rows, grouping, width, words);
  const sections = rows.flatMap((row) => sectionsOf(row, { kept, isShown, grouping, collapsed }));
  const top = rows.map((row) => keptPart(row, kept));
  const units = unitsOf(sections);
  const unitsOnTop = unitsOf(top);
  const titles = sections.reduce((sum, { above }) => sum + above, 0);
  const whole = height - AXIS - BOTTOM;
  const folds = { grouping, collapsed };
  const memory = memoryNeeds(held, isShown, whole, linked !== null, folds);
  const links = linkNeeds(linked, whole, folds);
  const least = memory.least + links.least;
  const even = clamp((whole - titles - least) / Math.max(1, units + unitsOnTop), LOWEST, HIGH);
  const mostOnTop = Math.max(4, (whole * MOST_KEPT) / unitsOnTop);
  const topPitch = unitsOnTop ? Math.min(Math.max(even, ROOMY), mostOnTop) : 0;
  const split = AXIS + unitsOnTop * topPitch + (unitsOnTop ? BELOW_KEPT : 0);
  const room = height - split - BOTTOM;
  const modest = clamp((room - titles - least) / Math.max(1, units), LOWEST, HIGH);
  const left = room - titles - units * modest;
  const linkHeight = clamp(left - memory.least, links.least, links.wanted);
  const usualMemory = held.length ? clamp(left - linkHeight, memory.least, memory.most(1.6)) : 0;
  const spare = Math.max(0, left - linkHeight - usualMemory);
  const fit = modest === HIGH ? Math.min(HIGHEST, HIGH + spare / Math.max(1, units)) : modest;
  const memoryHeight = Math.min(usualMemory + Math.max(0, spare - units * (fit - modest)), memory.most(3));
  const pitch = clamp(fit * Math.sqrt(TICKS / (view.to - view.from)), fit, Math.max(fit, ROOMY));
  const content = titles + units * pitch;
  const bottom = Math.min(split + content, height - BOTTOM - memoryHeight - linkHeight);
  const scroll = clamp(view.scroll, 0, Math.max(0, content - (bottom - split)));
  return {
    width,
    height,
    gutter,
    pitch,
    fit,
    content,
    scroll,
    split,
    size: { left: gutter, top: AXIS, split, right: Math.max(gutter + 20, width - 10), bottom },
    links: placeLinks(links, bottom + 2, linkHeight),
    strips: placeMemory(memory, bottom + 2 + linkHeight, memoryHeight),
    ...placeLanes(top, sections, topPitch, split - scroll, pitch),
  };
}

/**
 * The width of the column left of the lanes. `words` is that of the longest name of a timeline that shares lanes.
 * @param {Layer[][]} rows @param {string} grouping @param {number} width @param {number} words
 */
function gutterWidth(rows, grouping, width, words) {
  const isWide = rows.some(([layer]) => layer.labels || groupsOf(layer, grouping).length);
  const isLong = (/** @type {Layer[]} */ [layer]) => layer.meshes.some((name) => name.length > LONG_NAME);
  if (isWide || ((words > LONG_WORDS || rows.some(isLong)) && width >= 620)) return WIDE_NAMES;
  return width < 620 ? 60 : 100;
}

/** The pinned lanes of a row. @param {Layer[]} row @param {Set<string>} kept @returns {Part} */
const keptPart = (row, kept) => ({
  row,
  ranks: row[0].meshes.map((_, rank) => rank).filter((rank) => kept.has(laneKey(row[0], rank))),
});

/** @param {Part[]} parts */
const unitsOf = (parts) => parts.reduce((sum, { row, ranks }) => sum + ranks.length * unitsPerLane(row), 0);

/** The relative height of lanes; a lane that two timelines share is higher. @param {Layer[]} row */
const unitsPerLane = (row) => (row.length === 2 ? 1.8 : 1);

// ── lanes ──

/**
 * @param {Part[]} kept @param {Section[]} sections @param {number} topPitch @param {number} top
 * @param {number} pitch
 */
function placeLanes(kept, sections, topPitch, top, pitch) {
  /** @type {Lane[]} */
  const lanes = [];
  /** @type {RowTitle[]} */
  const titles = [];
  /** @type {Band[]} */
  const bands = [];
  let y = AXIS;
  for (const { row, ranks } of kept) {
    const height = topPitch * unitsPerLane(row);
    lanes.push(...lanesOf(row, ranks, y, height).map((lane) => ({ ...lane, kept: true })));
    y += ranks.length * height;
  }
  y = top;
  for (const section of sections) {
    const { row, ranks, above } = section;
    const height = pitch * unitsPerLane(row);
    titles.push({ ...section, y, height: above + ranks.length * height });
    y += above;
    const placed = lanesOf(row, ranks, y, height);
    lanes.push(...placed);
    bands.push(...bandsOf(placed));
    y += ranks.length * height;
  }
  const hidden = kept.flatMap(({ row }) => row.flatMap(hiddenLanes));
  const index = new Map([...hidden, ...lanes].map((lane) => [lane.layer.number * 65536 + lane.rank, lane]));
  const laneOf = (/** @type {Layer} */ layer, /** @type {number} */ rank) =>
    /** @type {Lane} */ (index.get(layer.number * 65536 + rank));
  return { lanes, bands, titles, laneOf };
}

/** All lanes of a timeline above the canvas, without height. @param {Layer} layer @returns {Lane[]} */
const hiddenLanes = (layer) =>
  layer.meshes.map((_, rank) => ({ layer, rank, y: HIDDEN, height: 0, whole: [HIDDEN, 0] }));

/** @param {Layer[]} row @param {number[]} ranks @param {number} top @param {number} pitch @returns {Lane[]} */
const lanesOf = (row, ranks, top, pitch) =>
  row.length === 1 ? singleLanes(row[0], ranks, top, pitch) : sharedLanes(row, ranks, top, pitch);

/** @param {Layer} layer @param {number[]} ranks @param {number} top @param {number} pitch @returns {Lane[]} */
function singleLanes(layer, ranks, top, pitch) {
  const height = pitch - gapOf(pitch);
  return ranks.map((rank, i) => {
    const y = top + i * pitch;
    return { layer, rank, y, height, whole: [y, height] };
  });
}

/**
 * The lanes of a row with two timelines: lanes in two halves, or, if the halves are too low, groups of lanes of one
 * timeline above those of the other.
 * @param {Layer[]} row @param {number[]} ranks @param {number} top @param {number} pitch @returns {Lane[]}
 */
function sharedLanes(row, ranks, top, pitch) {
  const group = pitch >= 18 ? 1 : evenSize(ranks.length, (2 * BAND) / pitch);
  const [gap, between] = group === 1 ? [gapOf(pitch), 4] : [3, 1];
  /** @type {Lane[]} */
  const lanes = [];
  for (let first = 0; first < ranks.length; first += group) {
    const some = ranks.slice(first, first + group);
    const y = top + first * pitch;
    const half = (some.length * pitch - gap - between) / 2;
    const height = half / some.length;
    row.forEach((layer, i) =>
      some.forEach((rank, at) => {
        const laneY = y + i * (half + between) + at * height;
        /** @type {[number, number]} */
        const whole = group === 1 ? [y, pitch - gap] : [laneY, height];
        lanes.push({ layer, rank, y: laneY, height, over: i === 1, group, some, groupMiddle: y + half, whole });
      }),
    );
  }
  return lanes;
}

/** @param {number} pitch */
const gapOf = (pitch) => (pitch < 5 ? 0 : pitch < 9 ? 1 : pitch < 16 ? 2 : Math.round(2 + 0.14 * (pitch - 12)));

/** Groups of low neighbouring lanes of one timeline. @param {Lane[]} lanes @returns {Band[]} */
function bandsOf(lanes) {
  if (!lanes.length || lanes[0].height >= TALL) return [];
  const size = lanes[0].group ?? evenSize(lanes.length, BAND / lanes[0].height);
  /** @type {Omit<Band, "height">[]} */
  const bands = [];
  for (const lane of lanes) {
    const band = bands.at(-1);
    if (band?.layer === lane.layer && band.some === lane.some && band.lanes.length < size) band.lanes.push(lane);
    else bands.push({ layer: lane.layer, some: lane.some, y: lane.y, lanes: [lane] });
  }
  return bands.map((band) => {
    const last = band.lanes[band.lanes.length - 1];
    return { ...band, height: last.y + last.height - band.y };
  });
}

/** The size of groups that divide `count` evenly, at least `least`. @param {number} count @param {number} least */
function evenSize(count, least) {
  const size = Math.max(1, Math.ceil(least));
  return Math.ceil(count / Math.max(1, Math.floor(count / size)));
}

/**
 * The layers of each row: a measured timeline shares the lanes of the previous timeline, unless that one `isAlone` or
 * each kind `isSeparate`.
 * @param {Data} data @param {boolean} isAlone @param {boolean} isSeparate
 */
export function rowsOf(data, isAlone, isSeparate) {
  /** @type {Layer[][]} */
  const rows = [];
  for (const layer of data.layers) {
    if (!layer.over || (isSeparate && !isAlone)) rows.push([layer]);
    else if (!isAlone) rows[rows.length - 1].push(layer);
  }
  return rows;
}
