// Data of the timeline from Python (designer/views/timeline.py), and types shared by its parts.

import type { Box, Model, Point } from "../kit/types";
import type { Layer } from "./data";

export interface Palette {
  names: string[]; // of ops
  words: Record<string, string>; // by op
  ops: Record<string, Record<string, string>>; // by theme
  surfaces: Record<string, Record<string, string>>;
  meshes: string[];
}

/** A block that is marked with a colour and a text. */
export interface Flag {
  rank: number;
  op: number;
  stage: number;
  mb: number;
  colour: string;
  text: string;
}

/** The subject of a note; times in seconds or cost units, as `unit` says; without ranks, it is the time `start`. */
export interface NoteTarget {
  start: number;
  end: number;
  unit: string;
  ranks: number[];
}

export interface Note extends NoteTarget {
  kind: "time" | "area";
  text: string;
  colour: string;
}

export interface TimelineModel extends Model {
  notes: Note[];
  can_note: boolean;
  flags: Flag[];
  packed: ArrayBuffer;
  stale: string;
  empty: string;
  show_memory: boolean;
  show_critical: boolean;
  show_transfers: boolean;
  show_links: boolean;
  show_device_links: boolean;
  opened: number;
  shown_rows: { digest: string; over: boolean; rows: ShownRow[] }[];
  can_edit: boolean;
  /** Reasons why a run is slow, by mesh. */
  slow_lanes: Record<string, string>;
  palette: Palette;
}

export interface Data {
  horizon: number; // seconds, or units, of the whole axis
  layers: Layer[];
  crumbs: string[];
  /** Criteria by which lanes can be grouped. */
  choices: { by: string; label: string }[];
}

/** By criterion, the names of the groups and the group of each lane. */
export type LaneGroups = Record<string, { names: string[]; of: number[] }>;

/** A lane of links: a port with its number among the lanes. */
export interface Port {
  number: number;
  name: string;
  label: string;
  share: number;
  busy_s: number;
  bytes: number;
  rows: number;
}

export interface Links {
  lanes: Omit<Port, "number">[];
  groups?: Record<string, number[]>; // by criterion, the group of each lane, or -1
  words: string;
  serial?: boolean;
}

/**
 * A place of the chart. One without a span (-1) has a rank and a tick, and over memory the bytes there; over a lane of
 * links it has a link, and its span is the one whose bytes pass.
 */
export interface Place {
  layer: Layer;
  span: number;
  rank?: number;
  tick?: number;
  memory?: number;
  others?: Layer[];
  link?: { port: Port; share: number };
}

/** The action of a place, which is found again after the design changed. */
export interface ActionName {
  layer: number;
  rank: number;
  op: number;
  stage: number;
  mb: number;
  other?: number;
}

/** A block in the open design: op, stage, microbatch. */
export type BlockName = [op: number, stage: number, mb: number];

export interface Lane {
  layer: Layer;
  rank: number;
  y: number;
  height: number;
  whole: [number, number]; // top and height, with the lane that shares it
  kept?: boolean;
  over?: boolean;
  group?: number;
  some?: number[];
  groupMiddle?: number;
}

/** Low lanes that are painted together. */
export interface Band {
  layer: Layer;
  some?: number[];
  y: number;
  height: number;
  lanes: Lane[];
}

/** A row of timelines, or a group of its lanes; pinned lanes are `members`, but not among its `ranks`. */
export interface Section {
  row: Layer[];
  name?: string; // of a group
  key: string;
  all: number[];
  members: number[]; // the lanes that the filter shows
  ranks: number[]; // the lanes below its title
  head: number; // height of its title in CSS pixels
  above: number; // height of its title and its summary
  isCollapsed: boolean;
}

/** A row of exported pictures; see `Row` in engine/exports/pictures/rows.py. */
export interface ShownRow {
  kind: "lanes" | "title" | "summary" | "memory" | "links";
  name?: string;
  note?: string;
  ranks?: number[];
  ports?: string[];
}

export interface RowTitle extends Section {
  y: number;
  height: number;
}

export interface LinkLane {
  port: Port; // or the sum of several
  ports: Port[];
  y: number;
  height: number;
}

/** The memory of a rank, or of the fullest of several ranks; a title has no ranks. */
export interface Strip {
  layer: Layer;
  others: Layer[];
  rank: number; // -1 for a title
  ranks: number[];
  name: string;
  key?: string; // of a title, by which its strips are collapsed
  isCollapsed?: boolean;
  y: number;
  height: number;
}

