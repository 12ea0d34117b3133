// The panel beside the lanes: metrics of the selected area, the critical path and its what-if analysis, or the matches
// of a search (matches.js).

/** @import { Child } from "../kit/types" */
/** @import { Chart } from "./timeline.js" */
/** @import { AreaAnswer, Palette, PathAnswer, WhatIf } from "./types" */

import { button } from "../kit/controls.js";
import { h } from "../kit/dom.js";
import { translate } from "../kit/language.js";
import { count, percent } from "../kit/numbers.js";
import { saveArea } from "./save.js";
import { amount, bytes, timeText } from "./units.js";

/** @typedef {(value: number) => string} Write */
/** @typedef {{name: string, value: number, kind?: string, colour?: string, title?: string, search?: string}} Row */

const FASTER = [0.05, 0.1, 0.2, 0.5];
const MOST_ROWS = 8;
const PATH_DELAY_MS = 250; // ms; while a design changes, its critical path is requested once
const NO_GAIN = 5e-5; // parts of the step
const SMALL_GAIN = 5e-4;

const BUBBLES =
  "Bubble ratio: fraction of time in which meshes do not compute, 1 − busy ÷ (meshes × step time). Span " +
  "bubble ratio: the same fraction, measured for each mesh from the start of its first block to the end of its last " +
  "one, as in the papers on zero bubble schedules.";

