// Ports below the lanes and on their axis: a lane is as high as what its port can carry, and each message that passes
// it stands there with its part. Python says which and when (designer/views/timeline_links.py); this file draws.

import { css, mix } from "../kit/palette.js";
import { TITLE } from "./paint.js";
import { line, shorten } from "./shapes.js";
import { amount, bytes, percent } from "./units.js";

const LINE = 11; // CSS pixels of a name
const OTHER = 0.32; // of the background in every other message: where they are short, no line is left between them
const NEAR = 3; // CSS pixels beside a short message that are still its own
const MANY = 4; // shares for each pixel column, from which on columns show the mean of each kind of message

/** Paints the link lanes of a plan. */
export class LinkLanes {
  constructor(context, frame, plan) {
    this.context = context;
    this.frame = frame;
    this.plan = plan;
    this.colours = frame.colours;
    this.shades = new Map();
  }

  paint() {
    const { links } = this.plan;
    if (!links) return;
    this._title(links);
    for (const lane of links.lanes) this._lane(links.layer, lane);
    this._names(links.lanes);
  }

  _title({ layer, y }) {
    const { context, colours, plan } = this;
    context.strokeStyle = css(colours.line);
    line(context, 0, Math.round(y) + 0.5, plan.width, Math.round(y) + 0.5);
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.font = `600 11px ${colours.font}`;
    context.fillStyle = css(colours.text);
    context.fillText("Links", 10, y + TITLE / 2 + 1);
    const x = 10 + context.measureText("Links").width + 6;
    context.font = `11px ${colours.font}`;
    context.fillStyle = css(colours.muted);
    const { lanes, words } = layer.links;
    const whose = plan.titles.length > 1 ? layer.label : "";
    const about = lanes.length
      ? "height: share of the capacity; right of a name: how busy the port is in the whole step"
      : "";
    context.fillText(
      shorten(context, [whose, words, about].filter(Boolean).join("; "), plan.width - x - 10),
      x,
      y + TITLE / 2 + 1,
    );
  }

  _lane(layer, { port, y, height }) {
    const { context, frame, colours } = this;
    const [top, tall] = [Math.round(y) + 1, Math.max(1, Math.round(height) - 2)];
    context.save();
    context.beginPath();
    context.rect(frame.left, top, frame.right - frame.left, tall);
    context.clip();
    context.fillStyle = css(colours.idle);
    const [from, to] = [frame.x(0), frame.x(layer.last)];
    context.fillRect(from, top, to - from, tall);
    const seen = sharesSeen(layer, port, frame);
    if (seen.length > MANY * (frame.right - frame.left)) this._columns(layer, seen, top, tall);
    else for (const share of seen) this._share(layer, share, top, tall);
    context.restore();
  }

  /** A share, in whole pixels, which are filled many times faster than parts of them. */
  _share(layer, share, top, tall) {
    const { context, frame } = this;
    const [left, right] = [Math.round(frame.x(layer.link_start[share])), Math.round(frame.x(layer.link_end[share]))];
    const [low, high] = [Math.round(tall * layer.link_low[share]), Math.round(tall * layer.link_high[share])];
    const gap = right - left > 3 ? 1 : 0; // before the next message
    const above = high - low > 3 && low > 0 ? 1 : 0; // over the message below
    context.fillStyle = this._shade(layer, layer.link_flow[share]);
    context.fillRect(left, top + tall - high, Math.max(1, right - left - gap), Math.max(1, high - low - above));
  }

  /** Many shares: each column of pixels shows how much of the port each kind of message has in it, on average. */
  _columns(layer, shares, top, tall) {
    const { context, frame, colours } = this;
    const width = Math.ceil(frame.right - frame.left);
    const levels = new Map(); // of an op: a mean for each column
    for (const share of shares) {
      const op = layer.op[layer.flow_span[layer.link_flow[share]]];
      if (!levels.has(op)) levels.set(op, new Float32Array(width));
      addMean(
        levels.get(op),
        frame.x(layer.link_start[share]) - frame.left,
        frame.x(layer.link_end[share]) - frame.left,
        layer.link_high[share] - layer.link_low[share],
      );
    }
    const stacked = [...levels].sort(([one], [other]) => one - other);
    for (let x = 0; x < width; x++) {
      let bottom = top + tall;
      for (const [op, means] of stacked) {
        const height = means[x] * tall;
        context.fillStyle = css(colours.ops[op]);
        context.fillRect(frame.left + x, bottom - height, 1, height);
        bottom -= height;
      }
    }
  }

  /** The colour of what a message carries; every other microbatch is lighter. */
  _shade(layer, flow) {
    const { colours } = this;
    const span = layer.flow_span[flow];
    // a reduction is of no microbatch
    const isOther = (Math.max(0, layer.microbatch[span]) + layer.flow_part[flow]) & 1;
    const key = `${layer.op[span]} ${isOther}`;
    if (!this.shades.has(key))
      this.shades.set(key, css(mix(colours.ops[layer.op[span]], colours.background, OTHER * isOther)));
    return this.shades.get(key);
  }

