// The panel beside the lanes: what an area holds, what the critical path is made of, and what would shorten it.

import { button, h } from "../kit/canvas.js";
import { count } from "../kit/numbers.js";
import { amount, bytes, percent } from "./units.js";

const FASTER = [0.05, 0.1, 0.2, 0.5];
const MOST_ROWS = 8;
const ASK_PATH_AFTER = 250; // milliseconds, so that dragging a design about does not simulate more than it must

const BUBBLE =
  "Bubble: the share of all meshes' time in which they do not compute, 1 − busy ÷ (meshes × step). " +
  "Span bubble: each mesh only from its own first to its own last block, as in the papers on zero bubbles.";

export class Panel {
  constructor(chart) {
    this.chart = chart;
    this.isClosed = false; // by hand: it opens again when something is asked for
    this.faster = 0.1;
    this.title = h("b", {});
    this.body = h("div", { class: "mw-timeline-panel-body", tabindex: 0, "aria-label": "What the panel says" });
    const close = button("close the panel", {
      content: "×",
      kind: "mw-icon",
      title: "Close (Esc)",
      onclick: () => this.close(),
    });
    this.element = h(
      "aside",
      { class: "mw-timeline-panel", "aria-label": "Figures", hidden: true },
      h("header", {}, this.title, close),
      this.body,
    );
  }

  get isOpen() {
    return !this.element.hidden;
  }

  hide() {
    this.shows = null;
    this.element.hidden = true;
  }

  close() {
    const { area, stage } = this.chart;
    if (area.chosen) {
      area.leave();
    } else {
      this.isClosed = true;
      this.hide();
    }
    stage.focus();
  }

  stop() {
    clearTimeout(this.timer);
  }

  /** Tell of the area, else of the critical path where that is shown. */
  fill() {
    const { area, asker, model, openLayer } = this.chart;
    this.stop();
    if (area.chosen && !this.isClosed) return;
    if (!model.show_critical || !openLayer?.critical || this.isClosed) return this.hide();
    const ask = () =>
      asker.ask(
        "path",
        openLayer,
        {},
        (found, refused) => model.show_critical && !area.chosen && this.showPath(found, refused),
      );
    if (this.shows === "path") this.timer = setTimeout(ask, ASK_PATH_AFTER);
    else ask();
  }

  _show(shows, title, ...parts) {
    this.shows = shows;
    this.title.textContent = title;
    this.body.replaceChildren(...parts.filter(Boolean));
    this.element.hidden = false;
  }

  // an area

  showArea(found, refused) {
    if (!found) return refused && this._show("area", "Area", h("p", {}, refused));
    const { chart } = this;
    const { palette } = chart.model;
    const { unit } = chart.area.chosen.layer;
    const write = (value) => amount(value, unit);
    const long = (value) => (unit === "s" ? write(value) : `${write(value)} units`);
    const kinds = Object.entries(found.by_kind_s).map(([op, value]) => ({
      kind: op,
      name: named(op, palette),
      value,
      note: `${found.blocks[op] ?? 0}`,
    }));
    const idle = [
      ["waits for another mesh", found.waits_s],
      ["waits for a message", found.link_s],
      ["has not begun yet", found.fill_s],
      ["has done all its work", found.drain_s],
    ];
    this._show(
      "area",
      "Area",
      h(
        "p",
        { class: "mw-timeline-headline" },
        `${long(found.seconds)} on ${count(found.meshes.length, "mesh", "meshes")}: ` +
          `${percent(1 - found.idle_share)} computing, ${percent(found.idle_share)} idle`,
      ),
      this._section(
        "What the meshes do",
        table([...kinds, { kind: "idle", name: "idle", value: found.idle_s }], found.available_s, write, "blocks"),
      ),
      found.idle_s > 0 &&
        this._section(
          "Why they are idle: a mesh",
          table(
            idle.filter(([, value]) => value > 0).map(([name, value]) => ({ name, value })),
            found.available_s,
            write,
          ),
        ),
      found.meshes.length > 1 && this._section("How long each mesh computes", this._meshes(found, write)),
      this._section("Also in this area", pairs(besides(found, long))),
      unit !== "s" && h("p", { class: "mw-timeline-note" }, "Times are units of the unit costs, which are no seconds."),
      h(
        "div",
        { class: "mw-timeline-panel-buttons" },
        button("Zoom to it", { title: "Show the area alone (F)", onclick: () => chart.area.show() }),
      ),
    );
    chart.live.textContent =
      `Area of ${write(found.seconds)} on ${count(found.meshes.length, "mesh", "meshes")}: ` +
      `${percent(found.idle_share)} idle.`;
  }

