// Data of the wave canvas from Python (designer/canvases/wave.py), and its geometry.

import type { CanvasCommand, DifferencesModel, Point } from "../kit/types";

/** A skip connection: `way` is "sent" directly, "beside" the input of the next stage, or "kept" on the mesh. */
export interface Skip {
  from: number;
  to: number;
  replica: number;
  way: string;
  words: string;
}

export interface Dial {
  key: string;
  label: string;
  value: number;
  most: number;
  reason: string | null;
}

export interface Toggle {
  key: string;
  value: string;
  words: string[];
  labels: string[];
  help: string;
  reason: string | null;
}

export interface Picture {
  schedule: string;
  title: string;
  microbatches: number;
  most_microbatches: number;
  balanced: boolean;
  dial: Dial | null;
  toggles: Toggle[];
  meshes: { name: string; node: number }[];
  routes: number[][]; // [replica][stage] the mesh
  layers: number[]; // [stage]
  shares: number[]; // [stage] of the compute time
  equal: boolean;
  groups: { label: string; first: number; end: number }[];
  skips: Skip[];
  stale: boolean;
}

/** A stage that differs from the pinned design: the mesh that holds it there (-1 for none), and additional layers. */
export interface StageMark {
  kind: string;
  stage: number;
  replica: number;
  mesh: number;
  layers: number;
  words: string;
}

export interface WaveModel extends DifferencesModel {
  palette: string[];
  commands: CanvasCommand[];
  progress: { state?: "runs" | "stopped"; share?: number; said?: string };
}

export interface Slot {
  x: number;
  size: number;
  middle: number;
  width: number;
  height: number;
}

/** Geometry in px. `pitch` is the mean width of a slot, `step` the distance between arcs. */
export interface Layout {
  edge: { left: number; right: number; top: number; bottom: number };
  lane: number;
  perLayer: number;
  slots: Slot[];
  y: (mesh: number) => number;
  width: number;
  height: number;
  routes: number[][];
  pitch: number;
  tallest: number;
  /** The form of the label of each stage. */
  label: "none" | "number" | "number and share" | "layers and share";
  step: number;
}

/** The level of an arc: the topmost lane that it passes over, and its number above that lane. */
export interface ArcLevel {
  lane: number;
  number: number;
}

export interface Arc {
  a: Point;
  b: Point;
  crown: Point;
}
