// Timelines over one another on one axis. Python decides (designer/views/timeline.py), this file draws:
// columns come down in `packed`, what a person pins goes up as a message.

import { button, clamp, followTheme, h, perFrame } from "static/canvas.js";
import { css } from "static/palette.js";
import { OP, TICKS, amount, decode, numbers } from "static/timeline_data.js";
import { MemoryStrips } from "static/timeline_memory.js";
import { Colours, Frame, Pixels, Shapes, TALL, TITLE, box, line, shorten } from "static/timeline_paint.js";
import { facts, spoken, title } from "static/timeline_words.js";

const AXIS = 22; // CSS pixels of the time axis
const LOWEST = 1.5; // a lane is never lower, lanes are scrolled instead
const BAND = 12; // lanes too low for their blocks are painted together in bands of at least this
const HIGHEST = 48;
const ROOMY = 26; // to which lanes grow while a person zooms in
const ARROWS = 14; // lanes from here on show transfers
const MOST_ARROWS = 1600;
const MARGIN = 0.012; // of the step, left and right of it
const GLIDE = 130; // milliseconds

export function render({ model, el }) {
  const widget = new TimelineWidget(model);
  const changed = (name, then) => model.on(`change:${name}`, then);
  changed("packed", () => widget.read());
  for (const name of ["stale", "empty", "show_memory", "show_critical", "show_transfers"]) changed(name, () => widget.refresh());
  model.on("remove", () => widget.remove());
  el.style.height = "100%";
  requestAnimationFrame(() => widget.connect());
  return widget.root;
}

class TimelineWidget {
  constructor(model) {
    this.model = model;
    this.data = null;
    this.view = { from: -MARGIN * TICKS, to: (1 + MARGIN) * TICKS, scroll: 0 };
    this.hover = this.pinned = this.focus = null; // each {layer, span} or more
    this.stats = { paints: 0, paintMs: 0 };
    this._build();
    this.repaint = perFrame(() => this.paint());
    this.overpaint = perFrame(() => this.paintOver());
    this.read();
  }

  _build() {
    this.base = h("canvas", { class: "mw-timeline-base" });
    this.over = h("canvas", { class: "mw-timeline-over" });
    this.probe = h("span", { class: "mw-timeline-probe" });
    this.tip = h("div", { class: "mw-timeline-tip", "aria-hidden": "true" });
    this.words = h("div", { class: "mw-timeline-stale", role: "status" });
    this.empty = h("div", { class: "mw-timeline-empty" });
    this.live = h("div", { class: "mw-sr", "aria-live": "polite" });
    this.stage = h(
      "div",
      { class: "mw-timeline-stage", tabindex: "0", role: "application", "aria-roledescription": "timeline" },
      this.base, this.over, this.words, this.empty, this.tip,
    ); // prettier-ignore
    this.legend = h("div", { class: "mw-timeline-legend" });
    this.buttons = this._buttons();
    const bar = h("div", { class: "mw-bar mw-timeline-bar" }, this.legend, h("div", { class: "mw-grow" }), ...Object.values(this.buttons));
    this.root = h("div", { class: "mw-canvas mw-timeline" }, bar, this.stage, this.live, this.probe);
    this._listen();
  }

  _buttons() {
    const toggle = (name, label, key, title) =>
      button(label, { kind: "mw-timeline-toggle", title: `${title} (${key})`, onclick: () => this.toggle(name) });
    return {
      show_transfers: toggle("show_transfers", "Transfers", "T", "Messages between meshes as arrows, where there is room"),
      show_critical: toggle("show_critical", "Critical path", "C", "The chain of spans that makes the step as long as it is"),
      show_memory: toggle("show_memory", "Memory", "M", "Memory of a device of each mesh"),
      fit: button("Fit", { title: "Show the whole step (0)", onclick: () => this.fit() }),
      png: button("PNG", { title: "Save what is shown as a picture", onclick: () => this.save() }),
    };
  }

  toggle(name) {
    this.model[name] = !this.model[name];
    this.refresh();
  }

  connect() {
    this.sizes = new ResizeObserver(() => this.repaint());
    this.sizes.observe(this.stage);
    this.unfollow = followTheme(this.root);
    this.themes = new MutationObserver(() => this.repaint());
    this.themes.observe(this.root, { attributes: true, attributeFilter: ["data-theme"] });
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.onscheme = () => this.repaint();
    this.scheme.addEventListener("change", this.onscheme);
    this.unwatchRatio = onRatio(() => this.repaint());
    window.meshwaveTimeline = this.debug();
    this.repaint();
  }

  remove() {
    this.sizes?.disconnect();
    this.themes?.disconnect();
    this.unfollow?.();
    this.unwatchRatio?.();
    this.scheme?.removeEventListener("change", this.onscheme);
    this.repaint.cancel();
    this.overpaint.cancel();
    cancelAnimationFrame(this.gliding);
  }

  // data

  read() {
    const before = this.data;
    const kept = [this.pinned, this.focus].map((place) => this._name(place));
    const began = performance.now();
    this.data = decode(this.model.packed);
    this.stats.decodeMs = performance.now() - began;
    if (before && this.data) this._rescale(before.horizon / this.data.horizon);
    else this._whole();
    [this.pinned, this.focus] = kept.map((name) => this._place(name));
    this.related = null; // of the pinned span: found when it is painted
    this.hover = null;
    this.tip.hidden = true;
    this.rows = this._rows();
    this._drawLegend();
    this.refresh();
  }

  /** Stay at the same seconds, or at the whole step where that was shown. */
  _rescale(ratio) {
    if (this.isWhole()) return;
    this._look(this.view.from * ratio, this.view.to * ratio);
  }

  _whole() {
    Object.assign(this.view, { from: -MARGIN * TICKS, to: (1 + MARGIN) * TICKS, scroll: 0 });
  }

  isWhole() {
    return this.view.to - this.view.from > (1 + 2 * MARGIN) * TICKS * 0.999;
  }

  _name(place) {
    if (!place) return null;
    const { layer, span } = place;
    return { layer: layer.number, rank: layer.rankOf(span), op: layer.op[span], stage: layer.stage[span], mb: layer.microbatch[span] };
  }

  _place(name) {
    const layer = name && this.data?.layers[name.layer];
    const span = layer && name.rank < layer.ranks ? layer.find(name.op, name.stage, name.mb, name.rank) : -1;
    return span >= 0 ? { layer, span } : null;
  }

  /** Layers that share their lanes stand in one row. */
  _rows() {
    const rows = [];
    for (const layer of this.data?.layers ?? []) {
      if (layer.over) rows[rows.length - 1].push(layer);
      else rows.push([layer]);
    }
    return rows;
  }

