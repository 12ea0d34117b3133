// Run in the head, before anything is painted: a dark page never flashes light. The top bar keeps the choice.
try {
  const kept = localStorage.getItem("meshwave.theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  // a browser that keeps nothing shows the system's theme
}
