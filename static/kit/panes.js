// Two canvases share one place of the page: the cluster, and the experts on it. Each carries the switch.

import { h } from "./canvas.js";

const PANES = [
  ["cluster", "Cluster", "The devices, and the meshes on them (X)"],
  ["experts", "Experts", "Which device holds which experts (X)"],
];

/** The switch, with `current` pressed; `choose` is told the other pane. */
export function paneSwitch(current, choose) {
  const one = ([name, text, title]) =>
    h(
      "button",
      {
        type: "button",
        class: "mw-pane",
        "aria-pressed": String(name === current),
        title,
        onclick: () => name === current || choose(name),
      },
      text,
    );
  return h("div", { class: "mw-panes", role: "group", "aria-label": "What is shown here" }, ...PANES.map(one));
}