  /** A bar a mesh: how busy it is; the least busy of many first. */
  _meshes({ by_mesh: meshes, seconds }, write) {
    const rows = [...meshes].sort((one, other) => one.busy_s - other.busy_s);
    const shown = (meshes.length > MOST_ROWS ? rows : meshes).slice(0, MOST_ROWS);
    const more = meshes.length - shown.length;
    const lines = shown.map(({ mesh, busy_s: value }) => ({
      name: mesh,
      value,
      of: seconds,
      colour: this._colour(mesh),
    }));
    return [table(lines, seconds, write), more > 0 && h("p", { class: "mw-quiet" }, `and ${more} that are busier`)];
  }

  _colour(mesh) {
    const { layer } = this.chart.area.chosen ?? { layer: this.chart.openLayer };
    return this.chart.colours.mesh(layer.meshes.indexOf(mesh));
  }

  // the critical path

  showPath(found, refused) {
    if (!found) return refused && this._show("path", "Critical path", h("p", {}, refused));
    const { chart } = this;
    const layer = chart.openLayer;
    const write = (value) => amount(value, layer.unit);
    const { palette } = chart.model;
    const categories = Object.entries(found.by_category_s).filter(([, value]) => value > 0);
    const kinds = Object.entries(found.by_kind_s).map(([op, value]) => ({ kind: op, name: named(op, palette), value }));
    const stages = Object.entries(found.by_stage_s).map(([stage, value]) => ({
      name: `stage ${stage}`,
      value,
      search: `stage ${stage}`,
    }));
    const meshes = Object.entries(found.by_mesh_s).map(([mesh, value]) => ({
      name: `mesh ${mesh}`,
      value,
      search: `mesh ${mesh}`,
      colour: this._colour(mesh),
    }));
    const ports = Object.entries(found.by_port_s).map(([name, value]) => ({ name, value }));
    this.whatIfs = h("div", {});
    this._show(
      "path",
      "Critical path",
      h("p", { class: "mw-timeline-headline" }, found.words),
      stack(categories, found.makespan_s),
      found.can_change && this._section(h("span", {}, "If it took ", this._choice(), " less time:"), this.whatIfs),
      this._section("By kind", table(largest(kinds), found.makespan_s, write)),
      this._section(
        "By stage",
        table(largest(stages), found.makespan_s, write, "", (text) => chart.search.run(text)),
      ),
      meshes.length > 1 &&
        this._section(
          "By mesh",
          table(largest(meshes), found.makespan_s, write, "", (text) => chart.search.run(text)),
        ),
      ports.length > 0 && this._section("Transfers by limiting port", table(largest(ports), found.makespan_s, write)),
      this._section(
        "Bubbles of the whole step",
        pairs([
          ["bubble", percent(found.bubble_ratio)],
          ["span bubble", percent(found.span_bubble_ratio)],
        ]),
      ),
      h("p", { class: "mw-timeline-note" }, BUBBLE),
    );
    if (found.can_change) this._askWhatIf();
  }

  _choice() {
    const options = FASTER.map((part) =>
      h("option", { value: part, selected: part === this.faster }, percent(part).replace(".0", "")),
    );
    const choice = h(
      "select",
      { "aria-label": "how much less time", onchange: () => ((this.faster = Number(choice.value)), this._askWhatIf()) },
      ...options,
    );
    return choice;
  }

