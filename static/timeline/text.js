// Texts about a place of the chart.

/** @import { Layer } from "./data.js" */
/** @import { Palette, Place } from "./types" */

import { count, percent } from "../kit/numbers.js";
import { linkFacts } from "./link_lanes.js";
import { memoryPartsAt } from "./memory_parts.js";
import { amount, bytes, flops, timeText } from "./units.js";

/** @typedef {[name: string, value: string]} Fact */

const UNTIMED = "unit costs are not in seconds; only the order can be compared";
/** @type {Record<string, string>} */
const SOURCES = { predicted: "Predicted", measured: "Measured", rehearsed: "Dry run" };

/**
 * The facts about a place: a span, idle time, memory or a link. `twin` is the same action, measured or predicted.
 * @param {Place} place @param {string[]} names of ops @param {Place | null} twin @returns {Fact[]}
 */
export function facts(place, names, twin) {
  const { layer, span, memory, link, tick = 0 } = place;
  if (memory !== undefined) return memoryFacts(place, memory);
  if (link) return linkFacts(layer, link, tick, names);
  if (span < 0) return idleFacts(layer, place.rank ?? 0, tick, names);
  if (layer.isTransfer(span)) return transferFacts(layer, span);
  const found = layer.labels ? stepFacts(layer, span, names) : blockFacts(layer, span, names);
  return twin ? [...found, twinFact(place, twin)] : found;
}

/** @param {Layer} layer @param {number} span @param {string[]} names @returns {Fact[]} */
function stepFacts(layer, span, names) {
  const size = layer.carried?.[span];
  return [
    ["Lane", layer.meshes[layer.rankOf(span)]],
    ...times(layer, span),
    waitFact(layer, span, names),
    ...(size ? [sizeFact("Sends", size, layer.duration(span))] : []),
  ];
}

/** @param {Layer} layer @param {number} span @param {string[]} names @returns {Fact[]} */
function blockFacts(layer, span, names) {
  const [rank, stage, microbatch] = [layer.rankOf(span), layer.stage[span], layer.microbatchOf(span)];
  const layers = layer.layersOf(stage);
  /** @type {Fact[]} */
  const found = [["Mesh", layer.meshes[rank]]];
  if (stage >= 0) found.push(["Stage", layers ? `${stage}, ${layers}` : String(stage)]);
  if (microbatch >= 0) found.push(["Microbatch", String(microbatch)]);
  else if (layer.microbatch[span] >= 0) found.push(["Bucket", String(layer.microbatch[span])]);
  if (layer.isBlocked(span)) return [...found, ["Blocked", "never runs: the order has a deadlock"]];
  found.push(...times(layer, span), ...workFacts(layer, span));
  if (layer.isUntimed) return [...found, ...residentFacts(layer, rank, span)];
  if (span < layer.blocks) found.push(waitFact(layer, span, names));
  return [...found, ...sendFacts(layer, span), ...residentFacts(layer, rank, span)];
}

/** @param {Layer} layer @param {number} span @returns {Fact[]} */
function workFacts(layer, span) {
  const work = layer.flopsOf(span);
  const duration = layer.duration(span);
  if (!work) return [];
  return [["Compute", `${flops(work)} per device${duration > 0 ? `, ${flops(work / duration)}/s` : ""}`]];
}

/**
 * Destination of the result of a block, its size and the duration of its transfer.
 * @param {Layer} layer @param {number} span @returns {Fact[]}
 */
function sendFacts(layer, span) {
  const transfer = layer.sendOf(span);
  if (transfer < 0) return [];
  const size = layer.bytesOf(transfer);
  const mesh = layer.meshes[layer.peerOf(transfer)];
  const time = timeText(layer.duration(transfer), layer.unit);
  return [["Sends", `${size ? `${bytes(size)} ` : ""}to mesh ${mesh}, ${time} on the link`]];
}

/**
 * The memory of a device at the start of a block.
 * @param {Layer} layer @param {number} rank @param {number} span @returns {Fact[]}
 */
