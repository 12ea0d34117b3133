// Flows of the pinned block: its neighbours, the path of its microbatch, or the chain of its causes.

/** @import { Flow, Place } from "./types" */

import { OP } from "./columns.js";
import { relatives } from "./place.js";

export const FLOWS = ["neighbours", "microbatch", "all causes"];

/**
 * The spans of a flow, the pairs of blocks that it joins, and the `causes` and `effects` of the pinned block.
 * @param {Place} place @param {number} flow @returns {Flow}
 */
export function flowOf(place, flow) {
  const found = relatives(place);
  if (flow === 1) return { ...found, ...microbatchPath(place) };
  if (flow === 2) return { ...found, ...causeChain(place) };
  return { ...found, spans: [...found.causes, place.span, ...found.effects], joins: [] };
}

/**
 * All actions of a microbatch: forward stage by stage, then backward, with the transfers in between.
 * @param {Place} place @returns {Pick<Flow, "spans" | "joins">}
 */
function microbatchPath({ layer, span }) {
  const microbatch = layer.microbatchOf(span);
  if (microbatch < 0) return { spans: [span], joins: [] };
  const stages = Array.from({ length: layer.stages }, (_, stage) => stage);
  const find = (/** @type {number} */ op, /** @type {number} */ stage) => layer.find(op, stage, microbatch);
  const forward = stages.map((stage) => find(OP.F, stage));
  const backward = stages.map((stage) => Math.max(find(OP.B, stage), find(OP.I, stage))).reverse();
  const path = [...forward, ...backward].filter((each) => each >= 0);
  const sends = [OP.SEND_F, OP.SEND_B].flatMap((op) =>
    stages.flatMap((stage) => [find(op, stage), ...layer.skipsFrom(op, stage, microbatch)]),
  );
  const others = [...stages.map((stage) => find(OP.W, stage)), ...sends].filter((each) => each >= 0);
  return { spans: [...path, ...others], joins: path.slice(1).map((each, i) => [path[i], each]) };
}

/**
 * The chain of spans for which a block waited, back to the start of the step.
 * @param {Place} place @returns {Pick<Flow, "spans" | "joins">}
 */
function causeChain({ layer, span }) {
  const spans = [];
  for (let at = span; at >= 0; at = layer.cause[at]) spans.push(at);
  const blocks = spans.filter((each) => !layer.isTransfer(each)).reverse();
  return { spans: spans.reverse(), joins: blocks.slice(1).map((each, i) => [blocks[i], each]) };
}

/** The span for which a span waited last, or -1. @param {Place} place */
export const causeOf = ({ layer, span }) => layer.cause[layer.halfOf(span) === 2 ? span - 1 : span];

/**
 * The spans that waited for a span, then other spans that need its result, each ordered by start.
 * @param {Place} place
 */
export function effectsOf({ layer, span }) {
  const effects = layer.effects(span).sort((a, b) => layer.start[a] - layer.start[b]);
  const isWaiting = (/** @type {number} */ other) => layer.cause[other] === span;
  return [...effects.filter(isWaiting), ...effects.filter((other) => !isWaiting(other))];
}
