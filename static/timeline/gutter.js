// The words left of the lanes and above their rows: names of meshes, how busy they are, whose timeline it is.

import { css } from "../kit/palette.js";
import { TITLE } from "./paint.js";
import { clipped, line, shorten } from "./shapes.js";
import { title } from "./text.js";

const LINE = 12; // CSS pixels of a name

/** Names of the lanes that are kept on top, and of those that are scrolled below them. */
export function paintNames(context, chart, kept, scrolled) {
  const { frame, colours } = chart;
  const column = { left: 0, right: frame.left };
  clipped(context, { ...column, top: frame.top, bottom: frame.bottom }, () => {
    context.fillStyle = css(colours.background);
    context.fillRect(0, frame.top, frame.left, frame.bottom - frame.top);
  });
  const [top, below] = frame.parts;
  clipped(context, { ...top, ...column }, () => writeNames(context, chart, kept));
  clipped(context, { ...below, ...column }, () => writeNames(context, chart, scrolled));
  if (!kept.length) return;
  context.strokeStyle = css(colours.strong);
  context.lineWidth = 1;
  line(context, 0, Math.round(frame.split) - 2.5, frame.right, Math.round(frame.split) - 2.5);
}

function writeNames(context, { frame, plan, colours }, lanes) {
  for (const lane of lanes.filter(isOwn)) {
    const [y, height] = lane.whole;
    context.fillStyle = colours.mesh(lane.layer.toneOf(lane.rank));
    context.fillRect(frame.left - 7, y, 3, height);
    if (lane.kept) keptSign(context, colours, y + height / 2);
  }
  for (const { lane, name, middle } of names(lanes, frame))
    writeName(context, colours, lane, name, middle, plan.gutter);
}

/**
 * What is written left of some lanes, and where: the name of each, of those inside a block that are too low for theirs
 * one a device.
 */
export function names(lanes, { bottom }) {
  const own = lanes.filter(isOwn);
  const low = own.some(({ layer, group, whole }) => layer.labels && !(group > 1) && whole[1] < LINE);
  let free = -Infinity; // names stand only where they do not run into the one above
  const found = [];
  own.forEach((lane, at) => {
    const grouped = lane.group > 1;
    const byDevice = low && Boolean(lane.layer.labels) && !grouped;
    if (byDevice ? ofOneDevice(lane, own[at - 1]) : grouped && (lane.over || lane.rank !== lane.some[0])) return;
    const [y, height] = byDevice ? around(own, at) : lane.whole;
    const middle = grouped ? lane.groupMiddle : y + Math.max(height, LINE) / 2;
    if (middle - LINE / 2 < free || (height < LINE && middle + 5 > bottom)) return;
    free = middle + LINE / 2;
    found.push({ lane, name: byDevice ? deviceOf(lane.layer, lane.rank) : nameOf(lane), middle });
  });
  return found;
}

/** Not the second of two that share a lane. */
const isOwn = ({ over, group }) => !(over && group === 1);

const ofOneDevice = (lane, other) =>
  lane.layer === other?.layer && lane.layer.toneOf(lane.rank) === lane.layer.toneOf(other.rank);

/** Top and height of the lanes of a device, of which one is the first. */
function around(lanes, first) {
  const last = lanes.findLastIndex((lane, at) => at >= first && ofOneDevice(lanes[first], lane));
  const [[top], [y, height]] = [lanes[first].whole, lanes[last].whole];
  return [top, y + height - top];
}

/** The lanes of a device begin with its number. */
const deviceOf = ({ meshes }, rank) => `device ${meshes[rank].split(" ")[0]}`;

function nameOf({ layer, rank, some }) {
  const last = some?.at(-1) ?? rank;
  if (last === rank) return layer.meshes[rank];
  if (!layer.labels) return `${layer.meshes[rank]} – ${layer.meshes[last]}`;
  const [one, other] = [deviceOf(layer, rank), deviceOf(layer, last)];
  return one === other ? one : `${one} – ${other.split(" ")[1]}`;
}

/** A small triangle that points up, left of the name. */
function keptSign(context, colours, y) {
  context.fillStyle = css(colours.accent);
  context.beginPath();
  context.moveTo(2, y + 3);
  context.lineTo(8, y + 3);
  context.lineTo(5, y - 3);
  context.fill();
}

function writeName(context, colours, lane, name, y, gutter) {
  const { busy } = lane.layer;
  const worked = gutter > 80 && (lane.some?.at(-1) ?? lane.rank) === lane.rank && !lane.layer.labels;
  context.textBaseline = "middle";
  context.font = `10.5px ${colours.font}`;
  context.textAlign = "right";
  context.fillStyle = css(colours.muted);
  if (worked) context.fillText(`${Math.round(100 * busy[lane.rank])}\u2009%`, gutter - 13, y + 0.5);
  context.font = `600 11px ${colours.font}`;
  context.textAlign = "left";
  context.fillStyle = css(colours.text);
  context.fillText(shorten(context, name, worked ? gutter - 50 : gutter - 20), 10, y + 0.5);
}

export function paintTitles(context, { frame, plan, colours }) {
  context.save();
  context.beginPath();
  context.rect(0, frame.split, plan.width, frame.bottom - frame.split);
  context.clip();
  for (const { row, y } of plan.titles) {
    if (y + TITLE < frame.split || y > frame.bottom) continue;
    context.textBaseline = "middle";
    context.textAlign = "left";
    let x = 10;
    for (const [text, strong] of title(row)) {
      context.font = `${strong ? "600 " : ""}11px ${colours.font}`;
      context.fillStyle = css(strong ? colours.text : colours.muted);
      context.fillText(text, x, y + TITLE / 2 + 1);
      x += context.measureText(text).width + 6;
    }
  }
  context.restore();
}
