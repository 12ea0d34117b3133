// Collapsed timelines: a thin row with the share of busy ranks instead of the lanes, and buttons left of the titles.

/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { ViewWindow } from "./types" */

import { h } from "../kit/dom.js";
import { clamp } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { stepPath } from "./memory.js";
import { TITLE } from "./paint.js";
import { clipped } from "./shapes.js";

const KEYS = /** @type {Record<string, boolean | undefined>} */ ({ ArrowLeft: true, ArrowRight: false });

export class Collapse {
  element = h("div.mw-timeline-collapse");
  /** Collapsed rows, by the number of their first layer. @type {Set<number>} */ rows = new Set();

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
  }

  /** True if only the title and the summary of a row are shown; in edit mode, all lanes are. @param {Layer[]} row */
  isCollapsed([layer]) {
    return this.rows.has(layer.number) && !this.chart.edit.isOn;
  }

  /** @param {Set<number>} rows */
  set(rows) {
    this.rows = rows;
    this.chart.rearrange();
  }

  /** Collapse or expand a row. @param {Layer[]} row @param {boolean} isCollapsed */
  turn([{ number }], isCollapsed = !this.rows.has(number)) {
    const others = [...this.rows].filter((each) => each !== number);
    this.set(new Set(isCollapsed ? [...others, number] : others));
  }

  /** Draw a button for each row; the buttons are kept as long as the number of rows is the same. */
  drawButtons() {
    const { element, chart } = this;
    const { rows } = chart;
    element.hidden = chart.edit.isOn;
    if (element.children.length !== rows.length) element.replaceChildren(...rows.map((_, at) => this.button(at)));
    const { titles, size } = chart.plan;
    titles.forEach(({ row, y }, at) => {
      const button = /** @type {HTMLElement} */ (element.children[at]);
      const isCollapsed = this.isCollapsed(row);
      button.hidden = y < size.split - 1 || y + TITLE > size.bottom;
      button.style.top = `${y}px`;
      button.textContent = isCollapsed ? "▸" : "▾";
      button.title = isCollapsed ? "Expand lanes (→)" : "Collapse lanes (←)";
      button.ariaExpanded = String(!isCollapsed);
      button.ariaLabel = `Lanes of ${row[0].label}`;
    });
  }

  /** @param {number} at the place of its row */
  button(at) {
    const button = h("button", { type: "button", onclick: () => this.turn(this.chart.rows[at]) });
    button.addEventListener("keydown", (event) => {
      const isCollapsed = KEYS[event.key];
      if (isCollapsed === undefined) return;
      event.preventDefault();
      this.turn(this.chart.rows[at], isCollapsed);
    });
    return button;
  }

  /** Paint the summaries of collapsed rows. @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { frame, plan, colours } = this.chart;
    clipped(context, frame.parts[1], () => {
      for (const { row, y, height } of plan.titles.filter(({ row }) => this.isCollapsed(row))) {
        const each = (height - TITLE) / row.length;
        row.forEach((layer, i) => {
          const bottom = y + TITLE + (i + 1) * each - 1;
          const [left, right] = [frame.x(0), frame.x(layer.last)];
          context.fillStyle = css(colours.idle);
          context.fillRect(left, bottom - each + 2, right - left, each - 2);
          const shares = busyShares(layer, frame, new Float32Array(Math.round(frame.right - frame.left)));
          context.fillStyle = css(colours.muted, 0.75);
          context.fill(stepPath(shares, frame.left, bottom, (share) => bottom - share * (each - 2)));
        });
      }
    });
  }
}

/**
 * Write the share of ranks that compute, from 0 to 1, in each column of a view into `columns`.
 * @param {Layer} layer @param {Pick<ViewWindow, "from" | "to">} view @param {Float32Array} columns
 */
export function busyShares(layer, { from, to }, columns) {
  const width = columns.fill(0).length;
  const column = (/** @type {number} */ tick) => clamp(((tick - from) * width) / (to - from), 0, width);
  for (let span = 0; span < layer.blocks; span++) {
    const [start, end] = [column(layer.start[span]), column(layer.end[span])];
    for (let x = Math.floor(start); x < end; x++) columns[x] += Math.min(end, x + 1) - Math.max(start, x);
  }
  return columns.map((busy) => Math.min(1, busy / layer.ranks));
}
