// Texts left of the lanes and above their rows: names of meshes, their utilization, and the timeline of each row.

/** @import { Frame } from "./frame.js" */
/** @import { Layer } from "./data.js" */
/** @import { Chart } from "./timeline.js" */
/** @import { Lane, RowTitle, Section } from "./types" */

import { percent } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { groupFigures, groupShares } from "./collapse.js";
import { TITLE } from "./paint.js";
import { clipped, line, textWidth, write } from "./shapes.js";
import { isOfRun, slowReason } from "./slow_lanes.js";
import { title } from "./text.js";

const LINE = 12; // height of a name in CSS pixels
const GAP = 9; // at least, between a name and the text beside it
const NAME_GAP = 6; // between the texts of a title
const LEAST_NAME = 60; // of the name of a timeline in a title without room
const HALVES = [0.27, 0.76]; // middles of the two halves of a shared lane
/** @type {Record<string, string>} */
const SOURCES = { predicted: "predicted", measured: "measured", rehearsed: "dry run" };

/**
 * Write the names of the pinned lanes and of the lanes that scroll below them.
 * @param {CanvasRenderingContext2D} context @param {Chart} chart @param {Lane[]} kept @param {Lane[]} scrolled
 */
export function paintNames(context, chart, kept, scrolled) {
  const { frame, colours } = chart;
  const column = { left: 0, right: frame.left };
  context.fillStyle = css(colours.background);
  context.fillRect(0, frame.top, frame.left, frame.bottom - frame.top);
  const [top, below] = frame.parts;
  clipped(context, { ...top, ...column }, () => writeNames(context, chart, kept));
  clipped(context, { ...below, ...column }, () => writeNames(context, chart, scrolled));
  if (!kept.length) return;
  context.strokeStyle = css(colours.strong);
  context.lineWidth = 1;
  line(context, 0, Math.round(frame.split) - 2.5, frame.right, Math.round(frame.split) - 2.5);
}

/** @param {CanvasRenderingContext2D} context @param {Chart} chart @param {Lane[]} lanes */
function writeNames(context, chart, lanes) {
  const { frame, plan, colours } = chart;
  for (const lane of lanes.filter(isFirst)) {
    const [y, height] = lane.whole;
    context.fillStyle = colours.mesh(lane.layer.toneOf(lane.rank));
    context.fillRect(frame.left - 7, y, 3, height);
    if (lane.kept) paintKeptSign(context, css(colours.accent), y + height / 2);
  }
  const isFree = (/** @type {number} */ y) =>
    !plan.titles.some(({ y: top, above }) => y + LINE / 2 > top + 1 && y - LINE / 2 < top + above - 1);
  for (const name of laneNames(lanes, frame))
    if (name.lane.kept || isFree(name.middle)) writeName(context, chart, name);
}

/**
 * The names left of lanes, with their positions. Lanes inside a block that are too low for names have one name per
 * device.
 * @param {Lane[]} lanes @param {{bottom: number}} frame
 */
export function laneNames(lanes, { bottom }) {
  const own = lanes.filter(isFirst);
  const isByDevice = own.some((lane) => Boolean(lane.layer.labels) && !isGrouped(lane) && lane.whole[1] < LINE);
  let free = -Infinity; // the y from which on the next name does not overlap the one above
  const found = [];
  for (const [i, lane] of own.entries()) {
    const entry = isByDevice && lane.layer.labels && !isGrouped(lane) ? deviceEntry(own, i) : laneEntry(lane);
    if (!entry) continue;
    const { name, height, middle } = entry;
    if (middle - LINE / 2 < free || (height < LINE && middle + 5 > bottom)) continue;
    free = middle + LINE / 2;
    found.push({ lane, name, middle });
  }
  return found;
}

/** True unless a lane is the second of two timelines that share a lane. @param {Lane} lane */
const isFirst = ({ over, group }) => !(over && group === 1);

