// What the page adds to its window and its elements.
declare var Bokeh:
  { documents: { is_idle: boolean; on_event(type: string, listener: () => void): void }[] } | undefined;
interface Window {
  importShim?: unknown;
  meshwaveRuns?: unknown; // for tests
  meshwaveTimeline?: unknown; // for tests
}
interface HTMLElement {
  isUnedited?: () => boolean; // an input that holds what the design holds: undo then undoes an edit of the design
  mw?: unknown; // for tests
}
