// The tabs of the side panel. Arrow keys go from one to the next, as the ARIA tabs pattern describes.

/** @import { SideModel } from "./types" */

import { closest, consume, h, setTabStop } from "../kit/dom.js";
import { Widget } from "../kit/widget.js";

/** @param {{model: SideModel}} args */
export const render = ({ model }) => new Tabs(model).root;

/** @extends {Widget<SideModel>} */
class Tabs extends Widget {
  /** @param {SideModel} model */
  constructor(model) {
    super(model);
    this.tabs = model.titles.map((title, place) =>
      h(
        "button.mw-tab",
        { type: "button", role: "tab", onclick: () => this.choose(place) },
        h("span", {}, title),
        h("span.mw-tab-badge"),
      ),
    );
    this.root = h("div.mw-canvas.mw-tabs", { role: "tablist", "aria-label": model.label }, ...this.tabs);
    this.root.addEventListener("keydown", (event) => this.key(event));
    model.on(["active", "badges"], () => this.draw());
    this.draw();
  }

  /** @param {number} to */
  choose(to) {
    this.mark(to);
    this.send("turn", { to });
  }

  draw() {
    const { badges, active } = this.model;
    this.tabs.forEach((tab, place) => {
      const [text, severity] = badges[place] ?? ["", ""];
      const badge = /** @type {HTMLElement} */ (tab.lastChild);
      Object.assign(badge, { textContent: text, hidden: !text });
      badge.dataset.severity = severity;
    });
    this.mark(active);
  }

  /** @param {number} active */
  mark(active) {
    this.tabs.forEach((tab, place) => tab.setAttribute("aria-selected", String(place === active)));
    setTabStop(this.tabs, this.tabs[active]);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const at = this.tabs.findIndex((tab) => tab === closest(event, ".mw-tab"));
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    const place = (to + this.tabs.length) % this.tabs.length;
    this.tabs[place].focus();
    this.choose(place);
    consume(event);
  }
}
