// The spans that a search finds.

/** @import { Layer } from "./data.js" */
/** @import { Query } from "./types" */

/**
 * The spans that match a query (engine/predict/questions/action_query.py), by their start.
 * @param {Layer} layer @param {Query} query
 */
export function matchingSpans(layer, { ops, stage, microbatch, rank }) {
  const wanted = new Set(ops);
  const found = [];
  const matches = (/** @type {number} */ span) =>
    (ops.length ? wanted.has(layer.op[span]) : !layer.isTransfer(span)) &&
    (stage === null || layer.stage[span] === stage) &&
    (microbatch === null || layer.microbatchOf(span) === microbatch);
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

/**
 * Statistics of the durations of spans, in seconds or cost units; `share` is relative to the step time of all meshes.
 * @param {Layer} layer @param {number[]} spans at least one
 */
export function durationStatistics(layer, spans) {
  let [sum, min, max] = [0, Infinity, 0];
  for (const span of spans) {
    const duration = layer.duration(span);
    sum += duration;
    min = Math.min(min, duration);
    max = Math.max(max, duration);
  }
  const available = layer.ranks * layer.makespan;
  return { sum, mean: sum / spans.length, min, max, share: available ? sum / available : 0 };
}

/**
 * Spans in the order of a key; spans with equal keys keep their order.
 * @param {number[]} spans @param {(span: number) => number} key @param {boolean} isDescending
 */
export function sortSpans(spans, key, isDescending) {
  const keys = new Map(spans.map((span) => [span, key(span)]));
  const difference = (/** @type {number} */ a, /** @type {number} */ b) => Number(keys.get(a)) - Number(keys.get(b));
  return spans.toSorted(isDescending ? (a, b) => difference(b, a) : difference);
}
