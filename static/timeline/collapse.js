// Collapsed lanes: a thin row with the share of busy ranks instead of the lanes of a timeline or of a group of lanes,
// and buttons left of their titles.

/** @import { MenuEntry, Point } from "../kit/types" */
/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { Plan, RowTitle, Section, ViewWindow } from "./types" */

import { h } from "../kit/dom.js";
import { clamp, count, percent } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { lowerBound } from "./columns.js";
import { stepPath } from "./memory.js";
import { TITLE } from "./paint.js";
import { groupKey, sectionKey } from "./sections.js";
import { clipped } from "./shapes.js";

/** The criterion that groups lanes, "" for none, and the keys of collapsed rows and groups. */
/** @typedef {{grouping: string, keys: Set<string>}} Folds */

const KEYS = /** @type {Record<string, boolean | undefined>} */ ({ ArrowLeft: true, ArrowRight: false });
const BUTTON = 19; // height of a button in CSS pixels

export class Collapse {
  element = h("div.mw-timeline-collapse");
  grouping = "";
  /** @type {Set<string>} */ keys = new Set();

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
  }

  /** @returns {Folds} */
  get folds() {
    const { grouping, keys } = this;
    return { grouping, keys };
  }

  /** What the lanes show; in edit mode, no lanes are collapsed. */
  get shown() {
    const { grouping, keys } = this;
    return { grouping, collapsed: this.chart.edit.isOn ? new Set() : keys };
  }

  /** True if a measured timeline has its own lanes. */
  get isSeparate() {
    return this.grouping === "kind";
  }

  /** @param {Partial<Folds>} folds */
  set({ grouping = this.grouping, keys = this.keys }) {
    const isChange = grouping !== this.grouping;
    Object.assign(this, { grouping, keys });
    if (isChange) this.chart.arrangeRows();
    this.chart.rearrange();
  }

  /** Show all lanes without groups. */
  reset() {
    this.set({ grouping: "", keys: new Set() });
  }

  /** Collapse or expand a row or a group. @param {{key: string}} section @param {boolean} isCollapsed */
  turn({ key }, isCollapsed = !this.keys.has(key)) {
    const others = [...this.keys].filter((each) => each !== key);
    this.set({ keys: new Set(isCollapsed ? [...others, key] : others) });
  }

  /** Expand the row and the group of a lane. @param {Layer[]} row @param {number} rank */
  unfold(row, rank) {
    const shown = [sectionKey(row), groupKey(row, this.grouping, rank)];
    this.set({ keys: new Set([...this.keys].filter((key) => !shown.includes(key))) });
  }

  /** Collapse all groups, or expand all groups and rows. @param {boolean} isCollapsed */
  turnAll(isCollapsed) {
    const groups = this.chart.plan.titles.filter(({ name }) => name !== undefined);
    this.set({ keys: new Set(isCollapsed ? [...this.keys, ...groups.map(({ key }) => key)] : []) });
  }

  /** The entries of the menu of groups. @returns {MenuEntry[]} */
  entries() {
    const { choices } = this.chart.data;
    const choose = (/** @type {string} */ grouping) => () => this.set({ grouping });
    return [
      { text: "No groups", checked: !this.grouping, choose: choose("") },
      ...choices.map(({ by, label }) => ({ text: label, checked: this.grouping === by, choose: choose(by) })),
      ...(this.grouping ? [{ text: "Collapse all groups", choose: () => this.turnAll(true) }] : []),
      ...(this.keys.size ? [{ text: "Expand all lanes", choose: () => this.turnAll(false) }] : []),
    ];
  }

  /** The title left of the lanes at a point, or undefined. @param {Point} point */
  titleAt({ x, y }) {
    const { plan, frame, edit } = this.chart;
    if (edit.isOn || x >= frame.left || y < frame.split) return undefined;
    if (y > frame.bottom) return stripTitles(plan).find(({ y: top }) => y >= top && y < top + TITLE);
    return plan.titles.find(({ y: top, above }) => y >= top && y < top + above);
  }

  // ── buttons ──

  /** Draw a button for each section; the buttons are kept as long as their number is the same. */
  drawButtons() {
    const { element, chart } = this;
    const { size } = chart.plan;
    const titles = this.titles;
    element.hidden = chart.edit.isOn;
    if (element.children.length !== titles.length) element.replaceChildren(...titles.map((_, at) => this.button(at)));
    titles.forEach(({ y, isCollapsed, label, isFixed }, at) => {
      const button = /** @type {HTMLElement} */ (element.children[at]);
      button.hidden = !isFixed && (y < size.split - 1 || y + BUTTON > size.bottom);
      button.style.top = `${y}px`;
      button.textContent = isCollapsed ? "▸" : "▾";
      button.title = isCollapsed ? "Expand lanes (→)" : "Collapse lanes (←)";
      button.ariaExpanded = String(!isCollapsed);
      button.ariaLabel = label;
    });
  }

  /** The titles of lanes, which scroll, and of the strips below them. */
  get titles() {
    const { plan } = this.chart;
    const label = (/** @type {RowTitle} */ title) => {
      const [{ label: of }] = title.row;
      return title.name === undefined ? `Lanes of ${of}` : `Lanes of ${of}, ${title.name}, ${groupFigures(title)}`;
    };
    const titles = plan.titles.map((title) => ({ ...title, label: label(title), isFixed: false }));
    return [...titles, ...stripTitles(plan).map((title) => ({ ...title, isFixed: true }))];
  }

  /** @param {number} at the place of its section */
  button(at) {
    const title = () => this.titles[at];
    const button = h("button", { type: "button", onclick: () => this.turn(title()) });
    button.addEventListener("keydown", (event) => {
      const isCollapsed = KEYS[event.key];
      if (isCollapsed === undefined) return;
      event.preventDefault();
      this.turn(title(), isCollapsed);
    });
    return button;
  }

  // ── summaries ──

  /** Paint the summaries of collapsed sections. @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { frame, plan } = this.chart;
    const isInView = (/** @type {RowTitle} */ { y, height }) => y + height > frame.split && y < frame.bottom;
    clipped(context, frame.parts[1], () => {
      for (const title of plan.titles) if (title.isCollapsed && isInView(title)) this.paintSummary(context, title);
    });
  }

  /** @param {CanvasRenderingContext2D} context @param {RowTitle} title */
  paintSummary(context, { row, members, y, height, head }) {
    const { frame, colours } = this.chart;
    const each = (height - head) / row.length;
    row.forEach((layer, i) => {
      const bottom = y + head + (i + 1) * each - 1;
      const [left, right] = [frame.x(0), frame.x(layer.last)];
      context.fillStyle = css(colours.idle);
      context.fillRect(left, bottom - each + 2, right - left, each - 2);
      const shares = busyShares(layer, members, frame, new Float32Array(Math.round(frame.right - frame.left)));
      context.fillStyle = css(colours.muted, 0.75);
      context.fill(stepPath(shares, frame.left, bottom, (share) => bottom - share * (each - 2)));
    });
  }
}

