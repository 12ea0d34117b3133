// The spans that a search finds.

/** @import { Columns } from "./columns.js" */
/** @import { Query } from "./types" */

/**
 * The spans that match a query (engine/predict/questions/action_query.py), by their start.
 * @param {Columns} layer @param {Query} query
 */
export function matchingSpans(layer, { ops, stage, microbatch, rank }) {
  const wanted = new Set(ops);
  const found = [];
  const matches = (/** @type {number} */ span) =>
    (ops.length ? wanted.has(layer.op[span]) : !layer.isTransfer(span)) &&
    (stage === null || layer.stage[span] === stage) &&
    (microbatch === null || layer.microbatch[span] === microbatch);
  for (let at = 0; at < layer.ranks; at++) {
    for (const kind of [0, 1, 2]) {
      const [from, to] = layer.range(kind, at);
      for (let span = from; span < to; span++) {
        const isOfRank = rank === null || rank === at || (kind === 2 && layer.peerOf(span) === rank);
        if (isOfRank && matches(span)) found.push(span);
      }
    }
  }
  return found.sort((a, b) => layer.start[a] - layer.start[b]);
}
