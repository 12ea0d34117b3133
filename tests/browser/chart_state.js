// The state of the timeline of a page, so that tests need not read pixels: a script that runs before those of the page.

const OP = { F: 0, B: 1, I: 2, W: 3 };
const TICKS = 2 ** 32 - 1; // of the whole axis
let timelineState;
Object.defineProperty(window, "meshwaveTimeline", {
  get: () => timelineState,
  set(parts) {
    timelineState = parts && stateOf(parts);
  },
});

function stateOf({ chart, actionName, boxOf, laneNames, slowReason }) {
  const scale = () => chart.data.horizon / TICKS;
  const name = (place) => place && actionName(place);
  const notation = ({ layer }, spans) => spans.map((span) => layer.notation(span, chart.model.palette.names));
  return {
    get stats() {
      return { ...chart.stats };
    },
    get layers() {
      return chart.data.layers.map(({ label, source, ranks, count, makespan }) => ({
        label,
        source,
        ranks,
        count,
        makespan,
      }));
    },
    get view() {
      const { from, to, isWhole } = chart.view;
      const { pitch, fit, scroll } = chart.plan ?? {};
      return { from: from * scale(), to: to * scale(), whole: isWhole, pitch, fit, scroll };
    },
    get pinned() {
      return name(chart.pinned);
    },
    get focus() {
      return name(chart.focus);
    },
    get related() {
      const { related, pinned } = chart;
      if (!related || !pinned) return null;
      return { causes: notation(pinned, related.causes), effects: notation(pinned, related.effects) };
    },
    get kept() {
      return [...chart.kept];
    },
    get collapsed() {
      return [...chart.collapse.keys];
    },
    /** The titles of groups, each with its lanes below it. */
    get groups() {
      return chart.plan.titles.filter(({ name }) => name).map(({ name, ranks }) => ({ name, ranks }));
    },
    /** The memory strips: their names and numbers of ranks. */
    get held() {
      return chart.plan.strips.filter(({ rank }) => rank >= 0).map(({ name, ranks }) => [name, ranks.length]);
    },
    /** The shades of a memory strip in a column of the canvas, and the middle of that column in the window. */
    shadesAt(rank, x) {
      const { base, plan, frame, stage } = chart;
      const { y, height } = plan.strips.find((strip) => strip.rank === rank);
      const [at, from, tall] = [x, y + 2, height - 4].map((each) => Math.round(each * frame.ratio));
      const { data } = base.getContext("2d").getImageData(at, from, 1, tall);
      const { left, top } = stage.getBoundingClientRect();
      return { x: left + x, y: top + y + height / 2, shades: new Set(new Uint32Array(data.buffer)).size };
    },
    /** The blocks that a deadlock blocks. */
    get blocked() {
      const layer = chart.openLayer;
      const spans = [...layer.start.keys()].filter((span) => layer.isBlocked(span));
      return notation({ layer }, spans);
    },
    get playhead() {
      const { tick } = chart.toolbar.play;
      return tick === null ? null : tick * scale();
    },
    get marks() {
      return chart.marks.times;
    },
    get area() {
      const { area, found } = chart.selection;
      return area && { from: area.from * scale(), to: area.to * scale(), ranks: area.ranks, found };
    },
    get hits() {
      const { hits, at, layer } = chart.search;
      const span = hits[at];
      return { total: hits.length, at, current: span === undefined ? null : notation({ layer, span }, [span])[0] };
    },
    get flow() {
      const { related, pinned } = chart;
      return related && pinned ? notation(pinned, related.spans) : [];
    },
    // The arrows, each with its middle in the window.
    get arrows() {
      const { left, top } = chart.stage.getBoundingClientRect();
      return chart.arrows.map(({ layer, span, x1, x2, y1, y2 }) => ({
        ...actionName({ layer, span }),
        x: left + (x1 + x2) / 2,
        y: top + (y1 + y2) / 2,
      }));
    },
    // The link lanes, each with its rectangle in the window and the number of its shares.
    get links() {
      const { left, top } = chart.stage.getBoundingClientRect();
      const { links } = chart.plan;
      return (links?.lanes ?? []).map(({ port, y, height }) => ({
        name: port.name,
        share: port.share,
        x: left + chart.frame.left,
        y: top + y,
        width: chart.frame.right - chart.frame.left,
        height,
        shares: links && links.layer.link_bounds[port.number + 1] - links.layer.link_bounds[port.number],
      }));
    },
    // The middle of a share of a link lane in the window.
    shareAt(number, share) {
      const { left, top } = chart.stage.getBoundingClientRect();
      const { links } = chart.plan;
      if (!links) return null;
      const { layer, lanes } = links;
      const { y, height } = lanes[number];
      const at = layer.link_bounds[number] + share;
      const middle = (a, b) => (a[at] + b[at]) / 2;
      return {
        x: left + chart.frame.x(middle(layer.link_start, layer.link_end)),
        y: top + y + height * (1 - middle(layer.link_low, layer.link_high)),
      };
    },
    get edit() {
      return editFacts(chart.edit);
    },
    // Seconds (or units) at the cursor, or null.
    get cursor() {
      const x = chart.overlay.cursor;
      return x === null ? null : chart.frame.tick(x) * scale();
    },
    // The names of the lanes that scroll.
    get names() {
      const scrolled = chart.plan.lanes.filter(({ kept }) => !kept);
      return laneNames(scrolled, chart.frame).map(({ name }) => name);
    },
    // The meshes whose lanes are marked as slow, by the timeline that has them.
    get slow() {
      const lanes = chart.plan.lanes.filter((lane) => slowReason(chart, lane));
      return [...new Set(lanes.map(({ layer, rank }) => layer.meshes[rank]))];
    },
    get theme() {
      return chart.colours?.theme;
    },
    // The box of a block in the window, or null.
    blockAt(rank, stage, mb, op = "F", layer = 0) {
      const timeline = chart.data.layers[layer];
      const span = timeline?.find(OP[op], stage, mb, rank) ?? -1;
      const lane = span >= 0 ? chart.plan.laneOf(timeline, timeline.rankOf(span)) : null;
      if (!lane) return null;
      const { left, top } = chart.stage.getBoundingClientRect();
      const { x, y, width, height } = boxOf(chart.frame, timeline, span, lane);
      return { x: x + left, y: y + top, width, height };
    },
    look(from, to) {
      chart.view.look(from / scale(), to / scale());
      chart.paint();
      return chart.stats.paintMs;
    },
    paint() {
      chart.paint();
      return chart.stats.paintMs;
    },
    // The visible part of the timeline as a PNG blob.
    picture() {
      const { base, over } = chart;
      const canvas = document.createElement("canvas");
      Object.assign(canvas, { width: base.width, height: base.height });
      for (const layer of [base, over]) canvas.getContext("2d").drawImage(layer, 0, 0);
      return new Promise((done) => canvas.toBlob(done, "image/png"));
    },
  };
}

function editFacts({ chart, isOn, selected, moving, preview, state, trial, isTried, open }) {
  const { names } = chart.model.palette;
  const text = ([op, stage, mb]) => `${stage}${names[op]}${mb}`;
  const order = ({ fault = "", ring = [] }) => ({
    fault,
    ring: ring.map(({ at }) => text(at)),
  });
  return {
    on: isOn,
    selected: selected.map(text),
    moving: moving?.edit ?? null,
    preview: preview && { ...order(preview), later: preview.later, makespan: preview.makespan },
    ...order(state ?? {}),
    trial: trial && isTried ? { makespan: trial.makespan, later: trial.later } : null,
    moved: (state?.difference?.blocks ?? []).map(text),
    isAsking: open !== null,
  };
}
