// Where the lanes, their titles and the memory strips stand on the canvas.

import { clamp } from "../kit/numbers.js";
import { TICKS } from "./columns.js";
import { TALL } from "./frame.js";
import { TITLE } from "./paint.js";

const WORDY = 150; // CSS pixels of the names of lanes inside a block
export const AXIS = 22; // CSS pixels of the time axis
const LOWEST = 1.5; // a lane is never lower, lanes are scrolled instead
const BAND = 12; // lanes too low for their blocks are painted together in bands of at least this
const HIGHEST = 48;
const ROOMY = 26; // to which lanes grow while a person zooms in, and which those kept on top have
const MOST_KEPT = 0.45; // of the room, for the lanes that are kept on top
const LINK = 24; // CSS pixels of a lane of a port
const LINKS_LEAST = 0.3; // of the room, for the lanes of links where there are many
const FEW = 10; // meshes whose memory is drawn as curves
const BELOW_KEPT = 5; // CSS pixels between them and the lanes that are scrolled

/** Names a lane that a person keeps on top. */
export const laneKey = (layer, rank) => `${layer.number}:${rank}`;

/**
 * Lanes and memory strips with their place on the canvas. `rows` are lists of layers that share their lanes,
 * `held` the layers whose memory is shown, `kept` the keys of the lanes that stand on top and are not scrolled,
 * `linked` the layer whose links are shown, if any, `view` what is looked at; sizes are CSS pixels. The lanes that are
 * scrolled begin at `split`.
 */
export function arrange({ rows, held, linked, kept, view, width, height }) {
  const gutter = rows.some(([layer]) => layer.labels) ? WORDY : width < 620 ? 60 : 100;
  const parts = rows.map((row) => partOf(row, kept));
  const units = parts.reduce((sum, { row, ranks }) => sum + ranks.length * share(row), 0);
  const onTop = parts.reduce((sum, { row, top }) => sum + top.length * share(row), 0);
  const titles = rows.length * TITLE;
  const whole = height - AXIS - 4;
  const shown = sharing(held);
  const wanted = shown.reduce((sum, [layer]) => sum + memoryHeight(layer.ranks) + TITLE, 0);
  const memoryLeast = Math.min(wanted, whole * (linked ? 0.24 : 0.36));
  const linksWanted = linked ? linked.links.lanes.length * LINK + TITLE : 0;
  const linksLeast = Math.min(linksWanted, Math.max(TITLE, whole * LINKS_LEAST));
  const least = memoryLeast + linksLeast;
  const even = clamp((whole - titles - least) / Math.max(1, units + onTop), LOWEST, HIGHEST);
  const topPitch = onTop ? Math.min(Math.max(even, ROOMY), Math.max(4, (whole * MOST_KEPT) / onTop)) : 0;
  const split = AXIS + onTop * topPitch + (onTop ? BELOW_KEPT : 0);
  const room = height - split - 4;
  const fit = clamp((room - titles - least) / Math.max(1, units), LOWEST, HIGHEST);
  const pitch = clamp(fit * Math.sqrt(TICKS / (view.to - view.from)), fit, Math.max(fit, ROOMY));
  const content = titles + units * pitch;
  const left = room - titles - units * fit;
  const deep = clamp(left - memoryLeast, linksLeast, linksWanted);
  const memory = held.length ? clamp(left - deep, memoryLeast, wanted * 1.6) : 0;
  const bottom = Math.min(split + content, height - 4 - memory - deep);
  const scroll = clamp(view.scroll, 0, Math.max(0, content - (bottom - split)));
  const size = { left: gutter, top: AXIS, split, right: Math.max(gutter + 20, width - 10), bottom };
  const links = linked && placeLinks(linked, bottom + 2, deep);
  const strips = placeMemory(shown, bottom + 2 + deep, memory);
  return {
    width,
    height,
    gutter,
    pitch,
    fit,
    content,
    scroll,
    split,
    size,
    links,
    strips,
    ...placeLanes(parts, topPitch, split - scroll, pitch),
  };
}

/** The ranks of a row that are kept on top, and the others. */
function partOf(row, kept) {
  const ranks = row[0].meshes.map((_, rank) => rank);
  const isKept = (rank) => kept.has(laneKey(row[0], rank));
  return { row, top: ranks.filter(isKept), ranks: ranks.filter((rank) => !isKept(rank)) };
}

function placeLanes(parts, topPitch, top, pitch) {
  const lanes = [];
  const titles = [];
  const bands = [];
  let y = AXIS;
  for (const { row, top: ranks } of parts) {
    const deep = topPitch * share(row);
    lanes.push(...lanesOf(row, ranks, y, deep).map((lane) => ({ ...lane, kept: true })));
    y += ranks.length * deep;
  }
  y = top;
  for (const { row, ranks } of parts) {
    const deep = pitch * share(row);
    titles.push({ row, y, height: TITLE + ranks.length * deep });
    y += TITLE;
    const made = lanesOf(row, ranks, y, deep);
    lanes.push(...made);
    bands.push(...inBands(made));
    y += ranks.length * deep;
  }
  const at = new Map(lanes.map((lane) => [lane.layer.number * 65536 + lane.rank, lane]));
  return { lanes, bands, titles, laneOf: (layer, rank) => at.get(layer.number * 65536 + rank) };
}

