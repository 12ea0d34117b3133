// What the lesson pane receives from Python (designer/lessons/pane.py).

import type { Model } from "../kit/types";

export interface LessonEntry {
  name: string;
  title: string;
  note: string;
  summary: string;
  state: string;
}

export interface Verdict {
  passed: boolean;
  reply: string;
  conditions: { text: string; value: string; is_met: boolean }[];
}

export interface Check {
  kind: "number" | "choice" | "task" | "measurement";
  text: string;
  label: string;
  unit: string;
  options: string[];
}

export interface StepData {
  lesson: string;
  number: number;
  count: number;
  title: string;
  text: string;
  check: Check | null;
  hints: string[];
  hint_count: number;
  verdict: Verdict | null;
  is_done: boolean;
  explanation: string;
  sources: string[];
}

export interface LessonsModel extends Model {
  lessons: LessonEntry[];
  step: StepData | null;
  highlight: string;
  refusal: string;
}
