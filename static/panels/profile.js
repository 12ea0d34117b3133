// Calibration profiles: the list of profiles, charts of the selected profile, and the calibration of this machine.

/** @import { Axis, Chart, ProfileEntry, ProfilesModel } from "./types" */

import { button } from "../kit/controls.js";
import { find, h, keepFocus, s } from "../kit/dom.js";
import { icon } from "../kit/icons.js";
import { DialogWidget, walkTabs, walkTips } from "../kit/shell.js";
import { tableRow } from "./tables.js";

const WIDTH = 560;
const HEIGHT = 330;
const MARGIN = { left: 64, right: 30, top: 10, bottom: 40 };

const ABOUT = [
  "Measured performance of this machine",
  "Calibration measures forward and backward of blocks of several sizes, the optimizer step, messages between " +
    "processes, all-reduce, and contention between simultaneous messages.",
  "Calibration takes about two minutes on an idle machine. Other work on the machine distorts the results.",
  "The profile is stored under the name above the button. Any design can then use it as its cost model. " +
    "The charts show the measurements and the lines fitted to them.",
];

/** @param {{model: ProfilesModel}} args */
export const render = ({ model }) => new Profiles(model).root;

/** @extends {DialogWidget<ProfilesModel>} */
class Profiles extends DialogWidget {
  key = ""; // key of the chart that is shown

  /** @param {ProfilesModel} model */
  constructor(model) {
    super(model);
    this.list = h("div.mw-pf-list", { role: "group", "aria-label": "Profiles" });
    this.none = h("p.mw-pf-none", {}, "No profiles yet");
    this.empty = h(
      "section.mw-pf-empty",
      { "aria-label": "About calibration" },
      ...ABOUT.map((text, i) => h(i ? "p" : "h3", {}, text)),
    );
    this.name = h("input.mw-pf-name", {
      type: "text",
      value: model.usual,
      maxlength: 100,
      spellcheck: "false",
      placeholder: "Profile name",
      "aria-label": "Profile name",
    });
    this.measure = button("Calibrate this machine", { kind: "mw-pf-measure", onclick: () => this.calibrate() });
    this.measure.dataset.tip =
      "Measures blocks, optimizer, links, collectives and contention; about two minutes on an idle machine.";
    this.bar = h("progress", { max: 1, "aria-label": "Calibration" });
    this.stop = button("Stop", { onclick: () => this.send("stop") });
    this.status = h("div.mw-pf-words", { role: "status" });
    this.machine = h("p.mw-pf-machine");
    this.tabs = h("div.mw-pf-tabs", { role: "tablist", "aria-label": "Measurements" });
    walkTabs(this.tabs);
    this.chart = h("div.mw-pf-chart");
    this.updateTabStops = walkTips(this.chart);
    this.table = h("table.mw-pf-table");
    this.warnings = h("ul.mw-pf-warnings");
    this.use = button("Use in this design", { kind: "mw-primary", onclick: () => this.send("use") });
    this.used = h("span.mw-quiet", {}, "Used by this design");
    const controls = [this.name, this.measure, this.bar, this.status, this.stop, this.refusal];
    const footer = h("footer", {}, this.use, this.used);
    const side = h("aside", {}, this.list, this.none, h("span.mw-grow"), ...controls);
    this.profile = h("section", {}, this.machine, this.tabs, this.chart, this.table, this.warnings, footer);
    const body = h("div.mw-pf-body", {}, side, this.profile, this.empty);
    this.build("profile", "Calibration profiles", [], [], [body]);
    this.dialog.tabIndex = -1;
    model.on(["kept", "chosen", "machine", "charts", "warnings", "used"], () =>
      keepFocus(this.dialog, () => this.draw(), this.dialog),
    );
    model.on("standing", () => keepFocus(this.dialog, () => this.drawStatus(), this.dialog));
  }

  onopen() {
    this.draw();
    this.drawStatus();
    this.dialog.focus();
  }

  calibrate() {
    this.send("measure", { name: this.name.value });
    if (!this.name.value.trim()) this.name.focus(); // Python refuses it and asks for a name
  }

  draw() {
    const { kept, machine, charts, warnings, used } = this.model;
    this.none.hidden = kept.length > 0;
    this.list.replaceChildren(...kept.map((entry) => this.entry(entry)));
    this.profile.hidden = !charts.length && !machine.length;
    this.empty.hidden = !this.profile.hidden;
    this.machine.textContent = machine.join(" · ");
    this.use.hidden = used || !charts.length;
    this.used.hidden = !used;
    this.warnings.replaceChildren(...warnings.map((text) => h("li", {}, icon("warning"), h("span", {}, text))));
    const front = charts.find(({ key }) => key === this.key) ?? charts[0];
    this.tabs.replaceChildren(...charts.map((chart) => this.tab(chart, chart === front)));
    this.chart.replaceChildren(...(front ? drawChart(front) : []));
    this.updateTabStops();
    this.table.replaceChildren(...(front?.head.length ? tableParts(front) : []));
    this.table.setAttribute("aria-label", front?.title ?? "");
    this.table.classList.toggle("mw-pf-prose", Boolean(front && !front.series.length));
  }

