// Runs in the head before the first paint, so that a dark page does not flash light and large text does not grow. The
// top bar stores the choices.
try {
  const kept = localStorage.getItem("meshwave.theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  document.documentElement.dataset.textSize = localStorage.getItem("meshwave.text-size") ?? "normal";
} catch {
  // without storage, the page has the theme of the system
}
