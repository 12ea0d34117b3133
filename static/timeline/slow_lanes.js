// Lanes on which a run is slower than expected.

/** @import { Point } from "../kit/types" */
/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { Lane } from "./types" */

import { css } from "../kit/palette.js";
import { laneAt } from "./place.js";

const PIN = "Pin this lane to the top, or unpin it (U)";
const TURN = "Collapse or expand these lanes (← and → on the triangle)";

/** @param {Layer} layer */
export const isOfRun = ({ source }) => source !== "predicted";

/**
 * The reason why a run is slow on a lane, which the run may share with its prediction; "" if the lane is not slow.
 * @param {Chart} chart @param {Lane} lane
 */
export function slowReason({ model, rows }, { layer, rank, group = 1 }) {
  const row = rows.find((each) => each.includes(layer)) ?? [layer];
  const isMeasured = (group === 1 ? row : [layer]).some(isOfRun);
  return (isMeasured && model.slow_lanes[layer.meshes[rank]]) || "";
}

/** The distinct reasons why the shown run is slow. @param {Chart} chart */
export function slowReasons({ model, data }) {
  return data.layers.some(isOfRun) ? [...new Set(Object.values(model.slow_lanes))] : [];
}

/** The tooltip of the name of a lane. @param {Chart} chart @param {Point} at */
export function nameTitle(chart, at) {
  const lane = laneAt(chart, at);
  if (!lane) return TURN;
  const reason = slowReason(chart, lane);
  return reason ? `${reason}. ${PIN}` : PIN;
}

/**
 * Outline the slow lanes among the given lanes.
 * @param {CanvasRenderingContext2D} context @param {Chart} chart @param {Lane[]} lanes
 */
export function outlineSlowLanes(context, chart, lanes) {
  const { frame, colours } = chart;
  context.strokeStyle = css(colours.warning);
  context.lineWidth = 1.5;
  for (const lane of lanes.filter((each) => slowReason(chart, each))) {
    const [y, height] = lane.whole;
    context.strokeRect(frame.left + 0.75, y - 1, frame.right - frame.left - 1.5, height + 2);
  }
}
