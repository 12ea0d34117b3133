// Types shared by the widgets. Types of the data of a single widget are in its own folder.

/** The model of a widget, as Panel passes it: its parameters as properties, their changes and messages as events. */
export interface Model {
  on(events: string | string[], listener: (event: any) => void): void;
  send_msg(message: Message): void;
}

export interface Message {
  type: string;
  [key: string]: any;
}

/** The response to a gesture: `refused` is the reason for a refusal, or null. */
export interface Answer extends Message {
  gesture: string;
  refused: string | null;
}

export interface Point {
  x: number;
  y: number;
}

/** Pixels of the page, or of a canvas. */
export interface Box extends Point {
  width: number;
  height: number;
}

export type Child = Node | string | number | null | undefined | false;

type Listeners = { [E in keyof HTMLElementEventMap as `on${E}`]?: ((event: HTMLElementEventMap[E]) => unknown) | null };

export interface Attributes extends Listeners {
  style?: Record<string, string | number>;
  [name: string]: unknown;
}

type Name<T extends string> = T extends `${infer N}.${string}` ? N : T;
export type HtmlOf<T extends string> =
  Name<T> extends keyof HTMLElementTagNameMap ? HTMLElementTagNameMap[Name<T>] : HTMLElement;
export type SvgOf<T extends string> =
  Name<T> extends keyof SVGElementTagNameMap ? SVGElementTagNameMap[Name<T>] : SVGElement;

/** A button that can be disabled with a reason; `onblocked` receives the reason when the disabled button is pressed. */
export interface Button extends HTMLButtonElement {
  enable(isEnabled: boolean, title?: string): void;
  onblocked: ((reason: string, button: HTMLElement) => void) | null;
}

export interface MenuEntry {
  text: string;
  isName?: boolean; // whether the text is a name, which is not translated
  isFirst?: boolean; // whether a line separates the entry from those above
  note?: string;
  checked?: boolean;
  choose: () => void;
  preview?: () => void; // while the pointer or the focus is on it
}

/** A command of a canvas, as the command palette lists it. */
export interface CanvasCommand {
  keys: string;
  does: string;
}

/** A table of traffic (designer/kit/traffic.py). */
export interface TrafficData {
  title: string;
  about: string;
  word: string; // the noun for a row
  node_word: string; // the noun for a node
  numbers: number[];
  nodes: number[];
  texts: string[][];
  shares: number[][]; // of the largest cell
  sends: string[];
  receives: string[];
}

/** The columns of a pipeline timeline for a small picture, indexed by action. */
export interface SchedulePicture {
  ranks: number;
  makespan: number;
  rank: number[];
  op: number[];
  shade: number[];
  start: number[];
  end: number[];
  half?: number[];
}

export interface ScheduleChoice {
  name: string;
  title: string;
  blurb: string;
  reason: string;
}

/** A dialog that Python opens. */
export interface OverlayModel extends Model {
  shown: boolean;
  opening: number;
}

/** A canvas that marks differences from the pinned design; without one, `differences` is empty. */
export interface DifferencesModel extends Model {
  differences: { name?: string; marks: { kind: string }[]; words: string[] };
  marks_shown: boolean;
}
