// What is known of a place of the chart, in words.

import { linkFacts } from "./link_lanes.js";
import { amount, bytes, flops, percent } from "./units.js";

/**
 * Names and values of what is known of a place: a span, idle time (span -1) or memory.
 * `names` are those of the ops; `twin` is the same action, measured or predicted, if there is one.
 */
export function facts(place, names, twin) {
  const { layer, span } = place;
  if (place.memory !== undefined) return memoryFacts(place);
  if (place.link) return linkFacts(place, names);
  if (span < 0) return idleFacts(place, names);
  if (layer.isTransfer(span)) return transferFacts(layer, span);
  if (layer.labels) return [...stepFacts(layer, span, names), ...(twin ? [twinFact(place, twin)] : [])];
  const found = [["Mesh", layer.meshes[layer.rankOf(span)]], ...workFacts(layer, span)];
  if (span < layer.blocks && !isUntimed(layer)) found.push(["Waited", waited(layer, span, names)]);
  found.push(...sent(layer, span), ...held(layer, span));
  return twin ? [...found, twinFact(place, twin)] : found;
}

/** Of a step inside a block. */
function stepFacts(layer, span, names) {
  const carried = layer.carried[span];
  const took = layer.duration(span);
  const found = [
    ["Lane", layer.meshes[layer.rankOf(span)]],
    ...times(layer, span),
    ["Waited", waited(layer, span, names)],
  ];
  if (carried) found.push(["Sends", `${bytes(carried)}${took > 0 ? `, ${bytes(carried / took)}/s` : ""}`]);
  return found;
}

function workFacts(layer, span) {
  const [stage, microbatch] = [layer.stage[span], layer.microbatch[span]];
  const layers = layer.layersOf(stage);
  const found = [];
  if (stage >= 0) found.push(["Stage", `${stage}${layers ? `, ${layers}` : ""}`]);
  if (microbatch >= 0) found.push(["Microbatch", microbatch]);
  found.push(...times(layer, span));
  const computed = layer.flopsOf(span);
  const took = layer.duration(span);
  if (computed)
    found.push(["Computes", `${flops(computed)} on a device${took > 0 ? `, ${flops(computed / took)}/s` : ""}`]);
  return found;
}

/** Where its tensor goes, how large it is and how long that takes. */
function sent(layer, span) {
  const transfer = layer.sendOf(span);
  if (transfer < 0 || isUntimed(layer)) return [];
  const carried = layer.bytesOf(transfer);
  const size = carried ? `${bytes(carried)} ` : "";
  return [
    [
      "Sends",
      `${size}to mesh ${layer.meshes[layer.peerOf(transfer)]}, ${timed(layer.duration(transfer), layer.unit)} on ` +
        "the link",
    ],
  ];
}

/** What a device holds while the block runs. */
function held(layer, span) {
  if (!layer.hasMemory) return [];
  const memory = layer.memoryAt(layer.rankOf(span), layer.start[span]);
  return [["Memory then", `${bytes(memory)}${ofCapacity(layer, memory)}`]];
}

function times(layer, span) {
  if (isUntimed(layer)) return [];
  return [
    ["Duration", timed(layer.duration(span), layer.unit)],
    ["Start", timed(layer.start[span] * layer.scale, layer.unit)],
    ["End", timed(layer.end[span] * layer.scale, layer.unit)],
  ];
}

/** A measurement over unit costs has been stretched to their length: its times are neither seconds nor units. */
const isUntimed = ({ over, unit }) => over && unit !== "s";

const timed = (value, unit) => {
  const written = amount(value, unit);
  return unit === "s" ? written : `${written} ${written === "1" ? "unit" : "units"}`;
};

function waited(layer, span, names) {
  const { ticks, cause } = layer.waited(span);
  return ticks < 2 ? "not at all" : `${timed(ticks * layer.scale, layer.unit)}${forWhat(layer, cause, names)}`;
}

function forWhat(layer, cause, names) {
  if (cause < 0) return "";
  const mesh = layer.meshes[layer.rankOf(cause)];
  if (layer.labels) return ` for ${layer.notation(cause, names)}, ${mesh}`;
  if (!layer.isTransfer(cause)) return ` for ${layer.notation(cause, names)} of mesh ${mesh}`;
  const [maker = cause] = layer.inputs(cause);
  const taken = timed(layer.duration(cause), layer.unit);
  return ` for ${layer.notation(maker, names)} from mesh ${mesh}, ${taken} on its way`;
}

