// Runs in the head before the first paint, so that a dark page does not flash light. The top bar stores the choice.
try {
  const kept = localStorage.getItem("meshwave.theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  // without storage, the page has the theme of the system
}
