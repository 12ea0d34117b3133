// Lanes that are pinned to the top of the timeline.

/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */

import { laneAt } from "./place.js";
import { laneKey } from "./sections.js";

/** Pin a lane to the top, or unpin it. @param {Chart} chart @param {{layer: Layer, rank: number}} lane */
export function keepLane(chart, { layer, rank }) {
  const { kept, rows, live } = chart;
  const row = rows.find((row) => row.includes(layer)) ?? [layer];
  const key = laneKey(row[0], rank);
  if (!kept.delete(key)) kept.add(key);
  const state = kept.has(key) ? "pinned to the top" : "unpinned";
  live.textContent = `Mesh ${layer.meshes[rank]} is ${state}.`;
  chart.repaint();
}

/** Pin the lane under the pointer, or else the lane of the focused block. @param {Chart} chart */
export function keepLaneHere(chart) {
  const lane = chart.pointer && laneAt(chart, chart.pointer);
  const place = chart.focus ?? chart.pinned;
  if (lane) keepLane(chart, lane);
  else if (place) keepLane(chart, { layer: place.layer, rank: place.layer.rankOf(place.span) });
}
