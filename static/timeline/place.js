// Places of the chart: the place at a point, its neighbours, and the name by which a place is found again.

/** @import { Point } from "../kit/types" */
/** @import { Frame } from "./frame.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { ActionName, Data, Lane, Place } from "./types" */

import { TICKS } from "./columns.js";
import { linkAt } from "./link_lanes.js";
import { arrowAt } from "./transfers.js";

const COLLECTIVES = 0.74; // part of a lane, from its top, below which the pointer hits collectives
const NEAR = 1.5; // CSS pixels within which the pointer hits a block

/**
 * The place at a point of the canvas: a span, idle time, memory or a link; or null.
 * @param {Chart} chart @param {Point} point @returns {Place | null}
 */
export function placeAt(chart, point) {
  const { frame, plan, arrows } = chart;
  const { x, y } = point;
  const isBetweenParts = y > frame.split - 3 && y < frame.split;
  if (x < frame.left || x > frame.right || y < frame.top || isBetweenParts) return null;
  const tick = frame.tick(x);
  const strip = plan.strips.find((strip) => strip.rank >= 0 && y >= strip.y && y < strip.y + strip.height);
  if (strip) {
    const { layer, ranks, others } = strip;
    const held = ranks.map((rank) => layer.memoryAt(rank, tick));
    const memory = Math.max(...held);
    return { layer, rank: ranks[held.indexOf(memory)], others, span: -1, memory, tick };
  }
  if (y > frame.bottom) return linkAt(chart, point);
  const lane = laneAt(chart, point);
  const arrow = arrowAt(arrows, point);
  return lane ? placeInLane(frame, lane, tick, y, arrow) : arrow;
}

/** @param {Frame} frame @param {Lane} lane @param {number} tick @param {number} y @param {Place | null} arrow */
function placeInLane(frame, lane, tick, y, arrow) {
  const { layer, rank } = lane;
  const collective = y > lane.y + COLLECTIVES * lane.height ? layer.collectiveAt(rank, tick) : -1;
  const span = collective >= 0 ? collective : blockAt(frame, lane, tick, y);
  if (span >= 0 && !(arrow && layer.duration(span) === 0)) return { layer, rank, span };
  if (arrow) return arrow;
  const later = layer.collectiveAt(rank, tick);
  if (later >= 0) return { layer, rank, span: later };
  return tick >= 0 && tick <= layer.last ? { layer, rank, span: -1, tick } : null;
}

/**
 * The block of a lane at a point; for a shared slot, the block in the half at the point.
 * @param {Frame} frame @param {Lane} lane @param {number} tick @param {number} y
 */
function blockAt(frame, { layer, rank, y: top, height }, tick, y) {
  const block = layer.at(rank, tick, NEAR / frame.scale);
  const isLower = block >= 0 && layer.halfOf(block) === 1 && y > top + height / 2;
  return isLower ? block + 1 : block;
}

/** The lane whose blocks or name are at a point, or null. @param {Chart} chart @param {{y: number}} point */
export function laneAt({ frame, plan }, { y }) {
  return plan.lanes.find((lane) => frame.isLaneVisible(lane) && y >= lane.y && y < lane.y + lane.height) ?? null;
}

/** True if the filter or a collapsed row hides the lane of a span. @param {Chart} chart @param {Place} place */
export const isHidden = ({ plan }, { layer, span }) => plan.laneOf(layer, layer.rankOf(span)).height === 0;

/** The first block in view, of the first lane in view; null if all rows are collapsed. @param {Chart} chart */
export function firstPlace({ frame, plan, view }) {
  const lane = plan.lanes.find((lane) => frame.isLaneClear(lane)) ?? plan.lanes[0];
  if (!lane) return null;
  const { layer, rank } = lane;
  const span = layer.next(rank, Math.max(0, view.from));
  return { layer, span: span >= 0 ? span : layer.range(0, rank)[1] - 1 };
}

/**
 * The block that is a number of places along the lane, or at the same time in a lane that is a number of places
 * across; or null.
 * @param {Chart} chart @param {Place} place @param {number} along @param {number} across
 */
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

/** The same action in the other timeline of the row, or null. @param {Chart} chart @param {Place} place */
export function twinOf({ rows }, { layer, span }) {
  const row = rows.find((row) => row.includes(layer));
  const other = row?.find((candidate) => candidate !== layer);
  if (!other || layer.isTransfer(span)) return null;
  const twin = other.find(layer.op[span], layer.stage[span], layer.microbatch[span], layer.rankOf(span));
  return twin >= 0 ? { layer: other, span: twin } : null;
}

/**
 * The part of the chart under the pointer: span, name of a lane, axis, or none.
 * @param {Chart} chart @param {Point} at
 */
export function partAt(chart, at) {
  const { hover, frame, collapse } = chart;
  if (hover && hover.span >= 0) return "span";
  if (at.x < frame.left && (laneAt(chart, at) || collapse.titleAt(at))) return "name";
  return at.y < frame.top ? "axis" : "";
}

/** Causes and inputs of a span, and the spans that wait for the span or need its result. @param {Place} place */
export function relatives({ layer, span }) {
  const cause = layer.cause[span];
  const behind = cause >= 0 && layer.isTransfer(cause) ? [cause, layer.cause[cause]] : [cause];
  const causes = [...new Set([...behind, ...layer.inputs(span)])].filter((other) => other >= 0);
  return { causes, effects: layer.effects(span).filter((other) => !causes.includes(other)) };
}

/** The name of the action of a place. @param {Place} place @returns {ActionName} */
export function actionName({ layer, span }) {
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

/**
 * The place of an action, or null if there is none.
 * @param {Data} data @param {ActionName | null} name @returns {Place | null}
 */
export function placeOf(data, name) {
  const layer = name && data.layers[name.layer];
  const span = layer && name.rank < layer.ranks ? layer.find(name.op, name.stage, name.mb, name.rank, name.other) : -1;
  return layer && span >= 0 ? { layer, span } : null;
}
