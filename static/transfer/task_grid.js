// The unit tasks of a transfer on the tensor.

import { h, s } from "../kit/canvas.js";
import { ink, rgb } from "../kit/palette.js";
import { between } from "./crowding.js";
import { Grid, STRENGTH, text } from "./grid.js";

/** The unit tasks: each distinct slice once, in the colour of the host that sends it. */
export class Tasks extends Grid {
  constructor(view) {
    super(view, "The unit tasks of the transfer");
    this.about = h("span", { class: "mw-quiet" });
  }

  draw(picture) {
    this.picture = picture;
    const stays =
      picture.tasks.some((task) => !task.receivers.length) && (this.isCrowd ? "pale: stays" : "outlined: stays");
    this.about.textContent = [`colour: its sender's ${this.view.model.host_word}`, stays, ...nested(picture)]
      .filter(Boolean)
      .join("; ");
    this.about.dataset.tip = this.about.textContent; // where the card is too narrow for it
    super.draw(picture);
  }

  get pieces() {
    return this.picture.tasks;
  }

  fills({ host }) {
    return [this.colour(host)];
  }

  attributes(task) {
    return { class: `mw-tr-task${this.pieces[task].receivers.length ? "" : " mw-tr-stays"}`, "data-task": task };
  }

  cells() {
    this.groups = this.pieces.map((task, number) => {
      const [fill] = this.fills(task);
      const stays = !task.receivers.length;
      const letters = stays ? null : ink(rgb(fill));
      const group = s("g", { ...this.attributes(number), style: { "--fill": fill } });
      task.rects.forEach((rect, part) => {
        const at = this.at(rect);
        group.append(s("rect", { ...(stays ? inset(at) : at), class: "mw-tr-cell", "stroke-width": between(at) }));
        if (part) return;
        const [x, y] = [at.x + at.width / 2, at.y + at.height / 2];
        const roomy = at.height > 30 && at.width > 64;
        if (at.width > 7 + 7 * String(number).length && at.height > 12)
          group.append(text(x, y + (roomy ? -1 : 4), String(number), "mw-tr-number mw-tr-middle", letters));
        if (roomy) group.append(text(x, y + 13, stays ? "stays" : task.size, "mw-tr-size mw-tr-middle", letters));
      });
      return group;
    });
    return this.groups;
  }

  over(event) {
    const found = event.target.closest("[data-task]");
    if (found) found.dataset.tip = this.view.lanes.words(Number(found.dataset.task));
    this.view.hover(found ? { task: Number(found.dataset.task) } : null);
  }

  click(event) {
    const found = event.target.closest("[data-task]");
    if (found) this.view.pin({ task: Number(found.dataset.task) });
  }

  light(tasks) {
    if (!this.picture) return;
    if (this.isCrowd)
      return this.crowd.paint((task) =>
        this.pieces[task].receivers.length && (!tasks || tasks.has(task)) ? 1 : STRENGTH.pale,
      );
    this.groups?.forEach((group, number) => group.toggleAttribute("data-on", Boolean(tasks?.has(number))));
  }
}

/** Which dims lie inside which, where more than two are cut. */
function nested({ rows, columns }) {
  return [rows, columns].flatMap(([outer, ...inner]) => inner.map(({ dim }) => `dim ${dim} inside dim ${outer.dim}`));
}

const inset = ({ x, y, width, height }) => ({
  x: x + 1.5,
  y: y + 1.5,
  width: Math.max(0, width - 3),
  height: Math.max(0, height - 3),
});