  refresh() {
    const { model, data } = this;
    for (const name of ["show_memory", "show_critical", "show_transfers"]) {
      this.buttons[name].setAttribute("aria-pressed", String(model[name]));
    }
    const has = (what) => Boolean(data?.layers.some(what));
    this.buttons.show_memory.hidden = !has((layer) => layer.hasMemory);
    this.buttons.show_critical.hidden = !has((layer) => layer.critical);
    this.buttons.png.hidden = this.buttons.fit.hidden = this.buttons.show_transfers.hidden = !data;
    this.words.textContent = model.stale;
    this.words.hidden = !model.stale || !data;
    this.root.toggleAttribute("data-stale", Boolean(model.stale && data));
    this.empty.textContent = model.stale && !data ? model.stale : model.empty;
    this.empty.hidden = Boolean(data);
    this.stage.setAttribute("aria-label", this._summary());
    this.repaint();
  }

  _summary() {
    if (!this.data) return this.model.empty;
    const said = this.data.layers.map((layer) => `${layer.label}, ${layer.source}: ${layer.ranks} meshes, ${amount(layer.makespan, layer.unit)}`);
    return `${said.join("; ")}. J and K walk the blocks, Enter pins, W A S D and arrows move, 0 shows all, C critical path, M memory.`;
  }

  _drawLegend() {
    const layers = this.data?.layers ?? [];
    const { palette } = this.model;
    const ops = [OP.F, OP.B, OP.I, OP.W, OP.REDUCE_GRAD, OP.STEP].filter((op) => layers.some((layer) => layer.takes(op)));
    const swatch = (kind, words) => h("span", { class: "mw-timeline-key" }, h("i", { "data-kind": kind }), words);
    const rises = layers.some((layer) => layer.shade.some((shade) => shade & 1));
    this.legend.replaceChildren(
      ...ops.map((op) => {
        const name = palette.names[op];
        return swatch(name, op <= OP.W ? `${name} ${palette.words[name]}` : palette.words[name]);
      }),
      ...(layers.length ? [swatch("idle", "idle")] : []),
      ...(rises ? [swatch("rising", "lighter: going up")] : []),
      ...(this.rows.some((row) => row.length === 2) ? [swatch("slower", "over 5\u2009% slower than predicted")] : []),
    );
  }

  // layout

  /** Lanes and memory strips with their place on the canvas, for the view as it is. */
  layout() {
    const width = this.stage.clientWidth;
    const height = this.stage.clientHeight;
    const gutter = width < 620 ? 60 : 100;
    const layers = this.data?.layers ?? [];
    const held = this.model.show_memory ? layers.filter((layer) => layer.hasMemory) : [];
    const units = this.rows.reduce((sum, row) => sum + row[0].ranks * share(row), 0);
    const titles = this.rows.length * TITLE;
    const room = height - AXIS - 4;
    const wanted = held.reduce((sum, layer) => sum + memoryHeight(layer.ranks) + TITLE, 0);
    const fit = clamp((room - titles - Math.min(wanted, room * 0.36)) / Math.max(1, units), LOWEST, HIGHEST);
    const pitch = clamp(fit * Math.sqrt(TICKS / (this.view.to - this.view.from)), fit, Math.max(fit, ROOMY));
    const content = titles + units * pitch;
    const memory = held.length ? clamp(room - titles - units * fit, Math.min(wanted, room * 0.36), wanted * 1.6) : 0;
    const bottom = Math.min(AXIS + content, height - 4 - memory);
    const scroll = clamp(this.view.scroll, 0, Math.max(0, content - (bottom - AXIS)));
    this.view.scroll = scroll;
    const size = { left: gutter, top: AXIS, right: Math.max(gutter + 20, width - 10), bottom };
    const made = { width, height, gutter, pitch, fit, content, scroll, size };
    Object.assign(made, this._placeLanes(made));
    made.strips = this._placeMemory(held, bottom + 2, memory);
    return made;
  }

  _placeLanes({ size, scroll, pitch }) {
    const lanes = [];
    const titles = [];
    const bands = [];
    let y = size.top - scroll;
    for (const row of this.rows) {
      titles.push({ row, y, height: TITLE + row[0].ranks * pitch * share(row) });
      y += TITLE;
      const made = row.length === 1 ? singleLanes(row[0], y, pitch) : sharedLanes(row, y, pitch * share(row));
      lanes.push(...made);
      bands.push(...inBands(made));
      y += row[0].ranks * pitch * share(row);
    }
    const at = new Map(lanes.map((lane) => [lane.layer.number * 65536 + lane.rank, lane]));
    return { lanes, bands, titles, laneOf: (layer, rank) => at.get(layer.number * 65536 + rank) };
  }

  _placeMemory(held, top, height) {
    const strips = [];
    const each = (height - held.length * TITLE) / Math.max(1, held.reduce((sum, layer) => sum + layer.ranks, 0));
    for (const layer of held) {
      strips.push({ layer, rank: -1, y: top, height: TITLE });
      top += TITLE;
      for (let rank = 0; rank < layer.ranks; rank++, top += each) strips.push({ layer, rank, y: top, height: each });
    }
    return strips;
  }

  // painting

  paint() {
    const began = performance.now();
    if (!this.stage.clientWidth || !this.stage.clientHeight) return;
    this._readColours();
    const ratio = window.devicePixelRatio || 1;
    this.plan = this.layout();
    for (const canvas of [this.base, this.over]) fitCanvas(canvas, this.plan, ratio);
    const context = this.base.getContext("2d", { alpha: false });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = css(this.colours.background);
    context.fillRect(0, 0, this.plan.width, this.plan.height);
    this.frame = new Frame(this.view, this.plan.size, ratio, this.colours);
    this.arrows = [];
    if (this.data) this._paintAll(context);
    this.stats.paintMs = performance.now() - began;
    this.stats.paints++;
    this.paintOver();
  }

  _readColours() {
    this.probe.style.color = "var(--bg)";
    const background = getComputedStyle(this.probe).color;
    if (this._coloursFor === `${background} ${this.root.dataset.theme}`) return;
    this._coloursFor = `${background} ${this.root.dataset.theme}`;
    const found = new Colours(this.probe, this.model.palette);
    this.colours = found;
    const { style } = this.root;
    found.ops.forEach((colour, op) => style.setProperty(`--op-${this.model.palette.names[op]}`, css(colour)));
    for (const name of ["idle", "hatch", "memory", "warning"]) style.setProperty(`--${name}`, css(found[name]));
  }