export class Panel {
  isClosed = false; // true after the user closed the panel, until the user opens it again
  /** @type {"area" | "path" | "matches" | "note" | null} */ shown = null;
  faster = 0.1;
  timer = 0;
  title = h("b");
  body = h("div.mw-timeline-panel-body", { tabindex: 0, "aria-label": "Metrics" });
  whatIfs = h("div");

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    const close = button("Close panel", {
      content: "×",
      kind: "mw-icon",
      title: "Close (Esc)",
      onclick: () => this.close(),
    });
    const header = h("header", {}, this.title, close);
    this.element = h("aside.mw-timeline-panel", { "aria-label": "Metrics", hidden: true }, header, this.body);
  }

  get isOpen() {
    return !this.element.hidden;
  }

  /** True if the panel shows the matches or the form of a note, which stay until they are closed. */
  get isRequested() {
    return this.shown === "matches" || this.shown === "note";
  }

  hide() {
    this.shown = null;
    this.element.hidden = true;
  }

  close() {
    const { selection, stage } = this.chart;
    if (this.isRequested) {
      this.hide();
      if (selection.area) selection.ask();
      else this.fill();
    } else if (selection.area) {
      selection.leave();
    } else {
      this.isClosed = true;
      this.hide();
    }
    stage.focus();
  }

  stop() {
    clearTimeout(this.timer);
  }

  /** Request the critical path if it is shown, unless an area is selected. */
  fill() {
    const { selection, asker, model, openLayer } = this.chart;
    this.stop();
    if (this.isRequested || (selection.area && !this.isClosed)) return;
    if (!model.show_critical || !openLayer?.critical || this.isClosed) return this.hide();
    const ask = () =>
      asker.ask("path", openLayer, {}, (found, refused) => {
        if (model.show_critical && !selection.area && !this.isRequested) this.showPath(found, refused);
      });
    if (this.shown === "path") this.timer = setTimeout(ask, PATH_DELAY_MS);
    else ask();
  }

  /** @param {"area" | "path" | "matches" | "note"} shown @param {string} title @param {Child[]} parts */
  show(shown, title, ...parts) {
    this.shown = this.element.dataset.shown = shown;
    this.title.textContent = title;
    this.body.replaceChildren(h("div", {}, ...parts));
    this.element.hidden = false;
  }

  // ── the selected area ──

  /** @param {AreaAnswer | null} found @param {string} refused */
  showArea(found, refused) {
    if (!found) return refused && this.show("area", "Area", h("p", {}, refused));
    const { chart } = this;
    const { area } = chart.selection;
    if (!area) return;
    const { unit } = area.layer;
    const isUnits = unit !== "s";
    const write = (/** @type {number} */ value) => amount(value, unit);
    const long = (/** @type {number} */ value) => timeText(value, unit);
    const meshes = count(found.meshes.length, "mesh", "meshes");
    const idle = percent(found.idle_share);
    const ops = Object.entries(found.by_kind_s).map(([kind, value]) => ({
      kind,
      name: opName(kind, chart.model.palette),
      value,
      title: count(found.blocks[kind] ?? 0, "block"),
    }));
    const reasons = [
      { name: "waits for another mesh", value: found.waits_s },
      { name: "waits for a message", value: found.link_s },
      { name: "has not started", value: found.fill_s },
      { name: "has finished", value: found.drain_s },
    ].filter(({ value }) => value > 0);
    const zoom = button("Zoom to area", { title: "Show only the area (F)", onclick: () => chart.selection.zoom() });
    const save = button("Save as CSV", {
      title: "Save the blocks and transfers of the area as a CSV file",
      onclick: () => saveArea(chart, area),
    });
    this.show(
      "area",
      "Area",
      h(
        "p.mw-timeline-headline",
        {},
        `${long(found.seconds)} on ${meshes}: ${percent(1 - found.idle_share)} computing, ${idle} idle`,
      ),
      section(
        "Time by kind",
        table([...ops, { kind: "idle", name: "idle", value: found.idle_s }], found.available_s, write),
      ),
      found.idle_s > 0 && section("Idle time by cause", table(reasons, found.available_s, write)),
      found.meshes.length > 1 && section("Compute time by mesh", ...this.meshes(found, write)),
      section("Other metrics of the selection", pairs(otherFacts(found, long))),
      isUnits && h("p.mw-timeline-note", {}, "Times are in units of the unit costs, not in seconds."),
      h("div.mw-timeline-panel-buttons", {}, zoom, save),
      area.layer === chart.openLayer && chart.overlay.notes.formFor(area.from, area.to, area.ranks),
    );
    chart.live.textContent = `Selection: ${long(found.seconds)} on ${meshes}, ${idle} idle.`;
  }

  /**
   * The busy time of each mesh; if there are many meshes, of the least busy ones.
   * @param {AreaAnswer} answer @param {Write} write
   */
  meshes({ by_mesh: meshes, seconds }, write) {
    const rows = meshes.map(({ mesh: name, busy_s: value }) => ({ name, value, colour: this.colourOf(name) }));
    const more = rows.length - MOST_ROWS;
    const shown = more > 0 ? rows.sort((a, b) => a.value - b.value).slice(0, MOST_ROWS) : rows;
    return [table(shown, seconds, write), more > 0 && h("p.mw-quiet", {}, `and ${more} busier meshes`)];
  }

  /** @param {string} mesh */
  colourOf(mesh) {
    const { selection, openLayer, colours } = this.chart;
    const layer = selection.area?.layer ?? openLayer;
    return colours.mesh(layer?.meshes.indexOf(mesh) ?? 0);
  }

  // ── the critical path ──

  /** @param {PathAnswer | null} found @param {string} refused */
  showPath(found, refused) {
    if (!found) return refused && this.show("path", "Critical path", h("p", {}, refused));
    const { chart } = this;
    const { palette } = chart.model;
    const unit = chart.openLayer?.unit ?? "s";
    const write = (/** @type {number} */ value) => amount(value, unit);
    const search = (/** @type {string} */ text) => chart.search.run(text);
    const ops = rowsOf(found.by_kind_s).map((row) => ({ ...row, kind: row.name, name: opName(row.name, palette) }));
    const named = (/** @type {string} */ word, /** @type {Row} */ row) => {
      const name = `${word} ${row.name}`;
      return { ...row, name, search: name };
    };
    const stages = rowsOf(found.by_stage_s).map((row) => named("stage", row));
    const meshes = rowsOf(found.by_mesh_s).map((row) => ({ ...named("mesh", row), colour: this.colourOf(row.name) }));
    const ports = rowsOf(found.by_port_s);
    const by = (/** @type {string} */ title, /** @type {Row[]} */ rows) =>
      section(title, table(rows, found.makespan_s, write, search));
    this.whatIfs = h("div");
    this.show(
      "path",
      "Critical path",
      h("p.mw-timeline-headline", {}, found.words),
      ...stack(found, palette),
      found.can_change &&
        section(h("span", {}, "Step time saved if one component takes ", this.choice(), " less time"), this.whatIfs),
      by("By kind", ops),
      by("By stage", stages),
      Object.keys(found.by_mesh_s).length > 1 && by("By mesh", meshes),
      ports.length > 0 && by("Transfers by limiting port", ports),
      section(
        "Bubbles of the whole step",
        pairs([
          ["bubble ratio", percent(found.bubble_ratio)],
          ["span bubble ratio", percent(found.span_bubble_ratio)],
        ]),
      ),
      h("p.mw-timeline-note", {}, BUBBLES),
    );
    if (found.can_change) this.askWhatIf();
  }

  /** The choice of the reduction for the what-if analysis. */
  choice() {
    const options = FASTER.map((part) =>
      h("option", { value: part, selected: part === this.faster }, percent(part).replace(".0", "")),
    );
    const choice = h("select", { "aria-label": "Reduction of the time of one component" }, ...options);
    choice.addEventListener("change", () => {
      this.faster = Number(choice.value);
      this.askWhatIf();
    });
    return choice;
  }

  askWhatIf() {
    const { asker, openLayer } = this.chart;
    if (!openLayer) return;
    this.whatIfs.replaceChildren(h("p.mw-quiet", {}, "simulating …"));
    asker.ask("what_if", openLayer, { faster: this.faster }, (found, refused) => {
      this.whatIfs.replaceChildren(found ? gains(found, openLayer.unit) : h("p", {}, refused));
    });
  }
}

