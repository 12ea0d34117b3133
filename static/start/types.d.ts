// Data of the start page from Python (designer/pages/start_page.py).

import type { Model, SchedulePicture } from "../kit/types";

/** A design of the library, or an example; an example that is not predicted yet has only an `id`. */
export interface DesignCard {
  id: string;
  name?: string;
  schedule?: string;
  meshes?: string;
  step?: string;
  picture?: SchedulePicture | null;
  when?: string;
  tags?: string[];
}

/** An example that is a published training run. */
export interface PublishedLine {
  id: string;
  name: string;
  compared: string; // published and predicted step time
  source: string;
}

export interface RunLine {
  id: string;
  name: string;
  state: string;
  when: string;
  steps: number;
}

export interface LessonLine {
  name: string;
  title: string;
  note: string;
  summary: string;
  state: string;
}

/** A design, example, run or lesson that was opened recently. */
export interface RecentLine {
  kind: "draft" | "example" | "run" | "lesson";
  name: string;
  title: string;
  when: string;
}

export interface StartModel extends Model {
  tour: string;
  suffixes: string[];
  largest: number;
  longest_name: number;
}
