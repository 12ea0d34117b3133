// Measured machines: a list of profiles, one of them as charts of measurement and line, and this machine's calibration.

import { button, followTheme, h, keepFocus, s, send } from "../kit/canvas.js";
import { Overlay, Tips, icon, tool, walkTips } from "../kit/shell.js";

const WIDTH = 560;
const HEIGHT = 330;
const ROOM = { left: 64, right: 30, top: 10, bottom: 40 };

const WHAT_IS_MEASURED = [
  "What this machine does, not what its data sheet says",
  "Measured are blocks of models of several sizes, forwards and backwards, the update of weights, messages between " +
    "processes, all-reduces, and what messages at the same time do to each other.",
  "That takes about two minutes on a quiet machine; other work on it meanwhile would be measured along.",
  "What was measured is kept under the name on the left. Any design can then be priced by it, and each line is " +
    "shown here beside the points that it goes through.",
];

export const render = ({ model }) => new Profiles(model).root;

class Profiles {
  constructor(model) {
    this.model = model;
    this.key = ""; // of the chart in front
    this.build();
    model.on(["kept", "chosen", "machine", "charts", "warnings", "used"], () =>
      keepFocus(this.dialog, () => this.draw(), this.dialog),
    );
    model.on("standing", () => keepFocus(this.dialog, () => this.drawStanding(), this.dialog));
    model.on("msg:custom", (message) => this.answered(message));
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
    this.overlay.follow();
  }

  send(type, gesture = {}) {
    send(this.model, { type, ...gesture });
  }

  build() {
    const close = tool("Close", { glyph: "close", tip: "Close (Esc)", onclick: () => this.overlay.close() });
    this.list = h("div", { class: "mw-pf-list", role: "group", "aria-label": "Profiles" });
    this.none = h("p", { class: "mw-pf-none" }, "No profile is kept yet.");
    this.empty = h(
      "section",
      { class: "mw-pf-empty", "aria-label": "What is measured" },
      ...WHAT_IS_MEASURED.map((words, at) => h(at ? "p" : "h3", {}, words)),
    );
    this.name = h("input", {
      class: "mw-pf-name",
      type: "text",
      value: this.model.usual,
      maxlength: 100,
      spellcheck: "false",
      placeholder: "name of the profile",
      "aria-label": "Name of the profile",
    });
    this.measure = button("Measure this machine", { kind: "mw-pf-measure", onclick: () => this.begin() });
    this.measure.dataset.tip =
      "Blocks, update, links, collectives and contention: about two minutes on a quiet machine.";
    this.bar = h("progress", { max: 1, "aria-label": "Calibration" });
    this.stop = button("Stop", { onclick: () => this.send("stop") });
    this.words = h("div", { class: "mw-pf-words", role: "status" });
    this.refusal = h("div", { class: "mw-dialog-refusal", role: "alert", hidden: true });
    const side = h(
      "aside",
      {},
      this.list,
      this.none,
      h("span", { class: "mw-grow" }),
      this.name,
      this.measure,
      this.bar,
      this.words,
      this.stop,
      this.refusal,
    );
    this.machine = h("p", { class: "mw-pf-machine" });
    this.tabs = h("div", { class: "mw-pf-tabs", role: "tablist", "aria-label": "What was measured" });
    this.chart = h("div", { class: "mw-pf-chart" });
    this.reachPoints = walkTips(this.chart);
    this.table = h("table", { class: "mw-pf-table" });
    this.warnings = h("ul", { class: "mw-pf-warnings" });
    this.use = button("Use in this design", { kind: "mw-primary", onclick: () => this.send("use") });
    this.used = h("span", { class: "mw-quiet" }, "This design is priced by it.");
    const body = h(
      "section",
      {},
      this.machine,
      this.tabs,
      this.chart,
      this.table,
      this.warnings,
      h("footer", {}, this.use, this.used),
    );
    this.dialog = h(
      "dialog",
      { class: "mw-dialog mw-pf-dialog", tabindex: -1, "aria-labelledby": "mw-pf-title" },
      h("header", {}, h("h2", { id: "mw-pf-title" }, "Measured machines"), h("span", { class: "mw-grow" }), close),
      h("div", { class: "mw-pf-body" }, side, body, this.empty),
    );
    this.overlay = new Overlay(this.model, this.dialog, () => this.opened());
    this.root = h("div", { class: "mw-canvas mw-shell mw-overlay mw-profile" }, this.dialog);
    this.tips = new Tips(this.dialog);
    this.body = body;
  }

  opened() {
    this.answered({ type: "answered" });
    this.draw();
    this.drawStanding();
    this.dialog.focus();
  }

  begin() {
    this.send("measure", { name: this.name.value });
    if (!this.name.value.trim()) this.name.focus(); // it is refused, and asked for
  }

  answered({ type, refused = "" }) {
    if (type !== "answered") return;
    this.refusal.textContent = refused ?? "";
    this.refusal.hidden = !refused;
  }

  draw() {
    const { kept, chosen, machine, charts, warnings, used } = this.model;
    this.none.hidden = kept.length > 0;
    this.list.replaceChildren(...kept.map((each) => this.entry(each, chosen)));
    this.body.hidden = !charts.length && !machine.length;
    this.empty.hidden = !this.body.hidden;
    this.machine.textContent = machine.join(" · ");
    this.use.hidden = used || !charts.length;
    this.used.hidden = !used;
    this.warnings.replaceChildren(...warnings.map((words) => h("li", {}, icon("warning"), h("span", {}, words))));
    const front = charts.find(({ key }) => key === this.key) ?? charts[0];
    this.tabs.replaceChildren(...charts.map((each) => this.tab(each, each === front)));
    this.chart.replaceChildren(...(front ? drawn(front) : []));
    this.reachPoints();
    this.table.replaceChildren(...(front ? rows(front) : []));
    this.table.setAttribute("aria-label", front?.title ?? "");
    this.table.classList.toggle("mw-pf-prose", Boolean(front && !front.series.length));
  }

