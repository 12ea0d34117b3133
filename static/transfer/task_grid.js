// The unit tasks of a transfer on the tensor.

/** @import { Box } from "../kit/types" */
/** @import { Dim, Picture, Task } from "./types" */

import { h, s } from "../kit/dom.js";
import { ink, rgb } from "../kit/palette.js";
import { Grid, OPACITY, text } from "./grid.js";
import { gapOf } from "./raster.js";

/**
 * The unit tasks: each distinct slice of the tensor once, in the colour of the host that sends it.
 * @extends {Grid<Task>}
 */
export class TaskGrid extends Grid {
  about = h("span.mw-quiet");

  /** @param {import("./transfer.js").Transfer} view */
  constructor(view) {
    super(view, "Unit tasks of the transfer");
  }

  /** @param {Picture} picture */
  draw(picture) {
    this.picture = picture;
    const hasLocal = picture.tasks.some((task) => !task.receivers.length);
    const local = this.isRaster ? "pale: stays in place" : "outlined: stays in place";
    const parts = [`colour: sending ${this.view.model.host_word}`, ...(hasLocal ? [local] : [])];
    this.about.textContent = [...parts, ...nestedDims(picture)].join("; ");
    this.about.dataset.tip = this.about.textContent; // the card may be too narrow for the text
    super.draw(picture);
  }

  get pieces() {
    return this.picture.tasks;
  }

  /** @param {Task} task */
  fills({ host }) {
    return [this.colour(host)];
  }

  /** @param {number} task */
  attributes(task) {
    const isLocal = !this.pieces[task].receivers.length;
    return { class: `mw-tr-task${isLocal ? " mw-tr-stays" : ""}`, "data-task": task, "data-piece": task };
  }

  /** @param {Task} task @param {number} number */
  group(task, number) {
    const [fill] = this.fills(task);
    const isLocal = !task.receivers.length;
    const letters = isLocal ? null : ink(rgb(fill));
    const boxes = task.rects.map((rect) => this.boxOf(rect));
    const cells = boxes.map((box) =>
      s("rect.mw-tr-cell", { ...(isLocal ? inset(box) : box), "stroke-width": gapOf(box) }),
    );
    const [box] = boxes;
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    const hasSize = box.height > 30 && box.width > 64;
    const hasNumber = box.width > 7 + 7 * String(number).length && box.height > 12;
    return s(
      "g",
      { ...this.attributes(number), style: { "--fill": fill } },
      cells[0],
      hasNumber && text(x, y + (hasSize ? -1 : 4), String(number), "mw-tr-number mw-tr-middle", letters),
      hasSize && text(x, y + 13, isLocal ? "stays" : task.size, "mw-tr-size mw-tr-middle", letters),
      ...cells.slice(1),
    );
  }

  /** @param {number} task */
  placeOf(task) {
    return { task };
  }

  /** @param {number} task */
  describe(task) {
    return this.view.lanes.describeTask(task);
  }

  /** @param {Set<number> | null} tasks */
  highlight(tasks) {
    if (!this.picture) return;
    if (this.isRaster) {
      const isShown = (/** @type {number} */ task) => this.pieces[task].receivers.length && (!tasks || tasks.has(task));
      return this.raster.paint((task) => (isShown(task) ? 1 : OPACITY.pale));
    }
    this.groups.forEach((group, number) => group.toggleAttribute("data-on", Boolean(tasks?.has(number))));
  }
}

/**
 * A note on the dims that are drawn nested inside other dims, if more than two dims are cut.
 * @param {{rows: Dim[], columns: Dim[]}} picture
 */
function nestedDims({ rows, columns }) {
  return [rows, columns].flatMap(([outer, ...inner]) => inner.map(({ dim }) => `dim ${dim} inside dim ${outer.dim}`));
}

/** @param {Box} box */
const inset = ({ x, y, width, height }) => ({
  x: x + 1.5,
  y: y + 1.5,
  width: Math.max(0, width - 3),
  height: Math.max(0, height - 3),
});