function residentFacts(layer, rank, span) {
  if (!layer.hasMemory) return [];
  const memory = layer.memoryAt(rank, layer.start[span]);
  return [["Memory", `${bytes(memory)}${ofCapacity(layer, memory)}`]];
}

/** @param {Layer} layer @param {number} span @returns {Fact[]} */
function times(layer, span) {
  if (layer.isUntimed) return [];
  return [
    ["Duration", timeText(layer.duration(span), layer.unit)],
    ["Start", timeText(layer.start[span] * layer.scale, layer.unit)],
    ["End", timeText(layer.end[span] * layer.scale, layer.unit)],
  ];
}

/** @param {string} name @param {number} size @param {number} duration @returns {Fact} */
const sizeFact = (name, size, duration) => [
  name,
  duration > 0 ? `${bytes(size)}, ${bytes(size / duration)}/s` : bytes(size),
];

/** @param {Layer} layer @param {number} span @param {string[]} names @returns {Fact} */
function waitFact(layer, span, names) {
  const { ticks, cause } = layer.waited(span);
  if (ticks < 2) return ["Waited", "no"];
  return ["Waited", `${timeText(ticks * layer.scale, layer.unit)}${causeText(layer, cause, names)}`];
}

/** @param {Layer} layer @param {number} cause @param {string[]} names */
function causeText(layer, cause, names) {
  if (cause < 0) return "";
  const mesh = layer.meshes[layer.rankOf(cause)];
  if (layer.labels) return ` for ${layer.notation(cause, names)}, ${mesh}`;
  if (!layer.isTransfer(cause)) return ` for ${layer.notation(cause, names)} of mesh ${mesh}`;
  const [source = cause] = layer.inputs(cause);
  const time = timeText(layer.duration(cause), layer.unit);
  return ` for ${layer.notation(source, names)} from mesh ${mesh} (transfer ${time})`;
}

/** The duration of the same action in the other timeline. @param {Place} place @param {Place} twin @returns {Fact} */
function twinFact(place, { layer, span }) {
  const [own, other] = [place.layer.duration(place.span), layer.duration(span)];
  const [measured, predicted] = place.layer.over ? [own, other] : [other, own];
  const isDryRun = layer.source === "rehearsed" || place.layer.source === "rehearsed";
  if (layer.unit !== "s" && !isDryRun) return [SOURCES[layer.source], UNTIMED];
  const source = isDryRun ? "dry run" : "measured";
  return [SOURCES[layer.source], `${amount(other, layer.unit)} (${source} ${changeText(measured, predicted)})`];
}

/** @param {number} measured @param {number} predicted */
function changeText(measured, predicted) {
  const error = predicted ? measured / predicted - 1 : 0;
  if (Math.abs(error) < 5e-4) return "as predicted";
  return `${percent(Math.abs(error))} ${error > 0 ? "longer" : "shorter"} than predicted`;
}

/** @param {Layer} layer @param {number} span @returns {Fact[]} */
function transferFacts(layer, span) {
  const duration = layer.duration(span);
  const size = layer.bytesOf(span);
  /** @type {Fact[]} */
  const found = [
    ["From", layer.meshes[layer.rankOf(span)]],
    ["To", layer.meshes[layer.peerOf(span)]],
    ...times(layer, span),
  ];
  if (size) found.push(["Size", bytes(size)]);
  if (size && duration > 0 && layer.unit === "s") found.push(["Rate", `${bytes(size / duration)}/s`]);
  return found;
}

/** @param {Layer} layer @param {number} rank @param {number} tick @param {string[]} names @returns {Fact[]} */
function idleFacts(layer, rank, tick, names) {
  /** @type {Fact} */
  const lane = [layer.labels ? "Lane" : "Mesh", layer.meshes[rank]];
  const next = layer.next(rank, tick);
  if (next < 0) return [lane, ["Idle", layer.labels ? "no further steps" : "until the end of the step"]];
  const idle = timeText(layer.waited(next).ticks * layer.scale, layer.unit);
  return [lane, ["Idle", idle], ["Next", layer.notation(next, names)]];
}