const UNTIMED = "unit costs have no seconds: only the order is compared";

const SOURCES = { predicted: "Predicted", measured: "Measured", rehearsed: "Rehearsed" };

function twinFact(place, { layer, span }) {
  const [mine, other] = [place.layer.duration(place.span), layer.duration(span)];
  const [measured, predicted] = place.layer.over ? [mine, other] : [other, mine];
  const more = predicted ? measured / predicted - 1 : 0;
  const rehearsed = [layer, place.layer].some((each) => each.source === "rehearsed"); // in the units that it stands for
  if (layer.unit !== "s" && !rehearsed) return [SOURCES[layer.source], UNTIMED];
  const change =
    Math.abs(more) < 5e-4
      ? "as predicted"
      : `${percent(Math.abs(more))} ${more > 0 ? "longer" : "shorter"} than predicted`;
  return [SOURCES[layer.source], `${amount(other, layer.unit)} (${rehearsed ? "rehearsed" : "measured"} ${change})`];
}

function transferFacts(layer, span) {
  const took = layer.duration(span);
  const carried = layer.bytesOf(span);
  const found = [
    ["From", layer.meshes[layer.rankOf(span)]],
    ["To", layer.meshes[layer.peerOf(span)]],
    ...times(layer, span),
  ];
  if (carried) found.push(["Carries", bytes(carried)]);
  if (carried && took > 0 && layer.unit === "s") found.push(["Rate", `${bytes(carried / took)}/s`]);
  return found;
}

function idleFacts({ layer, rank, tick }, names) {
  const mesh = [layer.labels ? "Lane" : "Mesh", layer.meshes[rank]];
  const next = layer.next(rank, tick);
  if (next < 0) return [mesh, ["Done", layer.labels ? "nothing more to do here" : "waits for the end of the step"]];
  return [
    mesh,
    ["Idle", timed(layer.waited(next).ticks * layer.scale, layer.unit)],
    ["Then", layer.notation(next, names)],
  ];
}

function memoryFacts({ layer, rank, memory, others, tick }) {
  return [
    ["Mesh", layer.meshes[rank]],
    ["At", timed(Math.max(0, tick) * layer.scale, layer.unit)],
    ["Holds", `${bytes(memory)}${ofCapacity(layer, memory)}`],
    ["Peak", bytes(layer.peaks[rank])],
    ...others.map((other) => [other.label, `${bytes(other.memoryAt(rank, tick))}, peak ${bytes(other.peaks[rank])}`]),
  ];
}

const ofCapacity = ({ capacity }, memory) => (capacity ? `, ${percent(memory / capacity)} of ${bytes(capacity)}` : "");

/** A span and its facts as one sentence, for those who listen. */
export function spoken(place, palette, twin) {
  const { layer, span } = place;
  const [op, microbatch] = [palette.names[layer.op[span]], layer.microbatch[span]];
  const what = layer.kinds
    ? layer.kinds[op]
    : microbatch >= 0
      ? `${palette.words[op]} of microbatch ${microbatch}`
      : palette.words[op];
  const rest = facts(place, palette.names, twin).map(([name, value]) => `${name} ${value}`);
  return `${layer.notation(span, palette.names)}, ${what}. ${rest.join(", ")}.`;
}

/** The words above a row of lanes, each with whether it is strong. */
export function title([below, over]) {
  const of = (layer) => `${layer.source} ${timed(layer.makespan, layer.unit)}`;
  if (!over)
    return [
      [below.label, true],
      [of(below), false],
    ];
  if (below.unit !== "s" && over.source !== "rehearsed")
    return [
      [below.label, true],
      [of(below), false],
      [over.label, true],
      [UNTIMED, false],
    ];
  const more = below.makespan ? over.makespan / below.makespan - 1 : 0;
  const differs = Math.abs(more) < 5e-4 ? "the same" : `${percent(Math.abs(more))} ${more > 0 ? "longer" : "shorter"}`;
  return [
    [below.label, true],
    [`${of(below)}, above;`, false],
    [over.label, true],
    [`${of(over)}, below: ${differs}`, false],
  ];
}