/** The titles of the link lanes and of the memory strips. @param {Plan} plan */
export function stripTitles({ links, strips }) {
  const memory = strips.flatMap(({ layer, key, isCollapsed = false, y }) =>
    key ? [{ key, isCollapsed, y, label: `Memory of ${layer.label}` }] : [],
  );
  return [...(links ? [{ ...links, label: `Links of ${links.layer.label}` }] : []), ...memory];
}

/** The shares of the step in which the lanes of a group compute, by timeline. @param {Section} section */
export const groupShares = ({ row, members }) =>
  row.map(({ busy }) => percent(members.reduce((sum, rank) => sum + busy[rank], 0) / members.length));

/** The number of lanes of a group, and the share of the step in which they compute. @param {Section} section */
export function groupFigures(section) {
  const { all, members } = section;
  const lanes = members.length === all.length ? count(all.length, "lane") : `${members.length} of ${all.length} lanes`;
  return `${lanes}, busy ${groupShares(section).join(" and ")} of the step`;
}

/**
 * Write the share of some ranks that compute, from 0 to 1, in each column of a view into `columns`.
 * @param {Layer} layer @param {number[]} ranks @param {Pick<ViewWindow, "from" | "to">} view
 * @param {Float32Array} columns
 */
export function busyShares(layer, ranks, { from, to }, columns) {
  const width = columns.fill(0).length;
  const column = (/** @type {number} */ tick) => clamp(((tick - from) * width) / (to - from), 0, width);
  for (const rank of ranks) {
    const [first, last] = layer.range(0, rank);
    for (let span = lowerBound(layer.end, from, first, last); span < last && layer.start[span] < to; span++) {
      const [start, end] = [column(layer.start[span]), column(layer.end[span])];
      for (let x = Math.floor(start); x < end; x++) columns[x] += Math.min(end, x + 1) - Math.max(start, x);
    }
  }
  return columns.map((busy) => Math.min(1, busy / ranks.length));
}