/** @param {Place} place @param {number} memory @returns {Fact[]} */
function memoryFacts({ layer, rank = 0, others = [], tick = 0 }, memory) {
  return [
    ["Mesh", layer.meshes[rank]],
    ["Time", timeText(Math.max(0, tick) * layer.scale, layer.unit)],
    ["Memory", `${bytes(memory)}${ofCapacity(layer, memory)}`],
    ...memoryPartsAt(layer, rank, tick).map(
      ({ kind, bytes: size }) => /** @type {Fact} */ ([`· ${kind}`, bytes(size)]),
    ),
    ["Peak", bytes(layer.peaks[rank])],
    ...others.map(
      (other) =>
        /** @type {Fact} */ ([other.label, `${bytes(other.memoryAt(rank, tick))}, peak ${bytes(other.peaks[rank])}`]),
    ),
  ];
}

/** @param {Layer} layer @param {number} memory */
const ofCapacity = ({ capacity }, memory) => (capacity ? `, ${percent(memory / capacity)} of ${bytes(capacity)}` : "");

/**
 * A span and its facts as text for screen readers.
 * @param {Place} place @param {Palette} palette @param {Place | null} twin
 */
export function announcement(place, palette, twin) {
  const { layer, span } = place;
  const [op, microbatch] = [palette.names[layer.op[span]], layer.microbatchOf(span)];
  const word = layer.kinds?.[op] ?? palette.words[op];
  const what = microbatch >= 0 && !layer.kinds ? `${word} of microbatch ${microbatch}` : word;
  const rest = facts(place, palette.names, twin).map(([name, value]) => `${name} ${value}`);
  return `${layer.notation(span, palette.names)}, ${what}. ${rest.join(", ")}.`;
}

/**
 * The title of a row of lanes: texts, each with whether it is strong. A short one has one name.
 * @param {Layer[]} row @param {boolean} [isShort] @returns {[string, boolean][]}
 */
export function title([below, over], isShort = false) {
  if (over) return sharedTitle(below, over, isShort);
  return [
    [below.label, true],
    [below.blocked ? `deadlock: ${count(blockedBlocks(below), "block")} cannot run` : stepTime(below), false],
  ];
}

/** @param {Layer} layer */
const blockedBlocks = ({ blocked }) => blocked?.reduce((sum, each) => sum + each, 0) ?? 0;

/** @param {Layer} layer */
const stepTime = (layer) =>
  `${(SOURCES[layer.source] ?? layer.source).toLowerCase()} ${timeText(layer.makespan, layer.unit)}`;

/** @param {Layer} below @param {Layer} over @param {boolean} isShort @returns {[string, boolean][]} */
function sharedTitle(below, over, isShort) {
  const isUntimed = below.unit !== "s" && over.source !== "rehearsed";
  const change = lengthChange(below, over);
  const short = isUntimed ? UNTIMED : `${stepTime(below)}, ${stepTime(over)}, ${change}`;
  /** @type {[string, boolean]} */
  const name = [below.label, true];
  if (isShort) return [name, [short, false]];
  return [
    name,
    [isUntimed ? stepTime(below) : `${stepTime(below)} (upper half)`, false],
    [over.label, true],
    [isUntimed ? UNTIMED : `${stepTime(over)} (lower half), ${change}`, false],
  ];
}

/** @param {Layer} below @param {Layer} over */
function lengthChange(below, over) {
  const error = below.makespan ? over.makespan / below.makespan - 1 : 0;
  if (Math.abs(error) < 5e-4) return "same length";
  return `${percent(Math.abs(error))} ${error > 0 ? "longer" : "shorter"}`;
}

/** All timelines of the chart, for screen readers. @param {Layer[]} layers */
export function summary(layers) {
  const timelines = layers.map(({ label, source, ranks, makespan, unit }) => {
    const meshes = count(ranks, "mesh", "meshes");
    return `${label}, ${(SOURCES[source] ?? source).toLowerCase()}: ${meshes}, ${timeText(makespan, unit)}`;
  });
  return (
    `${timelines.join("; ")}. J and K move between blocks, Enter pins, W, A, S, D and the arrow keys move the view, ` +
    "0 shows the whole step, the question mark lists all keyboard shortcuts."
  );
}
