// Transfers as arrows between the lanes: which have room, and which one is under the pointer.

import { clamp } from "../kit/numbers.js";

const ROOM = 12; // CSS pixels of a lane from which on it shows transfers
const MOST_ARROWS = 1600;
const FEW = 400;
const NEAR = 4; // CSS pixels

/** Draw those in view where they have room; returns their lines. */
export function paintTransfers(shapes, { frame, plan }, seen) {
  // laid over one another there is no room
  const roomy = seen.filter((lane) => lane.whole[1] === lane.height && lane.height >= ROOM);
  if (!roomy.length) return [];
  const found = transfersSeen(plan, frame, roomy);
  if (found.length >= Math.min(MOST_ARROWS, (roomy.length * (frame.right - frame.left)) / 13)) return [];
  const low = roomy[0].height < 17;
  const style = { alpha: found.length < FEW ? 0.8 : 0.55, width: low ? 0.9 : 1.2, head: !low };
  return found.map(([from, span, to]) => ({
    ...shapes.transfer(frame, from.layer, span, from, to, style),
    layer: from.layer,
  }));
}

/** Lane of the sender, span and lane of the receiver of each transfer in view; a few too many at most. */
function transfersSeen(plan, frame, lanes) {
  const found = [];
  for (const layer of new Set(lanes.map((lane) => lane.layer))) {
    for (let rank = 0; rank < layer.ranks; rank++) {
      const lane = plan.laneOf(layer, rank);
      const [from, to] = layer.range(2, rank);
      for (let span = from; span < to && layer.start[span] <= frame.to; span++) {
        if (layer.end[span] < frame.from) continue;
        const other = plan.laneOf(layer, layer.peerOf(span));
        if (other && areShown(frame, lane, other)) found.push([lane, span, other]);
        if (found.length > MOST_ARROWS) return found;
      }
    }
  }
  return found;
}

/** Whether an arrow between two lanes is seen, and none that is too low for it or hides under those kept on top. */
function areShown(frame, lane, other) {
  if (frame.split === frame.top) return frame.isLaneSeen(lane) || frame.isLaneSeen(other);
  return [lane, other].every((end) => end.height >= ROOM && frame.isLaneClear(end));
}

/** The transfer whose arrow is nearest to a point, if one is near. */
export function arrowAt(arrows, x, y) {
  let [best, nearest] = [null, NEAR];
  for (const arrow of arrows) {
    const away = toSegment(x, y, arrow);
    if (away < nearest)
      [best, nearest] = [{ layer: arrow.layer, rank: arrow.layer.rankOf(arrow.span), span: arrow.span }, away];
  }
  return best;
}

function toSegment(x, y, { x1, y1, x2, y2 }) {
  const [dx, dy] = [x2 - x1, y2 - y1];
  const along = clamp(((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy || 1), 0, 1);
  return Math.hypot(x - x1 - along * dx, y - y1 - along * dy);
}
