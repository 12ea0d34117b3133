// What is known of a place of the chart, in words.

import { amount, bytes, percent } from "static/timeline_data.js";

/**
 * Names and values of what is known of a place: a span, idle time (span -1) or memory.
 * `names` are those of the ops; `twin` is the same action, measured or predicted, if there is one.
 */
export function facts(place, names, twin) {
  const { layer, span } = place;
  if (place.memory !== undefined) return memoryFacts(place);
  if (span < 0) return idleFacts(place, names);
  if (layer.isTransfer(span)) return transferFacts(layer, span);
  const found = [["Mesh", layer.meshes[layer.rankOf(span)]], ...workFacts(layer, span)];
  if (span < layer.blocks) found.push(["Waited", waited(layer, span, names)]);
  return twin ? [...found, twinFact(place, twin)] : found;
}

function workFacts(layer, span) {
  const [stage, microbatch] = [layer.stage[span], layer.microbatch[span]];
  const layers = layer.layersOf(stage);
  const found = [];
  if (stage >= 0) found.push(["Stage", `${stage}${layers ? `, ${layers}` : ""}`]);
  if (microbatch >= 0) found.push(["Microbatch", microbatch]);
  return [...found, ...times(layer, span)];
}

function times(layer, span) {
  return [
    ["Start", amount(layer.start[span] * layer.scale, layer.unit)],
    ["Duration", amount(layer.duration(span), layer.unit)],
  ];
}

function waited(layer, span, names) {
  const { ticks, cause } = layer.waited(span);
  return ticks < 2 ? "not at all" : `${amount(ticks * layer.scale, layer.unit)}${forWhat(layer, cause, names)}`;
}

function forWhat(layer, cause, names) {
  if (cause < 0) return "";
  const mesh = layer.meshes[layer.rankOf(cause)];
  if (!layer.isTransfer(cause)) return ` for ${layer.notation(cause, names)} of mesh ${mesh}`;
  const [maker = cause] = layer.inputs(cause);
  return ` for ${layer.notation(maker, names)} from mesh ${mesh}, ${amount(layer.duration(cause), layer.unit)} on its way`;
}

const SOURCES = { predicted: "Predicted", measured: "Measured", rehearsed: "Rehearsed" };

function twinFact(place, { layer, span }) {
  const [mine, other] = [place.layer.duration(place.span), layer.duration(span)];
  const [measured, predicted] = place.layer.over ? [mine, other] : [other, mine];
  const more = predicted ? measured / predicted - 1 : 0;
  const change = `${more >= 0 ? "+" : "\u2212"}${percent(Math.abs(more))} against the prediction`;
  return [SOURCES[layer.source], `${amount(other, layer.unit)} (${change})`];
}

function transferFacts(layer, span) {
  const took = layer.duration(span);
  const carried = layer.bytesOf(span);
  const found = [["From", layer.meshes[layer.rankOf(span)]], ["To", layer.meshes[layer.peerOf(span)]], ...times(layer, span)];
  if (carried) found.push(["Carries", bytes(carried)]);
  if (carried && took > 0 && layer.unit === "s") found.push(["Rate", `${bytes(carried / took)}/s`]);
  return found;
}

function idleFacts({ layer, rank, tick }, names) {
  const mesh = ["Mesh", layer.meshes[rank]];
  const next = layer.next(rank, tick);
  if (next < 0) return [mesh, ["Done", "waits for the end of the step"]];
  return [mesh, ["Idle", amount(layer.waited(next).ticks * layer.scale, layer.unit)], ["Then", layer.notation(next, names)]];
}

function memoryFacts({ layer, rank, memory, tick }) {
  const part = layer.capacity ? ` (${percent(memory / layer.capacity)} of ${bytes(layer.capacity)})` : "";
  return [
    ["Mesh", layer.meshes[rank]],
    ["At", amount(Math.max(0, tick) * layer.scale, layer.unit)],
    ["Holds", `${bytes(memory)}${part}`],
    ["Peak", bytes(layer.peaks[rank])],
  ];
}

/** A span and its facts as one sentence, for those who listen. */
export function spoken(place, palette, twin) {
  const { layer, span } = place;
  const [op, microbatch] = [palette.names[layer.op[span]], layer.microbatch[span]];
  const what = microbatch >= 0 ? `${palette.words[op]} of microbatch ${microbatch}` : palette.words[op];
  const rest = facts(place, palette.names, twin).map(([name, value]) => `${name} ${value}`);
  return `${layer.notation(span, palette.names)}, ${what}. ${rest.join(", ")}.`;
}

/** The words above a row of lanes, each with whether it is strong. */
export function title([below, over]) {
  const of = (layer) => `${layer.source} ${amount(layer.makespan, layer.unit)}`;
  if (!over) return [[below.label, true], [of(below), false]];
  const more = below.makespan ? over.makespan / below.makespan - 1 : 0;
  const differs = Math.abs(more) < 5e-4 ? "the same" : `${percent(Math.abs(more))} ${more > 0 ? "longer" : "shorter"}`;
  return [[below.label, true], [`${of(below)}, above;`, false], [over.label, true], [`${of(over)}, below: ${differs}`, false]];
}
