// The switch between two canvases in the same area of the page: the cluster and the experts.

import { h } from "./dom.js";

const PANES = [
  ["cluster", "Cluster", "Devices and the meshes drawn on them (X)"],
  ["experts", "Experts", "Placement of experts on devices (X)"],
];

/** @param {string} current @param {(pane: string) => void} onchoose called with the other pane */
export function paneSwitch(current, onchoose) {
  const buttons = PANES.map(([name, text, title]) => {
    const isPressed = name === current;
    const onclick = () => isPressed || onchoose(name);
    return h("button.mw-pane", { type: "button", "aria-pressed": String(isPressed), title, onclick }, text);
  });
  return h("div.mw-panes", { role: "group", "aria-label": "View" }, ...buttons);
}