  /** @param {ProfileEntry} entry */
  entry({ name, title, note, used }) {
    const current = name === this.model.chosen ? "true" : null;
    return h(
      "button.mw-pf-entry",
      { type: "button", "aria-current": current, onclick: () => this.send("look", { name }) },
      h("strong", {}, title, used && icon("check")),
      h("span.mw-quiet", {}, note),
    );
  }

  /** @param {Chart} chart @param {boolean} isFront */
  tab({ key, title }, isFront) {
    const onclick = () => {
      this.key = key;
      this.draw();
      find(this.tabs, '[aria-selected="true"]')?.focus();
    };
    const attributes = { type: "button", role: "tab", "aria-selected": String(isFront), tabindex: isFront ? 0 : -1 };
    return h("button.mw-pf-tab", { ...attributes, onclick }, title);
  }

  drawStatus() {
    const { state, share, words } = this.model.standing;
    const isRunning = state === "runs";
    this.name.disabled = isRunning;
    this.measure.hidden = isRunning;
    this.stop.hidden = this.bar.hidden = !isRunning;
    this.bar.value = share ?? 0;
    this.status.textContent = state === "idle" ? "" : words;
    this.status.dataset.state = state;
  }
}

// ── a chart with logarithmic axes ───────────────────────────────────────────────────────────

/** A chart with its legend, or the note of a tab that has only a table. @param {Chart} chart */
const drawChart = (chart) =>
  chart.series.length ? [picture(chart), legend(chart)] : [h("p.mw-pf-note", {}, chart.note)];

/** @param {Chart} chart */
function picture({ title, x, y, series, diagonal }) {
  const across = scale(x, MARGIN.left, WIDTH - MARGIN.right);
  const up = scale(y, HEIGHT - MARGIN.bottom, MARGIN.top);
  const path = (/** @type {[number, number][]} */ points) =>
    points.map(([at, value], i) => `${i ? "L" : "M"}${across(at)} ${up(value)}`).join("");
  const grid = [
    ...x.ticks.map(([at, words]) => [
      `M${across(at)} ${MARGIN.top}V${HEIGHT - MARGIN.bottom}`,
      text(across(at), HEIGHT - MARGIN.bottom + 18, words, "middle"),
    ]),
    ...y.ticks.map(([at, words]) => [
      `M${MARGIN.left} ${up(at)}H${WIDTH - MARGIN.right}`,
      text(MARGIN.left - 7, up(at) + 4, words, "end"),
    ]),
  ].map(([d, label]) => s("g", {}, s("path.mw-pf-grid", { d }), label));
  const labels = [
    text((MARGIN.left + WIDTH) / 2, HEIGHT - 6, x.label, "middle"),
    s("g", { transform: `translate(12 ${HEIGHT / 2 - 10}) rotate(-90)` }, text(0, 0, y.label, "middle")),
  ];
  const lines = series
    .filter(({ line }) => line.length > 1)
    .map(({ colour, line }) => s("path.mw-pf-line", { stroke: `var(--op-${colour})`, d: path(line) }));
  const points = series.flatMap(({ name, colour, points }) =>
    points.map(([at, value, words]) => {
      const label = `${name}: ${words}`;
      const circle = { cx: across(at), cy: up(value), r: 4, fill: `var(--op-${colour})` };
      return s("circle", { ...circle, role: "img", "aria-label": label, "data-tip": label });
    }),
  );
  const straight = diagonal.length ? [s("path.mw-pf-diagonal", { d: path(diagonal) })] : [];
  const label = `${title}: ${y.label} over ${x.label}`;
  return s(
    "svg.mw-pf-picture",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": label },
    ...[...grid, ...labels, ...straight, ...lines, ...points],
  );
}

/** @param {Axis} axis @param {number} first @param {number} last @returns {(value: number) => number} */
function scale({ from, to }, first, last) {
  const [low, high] = [Math.log10(from), Math.log10(to)];
  return (value) => Math.round((first + ((Math.log10(value) - low) / (high - low)) * (last - first)) * 10) / 10;
}

/** @param {number} x @param {number} y @param {string} words @param {string} anchor */
const text = (x, y, words, anchor) => s("text", { x, y, "text-anchor": anchor }, words);

/** @param {Chart} chart */
function legend({ series, diagonal }) {
  const entries = series.map(({ name, colour }) =>
    h("span", {}, h("i", { style: { background: `var(--op-${colour})` } }), name),
  );
  return h("div.mw-pf-legend", {}, ...entries, diagonal.length && h("span.mw-quiet", {}, "dashed: measured = fitted"));
}

/** @param {Chart} chart */
const tableParts = ({ head, rows }) => [
  h("thead", {}, h("tr", {}, ...head.map((words) => h("th", { scope: "col" }, words)))),
  h("tbody", {}, ...rows.map(tableRow)),
];
