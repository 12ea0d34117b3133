// Settings of the expert layer, and the buttons that place all its experts.

/** @import { Control } from "./types" */

import { button, stepper } from "../kit/controls.js";
import { find, focusedElement, h } from "../kit/dom.js";
import { openMenu } from "../kit/shell.js";

const EQUAL_BLOCKS = "Place experts in order, the same number on each device (Shift+B)";

export class Settings {
  extra = 1;
  controls = h("div.mw-bar.mw-xcontrols");
  /** @type {WeakMap<Element, string>} */ drawn = new WeakMap(); // the data from which each control was made

  /** @param {import("./experts.js").Experts} experts */
  constructor(experts) {
    this.experts = experts;
    this.onblocked = (/** @type {string} */ reason, /** @type {HTMLElement} */ at) => experts.announceAt(at, reason);
    this.room = stepper({
      label: "replicas",
      min: 0,
      onchange: (value) => this.setRoom(value),
      onblocked: this.onblocked,
    });
    this.room.title = "Number of replicas per device that balancing may add";
    this.blocks = button("Equal blocks", { title: EQUAL_BLOCKS, onclick: () => experts.send("blocks") });
    this.blocks.onblocked = this.onblocked;
    const balance = button("Balance", {
      kind: "mw-primary",
      title: "Place experts by load, and replicate the most loaded experts (B)",
      onclick: () => this.balance(),
    });
    this.tools = h("div.mw-bar.mw-xtools", {}, this.blocks, this.room, balance);
  }

  /** @param {number} value */
  setRoom(value) {
    this.extra = value;
    this.room.acknowledge();
    this.room.set(value, { least: 0, most: this.experts.picture.most_extra });
  }

  balance() {
    this.experts.send("balance", { extra: this.extra });
  }

  draw() {
    const { meshes, mesh, controls, most_extra: most = this.extra, equal } = this.experts.picture;
    const focused = focusedElement(this.experts.root)?.dataset.control;
    const meshControl = {
      key: "mesh",
      label: "mesh",
      value: mesh,
      text: meshes[mesh],
      options: meshes.map((text, value) => ({ value, text })),
      help: "The mesh to show; experts have the same placement on all meshes",
    };
    const shown = [...this.controls.children];
    const elements = [...(meshes.length > 1 ? [meshControl] : []), ...controls].map((control, i) => {
      const data = JSON.stringify(control);
      if (this.drawn.get(shown[i]) === data) return shown[i]; // a press on the control may be in progress
      const element = this.control(control);
      this.drawn.set(element, data);
      return element;
    });
    elements.forEach((element, i) => {
      if (!shown[i]) this.controls.append(element);
      else if (shown[i] !== element) shown[i].replaceWith(element);
    });
    for (const element of shown.slice(elements.length)) element.remove();
    if (focused) find(this.controls, `[data-control="${focused}"]`)?.focus();
    this.extra = Math.min(this.extra, most);
    this.room.set(this.extra, { least: 0, most });
    this.blocks.enable(!equal, equal ? "The experts are already in equal blocks" : EQUAL_BLOCKS);
  }

  /** A small button with a value, which opens a menu. @param {Control} control */
  control({ key, label, text, value, options, help, reason }) {
    const choose = (/** @type {unknown} */ value) =>
      key === "mesh" ? this.experts.send("mesh", { mesh: value }) : this.experts.send("setting", { key, value });
    const entries = options.map((option) => ({
      text: option.text,
      checked: option.value === value,
      choose: () => choose(option.value),
    }));
    const element = button(`${label}: ${text}`, {
      content: h("span", {}, h("span.mw-quiet", {}, `${label} `), text),
      kind: "mw-xcontrol",
      onclick: () => openMenu(this.experts.root, element, label, entries),
    });
    element.dataset.control = key;
    element.setAttribute("aria-haspopup", "menu");
    element.enable(options.length > 0, reason || help);
    element.onblocked = this.onblocked;
    return element;
  }
}
