// Properties that the page adds to its window and its elements.
declare var Bokeh:
  { documents: { is_idle: boolean; on_event(type: string, listener: () => void): void }[] } | undefined;
interface Window {
  importShim?: unknown;
  meshwaveRuns?: unknown; // for tests
  meshwaveTimeline?: unknown; // for benchmarks and tests
}
interface HTMLElement {
  isUnedited?: () => boolean; // true if an input has the value of the design, so that undo reverts an edit of the design
  mw?: unknown; // for tests
}
