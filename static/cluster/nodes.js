// The nodes of the cluster: their panels, the lines between devices and between nodes, and the rates of these links.

/** @import { Box } from "../kit/types" */

import { h, s } from "../kit/dom.js";
import { panelBox, px, visibleNodes } from "./layout.js";

export class Nodes {
  lines = s("svg.mw-links", { "aria-hidden": "true" });
  panels = h("div.mw-layer");
  shownRates = { intra: false, inter: false };

  /** @param {import("./cluster.js").Cluster} cluster */
  constructor(cluster) {
    this.cluster = cluster;
  }

  draw() {
    const { isLarge, layout, model } = this.cluster;
    const { headed, nodes: total, fold } = layout;
    const nodes = fold ? [] : visibleNodes(layout);
    const { inter } = model.links;
    const label = headed && inter && !isLarge ? this.interRate(inter) : [];
    this.shownRates = { intra: headed && layout.panel.width > 120, inter: label.length > 0 };
    this.panels.replaceChildren(...nodes.map((node) => this.panel(panelBox(layout, node), node)));
    const joints = total > 1 ? nodes.flatMap((node) => this.joints(panelBox(layout, node), node)) : [];
    this.lines.replaceChildren(...this.buses(nodes), ...joints, ...label);
    this.lines.setAttribute("width", String(layout.width));
    this.lines.setAttribute("height", String(layout.height));
  }

  /** @param {Box} panel @param {number} node */
  panel(panel, node) {
    const { layout, model } = this.cluster;
    const state = this.cluster.attached.label(node);
    const box = { style: px(panel), title: this.cluster.attached.words(node), "data-free": state?.dataset.free };
    if (!layout.headed) return h("div.mw-panel", box);
    const { intra } = model.links;
    const hasRate = intra && layout.perNode > 1 && panel.width > 120 && !this.isBridged(node);
    const rate = hasRate && h("span.mw-rate", {}, panel.width > 190 ? intra : shortRate(intra));
    return h("div.mw-panel", box, h("div.mw-panel-head", {}, h("span", {}, `node ${node}`), state, rate));
  }

  /** True if a mesh covers the right of the head of a node, where the rate is written. @param {number} node */
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

  /** The lines that join the devices of each node. @param {number[]} nodes */
  buses(nodes) {
    const { layout } = this.cluster;
    const { headed, head, foot, pad, tile, gap, perNode } = layout;
    if (!headed || perNode < 2) return [];
    return nodes.map((node) => {
      const panel = panelBox(layout, node);
      const y = panel.y + head + 2 * pad + tile.height + foot / 2 - 3;
      const middles = Array.from(
        { length: perNode },
        (_, column) => panel.x + pad + column * (tile.width + gap) + tile.width / 2,
      );
      const bottom = panel.y + head + pad + tile.height;
      return line(`M${middles[0]} ${y}H${middles.at(-1)}${middles.map((x) => `M${x} ${bottom}V${y}`).join("")}`);
    });
  }

  /**
   * The lines from a node to the next node of its column, and between the first nodes of adjacent columns.
   * @param {Box} panel @param {number} node
   */
  joints(panel, node) {
    const { layout } = this.cluster;
    const { rows, rowGap, headed, nodes } = layout;
    const x = panel.x - 8;
    const y = panel.y + panel.height / 2;
    const isLast = node % rows === rows - 1 || node === nodes - 1;
    const number = { x: x - 3, y: y + 3, "text-anchor": "end" };
    return [
      line(`M${x} ${y}H${panel.x}`),
      ...(isLast ? [] : [line(`M${x} ${y}V${y + panel.height + rowGap}`)]),
      ...(node % rows === 0 && node > 0 ? [line(columnPath(panelBox(layout, node - rows), panel))] : []),
      ...(!headed && panel.height > 8 ? [s("text.mw-node-number", number, String(node))] : []),
    ];
  }

  /** The bandwidth between nodes, written along the line that joins the nodes. @param {string} text */
  interRate(text) {
    const { layout } = this.cluster;
    const { rows, nodes } = layout;
    const [top, bottom] = [panelBox(layout, 0), panelBox(layout, Math.min(rows, nodes) - 1)];
    const middle = (top.y + bottom.y + bottom.height) / 2;
    const span = bottom.y + bottom.height - top.y;
    const shown = text.length * 5.6 < span ? text : shortRate(text);
    if (rows < 2 || shown.length * 5.6 > span) return [];
    const transform = `translate(${top.x - 15} ${middle}) rotate(-90)`;
    return [s("text.mw-rate", { "text-anchor": "middle", transform }, shown)];
  }
}

/** "300 GB/s" of "300 GB/s NVLink-class". @param {string} rate */
export const shortRate = (rate) => rate.split(" ").slice(0, 2).join(" ");

/** @param {string} d */
const line = (d) => s("path.mw-link", { d });

/** From the first node of one column over its top to the first of the next. @param {Box} from @param {Box} to */
function columnPath(from, to) {
  const y = Math.min(from.y, to.y) - 5;
  return `M${from.x - 8} ${from.y + from.height / 2}V${y}H${to.x - 8}V${to.y + to.height / 2}`;
}
