// Data of the cluster canvas from Python (designer/canvases/cluster.py).

import type { CanvasCommand, DifferencesModel, Point } from "../kit/types";

export interface Mesh {
  name: string;
  devices: number[];
  axes: Axes;
  choices: Axes[]; // the axes that its devices can be used as
}

/** Sizes of the axes, outermost first. */
export type Axes = [string, number][];

/** A device, the number of its group in its mesh, and its indices along the axes. */
export type DevicePlace = [number, number, string];

/** A mesh that differs from the pinned design, and the devices that it has there. */
export interface MeshMark {
  kind: string;
  name: string;
  rank: number; // -1 if it was removed
  devices: number[];
  words: string;
}

/** The launch target whose cluster is drawn; empty for none. Each node has a name, and is free or in use. */
export interface AttachedCluster {
  target?: string;
  time?: string;
  free?: number;
  total?: number;
  nodes?: [name: string, isFree: boolean][];
}

export interface ClusterModel extends DifferencesModel {
  flags: { rank: number; colour: string; text: string; selects: boolean }[];
  palette: string[];
  nodes: number;
  devices_per_node: number;
  meshes: string; // Mesh[] as JSON
  places: string; // DevicePlace[] of the mesh whose groups are shown, as JSON
  links: { intra?: string; inter?: string };
  attached: AttachedCluster;
  limits: { nodes: number; devices_per_node: number; devices: number; name: number };
  selected: number;
  commands: CanvasCommand[];
}

/** The first and last node and column of a rectangle of devices. */
export interface Rectangle {
  n0: number;
  n1: number;
  c0: number;
  c1: number;
}

/** What a gesture would make; `rank` is -1 for a new mesh. */
export interface Ghost {
  devices: number[];
  rank: number;
  ok: boolean;
  words: string;
}

/** Sizes in px of one way to arrange nodes in columns. */
export interface Measures {
  score: number;
  rows: number;
  columns: number;
  columnGap: number;
  gutter: number;
  rowGap: number;
  head: number;
  foot: number;
  pad: number;
  gap: number;
  tile: { width: number; height: number };
  headed: boolean;
  nodes: number;
  perNode: number;
  width: number;
  height: number;
}

export interface Layout extends Measures {
  panel: { width: number; height: number }; // of a node
  pitch: Point; // distances of columns and rows of nodes
  left: number;
  top: number;
  fold: number; // nodes of a group, 0 if each device is drawn
  mostScale?: number; // largest scale of the view of a large cluster
}
