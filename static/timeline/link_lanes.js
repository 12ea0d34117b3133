// Lanes of ports below the timeline, on the same axis. The height of a lane is the capacity of the port; the height
// of a message is its share of the capacity. Python computes the shares (designer/views/timeline_links.py).

/** @import { Point } from "../kit/types" */
/** @import { Layer } from "./data.js" */
/** @import { Frame } from "./frame.js" */
/** @import { LinkLane, Place, Plan, Port } from "./types" */

import { percent } from "../kit/numbers.js";
import { css, mix } from "../kit/palette.js";
import { clipped } from "./shapes.js";
import { headingEnd, Strips } from "./strips.js";
import { amount, bytes } from "./units.js";

const ALTERNATE = 0.32; // part of the background in every second message, which separates short messages
const NEAR = 3; // CSS pixels within which the pointer hits a short message
const MANY = 4; // shares per pixel column from which columns show the mean of each kind of message

export class LinkLanes extends Strips {
  /** @type {Map<string, string>} */ shades = new Map();

  paint() {
    const { links } = this.plan;
    if (!links) return;
    this.writeTitle(links.layer, links.y);
    for (const lane of links.lanes) this.paintLane(links.layer, lane);
    let free = headingEnd(links.y);
    for (const { port, y, height } of links.lanes) {
      const number = percent(port.share);
      free = this.writeLabel(y + height / 2 + 0.5, { name: port.label, number, free });
    }
  }

  /** @param {Layer} layer @param {number} y */
  writeTitle(layer, y) {
    const label = this.plan.titles.filter(({ name }) => name === undefined).length > 1 ? layer.label : "";
    this.writeHeading(y, "Links", [label, linkWords(layer)].filter(Boolean).join("; "));
  }

  /** @param {Layer} layer @param {LinkLane} lane */
  paintLane(layer, { ports, y, height }) {
    const { context, frame, colours } = this;
    const { left, right } = frame;
    const [top, tall] = [Math.round(y) + 1, Math.max(1, Math.round(height) - 2)];
    clipped(context, { left, right, top, bottom: top + tall }, () => {
      const [from, to] = [frame.x(0), frame.x(layer.last)];
      context.fillStyle = css(colours.idle);
      context.fillRect(from, top, to - from, tall);
      const shares = ports.flatMap((port) => sharesInView(layer, port, frame));
      const isMean = ports.length > 1 || shares.length > MANY * (right - left);
      if (isMean) this.paintColumns(layer, shares, top, tall, ports.length);
      else for (const share of shares) this.paintShare(layer, share, top, tall);
    });
  }

  /**
   * Paint a share in whole pixels, which are filled many times faster than fractional pixels.
   * @param {Layer} layer @param {number} share @param {number} top @param {number} height
   */
  paintShare(layer, share, top, height) {
    const { context, frame } = this;
    const [left, right] = [Math.round(frame.x(layer.link_start[share])), Math.round(frame.x(layer.link_end[share]))];
    const [low, high] = [Math.round(height * layer.link_low[share]), Math.round(height * layer.link_high[share])];
    const gap = right - left > 3 ? 1 : 0; // before the next message
    const above = high - low > 3 && low > 0 ? 1 : 0; // above the message below
    context.fillStyle = this.shade(layer, layer.link_flow[share]);
    context.fillRect(left, top + height - high, Math.max(1, right - left - gap), Math.max(1, high - low - above));
  }

  /**
   * Paint many shares: each pixel column shows the mean share of each kind of message on a number of ports.
   * @param {Layer} layer @param {number[]} shares @param {number} top @param {number} height @param {number} ports
   */
  paintColumns(layer, shares, top, height, ports) {
    const { context, frame, colours } = this;
    const width = Math.ceil(frame.right - frame.left);
    /** @type {Map<number, Float32Array>} */
    const means = new Map(); // by op, for each column
    for (const share of shares) {
      const op = layer.op[layer.flow_span[layer.link_flow[share]]];
      const columns = means.get(op) ?? new Float32Array(width);
      means.set(op, columns);
      const [left, right] = [frame.x(layer.link_start[share]), frame.x(layer.link_end[share])];
      addMean(columns, left - frame.left, right - frame.left, layer.link_high[share] - layer.link_low[share]);
    }
    const stacked = [...means].sort(([a], [b]) => a - b);
    for (let x = 0; x < width; x++) {
      let bottom = top + height;
      for (const [op, columns] of stacked) {
        const tall = (columns[x] * height) / ports;
        context.fillStyle = css(colours.ops[op]);
        context.fillRect(frame.left + x, bottom - tall, 1, tall);
        bottom -= tall;
      }
    }
  }

  /** The colour of a message; every second microbatch is lighter. @param {Layer} layer @param {number} flow */
  shade(layer, flow) {
    const { colours, shades } = this;
    const span = layer.flow_span[flow];
    const microbatch = Math.max(0, layer.microbatchOf(span)); // a collective has no microbatch
    const isLighter = (microbatch + layer.flow_part[flow]) & 1;
    const key = `${layer.op[span]} ${isLighter}`;
    const shade = shades.get(key) ?? css(mix(colours.ops[layer.op[span]], colours.background, ALTERNATE * isLighter));
    shades.set(key, shade);
    return shade;
  }
}

/** The lanes that are left out, and what lanes show. @param {Layer} layer */
export function linkWords({ links }) {
  const { lanes = [], words = "" } = links ?? {};
  const about = lanes.length ? "height: share of the capacity; percentage: utilization over the whole step" : "";
  return [words, about].filter(Boolean).join("; ");
}

