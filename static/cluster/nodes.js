// The nodes of the cluster: their panels, the lines that join their devices and each other, and how fast these are.

import { h, s } from "../kit/canvas.js";
import { px } from "./layout.js";

export class Nodes {
  constructor(cluster) {
    this.cluster = cluster;
    this.lines = s("svg", { class: "mw-links", "aria-hidden": "true" });
    this.panels = h("div", { class: "mw-layer" });
  }

  draw() {
    const { layout, model } = this.cluster;
    const { panels, headed } = layout;
    const { inter } = model.links;
    const label = headed && inter ? this.rateBetween(inter) : [];
    this.written = { intra: headed && panels[0].width > 120, inter: label.length > 0 };
    this.panels.replaceChildren(...panels.map((panel, node) => this.panel(panel, node)));
    this.lines.replaceChildren(
      ...this.buses(),
      ...(panels.length > 1 ? panels.flatMap((panel, node) => this.joints(panel, node)) : []),
      ...label,
    );
    this.lines.setAttribute("width", layout.width);
    this.lines.setAttribute("height", layout.height);
  }

  panel(panel, node) {
    const box = h("div", { class: "mw-panel", style: px(panel) });
    const { layout, model } = this.cluster;
    if (!layout.headed) return box;
    const { intra } = model.links;
    const rate =
      intra &&
      layout.perNode > 1 &&
      panel.width > 120 &&
      !this.isBridged(node) &&
      (panel.width > 190 ? intra : short(intra));
    box.append(
      h(
        "div",
        { class: "mw-panel-head" },
        h("span", {}, `node ${node}`),
        rate ? h("span", { class: "mw-rate" }, rate) : "",
      ),
    );
    return box;
  }

  /** Whether a mesh crosses the head of a node on its right, where the rate is written. */
  isBridged(node) {
    const { cluster } = this;
    const { rows, perNode } = cluster.layout;
    if (node % rows === 0) return false;
    for (let column = Math.floor(perNode / 2); column < perNode; column++) {
      const rank = cluster.owner(cluster.grid.device(node, column));
      if (rank >= 0 && rank === cluster.owner(cluster.grid.device(node - 1, column))) return true;
    }
    return false;
  }

  /** The lines that join the devices of each node. */
  buses() {
    const { panels, tiles, headed, head, foot, pad, tile, perNode } = this.cluster.layout;
    if (!headed || perNode < 2) return [];
    return panels.map((panel, node) => {
      const y = panel.y + head + 2 * pad + tile.height + foot / 2 - 3;
      const middles = tiles.slice(node * perNode, (node + 1) * perNode).map(({ x, width }) => x + width / 2);
      const bottom = tiles[node * perNode].y + tile.height;
      return line(`M${middles[0]} ${y}H${middles.at(-1)}${middles.map((x) => `M${x} ${bottom}V${y}`).join("")}`);
    });
  }

  /** What joins a node to the next one of its column, and the first of a column to that of the one before. */
  joints(panel, node) {
    const { panels, rows, rowGap, headed } = this.cluster.layout;
    const x = panel.x - 8;
    const y = panel.y + panel.height / 2;
    const last = node % rows === rows - 1 || node === panels.length - 1;
    return [
      line(`M${x} ${y}H${panel.x}`),
      ...(last ? [] : [line(`M${x} ${y}V${y + panel.height + rowGap}`)]),
      ...(node % rows === 0 && node > 0 ? [line(hop(panels[node - rows], panel))] : []),
      ...(!headed && panel.height > 8
        ? [s("text", { class: "mw-node-number", x: x - 3, y: y + 3, "text-anchor": "end" }, String(node))]
        : []),
    ];
  }

  /** The bandwidth between nodes, written along its line. */
  rateBetween(text) {
    const { panels, rows } = this.cluster.layout;
    const [top, bottom] = [panels[0], panels.slice(0, rows).at(-1)];
    const middle = (top.y + bottom.y + bottom.height) / 2;
    const span = bottom.y + bottom.height - top.y;
    const shown = text.length * 5.6 < span ? text : short(text);
    if (rows < 2 || shown.length * 5.6 > span) return [];
    return [
      s(
        "text",
        { class: "mw-rate", "text-anchor": "middle", transform: `translate(${top.x - 15} ${middle}) rotate(-90)` },
        shown,
      ),
    ];
  }
}

/** "300 GB/s" of "300 GB/s NVLink-class". */
export const short = (rate) => rate.split(" ").slice(0, 2).join(" ");

const line = (d) => s("path", { class: "mw-link", d });

/** From the first node of one column of nodes over its top to the first of the next. */
const hop = (from, to) => {
  const y = Math.min(from.y, to.y) - 5;
  return `M${from.x - 8} ${from.y + from.height / 2}V${y}H${to.x - 8}V${to.y + to.height / 2}`;
};
