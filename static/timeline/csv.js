// The blocks and transfers of the selected area as a CSV file.

/** @import { Area, Palette } from "./types" */

const HEAD = ["mesh", "action", "kind", "stage", "microbatch", "to", "start", "end", "duration"];

/**
 * CSV text with a line for each span in the area, with times in seconds or cost units.
 * @param {Area} area @param {Palette} palette
 */
export function areaCsv({ layer, from, to, ranks }, { names, words }) {
  const lines = [HEAD];
  for (const rank of ranks) {
    for (const kind of [0, 1, 2]) {
      const [first, last] = layer.range(kind, rank);
      for (let span = first; span < last; span++) {
        if (layer.end[span] <= from || layer.start[span] >= to) continue;
        const [start, end] = [layer.start[span], layer.end[span]].map((tick) => tick * layer.scale);
        const name = names[layer.op[span]];
        const peer = layer.isTransfer(span) ? layer.meshes[layer.peerOf(span)] : "";
        const [stage, microbatch] = [layer.stage[span], layer.microbatchOf(span)].map((each) => (each < 0 ? "" : each));
        const about = [layer.meshes[rank], layer.notation(span, names), words[name] ?? name, stage, microbatch, peer];
        lines.push([...about, start, end, end - start].map(field));
      }
    }
  }
  return lines.map((line) => line.join(",")).join("\r\n") + "\r\n";
}

/** @param {string | number} value */
function field(value) {
  if (typeof value === "number") return String(Number(value.toPrecision(9)));
  return /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
}