/** @param {Layer} layer @param {Port} port @param {(share: number) => boolean} test */
function filterShares(layer, { number }, test) {
  const found = [];
  const last = layer.link_bounds[number + 1];
  for (let share = layer.link_bounds[number]; share < last; share++) if (test(share)) found.push(share);
  return found;
}

/** @param {Layer} layer @param {Port} port @param {Frame} frame */
const sharesInView = (layer, port, frame) =>
  filterShares(layer, port, (share) => layer.link_end[share] >= frame.from && layer.link_start[share] <= frame.to);

/**
 * Add a value between `left` and `right` to the means of the columns.
 * @param {Float32Array} means @param {number} left @param {number} right @param {number} value
 */
function addMean(means, left, right, value) {
  const first = Math.max(0, Math.floor(left));
  const last = Math.min(means.length - 1, Math.floor(right));
  for (let x = first; x <= last; x++) means[x] += value * Math.max(0, Math.min(right, x + 1) - Math.max(left, x));
}

// ── the place at a point ──

/**
 * The place in the link lanes at a point, with the span whose bytes are sent there or -1; null outside of the lanes.
 * @param {{frame: Frame, plan: Plan}} chart @param {Point} point @returns {Place | null}
 */
export function linkAt({ frame, plan }, { x, y }) {
  const lane = plan.links?.lanes.find((each) => y >= each.y && y < each.y + each.height);
  if (!lane || !plan.links) return null;
  const { layer } = plan.links;
  const tick = frame.tick(x);
  const isOne = lane.ports.length === 1;
  const share = isOne ? shareAt(layer, lane.port, tick, 1 - (y - lane.y) / lane.height, frame) : -1;
  const span = share < 0 ? -1 : layer.flow_span[layer.link_flow[share]];
  return { layer, rank: -1, tick, link: { port: lane.port, share }, span };
}

/**
 * The share of a port nearest to a tick and a part of the lane's height, or -1 if no share is near.
 * @param {Layer} layer @param {Port} port @param {number} tick @param {number} part @param {Frame} frame
 */
function shareAt(layer, port, tick, part, frame) {
  const near = NEAR / frame.scale;
  const beside = (/** @type {number} */ share) =>
    Math.max(layer.link_start[share] - tick, tick - layer.link_end[share], 0);
  let [best, distance] = [-1, Infinity];
  for (const share of filterShares(layer, port, (share) => beside(share) <= near)) {
    const above = Math.max(layer.link_low[share] - part, part - layer.link_high[share], 0);
    const away = above + beside(share) / near;
    if (away < distance) [best, distance] = [share, away];
  }
  return best;
}

/**
 * The other shares of a port at a tick during a share.
 * @param {Layer} layer @param {Port} port @param {number} share @param {number} tick
 */
function concurrentShares(layer, port, share, tick) {
  const { link_flow: flow, link_start: start, link_end: end } = layer;
  const at = Math.min(Math.max(tick, start[share]), end[share] - 1);
  return filterShares(layer, port, (other) => flow[other] !== flow[share] && start[other] <= at && end[other] > at);
}

/**
 * The facts about a place in a link lane.
 * @param {Layer} layer @param {NonNullable<Place["link"]>} link @param {number} tick @param {string[]} names of ops
 */
export function linkFacts(layer, { port, share }, tick, names) {
  const time = (/** @type {number} */ ticks) => amount(ticks * layer.scale, layer.unit);
  const busy = `${percent(port.share)} of the step${port.bytes ? `, ${bytes(port.bytes)}` : ""}`;
  /** @type {[string, string][]} */
  const found = [
    ["Port", port.name],
    ["Utilization", busy],
  ];
  if (share < 0) return found;
  const named = (/** @type {number} */ each) => messageName(layer, layer.link_flow[each], names);
  const others = concurrentShares(layer, port, share, tick).map(named);
  const [size, rate] = [layer.link_bytes[share], layer.link_rate[share]];
  const part = `${percent(layer.link_high[share] - layer.link_low[share])} of the port`;
  found.push(["Message", named(share)]);
  if (size) found.push(["Bytes", bytes(size)]);
  found.push(
    ["Rate", rate ? `${bytes(rate)}/s, ${part}` : part],
    ["From", time(layer.link_start[share])],
    ["To", time(layer.link_end[share])],
    ["Shared with", others.join(", ") || "no other message"],
  );
  return found;
}

/**
 * The name of a flow: "1SEND_F3, mesh A to B", "gradients of stage 2 of mesh C", "exchange 2 inside 2F5", or
 * "sharded state 2 beside 2F5".
 * @param {Layer} layer @param {number} flow @param {string[]} names
 */
function messageName(layer, flow, names) {
  const span = layer.flow_span[flow];
  const action = layer.notation(span, names);
  const mesh = layer.meshes[layer.rankOf(span)];
  if (layer.isTransfer(span)) return `${action}, mesh ${mesh} to ${layer.meshes[layer.peerOf(span)]}`;
  if (layer.isCollective(span)) return `${action} of mesh ${mesh}`;
  const part = layer.flow_part[flow] + 1;
  if (layer.flow_is_beside[flow]) return `sharded state ${part} beside ${action} of mesh ${mesh}`;
  return `exchange ${part} inside ${action} of mesh ${mesh}`;
}