  entry({ name, title, note, used }, chosen) {
    const mark = used ? icon("check") : null;
    return h(
      "button",
      {
        type: "button",
        class: "mw-pf-entry",
        "aria-current": name === chosen ? "true" : null,
        onclick: () => this.send("look", { name }),
      },
      h("strong", {}, title, mark),
      h("span", { class: "mw-quiet" }, note),
    );
  }

  tab({ key, title }, isFront) {
    const choose = () => {
      this.key = key;
      this.draw();
      this.tabs.querySelector('[aria-selected="true"]')?.focus();
    };
    return h(
      "button",
      {
        type: "button",
        role: "tab",
        class: "mw-pf-tab",
        "aria-selected": String(isFront),
        tabindex: isFront ? 0 : -1,
        onclick: choose,
        onkeydown: beside,
      },
      title,
    );
  }

  drawStanding() {
    const { state, share, words } = this.model.standing;
    const runs = state === "runs";
    this.name.disabled = runs;
    this.measure.hidden = runs;
    this.stop.hidden = this.bar.hidden = !runs;
    this.bar.value = share ?? 0;
    this.words.textContent = state === "idle" ? "" : words;
    this.words.dataset.state = state;
  }
}

/** Arrows go from tab to tab. */
function beside(event) {
  const next = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  if (!next) return;
  event.currentTarget[next]?.click();
  event.preventDefault();
  event.stopPropagation();
}

// ── a chart: both axes in decades ───────────────────────────────────────────────────────────

/** A chart with its legend; of a tab that only has a table, what it says. */
function drawn(chart) {
  return chart.series.length ? [picture(chart), legend(chart)] : [h("p", { class: "mw-pf-note" }, chart.note)];
}

function picture({ title, x, y, series, diagonal }) {
  const across = scale(x, ROOM.left, WIDTH - ROOM.right);
  const up = scale(y, HEIGHT - ROOM.bottom, ROOM.top);
  const path = (points) =>
    points.map(([at, value], place) => `${place ? "L" : "M"}${across(at)} ${up(value)}`).join("");
  const ticks = [
    ...x.ticks.map(([at, words]) =>
      s(
        "g",
        {},
        s("path", { class: "mw-pf-grid", d: `M${across(at)} ${ROOM.top}V${HEIGHT - ROOM.bottom}` }),
        text(across(at), HEIGHT - ROOM.bottom + 18, words, "middle"),
      ),
    ),
    ...y.ticks.map(([at, words]) =>
      s(
        "g",
        {},
        s("path", { class: "mw-pf-grid", d: `M${ROOM.left} ${up(at)}H${WIDTH - ROOM.right}` }),
        text(ROOM.left - 7, up(at) + 4, words, "end"),
      ),
    ),
  ];
  const labels = [
    text((ROOM.left + WIDTH) / 2, HEIGHT - 6, x.label, "middle"),
    s("g", { transform: `translate(12 ${HEIGHT / 2 - 10}) rotate(-90)` }, text(0, 0, y.label, "middle")),
  ];
  const lines = series
    .filter(({ line }) => line.length > 1)
    .map(({ colour, line }) => s("path", { class: "mw-pf-line", stroke: `var(--op-${colour})`, d: path(line) }));
  const points = series.flatMap(({ name, colour, points }) =>
    points.map(([at, value, words]) => point(across(at), up(value), colour, `${name}: ${words}`)),
  );
  const straight = diagonal.length ? [s("path", { class: "mw-pf-diagonal", d: path(diagonal) })] : [];
  return s(
    "svg",
    {
      class: "mw-pf-picture",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "group",
      "aria-label": `${title}: ${y.label} over ${x.label}`,
    },
    ...ticks,
    ...labels,
    ...straight,
    ...lines,
    ...points,
  );
}

function point(cx, cy, colour, words) {
  return s("circle", {
    cx,
    cy,
    r: 4,
    fill: `var(--op-${colour})`,
    role: "img",
    "aria-label": words,
    "data-tip": words,
  });
}

function scale({ from, to }, first, last) {
  const [low, high] = [Math.log10(from), Math.log10(to)];
  return (value) => Math.round((first + ((Math.log10(value) - low) / (high - low)) * (last - first)) * 10) / 10;
}

function text(x, y, words, anchor) {
  return s("text", { x, y, "text-anchor": anchor }, words);
}

function legend({ series, diagonal }) {
  const entries = series.map(({ name, colour }) =>
    h("span", {}, h("i", { style: { background: `var(--op-${colour})` } }), name),
  );
  return h(
    "div",
    { class: "mw-pf-legend" },
    ...entries,
    diagonal.length ? h("span", { class: "mw-quiet" }, "on the diagonal: as the line says") : null,
  );
}

function rows({ head, rows }) {
  const first = h("tr", {}, ...head.map((words) => h("th", { scope: "col" }, words)));
  const each = rows.map(([name, ...cells]) =>
    h("tr", {}, h("th", { scope: "row" }, name), ...cells.map((cell) => h("td", {}, cell))),
  );
  return head.length ? [h("thead", {}, first), h("tbody", {}, ...each)] : [];
}