/** @param {Lane} lane */
const isGrouped = ({ group = 1 }) => group > 1;

/** The name of a lane, or of a group for its first lane; null for the other lanes of a group. @param {Lane} lane */
function laneEntry(lane) {
  const [y, height] = lane.whole;
  if (!isGrouped(lane)) return { name: nameOf(lane), height, middle: y + Math.max(height, LINE) / 2 };
  if (lane.over || lane.rank !== lane.some?.[0]) return null;
  return { name: nameOf(lane), height, middle: lane.groupMiddle ?? y };
}

/** The name of the device whose first lane this is, else null. @param {Lane[]} lanes @param {number} first */
function deviceEntry(lanes, first) {
  const lane = lanes[first];
  const isSameDevice = (/** @type {Lane | undefined} */ other) =>
    lane.layer === other?.layer && lane.layer.toneOf(lane.rank) === lane.layer.toneOf(other.rank);
  if (isSameDevice(lanes[first - 1])) return null;
  const last = lanes.findLast((other, i) => i >= first && isSameDevice(other)) ?? lane;
  const [top] = lane.whole;
  const height = last.whole[0] + last.whole[1] - top;
  return { name: deviceName(lane.layer, lane.rank), height, middle: top + Math.max(height, LINE) / 2 };
}

/** The name of a lane inside a block begins with the number of its device. @param {Layer} layer @param {number} rank */
const deviceName = ({ meshes }, rank) => `device ${meshes[rank].split(" ")[0]}`;

/** @param {Lane} lane */
function nameOf({ layer, rank, some }) {
  const last = some?.at(-1) ?? rank;
  if (last === rank) return layer.meshes[rank];
  const isRange = last - rank === (some ?? []).length - 1;
  if (!layer.labels) return `${layer.meshes[rank]}${isRange ? " – " : ", "}${layer.meshes[last]}`;
  const [one, other] = [deviceName(layer, rank), deviceName(layer, last)];
  return one === other ? one : `${one} – ${other.split(" ")[1]}`;
}

/**
 * A small triangle that points up.
 * @param {CanvasRenderingContext2D} context @param {string} colour @param {number} y
 */
function paintKeptSign(context, colour, y) {
  context.fillStyle = colour;
  context.beginPath();
  context.moveTo(2, y + 3);
  context.lineTo(8, y + 3);
  context.lineTo(5, y - 3);
  context.fill();
}

/**
 * @param {CanvasRenderingContext2D} context @param {Chart} chart
 * @param {{lane: Lane, name: string, middle: number}} entry
 */
function writeName(context, chart, { lane, name, middle }) {
  const { plan, colours } = chart;
  const isSingle = (lane.some?.at(-1) ?? lane.rank) === lane.rank;
  const taken = isSingle && plan.gutter > 80 ? writeSide(context, chart, lane, middle + 0.5) : 0;
  const style = { font: `600 11px ${colours.font}`, colour: css(colours.text), room: plan.gutter - 20 - taken };
  write(context, name, 10, middle + 0.5, { ...style, isName: !lane.layer.labels });
}

/**
 * Write the timelines of the halves of a lane, or else its utilization, beside its name; "slow" where a run is slow.
 * Return the width that they take, in CSS pixels.
 * @param {CanvasRenderingContext2D} context @param {Chart} chart @param {Lane} lane @param {number} y
 */
