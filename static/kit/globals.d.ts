// What the page adds to its window.
interface Window {
  importShim?: unknown;
  meshwaveRuns?: unknown; // for tests
  meshwaveTimeline?: unknown; // for tests
}
