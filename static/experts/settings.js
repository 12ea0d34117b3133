// Settings of the expert layer, and the buttons that place all its experts.

import { button, h, openMenu, stepper } from "../kit/canvas.js";

/** The bar over the board: settings of the expert layer, and what places all its experts. */
export class Settings {
  /** @param {import("./experts.js").Experts} experts */
  constructor(experts) {
    this.experts = experts;
    this.extra = 1;
    this.controls = h("div", { class: "mw-bar mw-xcontrols" });
    this.room = stepper({
      label: "replicas",
      one: "replica a device",
      min: 0,
      onchange: (value) => this.setRoom(value),
      onrefuse: (reason, at) => experts.sayAt(at, reason),
    });
    this.room.title = "Replicas that balancing may add to each device";
    this.blocks = button("Equal blocks", {
      title: "Experts in order, as many on each device (Shift+B)",
      onclick: () => experts.send("blocks"),
    });
    this.blocks.refuse = (reason) => experts.sayAt(this.blocks, reason);
    const balancer = button("Balance", {
      kind: "mw-primary",
      title: "Place the experts by their load, with replicas of the hottest (B)",
      onclick: () => this.balance(),
    });
    this.tools = h("div", { class: "mw-bar mw-xtools" }, this.blocks, this.room, balancer);
  }

  setRoom(value) {
    this.extra = value;
    this.room.answered();
    this.room.set(value, { least: 0, most: this.experts.picture.most_extra });
  }

  balance() {
    this.experts.send("balance", { extra: this.extra });
  }

  drawControls() {
    const { meshes, mesh, controls, most_extra: most = this.extra, equal } = this.experts.picture;
    const held = this.experts.root.getRootNode().activeElement?.dataset?.control;
    const items = meshes.map((name, rank) => ({ value: rank, text: name }));
    const chosen = {
      key: "mesh",
      label: "mesh",
      value: mesh,
      text: meshes[mesh],
      options: items,
      help: "The mesh whose devices are shown; all meshes hold their experts alike",
    };
    const choose =
      ({ key }) =>
      (value) =>
        key === "mesh" ? this.experts.send("mesh", { mesh: value }) : this.experts.send("setting", { key, value });
    const now = [...this.controls.children];
    const drawn = [...(meshes.length > 1 ? [chosen] : []), ...controls].map((control, at) => {
      const said = JSON.stringify(control);
      if (now[at]?.said === said) return now[at]; // it stays, and a press that has begun on it is not lost
      return Object.assign(this.control(control, choose(control)), { said });
    });
    drawn.forEach((element, at) =>
      now[at] ? now[at] !== element && now[at].replaceWith(element) : this.controls.append(element),
    );
    for (const element of now.slice(drawn.length)) element.remove();
    this.controls.querySelector(`[data-control="${held}"]`)?.focus();
    this.extra = Math.min(this.extra, most);
    this.room.set(this.extra, { least: 0, most });
    this.blocks.allow(
      !equal,
      equal ? "They are in equal blocks" : "Experts in order, as many on each device (Shift+B)",
    );
  }

  /** A small button with its value, which opens a menu. */
  control({ key, label, text, value, options, help, reason }, choose) {
    const content = h("span", {}, h("span", { class: "mw-quiet" }, `${label} `), text);
    const element = button(`${label}: ${text}`, {
      content,
      kind: "mw-xcontrol",
      title: reason || help,
      onclick: () =>
        openMenu(
          this.experts.root,
          element,
          label,
          options.map((option) => ({
            text: option.text,
            checked: option.value === value,
            choose: () => choose(option.value),
          })),
        ),
    });
    element.dataset.control = key;
    element.setAttribute("aria-haspopup", "menu");
    element.allow(options.length > 0, reason || help);
    element.refuse = (words) => this.experts.sayAt(element, words);
    return element;
  }
}
