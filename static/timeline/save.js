// The timeline as a PNG file, and an area of it as a CSV file.

/** @import { Chart } from "./timeline.js" */
/** @import { Area } from "./types" */

import { download } from "../kit/bars.js";
import { h } from "../kit/dom.js";
import { areaCsv } from "./csv.js";

/** The visible part of the timeline as a PNG blob. @param {Chart} chart @returns {Promise<Blob>} */
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
  download(`${fileName(labels)}.png`, await imageOf(chart));
}

/** Save the spans of an area. @param {Chart} chart @param {Area} area */
export function saveArea({ model }, area) {
  download(`${fileName(area.layer.label)} area.csv`, new Blob([areaCsv(area, model.palette)], { type: "text/csv" }));
}

/** @param {string} label */
const fileName = (label) => label.replace(/[^\w -]+/g, "").trim() || "timeline";