// ── parts ──

/** @param {Child} title @param {Child[]} parts */
const section = (title, ...parts) => h("section", {}, h("h4", {}, title), ...parts);

/** @param {[string, string][]} lines */
export const pairs = (lines) =>
  h("dl.mw-timeline-pairs", {}, ...lines.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

/** @param {AreaAnswer} found @param {Write} write */
function otherFacts(found, write) {
  /** @type {[string, string][]} */
  const lines = [
    ["on the critical path", `${write(found.critical_s)}, ${percent(found.critical_share)} of the area's duration`],
  ];
  const size = found.transfers_bytes ? `, ${bytes(found.transfers_bytes)}` : "";
  if (found.transfers) lines.push([count(found.transfers, "transfer"), `${write(found.transfers_s)} in total${size}`]);
  if (found.reductions_s > 0) lines.push(["gradient reductions", `${write(found.reductions_s)} in total`]);
  if (found.gathers_s > 0) lines.push(["weight gathers", `${write(found.gathers_s)} in total`]);
  return lines;
}

/** The name of an op: "F forward", "send activation", "optimizer step". @param {string} op @param {Palette} palette */
function opName(op, { words }) {
  if (op.startsWith("SEND")) return `send ${words[op]}`;
  return op.length === 1 ? `${op} ${translate(words[op])}` : (words[op] ?? op);
}

/** The largest values, largest first. @param {Record<string, number>} values */
const rowsOf = (values) =>
  Object.entries(values)
    .map(([name, value]) => ({ name, value }))
    .filter(({ value }) => value > 0)
    .sort((a, b) => b.value - a.value)
    .slice(0, MOST_ROWS);

/**
 * Rows with a swatch, a name, the value and its share.
 * @param {Row[]} rows @param {number} total @param {Write} write @param {(text: string) => void} [search]
 */
function table(rows, total, write, search = () => {}) {
  const lines = rows.map(({ kind, colour = "var(--line-strong)", name, value, title, search: text }) => {
    const share = total ? value / total : 0;
    const width = `calc(${Math.min(1, share).toFixed(4)} * (100% - 6px))`;
    const find = () => text && search(text);
    const label = text
      ? h("button.mw-timeline-link", { type: "button", title: `Find ${text}`, onclick: find }, name)
      : name;
    const swatch = h("i", kind ? { "data-kind": kind } : { style: { background: colour } });
    const bar = h("i", { "data-bar": "", style: { width } });
    return h(
      "tr",
      { title },
      h("th", { scope: "row" }, swatch, label),
      h("td", {}, write(value)),
      h("td.mw-timeline-share", {}, bar, h("span", {}, percent(share))),
    );
  });
  return h("table", {}, h("tbody", {}, ...lines));
}

/** A bar of parts with their names. @param {PathAnswer} answer @param {Palette} palette */
function stack({ by_category_s: categories, makespan_s: total }, palette) {
  const parts = Object.entries(categories).filter(([, value]) => value > 0);
  const nameOf = (/** @type {string} */ part) => (part === "update" ? opName("STEP", palette) : part);
  const pieces = parts.map(([part, value]) =>
    h("i", {
      "data-part": part,
      title: `${nameOf(part)} ${percent(value / total)}`,
      style: { "flex-grow": (100 * value) / total },
    }),
  );
  const names = parts.map(([part]) => h("span.mw-timeline-key", {}, h("i", { "data-part": part }), nameOf(part)));
  return [h("div.mw-timeline-stack", {}, ...pieces), h("div.mw-timeline-keys", {}, ...names)];
}

/** The effects of changes, as bars. @param {WhatIf[]} found @param {string} unit */
function gains(found, unit) {
  const most = Math.max(...found.map((change) => change.saved_share), 1e-12);
  const rows = found.flatMap(({ name, saved_s: saved, saved_share: share, makespan_s: after }) => [
    h("dt", {}, name),
    h("dd.mw-timeline-gain", {}, h("i", { "data-bar": "", style: { width: `${(100 * Math.max(share, 0)) / most}%` } })),
    h("dd", { title: `${amount(after, unit)} instead of ${amount(after + saved, unit)}` }, gainText(share)),
  ]);
  return h("dl.mw-timeline-gains", {}, ...rows);
}

/** @param {number} share */
function gainText(share) {
  if (share < NO_GAIN) return "none";
  return share < SMALL_GAIN ? percent(share) : `−${percent(share)}`;
}
