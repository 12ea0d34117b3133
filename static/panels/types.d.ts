// Data of the panels from Python (designer/views, designer/forms).

import type { Model, OverlayModel, SchedulePicture } from "../kit/types";

export interface NamedEntry {
  name: string;
  title: string;
  note: string;
}

/** The change of a number against the reference design. */
export interface Change {
  arrow: string;
  verdict: string;
  text: string;
  spoken: string;
}

// ── comments ──

export interface CommentEntry {
  id: string;
  about: string;
  text: string;
  author: string;
  when: string;
  resolved: boolean;
  can_delete: boolean;
}

export interface CommentsModel extends Model {
  targets: { kind: string; name: string; rank: number; title: string }[];
  can_write: boolean;
  notice: string;
  longest: number;
}

// ── comparison ──

export interface Cell {
  value: string;
  small: string;
  change: Change | null;
  wrong: string;
}

export interface Column {
  place: number;
  name: string;
  open: boolean;
  first: boolean;
  cells: Record<string, Cell>;
  differences: string[];
}

export interface ComparisonModel extends OverlayModel {
  columns: Column[];
  figures: { key: string; label: string; help: string }[];
  room: number;
  stale: boolean;
  examples: NamedEntry[];
}

// ── form ──

export type FieldValue = string | number | boolean | null;

export interface FieldData {
  path: string;
  label: string;
  unit: string;
  kind: "integer" | "number" | "text" | "choice" | "switch" | "list" | "numbers" | "lines" | "rows" | "costs";
  value: FieldValue;
  text: string;
  optional: boolean;
  placeholder: string;
  hint: string;
  help: string;
  group: string;
  wide: boolean;
  is_advanced: boolean;
  options?: { value: FieldValue; title: string; help: string }[];
}

export interface SectionData {
  key: string;
  title: string;
  help: string;
  fields: FieldData[];
  action?: { title: string; help: string };
}

export interface FieldProblem {
  severity: string;
  message: string;
  /** Labels of its fixes, which are edits of the design. */
  fixes: string[];
  where: string;
  code: string;
}

export interface FormModel extends Model {
  problems: Record<string, FieldProblem[]>;
}

// ── gallery ──

export interface Card {
  key: string;
  schedule: string;
  title: string;
  present: boolean;
  reason: string;
  choosable: boolean;
}

/** A variant that was simulated: texts, numbers to sort by, and its picture. */
export interface SimulatedCard extends Card {
  fits: boolean;
  iteration: string;
  change: string;
  better: boolean;
  bubble: string;
  span: string;
  memory: string;
  capacity: string;
  filled: number;
  traffic: string;
  copies: string;
  makespan: number;
  by: Record<string, number>;
  picture: SchedulePicture;
}

export interface Note {
  title: string;
  text: string;
  advised: string;
  advised_title: string;
}

export interface GalleryModel extends OverlayModel {
  pinned: string[];
  words: Record<string, string>;
}

// ── launch, numbers, problems, side, top bar ──

export interface LaunchModel extends Model {
  /** `question`: warnings that a second press accepts; empty if the first press launches. */
  launchable: { allowed: boolean; label: string; reason: string; question: string };
  rehearsable: { allowed: boolean; reason: string };
  notice: string;
  places: { name: string; title: string; drawable: boolean }[];
  place: string;
  drawing: string;
  activity: string;
  status: { running?: boolean; share?: number; words?: string };
}

export interface Tile extends Cell {
  key: string;
  label: string;
  help: string;
  bar: number | null;
}

export interface NumbersModel extends Model {
  stale: { title?: string; detail?: string };
  pinned: string[];
  is_pinned: boolean;
  can_pin: boolean;
}

export interface ProblemLine {
  severity: string;
  where: string;
  code: string;
  message: string;
  fixes: string[];
}

export interface ProblemsModel extends Model {
  problems: ProblemLine[];
  findings: string[];
  better: { state?: "open" | "runs" | "found"; words: string; share: number; use: boolean };
}

export interface SideModel extends Model {
  label: string;
  titles: string[];
  badges: Record<number, [string, string]>;
  active: number;
}

/** A line of the keyboard help; `command` is a command of the top bar, or "key" if a canvas handles the key. */
export interface Shortcut {
  group: string;
  keys: string;
  does: string;
  command: string;
}

/** An entry of the command palette. */
export interface Command {
  group: string;
  title: string;
  keys: string;
  run: () => void;
}

/** A problem or note of a file. */
export interface FileMessage {
  where: string;
  message: string;
  excerpt?: string;
  fixes?: string[];
}

