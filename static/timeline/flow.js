// Flows of the pinned block: its neighbours, the whole way of its microbatch, or the chain of causes behind it.

import { OP } from "./columns.js";
import { relatives } from "./place.js";

export const FLOWS = ["neighbours", "its microbatch", "all causes"];

/**
 * The spans that a flow shows, and the pairs of blocks that it joins. `causes` and `effects` are those of the
 * pinned block itself, whatever flow is shown.
 */
export function flowOf(place, flow) {
  const found = relatives(place);
  if (flow === 1) return { ...found, ...microbatchWay(place) };
  if (flow === 2) return { ...found, ...causesChain(place) };
  return { ...found, spans: [...found.causes, place.span, ...found.effects], joins: [] };
}

/** All of a microbatch: forward stage by stage, then backward, with the transfers between. */
function microbatchWay({ layer, span }) {
  const microbatch = layer.microbatch[span];
  if (microbatch < 0) return { spans: [span], joins: [] };
  const stages = Array.from({ length: layer.stages }, (_, stage) => stage);
  const of = (op, stage) => layer.find(op, stage, microbatch);
  const down = stages.map((stage) => of(OP.F, stage));
  const up = stages.map((stage) => Math.max(of(OP.B, stage), of(OP.I, stage))).reverse();
  const path = [...down, ...up].filter((each) => each >= 0);
  const sends = [OP.SEND_F, OP.SEND_B].flatMap((op) =>
    stages.flatMap((stage) => [of(op, stage), ...layer.skipsFrom(op, stage, microbatch)]),
  );
  const more = [...stages.map((stage) => of(OP.W, stage)), ...sends].filter((each) => each >= 0);
  return { spans: [...path, ...more], joins: path.slice(1).map((each, place) => [path[place], each]) };
}

/** Why a block stands where it does: what it waited for, what that waited for, and so on to the start of the step. */
function causesChain({ layer, span }) {
  const spans = [];
  for (let at = span; at >= 0; at = layer.cause[at]) spans.push(at);
  const blocks = spans.filter((each) => !layer.isTransfer(each)).reverse();
  return { spans: spans.reverse(), joins: blocks.slice(1).map((each, place) => [blocks[place], each]) };
}

/** What made a span wait last, or -1: a press leads there. */
export const causeOf = ({ layer, span }) => layer.cause[layer.halfOf(span) === 2 ? span - 1 : span];

/** What a span held up or brought about, in the order of time. */
export function effectsOf({ layer, span }) {
  const held = layer.effects(span).filter((other) => layer.cause[other] === span);
  const others = layer.effects(span).filter((other) => layer.cause[other] !== span);
  const byTime = (one, other) => layer.start[one] - layer.start[other];
  return [...held.sort(byTime), ...others.sort(byTime)];
}
