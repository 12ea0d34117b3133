// Sections of the lanes: a row of timelines, or, if its lanes are grouped, a title and a section for each group.

/** @import { Layer } from "./data.js" */
/** @import { LaneTest } from "./layout.js" */
/** @import { Section } from "./types" */

import { TITLE } from "./paint.js";

export const SUMMARY = 18; // height of the summary of collapsed lanes in CSS pixels

/** The key of a pinned lane. @param {Layer} layer @param {number} rank */
export const laneKey = (layer, rank) => `${layer.number}:${rank}`;

/** The key by which a row or a group of its lanes is collapsed. @param {Layer[]} row @param {string} [name] */
export const sectionKey = ([{ number }], name) => (name === undefined ? `${number}` : `${number}:${name}`);

/**
 * The sections of a row. Groups without lanes to show are left out.
 * @param {Layer[]} row
 * @param {{kept: Set<string>, isShown: LaneTest, grouping: string, collapsed: Set<string>}} options
 * @returns {Section[]}
 */
export function sectionsOf(row, { kept, isShown, grouping, collapsed }) {
  const [layer] = row;
  const isKept = (/** @type {number} */ rank) => kept.has(laneKey(layer, rank));
  const section = (/** @type {number[]} */ all, /** @type {string | undefined} */ name) => {
    const key = sectionKey(row, name);
    const isCollapsed = collapsed.has(key);
    const members = all.filter((rank) => isKept(rank) || isShown(layer, rank));
    const ranks = isCollapsed ? [] : members.filter((rank) => !isKept(rank));
    const head = isCollapsed && name !== undefined ? 0 : TITLE;
    return { row, name, key, all, members, ranks, head, above: head + (isCollapsed ? SUMMARY : 0), isCollapsed };
  };
  const whole = section(
    layer.meshes.map((_, rank) => rank),
    undefined,
  );
  const groups = whole.isCollapsed ? [] : groupsOf(layer, grouping);
  if (!groups.length) return [whole];
  const found = groups.map(({ name, ranks }) => section(ranks, name)).filter(({ members }) => members.length);
  return [{ ...whole, ranks: [] }, ...found];
}

/**
 * The groups of a timeline's lanes by a criterion; none if it has none.
 * @param {Layer} layer @param {string} grouping
 */
export function groupsOf(layer, grouping) {
  return layer.once(`groups:${grouping}`, () => {
    const { names = [], of = [] } = layer.groups?.[grouping] ?? {};
    /** @type {{name: string, ranks: number[]}[]} */
    const groups = names.map((name) => ({ name, ranks: [] }));
    of.forEach((group, rank) => groups[group].ranks.push(rank));
    return groups;
  });
}

/** The key of the group of a lane, or undefined. @param {Layer[]} row @param {string} grouping @param {number} rank */
export function groupKey(row, grouping, rank) {
  const group = groupsOf(row[0], grouping).find(({ ranks }) => ranks.includes(rank));
  return group && sectionKey(row, group.name);
}