  _names(lanes) {
    const { context, frame, colours, plan } = this;
    let free = -Infinity; // names stand only where they do not run into the one above
    for (const { port, y, height } of lanes) {
      const middle = y + height / 2 + 0.5;
      if (middle - LINE / 2 < free) continue;
      free = middle + LINE / 2;
      context.textBaseline = "middle";
      context.font = `10px ${colours.font}`;
      context.textAlign = "right";
      context.fillStyle = css(colours.muted);
      const busy = `${Math.round(100 * port.share)}\u2009%`;
      context.fillText(busy, frame.left - 6, middle);
      const room = plan.gutter - 18 - context.measureText(busy).width;
      context.font = `600 10.5px ${colours.font}`;
      context.textAlign = "left";
      context.fillStyle = css(colours.text);
      context.fillText(shorten(context, port.label, room), 10, middle);
    }
  }
}

/** The shares of a port in view. */
function sharesSeen(layer, { number }, frame) {
  const found = [];
  const last = layer.link_bounds[number + 1];
  for (let share = layer.link_bounds[number]; share < last; share++) {
    if (layer.link_end[share] >= frame.from && layer.link_start[share] <= frame.to) found.push(share);
  }
  return found;
}

/** Add to each column what a value from `left` to `right` is in it on average. */
function addMean(means, left, right, value) {
  const first = Math.max(0, Math.floor(left));
  const last = Math.min(means.length - 1, Math.floor(right));
  for (let x = first; x <= last; x++) means[x] += value * Math.max(0, Math.min(right, x + 1) - Math.max(left, x));
}

/** The place in the lanes of links at a point: with the span whose bytes pass there, or -1; null beside them. */
export function linkAt({ frame, plan }, x, y) {
  const lane = plan.links?.lanes.find((each) => y >= each.y && y < each.y + each.height);
  if (!lane) return null;
  const { layer } = plan.links;
  const tick = frame.tick(x);
  const share = shareAt(layer, lane, tick, 1 - (y - lane.y) / lane.height, frame);
  const place = { layer, rank: -1, tick, link: { port: lane.port, share } };
  return { ...place, span: share < 0 ? -1 : layer.flow_span[layer.link_flow[share]] };
}

/** The share of a port at a tick and a part of its height, or the nearest to that in reach; -1 for none. */
function shareAt(layer, { port }, tick, part, frame) {
  const near = NEAR / frame.scale;
  let [best, distance] = [-1, Infinity];
  const last = layer.link_bounds[port.number + 1];
  for (let share = layer.link_bounds[port.number]; share < last; share++) {
    const beside = Math.max(layer.link_start[share] - tick, tick - layer.link_end[share], 0);
    if (beside > near) continue;
    const away = Math.max(layer.link_low[share] - part, part - layer.link_high[share], 0) + beside / near;
    if (away < distance) [best, distance] = [share, away];
  }
  return best;
}

/** The other shares of a port while a share is there at a tick. */
function besides(layer, { number }, share, tick) {
  const at = Math.min(Math.max(tick, layer.link_start[share]), layer.link_end[share] - 1);
  const found = [];
  const last = layer.link_bounds[number + 1];
  for (let other = layer.link_bounds[number]; other < last; other++) {
    if (
      layer.link_flow[other] !== layer.link_flow[share] &&
      layer.link_start[other] <= at &&
      layer.link_end[other] > at
    )
      found.push(other);
  }
  return found;
}

/** What is known of a place in a lane of links. */
export function linkFacts({ layer, link, tick }, names) {
  const { port, share } = link;
  const time = (ticks) => amount(ticks * layer.scale, layer.unit);
  const load = [
    ["Port", port.name],
    ["Busy", `${percent(port.share)} of the step${port.bytes ? `, ${bytes(port.bytes)}` : ""}`],
  ];
  if (share < 0) return load;
  const [flow, part] = [layer.link_flow[share], layer.link_high[share] - layer.link_low[share]];
  const found = [...load, ["Message", messageOf(layer, flow, names)]];
  if (layer.link_bytes[share]) found.push(["Bytes", bytes(layer.link_bytes[share])]);
  const rate = layer.link_rate[share] ? `${bytes(layer.link_rate[share])}/s, ` : "";
  found.push(["Rate", `${rate}${percent(part)} of the port`]);
  found.push(["From", time(layer.link_start[share])], ["To", time(layer.link_end[share])]);
  const others = besides(layer, port, share, tick).map((other) => messageOf(layer, layer.link_flow[other], names));
  found.push(["Shares with", others.length ? others.join(", ") : "no other message"]);
  return found;
}

/** A flow as a person says it: "1SEND_F3, mesh A to B", "gradients of stage 2 of mesh C", "exchange 2 inside 2F5". */
export function messageOf(layer, flow, names) {
  const span = layer.flow_span[flow];
  const written = layer.notation(span, names);
  if (layer.isTransfer(span))
    return `${written}, mesh ${layer.meshes[layer.rankOf(span)]} to ${layer.meshes[layer.peerOf(span)]}`;
  const mesh = `mesh ${layer.meshes[layer.rankOf(span)]}`;
  return layer.isReduction(span)
    ? `${written} of ${mesh}`
    : `exchange ${layer.flow_part[flow] + 1} inside ${written} of ${mesh}`;
}
