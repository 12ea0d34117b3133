// The positions of the link lanes and memory strips below the lanes. They follow the groups of the lanes: a collapsed
// group has one summary instead of its strips. All strips of a kind can be collapsed, too.

/** @import { Layer } from "./data.js" */
/** @import { LaneTest } from "./layout.js" */
/** @import { LinkLane, Plan, Port, Strip } from "./types" */

import { count } from "../kit/numbers.js";
import { TITLE } from "./paint.js";
import { SUMMARY, groupsOf, sectionKey } from "./sections.js";

const LINK = 24; // height of a link lane in CSS pixels
const LEAST_LINKS = 0.3; // largest part of the height for link lanes if there are many
const FEW = 10; // largest number of meshes whose memory is drawn as curves

/** The criterion that groups lanes, and the keys of collapsed sections.
 * @typedef {{grouping: string, collapsed: Set<string>}} Folds */

/** A strip, or the summary of several, which has a name: numbers of ranks or ports.
 * @typedef {{items: number[], name?: string}} Part */

/** The strips below a title. @typedef {{key: string, isCollapsed: boolean, parts: Part[]}} Parts */

/**
 * The strips of `items`; `groupOf` is the number of the group of an item, or -1.
 * @param {Layer} layer @param {"memory" | "links"} kind @param {number[]} items
 * @param {(item: number) => number} groupOf @param {Folds} folds @returns {Parts}
 */
function partsOf(layer, kind, items, groupOf, { grouping, collapsed }) {
  const key = sectionKey([layer], kind);
  const isCollapsed = collapsed.has(key);
  if (isCollapsed) return { key, isCollapsed, parts: items.length ? [{ items, name: "" }] : [] };
  const names = groupsOf(layer, grouping).map(({ name }) => name);
  /** @type {number[][]} */
  const groups = [...names.map(() => []), []]; // those without a group are the last
  for (const item of items) (groups[groupOf(item)] ?? groups[names.length]).push(item);
  const parts = groups.flatMap((group, at) =>
    group.length && at < names.length && collapsed.has(sectionKey([layer], names[at]))
      ? [{ items: group, name: names[at] }]
      : group.map((item) => ({ items: [item] })),
  );
  return { key, isCollapsed, parts };
}

/** The height of a title and of summaries, and the number of other strips. @param {Parts[]} all */
function sizesOf(all) {
  const parts = all.flatMap((each) => each.parts);
  const summaries = parts.filter(({ name }) => name !== undefined).length;
  return { fixed: all.length * TITLE + summaries * SUMMARY, single: parts.length - summaries };
}

// ── links ──

/**
 * The parts of the links of a layer, and their heights.
 * @param {Layer | null} layer @param {number} whole @param {Folds} folds
 */
export function linkNeeds(layer, whole, folds) {
  if (!layer?.links) return { layer, wanted: 0, least: 0, fixed: 0, single: 0, key: "", isCollapsed: false, parts: [] };
  const { lanes, groups } = layer.links;
  const items = lanes.map((_, number) => number);
  const found = partsOf(layer, "links", items, (lane) => groups?.[folds.grouping]?.[lane] ?? -1, folds);
  const sizes = sizesOf([found]);
  const wanted = sizes.fixed + sizes.single * LINK;
  return { layer, wanted, least: Math.min(wanted, Math.max(TITLE, whole * LEAST_LINKS)), ...sizes, ...found };
}

/** @param {ReturnType<typeof linkNeeds>} needs @param {number} y @param {number} height @returns {Plan["links"]} */
export function placeLinks({ layer, fixed, single, key, isCollapsed, parts }, y, height) {
  if (!layer) return null;
  const each = (height - fixed) / Math.max(1, single);
  const ports = (layer.links?.lanes ?? []).map((port, number) => ({ ...port, number }));
  let top = y + TITLE;
  /** @type {LinkLane[]} */
  const lanes = [];
  for (const { items, name } of parts) {
    const here = items.map((number) => ports[number]);
    const lane = { ports: here, y: top, height: name === undefined ? each : SUMMARY };
    lanes.push({ ...lane, port: name === undefined ? here[0] : sumOf(here, name) });
    top += lane.height;
  }
  return { layer, y, key, isCollapsed, lanes };
}

/** Several ports as one, with their mean utilization. @param {Port[]} ports @param {string} group @returns {Port} */
function sumOf(ports, group) {
  const sum = (/** @type {"share" | "busy_s" | "bytes"} */ key) =>
    ports.reduce((all, port) => all + (port[key] ?? 0), 0);
  const label = group || count(ports.length, "port");
  const name = group ? `${group}, ${count(ports.length, "port")}` : label;
  return {
    ...ports[0],
    number: -1,
    name,
    label,
    share: sum("share") / ports.length,
    busy_s: sum("busy_s"),
    bytes: sum("bytes"),
  };
}

// ── memory ──

/**
 * The parts of the memory of layers, and their heights.
 * @param {Layer[]} held @param {LaneTest} isShown @param {number} whole @param {boolean} hasLinks @param {Folds} folds
 */
export function memoryNeeds(held, isShown, whole, hasLinks, folds) {
  const shared = shareStrips(held).map(([layer, ...others]) => {
    const ranks = layer.meshes.map((_, rank) => rank).filter((rank) => isShown(layer, rank));
    const of = layer.groups?.[folds.grouping]?.of;
    return { layer, others, ...partsOf(layer, "memory", ranks, (rank) => of?.[rank] ?? -1, folds) };
  });
  const height = (/** @type {number} */ ranks) => (ranks <= FEW ? ranks * 22 : Math.min(170, ranks * 3));
  const flexible = shared.reduce((sum, each) => sum + height(sizesOf([each]).single), 0);
  const sizes = sizesOf(shared);
  const wanted = sizes.fixed + flexible;
  const most = (/** @type {number} */ factor) => (flexible ? wanted * factor : wanted);
  return { shared, ...sizes, wanted, most, least: Math.min(wanted, whole * (hasLinks ? 0.24 : 0.36)) };
}

/**
 * The layers whose memory shares strips, the open design first. With few meshes, all layers with the same number of
 * meshes share strips, so that strips stay legible; otherwise each layer has its own strips.
 * @param {Layer[]} held
 */
function shareStrips(held) {
  const layers = [...held].reverse();
  const isOne = layers.length > 1 && layers[0].ranks <= FEW && layers.every(({ ranks }) => ranks === layers[0].ranks);
  return isOne ? [layers] : held.map((layer) => [layer]);
}

/** @param {ReturnType<typeof memoryNeeds>} needs @param {number} top @param {number} height */
export function placeMemory({ shared, fixed, single }, top, height) {
  const each = (height - fixed) / Math.max(1, single);
  /** @type {Strip[]} */
  const strips = [];
  for (const { layer, others, key, isCollapsed, parts } of shared) {
    strips.push({ layer, others, rank: -1, ranks: [], name: "", key, isCollapsed, y: top, height: TITLE });
    top += TITLE;
    for (const { items, name } of parts) {
      const tall = name === undefined ? each : SUMMARY;
      const text = name ?? layer.meshes[items[0]];
      strips.push({ layer, others, rank: items[0], ranks: items, name: text || "Peak", y: top, height: tall });
      top += tall;
    }
  }
  return strips;
}
