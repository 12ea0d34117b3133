// The blocks and transfers of the selected area as a CSV file.

/** @import { Area, Palette } from "./types" */

const HEAD = ["mesh", "action", "kind", "stage", "microbatch", "to"];
const TIMES = ["start", "end", "duration"];

/**
 * CSV text with a line for each span in the area. Its head states the unit of the times: seconds, or cost units. As in
 * the metrics of the area, the transfers are those from or to one of its meshes.
 * @param {Area} area @param {Palette} palette
 */
export function areaCsv(area, { names, words }) {
  const { layer } = area;
  const decimals = Math.max(0, Math.floor(-Math.log10(layer.scale))); // further ones would show the rounding to ticks
  const time = (/** @type {number} */ ticks) => String(Number((ticks * layer.scale).toFixed(decimals)));
  const lines = spansIn(area).map((span) => {
    const [start, end] = [layer.start[span], layer.end[span]];
    const name = names[layer.op[span]];
    const peer = layer.isTransfer(span) ? layer.meshes[layer.peerOf(span)] : "";
    const numbers = [layer.stage[span], layer.microbatchOf(span)].map((each) => (each < 0 ? "" : String(each)));
    const about = [layer.meshes[layer.rankOf(span)], layer.notation(span, names), words[name] ?? name];
    return [...about, ...numbers, peer, time(start), time(end), time(end - start)].map(field);
  });
  const head = [...HEAD, ...TIMES.map((each) => `${each} [${layer.unit === "s" ? "s" : "units"}]`)];
  return [head, ...lines].map((line) => line.join(",")).join("\r\n") + "\r\n";
}

/** The spans in an area, by their meshes. @param {Area} area */
function spansIn({ layer, from, to, ranks }) {
  const chosen = new Set(ranks);
  const found = [];
  for (let rank = 0; rank < layer.ranks; rank++) {
    for (const kind of [0, 1, 2]) {
      const [first, last] = layer.range(kind, rank);
      for (let span = first; span < last; span++) {
        const isChosen = chosen.has(rank) || (kind === 2 && chosen.has(layer.peerOf(span)));
        if (isChosen && layer.end[span] > from && layer.start[span] < to) found.push(span);
      }
    }
  }
  return found;
}

/** A value of a CSV file. @param {string} value */
function field(value) {
  const text = isFormula(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** True for text that a spreadsheet would read as a formula. @param {string} value */
const isFormula = (value) => /^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value));
