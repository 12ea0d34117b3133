// A link to the current view. The fragment of the URL contains the window, pin, search, marks, pinned lanes, filter of
// lanes, groups, collapsed lanes and switches; the rest of the URL names the design. The access token is left out, so
// that the link can be shared.

/** @import { Chart } from "./timeline.js" */
/** @import { ActionName, LinkedView } from "./types" */

import { OP } from "./columns.js";
import { actionName } from "./place.js";
import { laneKey } from "./sections.js";

const NAME = "timeline"; // start of the fragment
const MOST_MARKS = 50;

/** The switches by their name in a link. @type {Record<string, import("./toolbar.js").Switch>} */
const SWITCHES = {
  critical: "show_critical",
  transfers: "show_transfers",
  memory: "show_memory",
  links: "show_links",
  devices: "show_device_links",
};

// ── making a link ──

/** Put the link to this view into the address bar and, if allowed, on the clipboard. @param {Chart} chart */
export async function copyLink(chart) {
  const address = new URL(location.href);
  address.searchParams.delete("token");
  address.hash = `${NAME}?${String(stateOf(chart)).replaceAll("%7E", "~")}`;
  history.replaceState(history.state, "", address.href);
  try {
    await navigator.clipboard.writeText(address.href);
    chart.announce("Link to this view copied");
  } catch {
    chart.announce("The link to this view is in the address bar");
  }
}

/** @param {Chart} chart */
function stateOf(chart) {
  const { view, data, model, marks, search, pinned } = chart;
  const { scale } = data.layers[0];
  const state = new URLSearchParams();
  const add = (/** @type {string} */ name, /** @type {(string | number)[]} */ values) => {
    if (values.length) state.set(name, values.join("~"));
  };
  if (!view.isWhole)
    add(
      "window",
      [view.from, view.to].map((tick) => round(tick * scale)),
    );
  if (view.scroll) add("scroll", [(view.scroll / chart.plan.content).toFixed(4)]);
  if (pinned) add("pin", pinValues(actionName(pinned), model.palette.names));
  if (pinned && chart.flow) add("flow", [chart.flow]);
  if (search.text) add("find", [search.text]);
  add("marks", marks.times.map(round));
  add("lanes", [...chart.kept]);
  if (chart.filter.text) add("filter", [chart.filter.text]);
  if (chart.collapse.grouping) add("group", [chart.collapse.grouping]);
  add("collapsed", [...chart.collapse.keys]);
  add("area", areaValues(chart));
  const shown = Object.keys(SWITCHES).filter((name) => model[SWITCHES[name]]);
  add("show", shown.length ? shown : ["none"]);
  add("program", [programOf(chart)]);
  return state;
}

/** @param {Chart} chart */
const programOf = ({ data }) => data.layers.map((layer) => layer.digest).join("~");

/** @param {Chart} chart */
function areaValues({ selection, data }) {
  if (!selection.area) return [];
  const { layer, from, to, ranks } = selection.area;
  const { scale } = data.layers[0];
  return [layer.number, round(from * scale), round(to * scale), ranks[0], ranks[ranks.length - 1]];
}

/** @param {ActionName} name @param {string[]} names of ops */
const pinValues = ({ layer, rank, op, stage, mb }, names) => [layer, rank, names[op], stage, mb];

/** @param {number} seconds */
const round = (seconds) => Number(seconds.toPrecision(7));

// ── following a link ──

/**
 * The view of a fragment, or null; invalid values are left out.
 * @param {string} hash @returns {LinkedView | null}
 */
export function readLink(hash) {
  if (!hash.startsWith(`#${NAME}?`)) return null;
  const state = new URLSearchParams(hash.slice(NAME.length + 2));
  const parts = (/** @type {string} */ name) => state.get(name)?.split("~") ?? [];
  const numbers = (/** @type {string} */ name, count = Infinity) => {
    const found = parts(name).map(Number).filter(Number.isFinite);
    return count === Infinity || found.length === count ? found : null;
  };
  return {
    window: numbers("window", 2),
    scroll: Number(state.get("scroll")) || 0,
    pin: readPin(parts("pin")),
    flow: Number(state.get("flow")) || 0,
    find: (state.get("find") ?? "").slice(0, 200),
    marks: (numbers("marks") ?? []).slice(0, MOST_MARKS).sort((a, b) => a - b),
    lanes: parts("lanes").filter((lane) => /^\d+:\d+$/.test(lane)),
    filter: (state.get("filter") ?? "").slice(0, 200),
    grouping: state.get("group") ?? "",
    collapsed: parts("collapsed").filter((key) => /^\d+(:.{1,80})?$/.test(key)),
    area: numbers("area", 5),
    show: state.has("show") ? parts("show") : null,
    program: state.get("program"),
  };
}

/** @param {string[]} parts @returns {ActionName | null} */
function readPin([layer, rank, name, stage, mb]) {
  const op = /** @type {Record<string, number | undefined>} */ (OP)[name];
  if (op === undefined) return null;
  return { layer: Number(layer), rank: Number(rank), op, stage: Number(stage), mb: Number(mb) };
}

/**
 * Show the view of a link after the first timeline has arrived.
 * @param {Chart} chart @param {LinkedView | null} link
 */
export function followLink(chart, link) {
  if (!link || !chart.hasData || !chart.stage.clientWidth) return;
  chart.link = null;
  showView(chart, link);
  if (link.program !== programOf(chart))
    chart.announce("This link was made for an earlier version of this design; some positions may have changed");
}

/** @param {Chart} chart @param {LinkedView} link */
function showView(chart, link) {
  const { data, view, model } = chart;
  const { scale } = data.layers[0];
  for (const [name, property] of Object.entries(link.show ? SWITCHES : {}))
    model[property] = Boolean(link.show?.includes(name));
  const lanes = new Set(data.layers.flatMap((layer) => layer.meshes.map((_, rank) => laneKey(layer, rank))));
  chart.kept = new Set(link.lanes.filter((lane) => lanes.has(lane)));
  chart.filter.set(link.filter);
  chart.collapse.set({ keys: new Set(link.collapsed), grouping: link.grouping });
  chart.marks.times = link.marks;
  if (link.window) view.look(link.window[0] / scale, link.window[1] / scale);
  view.scroll = link.scroll * chart.layout().content;
  chart.pinBar.pinAction(link.pin, link.flow);
  if (link.find) chart.search.run(link.find);
  if (link.area) selectArea(chart, link.area);
  chart.refresh();
}

/** @param {Chart} chart @param {number[]} area */
function selectArea(chart, [number, start, end, first, last]) {
  const layer = chart.data.layers[number];
  const { scale } = chart.data.layers[0];
  const ranks = layer?.meshes.map((_, rank) => rank).filter((rank) => rank >= first && rank <= last) ?? [];
  if (ranks.length && end > start) chart.selection.select({ layer, from: start / scale, to: end / scale, ranks });
}