/** A person who has the shared design open. */
export interface SharedPerson {
  name: string;
  colour: string;
  /** True if the person cannot edit the design. */
  reads: boolean;
  self: boolean;
}

/** A value of the user that somebody else has changed. */
export interface ReplacedValue {
  number: number;
  text: string;
}

export interface TogetherModel extends Model {
  people: SharedPerson[];
  replaced: ReplacedValue[];
  links: { edit?: string; view?: string };
  member: string;
  revision: number;
  read_only: boolean;
  can_share: boolean;
  can_rename: boolean;
  longest_name: number;
}

/** A named version of the design, and how it differs from the open design. */
export interface NamedVersion {
  name: string;
  when: string;
  changes: string[];
}

export interface TopBarModel extends Model {
  versions: NamedVersion[] | null;
  name_of_design: string;
  history: [string, string];
  unsaved: boolean;
  examples: NamedEntry[];
  exports: NamedEntry[];
  suffixes: string[];
  views: { name: string; title: string; key: string }[];
  shortcuts: Shortcut[];
  notice: string;
  longest_name: number;
  largest: number;
  theme: string;
}

// ── profiles ──

export interface Axis {
  label: string;
  from: number;
  to: number;
  ticks: [number, string][];
}

export interface Series {
  name: string;
  colour: string;
  points: [number, number, string][];
  line: [number, number][];
}

export interface Chart {
  key: string;
  title: string;
  note: string;
  x: Axis;
  y: Axis;
  series: Series[];
  diagonal: [number, number][];
  head: string[];
  rows: string[][];
}

export interface ProfileEntry {
  name: string;
  title: string;
  note: string;
  used: boolean;
}

export interface ProfilesModel extends OverlayModel {
  kept: ProfileEntry[];
  chosen: string;
  machine: string[];
  charts: Chart[];
  warnings: string[];
  used: boolean;
  standing: { state: string; share: number | null; words: string };
  usual: string;
}

// ── runs ──

/** A bar of the waterfall; `from` and `to` are shares of its axis. */
export interface WaterfallBar {
  name: string;
  from: number;
  to: number;
  text: string;
  kind: "whole" | "more" | "less";
}

export interface RunComparison {
  waterfall: WaterfallBar[];
  rows: string[][];
  parts?: { title: string; rows: string[][] }[];
  spread: string;
  cause: string;
  label: string;
  clocks: string;
  whose: string;
}

export interface Outcome {
  run: string;
  shown: boolean;
  share: number;
  error: string;
  words: string;
}

export interface RunSummary {
  id: string;
  name: string;
  state: string;
  reason: string;
  done: number;
  total: number;
  figures: [string, string][];
  notes?: string[];
}

export interface RunsModel extends Model {
  run: RunSummary | { id?: undefined };
  measured: { same?: boolean; overlaid?: boolean; calibrates?: boolean };
  is_editing_order: boolean;
  hosts: { on?: boolean; words?: string };
  text: { name: string | null; largest: number };
  weights: { names: string[]; name: string };
}

export interface BreakdownModel extends Model {
  comparison: RunComparison | { rows?: undefined };
  outcomes: Outcome[];
}

/** A finding about a run, and the fields that simulate it. */
export interface Straggler {
  code: string;
  where: string;
  message: string;
  fields: SlowdownFields | null;
}

export interface SlowdownFields {
  device: string | number;
  device_factor: string | number;
  /** Two ranks, such as "0:1". */
  link: string;
  link_factor: string | number;
  jitter_percent: string | number;
}

export interface SlowdownsModel extends Model {
  stragglers: Straggler[];
  has_run: boolean;
  links: [value: string, title: string][];
  fields: SlowdownFields;
  result: string;
}

export interface RunLogModel extends Model {
  run: string;
  processes: number;
  process: number | null;
}

/** A run with its cells by column: text and sort key. */
export interface RunRow {
  id: string;
  cells: Record<string, [string, number | string | null]>;
  tags: string[];
  note: string;
  over: boolean;
  resumable: boolean;
  has_weights: boolean;
}

export interface RunTableModel extends Model {
  compared: string[];
  shown: string;
}

/** Peak memory of a device of a mesh: parts in bytes and as text by category. */
export interface MemoryBar {
  /** The meshes of the devices. */
  mesh: string;
  /** The numbers of the devices; empty for a measured bar, which is that of the fullest device of the mesh. */
  devices: string;
  kind: "predicted" | "measured";
  total: number;
  text: string;
  /** True if the memory exceeds the capacity of a device. */
  over: boolean;
  parts: Record<string, [number, string]>;
}

export interface MemoryModel extends Model {
  hidden_groups: number;
  capacity: { bytes?: number; text?: string };
}