/** The lanes in CSS pixels; scrolling lanes begin at `split`. */
export interface Edges {
  left: number;
  top: number;
  split: number;
  right: number;
  bottom: number;
}

export interface Plan {
  width: number;
  height: number;
  gutter: number;
  pitch: number;
  fit: number;
  content: number;
  scroll: number;
  split: number;
  size: Edges;
  links: { layer: Layer; y: number; key: string; isCollapsed: boolean; lanes: LinkLane[] } | null;
  strips: Strip[];
  lanes: Lane[];
  bands: Band[];
  titles: RowTitle[];
  laneOf: (layer: Layer, rank: number) => Lane;
}

export interface Segment {
  x1: number;
  y1: number;
  x2: number;
  y2: number;
}

/** A transfer as an arrow, in CSS pixels. */
export interface Arrow extends Segment {
  layer: Layer;
  span: number;
}

export interface Fill {
  css: string;
  rgb: number[];
  pixel: number;
  edge: number;
  deep: string;
  ink: string;
}

export interface Label {
  text: string;
  size: number;
  ink: string;
  x: number;
  y: number;
}

/** An interval of time in ticks on some lanes. */
export interface Area {
  layer: Layer;
  from: number;
  to: number;
  ranks: number[];
}

export interface ViewWindow {
  from: number;
  to: number;
  scroll: number;
}

export interface Flow {
  causes: number[];
  effects: number[];
  spans: number[];
  joins: [number, number][];
}

/** A query parsed by Python: the numbers of the spans to find. */
export interface Query {
  ops: number[];
  stage: number | null;
  microbatch: number | null;
  rank: number | null;
}

/** The view of a link. */
export interface LinkedView {
  window: number[] | null;
  scroll: number;
  pin: ActionName | null;
  flow: number;
  find: string;
  marks: number[];
  lanes: string[];
  filter: string;
  grouping: string;
  collapsed: string[];
  area: number[] | null;
  show: string[] | null;
  program: string | null;
}

// ── answers of Python ──

export interface AreaAnswer {
  seconds: number;
  meshes: string[];
  idle_share: number;
  idle_s: number;
  available_s: number;
  by_kind_s: Record<string, number>;
  blocks: Record<string, number>;
  waits_s: number;
  link_s: number;
  fill_s: number;
  drain_s: number;
  by_mesh: { mesh: string; busy_s: number }[];
  critical_s: number;
  critical_share: number;
  transfers: number;
  transfers_s: number;
  transfers_bytes: number;
  reductions_s: number;
  gathers_s: number;
}

export interface PathAnswer {
  words: string;
  makespan_s: number;
  by_category_s: Record<string, number>;
  by_kind_s: Record<string, number>;
  by_stage_s: Record<string, number>;
  by_mesh_s: Record<string, number>;
  by_port_s: Record<string, number>;
  bubble_ratio: number;
  span_bubble_ratio: number;
  can_change: boolean;
}

export interface WhatIf {
  name: string;
  saved_s: number;
  saved_share: number;
  makespan_s: number;
}

// ── edit mode ──

/** A move of blocks within the order of their mesh, or another edit of them. */
export interface OrderEdit {
  kind: string;
  blocks: BlockName[];
  before?: BlockName | null;
  by?: number;
}

export interface InsertionMark {
  rank: number;
  before: number;
  end: number;
}

/** A press on a block, or with Shift the start of a rectangle, which may be on a block. */
export interface Drag {
  isRectangle: boolean;
  from: Point;
  to: Point;
  span: number;
  name: BlockName | null;
  moved: boolean;
}

/** The effect of an edit, as Python computes it. */
export interface Preview {
  label: string;
  fault?: string;
  mends?: boolean;
  makespan: [number, number];
  bubble: [number, number];
  memory: [string, number, number][];
  later: number;
  earlier: number;
  ring?: Wait[];
  delays: Float32Array | null;
}

/** A stage being moved on the wave, whose effect the timeline shows. */
export interface Trial extends Preview {
  delays: Float32Array;
  digest: string;
  stage: number;
  mesh: number;
}

/** A block that waits for another in a deadlock. */
export interface Wait {
  at: BlockName;
  needs: BlockName;
}

export interface OrderState {
  refused?: string;
  fault?: string;
  ring?: Wait[];
  is_custom: boolean;
  schedule: string;
  difference?: { blocks: [number, number, number, number][]; changed: BlockName[]; words: string };
}

export type { Box, Point };
