// Data of the expert canvas and of the overlay of expert schedules from Python (designer/canvases/experts.py,
// designer/views/expert_schedules.py).

import type { CanvasCommand, DifferencesModel, OverlayModel } from "../kit/types";

/** An expert and the place that holds this replica. */
export type Replica = [expert: number, place: number];

export interface ChipData {
  level: number;
  size: number;
  share: string;
  words: string;
  copies: number;
}

/** One device, or several that share their experts. */
export interface Place {
  name: string;
  devices: number[];
  node: number;
  held: number[]; // experts
  chips: ChipData[];
  level: number;
  load: string;
  share: string;
  bar: number;
  memory: string;
}

export interface Control {
  key: string;
  label: string;
  text: string;
  value: unknown;
  options: { value: unknown; text: string }[];
  help: string;
  reason?: string;
}

export interface Figure {
  key: string;
  label: string;
  value: string;
  small: string;
  help: string;
}

/** `state` is "none" without experts, "unfit" if they cannot be placed, else "ready"; only then all keys are there. */
export interface Picture {
  state: "none" | "unfit" | "ready";
  offer?: string;
  meshes: string[];
  mesh: number;
  controls: Control[];
  reason: string;
  fixes?: string[];
  places: Place[];
  groups: Record<string, number[][]>;
  esp: number;
  even: number;
  terms: Record<string, string>;
  about: string[];
  problem: string;
  equal: boolean;
  most_extra?: number;
  figures: Figure[];
}

/** A replica that only the open design ("added") or only the pinned design ("removed") has on a place. */
export interface ExpertMark {
  kind: string;
  expert: number;
  place: number;
  words: string;
}

export interface ExpertsModel extends DifferencesModel {
  commands: CanvasCommand[];
  picture: Picture;
}

/** Replicas that are being moved or copied; `to` is the place under the pointer. */
export interface Carried {
  chips: Replica[];
  copy: boolean;
  byKey: boolean;
  to: number | null;
  refused: string | null;
  words: string;
}

/** The frame around the chips of a place, for chips of a minimum size. */
export interface Frame {
  headed: boolean;
  barred: boolean;
  footed: boolean;
  least: number;
  wide: number;
  edge: number;
  high: number;
  gap: number;
}

export interface PlaceLayout extends Frame {
  size: number;
  width: number;
  height: number;
}

export interface BoardLayout extends PlaceLayout {
  columns: number;
  nodeColumns: number;
}

// ── expert schedules ──

export interface CardData {
  name: string;
  title: string;
  help: string;
  present: boolean;
  best: boolean;
  reason: string;
  layout: string;
  change: string;
  choice: string;
  terms: Record<string, string>;
  time: string;
  parts: string;
  inter: string;
  intra: string;
  memory: string;
  buffers: string;
  axis: number;
  picture: { lane: number[]; kind: string[]; start: number[]; end: number[]; turn: number };
}

export interface Ranking {
  schedules: { name: string; title: string; wins: number }[];
  best: number[];
  lead: number[];
}

export interface MapAxis {
  word: string;
  help: string;
  values: (number | string)[];
}

/** Columns of one entry per layer. */
export interface MapData {
  axes: Record<string, MapAxis>;
  down: string[];
  across: string[];
  rankings: Record<string, Ranking>;
  measures: { key: string; text: string }[];
  deepspeed: number[];
  "a2a-allgather": number[];
  printed: [number, number];
  notes: string[];
}

export interface ExpertSchedulesModel extends OverlayModel {
  about: string;
  cards: CardData[];
  words: Record<string, string>;
  help: Record<string, string>;
  lanes: string[];
  map: MapData | { rankings?: undefined; problem?: string };
  links: { key: string; text: string }[];
}