const lanesOf = (row, ranks, top, deep) =>
  row.length === 1 ? singleLanes(row[0], ranks, top, deep) : sharedLanes(row, ranks, top, deep);

/** Lanes of a row with one timeline. */
function singleLanes(layer, ranks, top, pitch) {
  const height = pitch - gapOf(pitch);
  return ranks.map((rank, place) => {
    const y = top + place * pitch;
    return { layer, rank, y, height, whole: [y, height] };
  });
}

/** Lanes of a row with two: half and half, or where that gets too low, some of one above the same of the other. */
function sharedLanes([below, over], ranks, top, deep) {
  const group = deep >= 18 ? 1 : evenly(ranks.length, (2 * BAND) / deep);
  const lanes = [];
  for (let first = 0; first < ranks.length; first += group) {
    const some = ranks.slice(first, first + group);
    const [gap, between] = group === 1 ? [gapOf(deep), 4] : [3, 1];
    const y = top + first * deep;
    const half = (some.length * deep - gap - between) / 2;
    for (const [place, layer] of [below, over].entries()) {
      some.forEach((rank, at) => {
        const lane = {
          layer,
          rank,
          y: y + place * (half + between) + (at * half) / some.length,
          height: half / some.length,
          over: place === 1,
          group,
          some,
          groupMiddle: y + half,
        };
        lanes.push({ ...lane, whole: group === 1 ? [y, deep - gap] : [lane.y, lane.height] });
      });
    }
  }
  return lanes;
}

const gapOf = (pitch) => (pitch < 5 ? 0 : pitch < 9 ? 1 : pitch < 16 ? 2 : Math.round(2 + 0.14 * (pitch - 12)));

/** Low lanes that stand next to one another and belong to one timeline, some at a time. */
function inBands(lanes) {
  if (!lanes.length || lanes[0].height >= TALL) return [];
  const size = lanes[0].group ?? evenly(lanes.length, BAND / lanes[0].height);
  const bands = [];
  for (const lane of lanes) {
    const band = bands.at(-1);
    if (band?.layer === lane.layer && band.some === lane.some && band.lanes.length < size) band.lanes.push(lane);
    else bands.push({ layer: lane.layer, some: lane.some, y: lane.y, lanes: [lane] });
  }
  return bands.map((band) => ({ ...band, height: band.lanes.at(-1).y + band.lanes.at(-1).height - band.y }));
}

/** How many of `count` to take at a time: at least `least`, and so that the last are not left alone. */
function evenly(count, least) {
  const size = Math.max(1, Math.ceil(least));
  return Math.ceil(count / Math.max(1, Math.floor(count / size)));
}

const share = (row) => (row.length === 2 ? 1.8 : 1);

const memoryHeight = (ranks) => (ranks <= FEW ? ranks * 22 : Math.min(170, ranks * 3));

/**
 * The layers whose memory shares its strips, the one that is worked on first: where there are few meshes all
 * those of equally many, so that strips stay tall enough to be read; else each layer has strips of its own.
 */
function sharing(held) {
  const layers = [...held].reverse();
  const isOne = layers.length > 1 && layers[0].ranks <= FEW && layers.every(({ ranks }) => ranks === layers[0].ranks);
  return isOne ? [layers] : held.map((layer) => [layer]);
}

/** The title of the lanes of links, and each of them. */
function placeLinks(layer, y, height) {
  const { lanes } = layer.links;
  const each = (height - TITLE) / Math.max(1, lanes.length);
  return {
    layer,
    y,
    lanes: lanes.map((port, number) => ({ port: { ...port, number }, y: y + TITLE + number * each, height: each })),
  };
}

function placeMemory(shown, top, height) {
  const strips = [];
  const each =
    (height - shown.length * TITLE) /
    Math.max(
      1,
      shown.reduce((sum, [layer]) => sum + layer.ranks, 0),
    );
  for (const [layer, ...others] of shown) {
    strips.push({ layer, others, rank: -1, y: top, height: TITLE });
    top += TITLE;
    for (let rank = 0; rank < layer.ranks; rank++, top += each)
      strips.push({ layer, others, rank, y: top, height: each });
  }
  return strips;
}

/** Layers that share their lanes stand in one row; those that lie over others can be left out. */
export function rowsOf(data, isAlone) {
  const rows = [];
  for (const layer of data?.layers ?? []) {
    if (!layer.over) rows.push([layer]);
    else if (!isAlone) rows[rows.length - 1].push(layer);
  }
  return rows;
}
