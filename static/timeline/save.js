// The timeline as a PNG file.

import { h } from "../kit/canvas.js";

/**
 * Return what is shown as a PNG blob.
 * @param {import("./timeline.js").Chart} chart
 */
export function imageOf({ base, over }) {
  const canvas = h("canvas", { width: base.width, height: base.height });
  const context = canvas.getContext("2d");
  context.drawImage(base, 0, 0);
  context.drawImage(over, 0, 0);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

/**
 * Save what is shown under the names of its timelines.
 * @param {import("./timeline.js").Chart} chart
 */
export async function savePicture(chart) {
  chart.pointer = null;
  chart.overlay.paint();
  const url = URL.createObjectURL(await imageOf(chart));
  const name =
    chart.data.layers
      .map((layer) => layer.label)
      .join(" and ")
      .replace(/[^\w -]+/g, "")
      .trim() || "timeline";
  h("a", { href: url, download: `${name}.png` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
