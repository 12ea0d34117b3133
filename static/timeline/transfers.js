// Transfers as arrows between the lanes: the arrows that have room, and the arrow under the pointer.

/** @import { Point } from "../kit/types" */
/** @import { Frame } from "./frame.js" */
/** @import { Shapes } from "./shapes.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { Arrow, Lane, Place, Plan, Segment } from "./types" */

import { clamp } from "../kit/numbers.js";

const LEAST_HEIGHT = 12; // least height in CSS pixels of a lane with transfers
const MOST_ARROWS = 1600;
const FEW = 400;
const NEAR = 4; // CSS pixels

/**
 * Draw the transfers in view if there is room for them, and return their arrows.
 * @param {Shapes} pen @param {Chart} chart @param {Lane[]} visible @returns {Arrow[]}
 */
export function paintTransfers(pen, { frame, plan }, visible) {
  // lanes that two timelines share have no room for arrows
  const lanes = visible.filter((lane) => lane.whole[1] === lane.height && lane.height >= LEAST_HEIGHT);
  if (!lanes.length) return [];
  const found = transfersInView(plan, frame, lanes);
  if (found.length >= Math.min(MOST_ARROWS, (lanes.length * (frame.right - frame.left)) / 13)) return [];
  const isLow = lanes[0].height < 17;
  const style = { alpha: found.length < FEW ? 0.8 : 0.55, width: isLow ? 0.9 : 1.2, head: !isLow };
  return found.map(({ from, span, to }) => pen.transfer(frame, from.layer, span, from, to, style));
}

/**
 * The transfers in view with the lanes of their senders and receivers; a few may be outside the view.
 * @param {Plan} plan @param {Frame} frame @param {Lane[]} lanes
 */
function transfersInView(plan, frame, lanes) {
  const found = [];
  for (const layer of new Set(lanes.map((lane) => lane.layer))) {
    for (let rank = 0; rank < layer.ranks; rank++) {
      const from = plan.laneOf(layer, rank);
      const [first, last] = layer.range(2, rank);
      for (let span = first; span < last && layer.start[span] <= frame.to; span++) {
        if (layer.end[span] < frame.from) continue;
        const to = plan.laneOf(layer, layer.peerOf(span));
        if (isArrowVisible(frame, from, to)) found.push({ from, span, to });
        if (found.length > MOST_ARROWS) return found;
      }
    }
  }
  return found;
}

/**
 * True if an arrow between two lanes is in view; if there are pinned lanes, both ends have to be in view. An
 * arrow from or to a hidden lane is not.
 * @param {Frame} frame @param {Lane} from @param {Lane | undefined} to
 */
function isArrowVisible(frame, from, to) {
  if (!from.height || !to?.height) return false;
  if (frame.split === frame.top) return frame.isLaneVisible(from) || frame.isLaneVisible(to);
  return [from, to].every((lane) => lane.height >= LEAST_HEIGHT && frame.isLaneClear(lane));
}

/**
 * The transfer whose arrow is nearest to a point, or null if no arrow is near.
 * @param {Arrow[]} arrows @param {Point} point @returns {Place | null}
 */
export function arrowAt(arrows, point) {
  let [nearest, distance] = [/** @type {Arrow | null} */ (null), NEAR];
  for (const arrow of arrows) {
    const away = distanceTo(point, arrow);
    if (away < distance) [nearest, distance] = [arrow, away];
  }
  if (!nearest) return null;
  const { layer, span } = nearest;
  return { layer, rank: layer.rankOf(span), span };
}

/** @param {Point} point @param {Segment} segment */
function distanceTo({ x, y }, { x1, y1, x2, y2 }) {
  const [dx, dy] = [x2 - x1, y2 - y1];
  const along = clamp(((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy || 1), 0, 1);
  return Math.hypot(x - x1 - along * dx, y - y1 - along * dy);
}