  _paintAll(context) {
    const { frame, plan } = this;
    if (!this.pixels?.fits(frame)) this.pixels = new Pixels(frame);
    this.pixels.begin(frame);
    const seen = plan.lanes.filter((lane) => lane.y + lane.height > frame.top && lane.y < frame.bottom);
    const dense = new Set(this.data.layers.filter((layer) => this.pixels.isDense(layer)));
    for (const lane of seen) if (lane.height >= TALL || !dense.has(lane.layer)) this.pixels.lane(lane);
    for (const band of plan.bands) if (dense.has(band.layer)) this.pixels.band(band);
    context.putImageData(this.pixels.image, Math.round(frame.left * frame.ratio), Math.round(frame.top * frame.ratio));
    const shapes = new Shapes(context, this.colours, this.model.palette.names);
    clipped(context, frame, () => {
      this._paintGrid(context, frame.top, frame.bottom);
      shapes.draw(frame, this.pixels.shapes, this.pixels.counts);
      this._paintReductionsOverShapes(shapes, seen);
      this._paintDifferences(context, seen);
      if (this.model.show_transfers) this._paintTransfers(shapes, seen);
      this._paintEnds(context);
    });
    new MemoryStrips(context, frame, plan).paint();
    this._paintGutter(context, seen);
    this._paintTitles(context);
    this._paintAxis(context);
    this._paintScrollbar(context);
    this.stats.counts = this.pixels.counts;
    this.stats.lanes = seen.length;
  }

  /** Shapes are drawn over the pixel buffer, so the bars of reductions come again, on top of them. */
  _paintReductionsOverShapes(shapes, seen) {
    for (const lane of seen) {
      const [from, to] = lane.layer.range(1, lane.rank);
      for (let span = from; span < to; span++) {
        if (this._isSeen(lane.layer, span) && lane.height >= 9) shapes.block(this.frame, lane.layer, span, lane, []);
      }
    }
  }

  _isSeen(layer, span) {
    return layer.end[span] >= this.frame.from && layer.start[span] <= this.frame.to;
  }

  _paintTransfers(shapes, seen) {
    const single = seen.filter((lane) => lane.whole[1] === lane.height); // laid over one another there is no room
    if (this.plan.pitch < ARROWS || !single.length) return;
    const found = this._transfersSeen(single);
    const roomy = found.length / 3 < Math.min(MOST_ARROWS, (single.length * (this.frame.right - this.frame.left)) / 13);
    if (!roomy) return;
    const style = { alpha: 0.8, width: this.plan.pitch < 20 ? 0.9 : 1.2, head: this.plan.pitch >= 18 };
    const few = found.length / 3 < 400;
    for (let at = 0; at < found.length; at += 3) {
      const [lane, span, to] = [found[at], found[at + 1], found[at + 2]];
      const path = shapes.transfer(this.frame, lane.layer, span, lane, to, few ? style : { ...style, alpha: 0.55 });
      this.arrows.push({ ...path, layer: lane.layer });
    }
    this.pixels.counts.transfers = this.arrows.length;
  }

  _transfersSeen(lanes) {
    const found = [];
    const layers = new Set(lanes.map((lane) => lane.layer));
    for (const layer of layers) {
      for (let rank = 0; rank < layer.ranks; rank++) {
        const lane = this.plan.laneOf(layer, rank);
        const [from, to] = layer.range(2, rank);
        for (let span = from; span < to && layer.start[span] <= this.frame.to; span++) {
          if (layer.end[span] < this.frame.from) continue;
          const other = this.plan.laneOf(layer, layer.peerOf(span));
          if (other && (this._isLaneSeen(lane) || this._isLaneSeen(other))) found.push(lane, span, other);
          if (found.length > 3 * MOST_ARROWS) return found;
        }
      }
    }
    return found;
  }

  _isLaneSeen(lane) {
    return lane.y + lane.height > this.frame.top && lane.y < this.frame.bottom;
  }

  /** Between predicted and measured, from end to end of each block: a slope is a shift, a colour an error. */
  _paintDifferences(context, seen) {
    const { frame, colours, plan } = this;
    for (const lane of seen) {
      if (!lane.over || lane.group > 1) continue;
      const above = this._under(lane);
      const [first, last] = lane.layer.range(0, lane.rank);
      for (let span = first; span < last; span++) {
        if (!this._isSeen(lane.layer, span)) continue;
        const twin = above.layer.find(lane.layer.op[span], lane.layer.stage[span], lane.layer.microbatch[span], lane.rank);
        if (twin < 0 || (lane.layer.end[span] - lane.layer.start[span]) * frame.scale < 5) continue;
        const error = lane.layer.duration(span) / (above.layer.duration(twin) || 1) - 1;
        context.strokeStyle = error > 0.05 ? css(colours.warning) : error < -0.05 ? css(colours.accent) : css(colours.muted, 0.8);
        context.lineWidth = Math.abs(error) > 0.05 ? 1.5 : 1;
        context.beginPath();
        context.moveTo(frame.x(above.layer.end[twin]) - 0.5, above.y + above.height);
        context.lineTo(frame.x(lane.layer.end[span]) - 0.5, lane.y);
        context.stroke();
      }
    }
  }

  _under(lane) {
    return this.plan.laneOf(this.data.layers[lane.layer.number - 1], lane.rank);
  }

  /** Where each timeline ends. */
  _paintEnds(context) {
    const { frame, colours } = this;
    for (const { row, y, height } of this.plan.titles) {
      row.forEach((layer, place) => {
        const x = frame.x(layer.last);
        context.strokeStyle = css(colours.text, 0.55);
        context.lineWidth = 1;
        context.setLineDash(place ? [] : [3, 3]);
        context.beginPath();
        context.moveTo(Math.round(x) + 0.5, y + TITLE - 2);
        context.lineTo(Math.round(x) + 0.5, y + height);
        context.stroke();
      });
      context.setLineDash([]);
    }
  }

  _paintGrid(context, top, bottom) {
    context.strokeStyle = css(this.colours.text, 0.07);
    context.lineWidth = 1;
    context.beginPath();
    for (const { x } of this.ticks()) {
      context.moveTo(Math.round(x) + 0.5, top);
      context.lineTo(Math.round(x) + 0.5, bottom);
    }
    context.stroke();
  }

  ticks() {
    const { frame } = this;
    const [layer] = this.data.layers;
    const perPixel = layer.scale / frame.scale;
    const step = roundUp(perPixel * 86);
    const ticks = [];
    const last = frame.tick(frame.right) * layer.scale;
    for (let n = Math.max(0, Math.ceil((frame.from * layer.scale) / step)); n * step <= last; n++) {
      ticks.push({ x: frame.x((n * step) / layer.scale), value: n * step, step });
    }
    return ticks;
  }

