// Places of the chart: what is under a point, what stands beside it, and the name by which a place is found again.
// A place is `{layer, span}`; one without a span (-1) has `rank` and `tick`, and over memory `memory`;
// over a lane of a port `link`, and there the span is the one whose bytes pass.

import { TICKS } from "./columns.js";
import { linkAt } from "./link_lanes.js";
import { arrowAt } from "./transfers.js";

const LOW = 0.74; // of a lane: reductions are drawn below
const NEAR = 1.5; // CSS pixels from a block

/** What is at a point of the canvas: a span, idle time or memory; null for nothing. */
export function placeAt({ frame, plan, arrows }, { x, y }) {
  if (x < frame.left || x > frame.right || y < frame.top || (y > frame.split - 3 && y < frame.split)) return null;
  const tick = frame.tick(x);
  const strip = plan.strips.find((strip) => strip.rank >= 0 && y >= strip.y && y < strip.y + strip.height);
  if (strip)
    return {
      layer: strip.layer,
      rank: strip.rank,
      span: -1,
      memory: strip.layer.memoryAt(strip.rank, tick),
      others: strip.others,
      tick,
    };
  if (y > frame.bottom) return linkAt({ frame, plan }, x, y);
  const lane = plan.lanes.find((lane) => frame.isLaneSeen(lane) && y >= lane.y && y < lane.y + lane.height);
  const arrow = arrowAt(arrows, x, y);
  return lane ? inLane(frame, lane, tick, y, arrow) : arrow;
}

function inLane(frame, lane, tick, y, arrow) {
  const { layer, rank } = lane;
  const reduction = y > lane.y + LOW * lane.height ? layer.reductionAt(rank, tick) : -1;
  const block = layer.at(rank, tick, NEAR / frame.scale);
  const lower = block >= 0 && layer.halfOf(block) === 1 && y > lane.y + lane.height / 2;
  const span = reduction >= 0 ? reduction : lower ? block + 1 : block;
  if (span >= 0 && !(arrow && layer.duration(span) === 0)) return { layer, rank, span };
  if (arrow) return arrow;
  const late = layer.reductionAt(rank, tick);
  if (late >= 0) return { layer, rank, span: late };
  return tick >= 0 && tick <= layer.last ? { layer, rank, span: -1, tick } : null;
}

/** The lane at a point, its name included, or null. */
export function laneAt({ frame, plan }, { y }) {
  return plan.lanes.find((lane) => frame.isLaneSeen(lane) && y >= lane.y && y < lane.y + lane.height) ?? null;
}

/** The first block in view, of the first lane in view. */
export function firstPlace({ frame, plan, view }) {
  const { layer, rank } = plan.lanes.find((lane) => frame.isLaneClear(lane)) ?? plan.lanes[0];
  const span = layer.next(rank, Math.max(0, view.from));
  return { layer, span: span >= 0 ? span : layer.range(0, rank)[1] - 1 };
}

/** The block `along` the lane of another, or in the lane `across` from it at the same time; null if there is none. */
export function placeBeside({ plan }, { layer, span }, along, across) {
  const rank = layer.rankOf(span);
  if (!across) {
    const [first, last] = layer.range(0, rank);
    const next = span + along;
    return next >= first && next < last ? { layer, span: next } : null;
  }
  const lane = plan.lanes[plan.lanes.findIndex((lane) => lane.layer === layer && lane.rank === rank) + across];
  const next = lane?.layer.at(lane.rank, (layer.start[span] + layer.end[span]) / 2, TICKS) ?? -1;
  return next >= 0 ? { layer: lane.layer, span: next } : null;
}

/** The same action in the other half of the lane. */
export function twinOf({ rows }, { layer, span }) {
  const row = rows.find((row) => row.includes(layer));
  const other = row?.find((candidate) => candidate !== layer);
  if (!other || layer.isTransfer(span)) return null;
  const twin = other.find(layer.op[span], layer.stage[span], layer.microbatch[span], layer.rankOf(span));
  return twin >= 0 ? { layer: other, span: twin } : null;
}

/** What a span waited for and computed with, and what needs it or waited for it. */
export function relatives({ layer, span }) {
  const cause = layer.cause[span];
  const behind = cause >= 0 && layer.isTransfer(cause) ? [cause, layer.cause[cause]] : [cause];
  const causes = [...new Set([...behind, ...layer.inputs(span)])].filter((other) => other >= 0);
  return { causes, effects: layer.effects(span).filter((other) => !causes.includes(other)) };
}

/** What stays of a place while the design changes: null, or the layer's number and the action of a rank. */
export function nameOf(place) {
  if (!place) return null;
  const { layer, span } = place;
  const other = layer.otherOf(span);
  return {
    layer: layer.number,
    rank: layer.rankOf(span),
    op: layer.op[span],
    stage: layer.stage[span],
    mb: layer.microbatch[span],
    ...(other >= 0 && { other }),
  };
}

/** The place of a name, or null where there is no such action any more. */
export function placeOf(data, name) {
  const layer = name && data?.layers[name.layer];
  const span = layer && name.rank < layer.ranks ? layer.find(name.op, name.stage, name.mb, name.rank, name.other) : -1;
  return span >= 0 ? { layer, span } : null;
}
