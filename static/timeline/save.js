// The timeline as a PNG file.

/** @import { Chart } from "./timeline.js" */

import { download } from "../kit/bars.js";
import { h } from "../kit/dom.js";

/** What is shown, as a PNG blob. @param {Chart} chart @returns {Promise<Blob>} */
export function imageOf({ base, over }) {
  const canvas = h("canvas", { width: base.width, height: base.height });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.drawImage(base, 0, 0);
  context.drawImage(over, 0, 0);
  return new Promise((done) => canvas.toBlob((blob) => done(/** @type {Blob} */ (blob)), "image/png"));
}

/** Save what is shown under the names of its timelines. @param {Chart} chart */
export async function savePicture(chart) {
  chart.pointer = null;
  chart.overlay.paint();
  const labels = chart.data.layers.map((layer) => layer.label).join(" and ");
  const name = labels.replace(/[^\w -]+/g, "").trim() || "timeline";
  download(`${name}.png`, await imageOf(chart));
}
