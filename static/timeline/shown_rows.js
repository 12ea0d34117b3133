// The timelines and their rows in the chart, from top to bottom: Python draws the same ones in exported pictures.

/** @import { Chart } from "./timeline.js" */
/** @import { Plan, RowTitle, ShownRow } from "./types" */

import { count } from "../kit/numbers.js";
import { groupFigures } from "./collapse.js";
import { linkWords } from "./link_lanes.js";
import { memoryWords } from "./memory.js";

/** Send Python the timelines and rows if they have changed since the last painting. @param {Chart} chart */
export function reportRows(chart) {
  const { data, plan, rows } = chart;
  const shown = data.layers.map((layer) => {
    const place = rows.find((row) => row.includes(layer))?.indexOf(layer);
    return { digest: layer.digest, over: place === 1, rows: place === 0 ? shownRows(plan, layer.number) : [] };
  });
  const text = JSON.stringify(shown);
  if (text === chart.reportedRows) return;
  chart.reportedRows = text;
  chart.model.shown_rows = shown;
}

/** @param {Plan} plan @param {number} number of a layer @returns {ShownRow[]} */
export function shownRows(plan, number) {
  const kept = plan.lanes.filter((lane) => lane.kept && lane.layer.number === number);
  const titles = plan.titles.filter(({ row: [layer] }) => layer.number === number);
  /** @type {ShownRow[]} */
  const rows = [{ kind: "lanes", ranks: kept.map(({ rank }) => rank) }, ...titles.flatMap(rowsOfTitle)];
  return [...rows, ...linkRows(plan, number), ...memoryRows(plan, number)].filter(
    ({ kind, ranks }) => kind === "title" || kind === "links" || ranks?.length,
  );
}

/** @param {RowTitle} title @returns {ShownRow[]} */
function rowsOfTitle(title) {
  const { name, members, ranks, isCollapsed } = title;
  if (isCollapsed) return [{ kind: "summary", name: name ?? count(members.length, "lane"), ranks: members }];
  /** @type {ShownRow} */
  const lanes = { kind: "lanes", ranks };
  return name === undefined ? [lanes] : [{ kind: "title", name, note: groupFigures(title) }, lanes];
}

/** @param {Plan} plan @param {number} number @returns {ShownRow[]} */
function linkRows({ links }, number) {
  if (links?.layer.number !== number) return [];
  /** @type {ShownRow[]} */
  const lanes = links.lanes.map(({ port, ports }) => ({
    kind: "links",
    name: port.label,
    ports: ports.map(({ label }) => label),
  }));
  return [{ kind: "title", name: "Links", note: linkWords(links.layer) }, ...lanes];
}

/** @param {Plan} plan @param {number} number @returns {ShownRow[]} */
function memoryRows({ strips }, number) {
  return strips
    .filter(({ layer }) => layer.number === number)
    .map(({ layer, rank, ranks, name }) =>
      rank < 0 ? { kind: "title", name: "Memory", note: memoryWords(layer) } : { kind: "memory", name, ranks },
    );
}
