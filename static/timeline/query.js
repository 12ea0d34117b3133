// Spans that a search finds.

/**
 * The spans that fit a query of Python (engine/predict/questions/action_query.py), by their start.
 * @param {import("./columns.js").Columns} layer
 * @param {{ops: number[], stage: number | null, microbatch: number | null, rank: number | null}} query
 */
export function spansOf(layer, { ops, stage, microbatch, rank }) {
  const wanted = new Set(ops);
  const found = [];
  const fits = (/** @type {number} */ span) =>
    (ops.length ? wanted.has(layer.op[span]) : !layer.isTransfer(span)) &&
    (stage === null || layer.stage[span] === stage) &&
    (microbatch === null || layer.microbatch[span] === microbatch);
  for (let at = 0; at < layer.ranks; at++) {
    for (const kind of [0, 1, 2]) {
      const [from, to] = layer.range(kind, at);
      for (let span = from; span < to; span++) {
        if (fits(span) && (rank === null || rank === at || (kind === 2 && layer.peerOf(span) === rank)))
          found.push(span);
      }
    }
  }
  return found.sort((one, other) => layer.start[one] - layer.start[other]);
}
