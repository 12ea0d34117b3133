// Data of the lesson pane from Python (designer/lessons/pane.py).

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

export interface Leader {
  rank: number;
  person: string;
  name: string;
  text: string;
  run: string;
  result: string;
}

export interface Challenge {
  name: string;
  title: string;
  text: string;
  own: string;
  can_confirm: boolean;
  leaders: Leader[];
}

export interface ClassBarModel extends Model {
  name_shown: string;
  message: string;
  class_step: string;
  paused: boolean;
  challenges: Challenge[];
}

export interface ShownPerson {
  id: string;
  name: string;
  step: string;
  since_s: number;
  passed: number;
  shown: number;
  has_design: boolean;
}

/** The state of the teacher's board (designer/lessons/board.py). */
export interface BoardState {
  title: string;
  code: string;
  link: string;
  picture: string;
  lessons: { name: string; title: string; steps: string[] }[];
  now_s: number;
  people: ShownPerson[];
  most: number;
  challenges: Challenge[];
  announcement: { message: string; lesson: string; step: number; is_paused: boolean };
  class_step: string;
}

export interface BoardModel extends Model {
  state: string;
}