  _paintAxis(context) {
    const { frame, plan, colours } = this;
    context.fillStyle = css(colours.background);
    context.fillRect(0, 0, plan.width, AXIS);
    context.strokeStyle = css(colours.line);
    context.lineWidth = 1;
    line(context, 0, AXIS - 0.5, plan.width, AXIS - 0.5);
    context.font = `11px ${colours.font}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    const [layer] = this.data.layers;
    const unit = axisUnit(frame.to * layer.scale, layer.unit);
    for (const { x, value, step } of this.ticks()) {
      context.strokeStyle = css(colours.strong);
      line(context, Math.round(x) + 0.5, AXIS - 5, Math.round(x) + 0.5, AXIS - 1);
      context.fillStyle = css(colours.muted);
      if (x > frame.left - 2 && x < plan.width - 14) context.fillText(onAxis(value, step, unit), x, AXIS / 2 - 1);
    }
    context.textAlign = "left";
    context.fillStyle = css(colours.muted);
    context.fillText(unit.name || "time", 10, AXIS / 2 - 1);
    this._paintWindow(context);
  }

  /** Which part of the step is in view: a bar at the top of the axis. */
  _paintWindow(context) {
    if (this.isWhole()) return;
    const { frame, colours } = this;
    const room = frame.right - frame.left;
    const at = (tick) => frame.left + clamp(tick / TICKS, 0, 1) * room;
    context.fillStyle = css(colours.line);
    context.fillRect(frame.left, 0, room, 3);
    context.fillStyle = css(colours.accent);
    context.fillRect(at(frame.from), 0, Math.max(4, at(frame.to) - at(frame.from)), 3);
  }

  _paintScrollbar(context) {
    const { plan, frame, colours } = this;
    const shown = frame.bottom - frame.top;
    if (plan.content <= shown + 1) return;
    context.fillStyle = css(colours.text, 0.25);
    context.beginPath();
    context.roundRect(plan.width - 6, frame.top + (plan.scroll / plan.content) * shown, 4, Math.max(16, (shown * shown) / plan.content), 2);
    context.fill();
  }

  _paintGutter(context, seen) {
    const { frame, plan, colours } = this;
    context.save();
    context.beginPath();
    context.rect(0, frame.top, frame.left, frame.bottom - frame.top);
    context.clip();
    context.fillStyle = css(colours.background);
    context.fillRect(0, frame.top, frame.left, frame.bottom - frame.top);
    let free = -Infinity; // names stand only where they do not run into the one above
    for (const lane of seen) {
      if (lane.over && lane.group === 1) continue;
      const grouped = lane.group > 1;
      const [y, height] = lane.whole;
      context.fillStyle = colours.mesh(lane.rank);
      context.fillRect(frame.left - 7, y, 3, height);
      if (grouped && (lane.over || lane.rank % lane.group)) continue;
      const middle = grouped ? lane.groupMiddle : y + Math.max(height, 12) / 2;
      if (middle - 6 < free || (height < 12 && middle + 5 > frame.bottom)) continue;
      free = middle + 6;
      this._writeName(context, lane, middle, plan.gutter);
    }
    context.restore();
  }

  _writeName(context, lane, y, gutter) {
    const { colours } = this;
    const { meshes, busy } = lane.layer;
    const last = Math.min(lane.rank + (lane.group ?? 1), meshes.length) - 1;
    const name = last > lane.rank ? `${meshes[lane.rank]} – ${meshes[last]}` : meshes[lane.rank];
    const worked = gutter > 80 && last === lane.rank;
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

  _paintTitles(context) {
    const { frame, colours } = this;
    context.save();
    context.beginPath();
    context.rect(0, frame.top, this.plan.width, frame.bottom - frame.top);
    context.clip();
    for (const { row, y } of this.plan.titles) {
      if (y + TITLE < frame.top || y > frame.bottom) continue;
      const said = title(row);
      context.textBaseline = "middle";
      context.textAlign = "left";
      let x = 10;
      for (const [text, strong] of said) {
        context.font = `${strong ? "600 " : ""}11px ${colours.font}`;
        context.fillStyle = css(strong ? colours.text : colours.muted);
        context.fillText(text, x, y + TITLE / 2 + 1);
        x += context.measureText(text).width + 6;
      }
    }
    context.restore();
  }

  // what is over the picture: pin, causes and effects, critical path, focus, pointer

  paintOver() {
    if (!this.frame) return;
    const context = this.over.getContext("2d");
    const { ratio } = this.frame;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.plan.width, this.plan.height);
    if (!this.data) return;
    const shapes = new Shapes(context, this.colours, this.model.palette.names);
    clipped(context, this.frame, () => {
      if (this.pinned) this._paintPin(context, shapes);
      else if (this.model.show_critical) this._paintCritical(context, shapes);
      if (this.hover?.span >= 0) this._paintHover(context, shapes);
      if (this.focus && this.focused) this._outline(context, this.focus, css(this.colours.accent), 2);
    });
    this._paintPointer(context);
    if (this.range) this._paintRange(context);
  }

  _veil(context, strength) {
    const { frame, colours } = this;
    context.fillStyle = css(colours.background, strength);
    for (const { y, height } of this.plan.titles) context.fillRect(frame.left, y + TITLE, frame.right - frame.left, height - TITLE);
  }

  _paintPin(context, shapes) {
    const { layer, span } = this.pinned;
    const { causes, effects } = (this.related ??= relatives(layer, span));
    const shown = { layer, spans: [...causes, span, ...effects] };
    this._veil(context, this.colours.theme === "dark" ? 0.72 : 0.78);
    this._paintSpans(shapes, shown);
    this._joins(context, layer, causes.filter((other) => !layer.isTransfer(other)), span, true);
    this._joins(context, layer, effects.filter((other) => !layer.isTransfer(other)), span, false);
    for (const other of causes) this._outline(context, { layer, span: other }, css(this.colours.text, 0.9), 1.5);
    for (const other of effects) this._outline(context, { layer, span: other }, css(this.colours.muted), 1.2, [3, 2]);
    this._outline(context, this.pinned, css(this.colours.accent), 2.5);
    const twin = this._twin(this.pinned);
    if (twin) {
      this._paintSpans(shapes, { layer: twin.layer, spans: [twin.span] });
      this._outline(context, twin, css(this.colours.accent), 1.5, [3, 2]);
    }
  }

  _paintSpans(shapes, { layer, spans }) {
    const labels = [];
    for (const span of spans) {
      const lane = this.plan.laneOf(layer, layer.rankOf(span));
      if (layer.isTransfer(span)) {
        const to = this.plan.laneOf(layer, layer.peerOf(span));
        if (to) shapes.transfer(this.frame, layer, span, lane, to, { alpha: 1, width: 1.8 });
      } else {
        shapes.block(this.frame, layer, span, lane, labels);
      }
    }
    shapes.write(labels);
  }

  /** Curves from the end of what came before to the start of what came after. */
  _joins(context, layer, others, span, isCause) {
    context.strokeStyle = css(isCause ? this.colours.text : this.colours.muted, 0.85);
    context.lineWidth = isCause ? 1.4 : 1;
    for (const other of others) {
      const [from, to] = isCause ? [other, span] : [span, other];
      const [a, b] = [from, to].map((end) => box(this.frame, layer, end, this.plan.laneOf(layer, layer.rankOf(end))));
      const [x1, y1, x2, y2] = [a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2];
      if (Math.abs(y1 - y2) < 1 && x2 - x1 < 6) continue;
      const bow = clamp(Math.abs(x2 - x1) / 2, 3, 80);
      context.beginPath();
      context.moveTo(x1, y1);
      context.bezierCurveTo(x1 + bow, y1, x2 - bow, y2, x2, y2);
      context.stroke();
    }
  }

  _paintCritical(context, shapes) {
    this._veil(context, this.colours.theme === "dark" ? 0.66 : 0.74);
    for (const layer of this.data.layers) {
      const shown = layer.criticalSpans.filter((span) => this._isSeen(layer, span));
      this._paintSpans(shapes, { layer, spans: shown });
      context.strokeStyle = css(this.colours.text, 0.85);
      context.lineWidth = 1;
      for (const span of shown) {
        const lane = this.plan.laneOf(layer, layer.rankOf(span));
        const at = box(this.frame, layer, span, lane);
        if (!layer.isTransfer(span) && at.width >= 5) context.strokeRect(at.x + 0.5, at.y + 0.5, at.width - 2, at.height - 1);
      }
    }
  }

  _paintHover(context, shapes) {
    const { layer, span } = this.hover;
    if (layer.isTransfer(span)) return this._paintSpans(shapes, { layer, spans: [span] });
    this._outline(context, this.hover, css(this.colours.text), 1.5);
    const twin = this._twin(this.hover);
    if (twin) this._outline(context, twin, css(this.colours.text), 1, [3, 2]);
  }

  _outline(context, { layer, span }, colour, width, dash = []) {
    if (layer.isTransfer(span)) return;
    const lane = this.plan.laneOf(layer, layer.rankOf(span));
    const at = box(this.frame, layer, span, lane);
    const slim = at.width < 6 ? 2 : 0; // what is thin gets a frame around it
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    context.roundRect(at.x - slim, at.y - slim / 2, at.width - (slim ? 0 : 1) + 2 * slim, at.height + slim, Math.min(3, at.height / 5));
    context.stroke();
    context.setLineDash([]);
  }

  /** The same action in the other half of the lane. */
  _twin({ layer, span }) {
    const row = this.rows.find((row) => row.includes(layer));
    const other = row?.find((candidate) => candidate !== layer);
    if (!other || layer.isTransfer(span)) return null;
    const twin = other.find(layer.op[span], layer.stage[span], layer.microbatch[span], layer.rankOf(span));
    return twin >= 0 ? { layer: other, span: twin } : null;
  }

  _paintPointer(context) {
    const { frame, colours, pointer } = this;
    if (!pointer || pointer.x < frame.left || pointer.x > frame.right || this.drag) return;
    context.strokeStyle = css(colours.text, 0.3);
    context.lineWidth = 1;
    line(context, Math.round(pointer.x) + 0.5, AXIS, Math.round(pointer.x) + 0.5, this.plan.height);
    const [layer] = this.data.layers;
    const words = amount(frame.tick(pointer.x) * layer.scale, layer.unit);
    context.font = `600 11px ${colours.font}`;
    const width = context.measureText(words).width + 10;
    const x = clamp(pointer.x - width / 2, frame.left, frame.right - width);
    context.fillStyle = css(colours.text);
    context.beginPath();
    context.roundRect(x, 3, width, AXIS - 6, 4);
    context.fill();
    context.fillStyle = css(colours.background);
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(words, x + width / 2, AXIS / 2 + 0.5);
  }

  _paintRange(context) {
    const { frame, colours, range } = this;
    const [a, b] = [range.from, range.to].sort((one, other) => one - other);
    context.fillStyle = css(colours.accent, 0.14);
    context.fillRect(a, frame.top, b - a, this.plan.height - frame.top);
    context.strokeStyle = css(colours.accent);
    for (const x of [a, b]) line(context, Math.round(x) + 0.5, frame.top, Math.round(x) + 0.5, this.plan.height);
  }

  // the view

  _look(from, to) {
    const whole = (1 + 2 * MARGIN) * TICKS;
    const least = Math.max(400, Math.min(...(this.data?.layers ?? []).map((layer) => layer.shortest)) * 1.4);
    const span = clamp(to - from, Math.min(least, whole), whole);
    const middle = (from + to) / 2;
    const start = clamp(middle - span / 2, -MARGIN * TICKS, (1 + MARGIN) * TICKS - span);
    Object.assign(this.view, { from: start, to: start + span });
  }

  /** Zoom so that what is under (x, y) stays there, in time and, while lanes grow, among the lanes. */
  zoom(factor, x, y) {
    const { frame, plan } = this;
    const tick = frame.tick(x);
    const part = (plan.scroll + y - frame.top) / plan.content;
    const span = (this.view.to - this.view.from) / factor;
    const left = (x - frame.left) / (frame.right - frame.left);
    this._look(tick - left * span, tick + (1 - left) * span);
    const after = this.layout();
    this.view.scroll = part * after.content - (y - frame.top);
    this.repaint();
  }

  pan(dx, dy = 0) {
    const ticks = dx / this.frame.scale;
    this._look(this.view.from + ticks, this.view.to + ticks);
    this.view.scroll = clamp(this.view.scroll + dy, 0, Math.max(0, this.plan.content));
    this.repaint();
  }

  fit() {
    this.glide({ from: -MARGIN * TICKS, to: (1 + MARGIN) * TICKS, scroll: 0 });
  }

  /** Show a time range, in ticks, gliding there. */
  glide({ from, to, scroll = this.view.scroll }) {
    cancelAnimationFrame(this.gliding);
    const start = { ...this.view };
    const began = performance.now();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.target = { from, to, scroll };
    const step = (now) => {
      const part = still ? 1 : clamp((now - began) / GLIDE, 0, 1);
      const eased = 1 - (1 - part) ** 3;
      const between = (a, b) => a + (b - a) * eased;
      this._look(between(start.from, from), between(start.to, to));
      this.view.scroll = between(start.scroll, scroll);
      this.paint();
      if (part < 1) this.gliding = requestAnimationFrame(step);
      else this.target = null;
    };
    this.gliding = requestAnimationFrame(step);
  }

  /** One step of a key: from where a glide is heading, so that steps add up. */
  _step(change) {
    const { from, to, scroll } = this.target ?? this.view;
    const span = to - from;
    const next = change({ from, to, span, scroll });
    const whole = (1 + 2 * MARGIN) * TICKS;
    const wide = Math.min(next.to - next.from, whole);
    const start = clamp(next.from, -MARGIN * TICKS, (1 + MARGIN) * TICKS - wide);
    this.glide({ from: start, to: start + wide, scroll: next.scroll ?? scroll });
  }

  show({ layer, span }, wide = 5) {
    const [start, end] = [layer.start[span], layer.end[span]];
    const half = (Math.max(end - start, 1) * wide) / 2;
    const lane = this.plan.laneOf(layer, layer.rankOf(span));
    const part = (lane.y + lane.height / 2 - this.frame.top + this.plan.scroll) / this.plan.content;
    const middle = (start + end) / 2;
    const before = { ...this.view };
    this._look(middle - half, middle + half);
    const [target, after] = [{ ...this.view }, this.layout()];
    Object.assign(this.view, before);
    this.glide({ ...target, scroll: clamp(part * after.content - (after.size.bottom - AXIS) / 2, 0, Math.max(0, after.content - (after.size.bottom - AXIS))) });
  }

  // gestures

  _listen() {
    const { stage } = this;
    stage.addEventListener("wheel", (event) => this._onWheel(event), { passive: false });
    stage.addEventListener("pointerdown", (event) => this._onDown(event));
    stage.addEventListener("pointermove", (event) => this._onMove(event));
    stage.addEventListener("pointerup", (event) => this._onUp(event));
    stage.addEventListener("pointercancel", () => this._stopDrag());
    stage.addEventListener("pointerleave", () => this._onLeave());
    stage.addEventListener("dblclick", (event) => this._onDouble(event));
    stage.addEventListener("keydown", (event) => this._onKey(event));
    stage.addEventListener("focus", () => this._onFocus(true));
    stage.addEventListener("blur", () => this._onFocus(false));
  }

  _at(event) {
    const area = this.stage.getBoundingClientRect();
    return { x: event.clientX - area.left, y: event.clientY - area.top };
  }

  _onWheel(event) {
    if (!this.frame || !this.data) return;
    event.preventDefault();
    cancelAnimationFrame(this.gliding);
    this.target = null;
    const size = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const { x, y } = this._at(event);
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.pan((event.shiftKey ? event.deltaX || event.deltaY : event.deltaX) * size);
    } else if (event.altKey) {
      this.pan(0, event.deltaY * size);
    } else {
      this.zoom(Math.exp(-event.deltaY * size * (event.ctrlKey ? 0.01 : 0.0022)), clamp(x, this.frame.left, this.frame.right), y);
    }
    this._point({ x, y });
  }

  _onDown(event) {
    if (event.button !== 0 || !this.frame || !this.data) return;
    this.stage.setPointerCapture(event.pointerId);
    this.drag = { ...this._at(event), moved: false, range: event.shiftKey };
  }

  _onMove(event) {
    const at = this._at(event);
    if (!this.drag) return this._point(at);
    const { drag } = this;
    const [dx, dy] = [drag.x - at.x, drag.y - at.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    drag.moved = true;
    this.tip.hidden = true;
    if (drag.range) {
      this.range = { from: this.range?.from ?? drag.x, to: at.x };
      this.overpaint();
      return;
    }
    this.stage.dataset.dragging = "";
    this.pan(dx, dy);
    Object.assign(drag, at);
  }

  _onUp(event) {
    const { drag, range } = this;
    this._stopDrag();
    if (range) {
      const [a, b] = [range.from, range.to].sort((one, other) => one - other);
      this.glide({ from: this.frame.tick(a), to: this.frame.tick(b) });
    } else if (drag && !drag.moved) {
      this.pin(this.find(this._at(event)));
    }
  }

  _stopDrag() {
    this.drag = this.range = null;
    delete this.stage.dataset.dragging;
    this.overpaint();
  }

  _onLeave() {
    this.pointer = this.hover = null;
    this.tip.hidden = true;
    this.overpaint();
  }

  _onDouble(event) {
    if (!this.frame || !this.data) return;
    const found = this.find(this._at(event));
    if (found?.span >= 0) this.show(found);
    else this.fit();
  }

  _onFocus(focused) {
    this.focused = focused && this.stage.matches(":focus-visible");
    this.overpaint();
  }

  _onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.data || !this.frame) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const name = event.shiftKey && key.startsWith("Arrow") ? `Shift${key}` : key;
    const act = this._keys()[name];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  _keys() {
    const pan = (part) => () => this._step(({ from, to, span }) => ({ from: from + part * span, to: to + part * span }));
    const zoom = (factor) => () => this._keyZoom(factor);
    const scroll = (part) => () => this._step(({ from, to, scroll }) => ({ from, to, scroll: this._scrolled(scroll, part) }));
    const walk = (side) => () => this.walk(side, 0);
    const change = (side) => () => this.walk(0, side);
    return {
      a: pan(-0.15), d: pan(0.15), ArrowLeft: pan(-0.15), ArrowRight: pan(0.15),
      w: zoom(1.5), s: zoom(1 / 1.5), "+": zoom(1.5), "=": zoom(1.5), "-": zoom(1 / 1.5), _: zoom(1 / 1.5),
      ArrowUp: scroll(-0.3), ArrowDown: scroll(0.3),
      0: () => this.fit(), Home: () => this.fit(),
      j: walk(1), k: walk(-1), ShiftArrowRight: walk(1), ShiftArrowLeft: walk(-1), ShiftArrowDown: change(1), ShiftArrowUp: change(-1),
      Enter: () => this.focus && this.pin(this.focus), f: () => (this.focus ?? this.pinned) && this.show(this.focus ?? this.pinned),
      Escape: () => this.pin(null),
      c: () => this.toggle("show_critical"), m: () => this.toggle("show_memory"), t: () => this.toggle("show_transfers"),
    }; // prettier-ignore
  }

  _scrolled(scroll, part) {
    const room = this.frame.bottom - this.frame.top;
    return clamp(scroll + part * room, 0, Math.max(0, this.plan.content - room));
  }

  /** Zoom by key: around the pointer where it is over the lanes, else around the middle. */
  _keyZoom(factor) {
    const { frame, plan, pointer } = this;
    const inside = pointer && pointer.x > frame.left && pointer.x < frame.right;
    const part = inside ? (pointer.x - frame.left) / (frame.right - frame.left) : 0.5;
    const row = (inside ? pointer.y - frame.top : (frame.bottom - frame.top) / 2) || 0;
    const lanes = (plan.scroll + row) / plan.content;
    this._step(({ from, span }) => {
      const tick = from + part * span;
      const wide = span / factor;
      const before = { ...this.view };
      this._look(tick - part * wide, tick + (1 - part) * wide);
      const after = this.layout();
      const next = { from: this.view.from, to: this.view.to, scroll: Math.max(0, lanes * after.content - row) };
      Object.assign(this.view, before);
      return next;
    });
  }

  /** Move the keyboard's focus `along` its lane or to the lane `across`. */
  walk(along, across) {
    const from = this.focus ?? this.pinned;
    if (!from) return this._focusOn(this._firstSeen());
    const { layer, span } = from;
    const rank = layer.rankOf(span);
    let next = span + along;
    if (across) {
      const other = this._lanesBeside(layer, rank, across);
      if (!other) return;
      next = other.layer.at(other.rank, (layer.start[span] + layer.end[span]) / 2, TICKS);
      if (next >= 0) this._focusOn({ layer: other.layer, span: next });
      return;
    }
    const [first, last] = layer.range(0, rank);
    if (next >= first && next < last) this._focusOn({ layer, span: next });
  }

  /** The first block in view, of the first lane in view. */
  _firstSeen() {
    const { layer, rank } = this.plan.lanes.find((lane) => lane.y >= this.frame.top) ?? this.plan.lanes[0];
    const span = layer.next(rank, Math.max(0, this.view.from));
    return { layer, span: span >= 0 ? span : layer.range(0, rank)[1] - 1 };
  }

  _lanesBeside(layer, rank, across) {
    const place = this.plan.lanes.findIndex((lane) => lane.layer === layer && lane.rank === rank);
    return this.plan.lanes[place + across];
  }

  _focusOn(place) {
    this.focus = place;
    this.focused = true;
    this.live.textContent = spoken(place, this.model.palette, this._twin(place));
    const { layer, span } = place;
    const [x, right] = [this.frame.x(layer.start[span]), this.frame.x(layer.end[span])];
    const lane = this.plan.laneOf(layer, layer.rankOf(span));
    const aside = x < this.frame.left ? x - this.frame.left - 40 : right > this.frame.right ? Math.min(right - this.frame.right + 40, x - this.frame.left) : 0;
    const above = Math.min(0, lane.y - this.frame.top - 4);
    const below = Math.max(0, lane.y + lane.height - this.frame.bottom + 4);
    if (aside || above || below) this.pan(aside, above + below);
    this.overpaint();
    this._tell(place, Math.max(x, this.frame.left) + 8, lane.y + lane.height);
  }

  /** Pin a place, or nothing; the same place again takes the pin off. */
  pin(place) {
    const same = place && this.pinned && place.layer === this.pinned.layer && place.span === this.pinned.span;
    const had = this.pinned;
    this.pinned = same || !(place?.span >= 0) ? null : { layer: place.layer, span: place.span };
    this.related = null;
    if (this.pinned) {
      const { layer, span } = this.pinned;
      this.focus = layer.isTransfer(span) ? this.focus : { layer, span };
      const name = this._name(this.pinned);
      this.model.send_msg({ type: "pin", layer: name.layer, rank: name.rank, op: this.model.palette.names[name.op], stage: name.stage, microbatch: name.mb });
      this.live.textContent = `Pinned ${spoken(this.pinned, this.model.palette, this._twin(this.pinned))}`;
    } else if (had) {
      this.model.send_msg({ type: "unpin" });
      this.live.textContent = "Nothing is pinned.";
    }
    this.overpaint();
  }

  // what is under the pointer

  _point(at) {
    this.pointer = at;
    if (!this.frame || !this.data) return;
    this.hover = this.find(at);
    this.stage.dataset.over = this.hover?.span >= 0 ? "span" : "";
    this.overpaint();
    if (this.hover) this._tell(this.hover, at.x, at.y);
    else this.tip.hidden = true;
  }

  /** What is at a place of the canvas: a span, idle time or memory; null for nothing. */
  find({ x, y }) {
    const { frame } = this;
    if (x < frame.left || x > frame.right || y < frame.top) return null;
    const tick = frame.tick(x);
    const strip = this.plan.strips.find((strip) => strip.rank >= 0 && y >= strip.y && y < strip.y + strip.height);
    if (strip) return { layer: strip.layer, rank: strip.rank, span: -1, memory: strip.layer.memoryAt(strip.rank, tick), tick };
    if (y > frame.bottom) return null;
    const lane = this.plan.lanes.find((lane) => y >= lane.y && y < lane.y + lane.height);
    const arrow = this._arrowAt(x, y);
    if (!lane) return arrow;
    const { layer, rank } = lane;
    const reduction = y > lane.y + 0.74 * lane.height ? layer.reductionAt(rank, tick) : -1;
    const span = reduction >= 0 ? reduction : layer.at(rank, tick, 1.5 / frame.scale);
    if (span >= 0 && !(arrow && layer.duration(span) === 0)) return { layer, rank, span };
    if (arrow) return arrow;
    const late = layer.reductionAt(rank, tick);
    if (late >= 0) return { layer, rank, span: late };
    return tick >= 0 && tick <= layer.last ? { layer, rank, span: -1, tick } : null;
  }

  _arrowAt(x, y) {
    let [best, nearest] = [null, 4];
    for (const arrow of this.arrows) {
      const away = toSegment(x, y, arrow);
      if (away < nearest) [best, nearest] = [{ layer: arrow.layer, rank: arrow.layer.rankOf(arrow.span), span: arrow.span }, away];
    }
    return best;
  }

  _tell(place, x, y) {
    const { tip, stage } = this;
    const { layer, span } = place;
    const { names, words } = this.model.palette;
    const heading = place.memory !== undefined ? "Memory of a device" : span < 0 ? "Idle" : "";
    const title = h("div", { class: "mw-timeline-tip-title" });
    if (span >= 0) {
      const op = names[layer.op[span]];
      const text = layer.isTransfer(span) ? `${words[op]} of microbatch ${layer.microbatch[span]}` : words[op];
      title.append(h("i", { "data-kind": op }), h("b", {}, layer.notation(span, names)), ` ${text}`);
    } else {
      title.append(h("b", {}, heading));
    }
    const list = h("dl", {});
    const twin = span >= 0 ? this._twin(place) : null;
    for (const [name, value] of facts(place, names, twin)) list.append(h("dt", {}, name), h("dd", {}, String(value)));
    const whose = this.data.layers.length > 1 ? h("div", { class: "mw-timeline-tip-whose" }, `${layer.label}, ${layer.source}`) : "";
    tip.replaceChildren(title, list, whose);
    tip.hidden = false;
    const left = x + 16 + tip.offsetWidth < stage.clientWidth ? x + 16 : Math.max(4, x - 16 - tip.offsetWidth);
    const top = y + 16 + tip.offsetHeight < stage.clientHeight ? y + 16 : Math.max(4, Math.min(y - 12 - tip.offsetHeight, stage.clientHeight - tip.offsetHeight - 4));
    tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  // pictures and tests

  /** What is shown as a PNG blob. */
  picture() {
    const canvas = h("canvas", { width: this.base.width, height: this.base.height });
    const context = canvas.getContext("2d");
    context.drawImage(this.base, 0, 0);
    context.drawImage(this.over, 0, 0);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  async save() {
    this.pointer = null;
    this.paintOver();
    const url = URL.createObjectURL(await this.picture());
    const name = this.data.layers.map((layer) => layer.label).join(" and ").replace(/[^\w -]+/g, "").trim() || "timeline";
    h("a", { href: url, download: `${name}.png` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  /** A few facts for tests, so that they need not read pixels. */
  debug() {
    const widget = this;
    return {
      get stats() {
        return { ...widget.stats };
      },
      get layers() {
        return (widget.data?.layers ?? []).map(({ label, source, ranks, count, makespan }) => ({ label, source, ranks, count, makespan }));
      },
      get view() {
        const scale = (widget.data?.horizon ?? 1) / TICKS;
        const { pitch, fit, scroll } = widget.plan ?? {};
        return { from: widget.view.from * scale, to: widget.view.to * scale, whole: widget.isWhole(), pitch, fit, scroll };
      },
      get pinned() {
        return widget._name(widget.pinned);
      },
      get focus() {
        return widget._name(widget.focus);
      },
      get related() {
        const names = widget.model.palette.names;
        const named = (spans) => spans.map((span) => widget.pinned.layer.notation(span, names));
        return widget.related && widget.pinned ? { causes: named(widget.related.causes), effects: named(widget.related.effects) } : null;
      },
      get theme() {
        return widget.colours?.theme;
      },
      /** The rectangle of a block in pixels of the window, or null. */
      blockAt(rank, stage, mb, op = "F", layer = 0) {
        const owner = widget.data?.layers[layer];
        const span = owner?.find(OP[op], stage, mb, rank) ?? -1;
        const lane = span >= 0 ? widget.plan.laneOf(owner, owner.rankOf(span)) : null;
        if (!lane) return null;
        const area = widget.stage.getBoundingClientRect();
        const at = box(widget.frame, owner, span, lane);
        return { x: at.x + area.left, y: at.y + area.top, width: at.width, height: at.height };
      },
      look(from, to) {
        const scale = (widget.data?.horizon ?? 1) / TICKS;
        widget._look(from / scale, to / scale);
        widget.paint();
        return widget.stats.paintMs;
      },
      paint() {
        widget.paint();
        return widget.stats.paintMs;
      },
      picture: () => widget.picture(),
    };
  }
}

/** Lanes of a row with one timeline. */
function singleLanes(layer, top, pitch) {
  const gap = gapOf(pitch);
  return layer.meshes.map((_, rank) => ({ layer, rank, y: top + rank * pitch, height: pitch - gap, whole: [top + rank * pitch, pitch - gap] }));
}

/** Lanes of a row with two: half and half, or where that gets too low, some of one above the same of the other. */
function sharedLanes([below, over], top, deep) {
  const group = deep >= 18 ? 1 : evenly(below.ranks, (2 * BAND) / deep);
  const lanes = [];
  for (let first = 0; first < below.ranks; first += group) {
    const count = Math.min(group, below.ranks - first);
    const [gap, between] = group === 1 ? [gapOf(deep), 4] : [3, 1];
    const y = top + first * deep;
    const half = (count * deep - gap - between) / 2;
    for (const [place, layer] of [below, over].entries()) {
      for (let at = 0; at < count; at++) {
        const lane = { layer, rank: first + at, y: y + place * (half + between) + (at * half) / count, height: half / count, over: place === 1, group, groupMiddle: y + half };
        lanes.push({ ...lane, whole: group === 1 ? [y, deep - gap] : [lane.y, lane.height] });
      }
    }
  }
  return lanes;
}

const gapOf = (pitch) => (pitch < 5 ? 0 : pitch < 9 ? 1 : pitch < 16 ? 2 : Math.round(2 + 0.14 * (pitch - 12)));

/** Low lanes that stand next to one another and belong to one timeline, some at a time. */
function inBands(lanes) {
  if (!lanes.length || lanes[0].height >= TALL) return [];
  const size = lanes[0].group ?? evenly(lanes.length, BAND / lanes[0].height);
  const bands = [];
  for (const lane of lanes) {
    const band = bands.at(-1);
    if (band?.layer === lane.layer && Math.floor(band.lanes[0].rank / size) === Math.floor(lane.rank / size)) band.lanes.push(lane);
    else bands.push({ layer: lane.layer, y: lane.y, lanes: [lane] });
  }
  return bands.map((band) => ({ ...band, height: band.lanes.at(-1).y + band.lanes.at(-1).height - band.y }));
}

/** How many of `count` to take at a time: at least `least`, and so that the last are not left alone. */
function evenly(count, least) {
  const size = Math.max(1, Math.ceil(least));
  return Math.ceil(count / Math.max(1, Math.floor(count / size)));
}

const share = (row) => (row.length === 2 ? 1.8 : 1);

const memoryHeight = (ranks) => (ranks <= 10 ? ranks * 22 : Math.min(170, ranks * 3));

/** What a span waited for and computed with, and what needs it or waited for it. */
function relatives(layer, span) {
  const cause = layer.cause[span];
  const behind = cause >= 0 && layer.isTransfer(cause) ? [cause, layer.cause[cause]] : [cause];
  const causes = [...new Set([...behind, ...layer.inputs(span)])].filter((other) => other >= 0);
  return { causes, effects: layer.effects(span).filter((other) => !causes.includes(other)) };
}

function fitCanvas(canvas, { width, height }, ratio) {
  const [wide, tall] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== tall) Object.assign(canvas, { width: wide, height: tall });
}

function clipped(context, { left, top, right, bottom }, draw) {
  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
  draw();
  context.restore();
}

/** 1, 2 or 5 times a power of ten, not below `value`. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((digit) => digit * power >= value * 0.9999) * power;
}

/** Seconds of an axis as s, ms or µs; unit costs have no unit. */
function axisUnit(largest, unit) {
  if (unit !== "s") return { name: "", factor: 1 };
  if (largest >= 2) return { name: "s", factor: 1 };
  return largest >= 2e-3 ? { name: "ms", factor: 1e3 } : { name: "µs", factor: 1e6 };
}

const AXIS_NUMBERS = []; // by how many digits they show

function onAxis(value, step, { factor }) {
  const digits = clamp(Math.ceil(-Math.log10(step * factor) - 1e-9), 0, 9);
  return (AXIS_NUMBERS[digits] ??= numbers(digits, digits)).format(value * factor);
}

function toSegment(x, y, { x1, y1, x2, y2 }) {
  const [dx, dy] = [x2 - x1, y2 - y1];
  const along = clamp(((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy || 1), 0, 1);
  return Math.hypot(x - x1 - along * dx, y - y1 - along * dy);
}

/** Call back when the device's pixels get another size, as when a window moves to another screen. */
function onRatio(then) {
  let query;
  const listen = () => {
    query?.removeEventListener("change", changed);
    query = matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`);
    query.addEventListener("change", changed);
  };
  const changed = () => {
    listen();
    then();
  };
  listen();
  return () => query.removeEventListener("change", changed);
}