function writeSide(context, chart, lane, y) {
  const { plan, colours, rows } = chart;
  const {
    layer,
    rank,
    whole: [top, height],
  } = lane;
  const colour = css(colours.muted);
  const align = /** @type {CanvasTextAlign} */ ("right");
  const slow = { font: `600 11px ${colours.font}`, colour: css(colours.warning), align };
  const isSlow = slowReason(chart, lane) !== "";
  const row = rows.find((each) => each.includes(layer)) ?? [];
  if (row.length === 2 && height >= 2 * LINE) {
    const font = `11px ${colours.font}`;
    const widths = row.map((each, i) => {
      const [text, style] = isSlow && isOfRun(each) ? ["slow", slow] : [SOURCES[each.source], { font, colour, align }];
      write(context, text ?? each.source, plan.gutter - 13, top + height * HALVES[i], style);
      return textWidth(context, text ?? each.source);
    });
    return Math.max(...widths) + GAP;
  }
  if (layer.labels || layer.blocked) return 0;
  const style = { font: `11px ${colours.font}`, colour, align };
  const text = isSlow ? "slow" : percent(layer.busy[rank]);
  write(context, text, plan.gutter - 13, y, isSlow ? slow : style);
  return textWidth(context, text) + GAP;
}

/**
 * The width of the longest name of a timeline that shares lanes, in CSS pixels; 0 if none does.
 * @param {Chart} chart
 */
export function halfWidth({ rows, base, colours }) {
  const context = base.getContext("2d", { alpha: false });
  if (!context || !colours) return 0;
  context.font = `11px ${colours.font}`;
  const shared = rows.filter((row) => row.length === 2).flat();
  return Math.max(0, ...shared.map(({ source }) => textWidth(context, SOURCES[source] ?? source)));
}

/** @param {CanvasRenderingContext2D} context @param {Chart} chart */
export function paintTitles(context, chart) {
  const { frame, plan } = chart;
  const edges = { left: 0, top: frame.split, right: plan.width, bottom: frame.bottom };
  clipped(context, edges, () => {
    for (const section of plan.titles)
      if (section.y + TITLE >= frame.split && section.y <= frame.bottom) writeTitle(context, chart, section);
  });
}

/**
 * The title of a timeline becomes short where there is too little room, and its first name is truncated.
 * @param {CanvasRenderingContext2D} context @param {Chart} chart @param {RowTitle} section
 */
function writeTitle(context, { plan, colours }, section) {
  const { row, name, head, y } = section;
  const start = 16;
  const end = head ? plan.width - 8 : plan.gutter - 6;
  const measured = (/** @type {[string, boolean][]} */ texts) =>
    texts.map(([text, isStrong]) => {
      const font = `${isStrong ? "600 " : ""}11px ${colours.font}`;
      const isName = isStrong && name === undefined && text !== row[1]?.label && !text.startsWith("Pinned: ");
      context.font = font;
      const width = isName ? context.measureText(text).width : textWidth(context, text);
      return { text, font, colour: css(isStrong ? colours.text : colours.muted), isName, width: width + NAME_GAP };
    });
  const excess = (/** @type {{width: number}[]} */ texts) =>
    texts.reduce((sum, { width }) => sum + width, start - end - NAME_GAP);
  let texts = measured(name === undefined ? title(row) : groupTitle(section));
  if (name === undefined && excess(texts) > 0) texts = measured(title(row, true));
  texts[0].width = Math.min(texts[0].width, Math.max(LEAST_NAME, texts[0].width - excess(texts)));
  let x = start;
  for (const { text, font, colour, isName, width } of texts) {
    write(context, text, x, y + TITLE / 2 + 1, { font, colour, room: Math.min(width - NAME_GAP, end - x), isName });
    x += width;
  }
}

/**
 * The name of a group, its number of lanes and its busy share; only the share beside the summary of a collapsed group.
 * @param {Section} section @returns {[string, boolean][]}
 */
function groupTitle(section) {
  const { name = "", isCollapsed } = section;
  const figures = isCollapsed ? `busy ${groupShares(section).join(", ")}` : groupFigures(section);
  return [
    [name, true],
    [figures, false],
  ];
}

/** The names of designs and meshes in timelines, which are not translated. @param {Layer[]} layers */
export const namesOf = (layers) =>
  layers.flatMap(({ label, labels, meshes, over }) => [
    ...(over ? [] : [label.replace(/^Pinned: /, "")]),
    ...(labels ? [] : meshes),
  ]);
