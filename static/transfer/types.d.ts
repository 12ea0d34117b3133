// What the transfer view receives from Python (designer/canvases/transfer.py, designer/state/transfer_drawing.py).

import type { Answer, Box, OverlayModel } from "../kit/types";

export type Side = "source" | "destination";

/** A rectangle of the picture as parts of the whole: left, top, right, bottom. */
export type Rect = [number, number, number, number];

/** A unit task, or ranks of a mesh by their places. */
export type Place = { task: number; side?: undefined } | { task?: undefined; side: Side; places: number[] };

/** What is drawn in the grid of a tensor. */
export interface Piece {
  rects: Rect[];
  box: string;
  size: string;
}

export interface MeshPiece extends Piece {
  places: number[];
}

export interface Task extends Piece {
  senders: number[];
  receivers: number[];
  keepers: number[];
  addends: number[];
  place: number; // in the order of the plan
  sender: number;
  host: number;
  start_s: number;
  end_s: number;
  chunks: number;
}

export interface MeshSide {
  shape: number[];
  ranks: number[];
  hosts: number[];
  spec: string[];
  partial: number[];
  cuts: number[][]; // [dim] the axes that shard it
  ends: Record<string, number[]>;
  boxes: MeshPiece[];
}

/** A tensor dim along a side of the grid: where it is cut, and where these cuts are as parts of the whole. */
export interface Dim {
  dim: number;
  cuts: number[];
  at: number[];
}

export interface Picture extends PlanRow {
  number: number;
  shape: number[];
  size: string;
  rows: Dim[];
  columns: Dim[];
  source: MeshSide;
  destination: MeshSide;
  tasks: Task[];
  hosts: number[];
  lanes: { host: number; way: string; nic: number }[];
  held: { task: number[]; lane: number[]; start_s: number[]; end_s: number[] };
  unsimulated: string;
}

/** The simulated messages, and the bars that they take on the lanes of ports, as columns. */
export interface Simulation {
  number: number;
  lanes: { host: number; rank: number | null; way: string; rows: number }[];
  messages: {
    task: number[];
    chunk: number[];
    source: number[];
    target: number[];
    bytes: number[];
    set_out_s: number[];
    start_s: number[];
    end_s: number[];
    share: (number | null)[];
  };
  bars: { lane: number[]; message: number[]; start_s: number[]; end_s: number[]; low: number[]; high: number[] };
}

/** The messages of a unit task on the lanes, as columns. */
export interface Hops {
  lane: number[];
  source: number[];
  target: number[];
  first: number[];
  last: number[];
  bytes: number[];
  start_s: number[];
  end_s: number[];
}

export interface Lane {
  host: number;
  rows: number;
  words: string;
}

/** Where something is on the lanes. */
export interface Found {
  task: number;
  hop?: number;
  message?: number;
}

/** One of the two timelines of the links. */
export interface LinkTimeline {
  height: { least: number; most: number; row: { least: number; most: number } };
  about: string;
  lanes: Lane[];
  span(task: number): [number, number] | null;
  paint(context: CanvasRenderingContext2D): void;
  find(lane: number, time: number, part: number): Found | null;
  describe(found: Found): string;
}

export interface PlanRow {
  strategy: string;
  ordering: string;
  makespan: string;
  makespan_s: number;
  simulated: string;
  simulated_s: number;
  bound: string;
  optimal: boolean;
}

export interface Member {
  name: string;
  title: string;
  help: string;
}

export interface TransferModel extends OverlayModel {
  palette: string[];
  mode: "page" | "over";
  title: string;
  host_word: string;
  names: { axes?: string[]; dims?: string[] };
  packed: string;
  shows: "planned" | "simulated";
  play: string;
  stale: boolean;
  fields: Record<string, string>;
  troubles: Record<string, string | undefined>;
  table: { rows: PlanRow[]; done: boolean };
  history: [string, string];
  fragment: string;
  design_has: [string, string];
  form: { path: string; label: string; help: string }[];
  strategies: Member[];
  orderings: Member[];
  cases: { name: string; title: string }[];
  largest: number;
}

/** A part of the view that sends gestures and receives the answers to them. */
export interface Sender {
  acknowledge(refused: Answer["refused"]): void;
}

export interface RasterPiece {
  rects: Box[];
  fills: string[];
}
