// The words left of the lanes and above their rows: names of meshes, how busy they are, whose timeline it is.

import { css } from "static/palette.js";
import { TITLE, clipped, line, shorten } from "static/timeline_paint.js";
import { title } from "static/timeline_words.js";

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
  let free = -Infinity; // names stand only where they do not run into the one above
  for (const lane of lanes) {
    if (lane.over && lane.group === 1) continue;
    const grouped = lane.group > 1;
    const [y, height] = lane.whole;
    context.fillStyle = colours.mesh(lane.layer.toneOf(lane.rank));
    context.fillRect(frame.left - 7, y, 3, height);
    if (lane.kept) keptSign(context, colours, y + height / 2);
    if (grouped && (lane.over || lane.rank !== lane.some[0])) continue;
    const middle = grouped ? lane.groupMiddle : y + Math.max(height, 12) / 2;
    if (middle - 6 < free || (height < 12 && middle + 5 > frame.bottom)) continue;
    free = middle + 6;
    writeName(context, colours, lane, middle, plan.gutter);
  }
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

function writeName(context, colours, lane, y, gutter) {
  const { meshes, busy } = lane.layer;
  const last = lane.some?.at(-1) ?? lane.rank;
  const name = last > lane.rank ? `${meshes[lane.rank]} – ${meshes[last]}` : meshes[lane.rank];
  const worked = gutter > 80 && last === lane.rank && !lane.layer.labels;
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