  _askWhatIf() {
    this.whatIfs.replaceChildren(h("p", { class: "mw-quiet" }, "simulating …"));
    this.chart.asker.ask("what_if", this.chart.openLayer, { faster: this.faster }, (found, refused) => {
      this.whatIfs.replaceChildren(found ? this._gains(found) : h("p", {}, refused));
    });
  }

  _gains(found) {
    const { unit } = this.chart.openLayer;
    const most = Math.max(...found.map((answer) => answer.saved_share), 1e-12);
    const rows = found.map(({ name, saved_s: saved, saved_share: share, makespan_s: after }) => [
      h("dt", {}, name),
      h(
        "dd",
        { class: "mw-timeline-gain" },
        h("i", { "data-bar": "", style: { width: `${(100 * Math.max(share, 0)) / most}%` } }),
      ),
      h(
        "dd",
        { title: `${amount(after, unit)} instead of ${amount(after + saved, unit)}` },
        share < 5e-5 ? "no less" : share < 5e-4 ? "under −0.1\u2009%" : `−${percent(share)}`,
      ),
    ]);
    return h("dl", { class: "mw-timeline-gains" }, ...rows.flat());
  }

  _section(title, ...parts) {
    return h("section", {}, h("h4", {}, title), ...parts.flat().filter(Boolean));
  }
}

function besides(found, write) {
  const carried = found.transfers_bytes ? `, ${bytes(found.transfers_bytes)}` : "";
  const lines = [
    ["on the critical path", `${write(found.critical_s)}, ${percent(found.critical_share)} of its length`],
  ];
  if (found.transfers) lines.push([count(found.transfers, "transfer"), `${write(found.transfers_s)} in sum${carried}`]);
  if (found.reductions_s > 0) lines.push(["gradient reductions", `${write(found.reductions_s)} in sum`]);
  return lines;
}

/** An op as a person says it: "F forward", "send activation", "optimizer step". */
const named = (op, { words }) =>
  op.startsWith("SEND") ? `send ${words[op]}` : op.length === 1 ? `${op} ${words[op]}` : (words[op] ?? op);

const pairs = (lines) =>
  h("dl", { class: "mw-timeline-pairs" }, ...lines.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

const largest = (rows) =>
  rows
    .filter(({ value }) => value > 0)
    .sort((one, other) => other.value - one.value)
    .slice(0, MOST_ROWS);

/** Rows of a swatch, a name, a bar of its share, the value and the share. */
function table(rows, total, write, noted = "", choose = null) {
  const line = ({ kind, colour, name, value, note, search }) => {
    const share = total ? value / total : 0;
    const words =
      choose && search
        ? h(
            "button",
            { type: "button", class: "mw-timeline-link", title: `Find ${search}`, onclick: () => choose(search) },
            name,
          )
        : name;
    return h(
      "tr",
      { title: note && noted ? `${note} ${noted}` : null },
      h(
        "th",
        { scope: "row" },
        h("i", kind ? { "data-kind": kind } : { style: { background: colour ?? "var(--line-strong)" } }),
        words,
      ),
      h("td", {}, write(value)),
      h(
        "td",
        { class: "mw-timeline-share" },
        h("i", { "data-bar": "", style: { width: `calc(${Math.min(1, share).toFixed(4)} * (100% - 6px))` } }),
        h("span", {}, percent(share)),
      ),
    );
  };
  return h("table", {}, h("tbody", {}, ...rows.map(line)));
}

/** One bar in parts. */
function stack(parts, total) {
  const pieces = parts.map(([name, value]) =>
    h("i", {
      "data-part": name,
      title: `${name} ${percent(value / total)}`,
      style: { "flex-grow": (100 * value) / total },
    }),
  );
  const keys = parts.map(([name]) => h("span", { class: "mw-timeline-key" }, h("i", { "data-part": name }), name));
  return h(
    "div",
    {},
    h("div", { class: "mw-timeline-stack" }, ...pieces),
    h("div", { class: "mw-timeline-keys" }, ...keys),
  );
}
