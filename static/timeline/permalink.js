// A link that shows exactly this view: window, pin, search, marks, kept lanes, switches, in the part after #.
// The design is named by what stands before it, the tab's draft; the token of the link that the designer was
// started with is left out, so that a link can be handed on: who opens it needs a key of their own.

import { OP } from "./columns.js";
import { laneKey } from "./layout.js";
import { nameOf } from "./place.js";

const NAME = "timeline"; // what our part of the link begins with
const SWITCHES = {
  critical: "show_critical",
  transfers: "show_transfers",
  memory: "show_memory",
  links: "show_links",
  devices: "show_device_links",
};
const MOST_MARKS = 50;

/** Put the link to this view into the address bar and, where a page may, on the clipboard. */
export async function copyLink(chart) {
  const link = linkOf(chart);
  history.replaceState(history.state, "", link);
  try {
    await navigator.clipboard.writeText(link);
    chart.say("A link to this view was copied.");
  } catch {
    chart.say("The link to this view now stands in the address bar.");
  }
}

/** Show the view of a link, once there is something to show. */
export function followLink(chart, link) {
  if (!link || !chart.data || !chart.stage.clientWidth) return;
  chart.link = null;
  if (!follow(chart, link))
    chart.say("The link was made for another state of this design: what it shows may lie elsewhere.");
}

/** The address of this view. */
function linkOf(chart) {
  const address = new URL(location.href);
  address.searchParams.delete("token");
  address.hash = `${NAME}?${String(stateOf(chart)).replaceAll("%7E", "~")}`;
  return address.href;
}

function stateOf(chart) {
  const { view, data, model, marks, search, area, pinned, flow } = chart;
  const scale = data.layers[0].scale;
  const state = new URLSearchParams();
  if (!view.isWhole) state.set("window", [view.from, view.to].map((tick) => short(tick * scale)).join("~"));
  if (view.scroll) state.set("scroll", (view.scroll / chart.plan.content).toFixed(4));
  if (pinned) state.set("pin", nameText(nameOf(pinned), model.palette.names));
  if (pinned && flow) state.set("flow", flow);
  if (search.text) state.set("find", search.text);
  if (marks.times.length) state.set("marks", marks.times.map(short).join("~"));
  if (chart.kept.size) state.set("lanes", [...chart.kept].join("~"));
  if (area.chosen) {
    const { layer, from, to, ranks } = area.chosen;
    state.set("area", [layer.number, short(from * scale), short(to * scale), ranks[0], ranks.at(-1)].join("~"));
  }
  state.set(
    "show",
    Object.keys(SWITCHES)
      .filter((name) => model[SWITCHES[name]])
      .join("~") || "none",
  );
  state.set("program", data.layers.map((layer) => layer.digest).join("~"));
  return state;
}

const short = (seconds) => String(Number(seconds.toPrecision(7)));

const nameText = ({ layer, rank, op, stage, mb }, names) => `${layer}~${rank}~${names[op]}~${stage}~${mb}`;

/** The view that a link asks for, or null; what is no number or name is left out. */
export function readLink(hash) {
  if (!hash.startsWith(`#${NAME}?`)) return null;
  const state = new URLSearchParams(hash.slice(NAME.length + 2));
  const parts = (name) => state.get(name)?.split("~") ?? [];
  const numbers = (name) => parts(name).map(Number).filter(Number.isFinite);
  const [layer, rank, op, stage, mb] = parts("pin");
  return {
    window: numbers("window").length === 2 ? numbers("window") : null,
    scroll: Number(state.get("scroll")) || 0,
    pin:
      OP[op] === undefined
        ? null
        : { layer: Number(layer), rank: Number(rank), op: OP[op], stage: Number(stage), mb: Number(mb) },
    flow: Number(state.get("flow")) || 0,
    find: (state.get("find") ?? "").slice(0, 200),
    marks: numbers("marks")
      .slice(0, MOST_MARKS)
      .sort((one, other) => one - other),
    lanes: parts("lanes").filter((lane) => /^\d+:\d+$/.test(lane)),
    area: numbers("area").length === 5 ? numbers("area") : null,
    show: state.has("show") ? parts("show") : null,
    program: state.get("program"),
  };
}

/** Show the view of a link; whether it was made of the program that is shown, so that its places mean the same. */
function follow(chart, link) {
  const { data, view, model } = chart;
  const scale = data.layers[0].scale;
  for (const [name, property] of Object.entries(link.show ? SWITCHES : {})) model[property] = link.show.includes(name);
  const lanes = new Set(data.layers.flatMap((layer) => layer.meshes.map((_, rank) => laneKey(layer, rank))));
  chart.kept = new Set(link.lanes.filter((lane) => lanes.has(lane)));
  chart.marks.times = link.marks;
  if (link.window) view.look(link.window[0] / scale, link.window[1] / scale);
  view.scroll = link.scroll * chart.layout().content;
  chart.pinbar.pinName(link.pin, link.flow);
  if (link.find) chart.search.run(link.find);
  if (link.area) followArea(chart, link.area, scale);
  chart.refresh();
  return link.program === data.layers.map((layer) => layer.digest).join("~");
}

function followArea(chart, [number, start, end, first, last], scale) {
  const layer = chart.data.layers[number];
  const ranks = layer?.meshes.map((_, rank) => rank).filter((rank) => rank >= first && rank <= last) ?? [];
  if (ranks.length && end > start) chart.area.choose({ layer, from: start / scale, to: end / scale, ranks });
}
