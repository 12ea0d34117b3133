// A small timeline as Python packs it: two meshes, one stage each, two microbatches of forward and backward.

import { OP, TICKS } from "../../static/timeline/columns.js";
import { decode } from "../../static/timeline/data.js";

const SIZES = { uint8: Uint8Array, int16: Int16Array, int32: Int32Array, uint32: Uint32Array, float32: Float32Array };
export const HORIZON = 10; // seconds
export const tick = (seconds) => Math.floor((seconds / HORIZON) * TICKS);

// mesh A: 0F0 0F1 . . 0B0 0B1, mesh B: . 1F0 1B0 1F1 1B1, then the four transfers between them
export const SPANS = [
  { op: OP.F, stage: 0, mb: 0, start: 0, end: 1, cause: -1 },
  { op: OP.F, stage: 0, mb: 1, start: 1, end: 2, cause: 0 },
  { op: OP.B, stage: 0, mb: 0, start: 4, end: 6, cause: 10 },
  { op: OP.B, stage: 0, mb: 1, start: 7, end: 9, cause: 11 },
  { op: OP.F, stage: 1, mb: 0, start: 1, end: 2, cause: 8 },
  { op: OP.B, stage: 1, mb: 0, start: 2, end: 4, cause: 4 },
  { op: OP.F, stage: 1, mb: 1, start: 4, end: 5, cause: 5 },
  { op: OP.B, stage: 1, mb: 1, start: 5, end: 7, cause: 6 },
  { op: OP.SEND_F, stage: 0, mb: 0, start: 1, end: 1, cause: 0, peer: 1 },
  { op: OP.SEND_F, stage: 0, mb: 1, start: 2, end: 2, cause: 1, peer: 1 },
  { op: OP.SEND_B, stage: 1, mb: 0, start: 4, end: 4, cause: 5, peer: 0 },
  { op: OP.SEND_B, stage: 1, mb: 1, start: 7, end: 7, cause: 7, peer: 0 },
];
const BOUNDS = [0, 4, 8, 8, 8, 10, 12]; // blocks, collectives and transfers of each mesh

/** Return the layer that a browser decodes from the packed message; `extra` adds columns and fields. */
export function layer({ columns = {}, ...extra } = {}) {
  const stored = {};
  const parts = [];
  let size = 0;
  const add = (name, type, values) => {
    const bytes = new Uint8Array(SIZES[type].from(values).buffer);
    stored[name] = [type, size, values.length];
    parts.push([size, bytes]);
    size += Math.ceil(bytes.length / 8) * 8;
  };
  add("bounds", "int32", BOUNDS);
  for (const name of ["start", "end"])
    add(
      name,
      "uint32",
      SPANS.map((span) => tick(span[name])),
    );
  add(
    "cause",
    "int32",
    SPANS.map((span) => span.cause),
  );
  add(
    "op",
    "uint8",
    SPANS.map((span) => span.op),
  );
  add(
    "stage",
    "int16",
    SPANS.map((span) => span.stage),
  );
  add(
    "microbatch",
    "int16",
    SPANS.map((span) => span.mb),
  );
  add(
    "peer",
    "int16",
    SPANS.filter((span) => span.peer !== undefined).map((span) => span.peer),
  );
  add("shade", "uint8", [0, 0, 0, 0]);
  for (const [name, [type, values]] of Object.entries(columns)) add(name, type, values);
  const spec = { label: "test", source: "predicted", unit: "s", meshes: ["A", "B"], stages: 2, microbatches: 2 };
  const header = { horizon: HORIZON, layers: [{ ...spec, makespan: 9, tints: [0], columns: stored, ...extra }] };
  let text = JSON.stringify(header);
  text += " ".repeat((8 - ((4 + new TextEncoder().encode(text).length) % 8)) % 8); // columns begin at a multiple of 8
  const head = new TextEncoder().encode(text);
  const packed = new Uint8Array(4 + head.length + size);
  new DataView(packed.buffer).setUint32(0, head.length, true);
  packed.set(head, 4);
  for (const [at, bytes] of parts) packed.set(bytes, 4 + head.length + at);
  return decode(packed.buffer).layers[0];
}
