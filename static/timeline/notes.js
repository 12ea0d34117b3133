// Notes on times and areas of the open design, and the form for a new one. Python keeps them as comments.

/** @import { Chart } from "./timeline.js" */
/** @import { Note, NoteTarget } from "./types" */

import { button } from "../kit/controls.js";
import { h } from "../kit/dom.js";
import { css, ink, rgb } from "../kit/palette.js";
import { send } from "../kit/widget.js";
import { line, write } from "./shapes.js";
import { timeText } from "./units.js";

const HEIGHT = 16;
const WIDEST = 260; // CSS pixels

export class Notes {
  /** The subject of a new note. @type {NoteTarget | null} */ target = null;
  text = h("textarea.mw-timeline-note-text", { "aria-label": "Note", rows: 2 });
  refusal = h("p.mw-timeline-note", { role: "alert" });

  /** @param {Chart} chart */
  constructor(chart) {
    this.chart = chart;
    const add = button("Add note", { onclick: () => this.add() });
    this.form = h("div.mw-timeline-note-form", {}, this.text, this.refusal, add);
    chart.model.on("msg:custom", ({ type, refused }) => {
      if (type !== "noted") return;
      this.refusal.textContent = refused;
      if (refused) return;
      this.text.value = "";
      chart.live.textContent = "Note added.";
    });
  }

  /** True if the timeline shows the open design, and notes can be added on this page. */
  get canAdd() {
    return this.chart.model.can_note && !this.chart.depth.isDeep;
  }

  /** The form for a note on ranks between two ticks of the open design; without ranks, on a time.
   * @param {number} from @param {number} to @param {number[]} ranks */
  formFor(from, to, ranks) {
    const { openLayer: layer } = this.chart;
    if (!this.canAdd || !layer) return null;
    this.target = { start: from * layer.scale, end: to * layer.scale, unit: layer.unit, ranks };
    return this.form;
  }

  /** Show the form for a note on a time. @param {number} tick */
  writeAt(tick) {
    const { panel, openLayer: layer } = this.chart;
    const form = this.formFor(tick, tick, []);
    if (!form || !layer) return;
    panel.show("note", `Note at ${timeText(tick * layer.scale, layer.unit)}`, form);
    this.text.focus();
  }

  add() {
    if (this.target) send(this.chart.model, { type: "note", target: this.target, text: this.text.value });
  }

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { model, openLayer: layer, depth } = this.chart;
    if (!layer || depth.isDeep) return;
    for (const note of model.notes) if (note.unit === layer.unit) this.paintNote(context, note);
  }

  /** @param {CanvasRenderingContext2D} context @param {Note} note */
  paintNote(context, { kind, start, end, ranks, text, colour }) {
    const { frame, plan, openLayer: layer } = this.chart;
    if (!layer) return;
    const [a, b] = [start, end].map((time) => Math.round(frame.x(time / layer.scale)) + 0.5);
    if (b < frame.left || a > frame.right) return;
    const lanes = ranks.filter((rank) => rank < layer.ranks).map((rank) => plan.laneOf(layer, rank));
    const shown = lanes.filter((lane) => frame.isLaneVisible(lane));
    context.strokeStyle = colour;
    context.lineWidth = 2;
    if (kind === "time") line(context, a, frame.top, a, frame.bottom);
    for (const { whole } of shown) context.strokeRect(a, whole[0], b - a, whole[1]);
    const top = kind === "time" ? frame.top : Math.min(...shown.map(({ whole }) => whole[0] - HEIGHT + 2));
    if (Number.isFinite(top)) this.paintText(context, text.split("\n")[0], a, Math.max(frame.top, top), rgb(colour));
  }

  /** @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} top
   * @param {number[]} fill */
  paintText(context, text, x, top, fill) {
    const { frame, colours } = this.chart;
    const font = `600 11px ${colours.font}`;
    context.font = font;
    const width = Math.min(context.measureText(text).width + 8, WIDEST);
    const left = Math.max(frame.left, Math.min(x, frame.right - width));
    context.fillStyle = css(fill);
    context.fillRect(left, top, width, HEIGHT);
    const style = { font, colour: ink(fill), room: width - 8, isName: true };
    write(context, text, left + 4, top + HEIGHT / 2 + 0.5, style);
  }
}
