// The tabs of the side panel.

/** @import { SideModel } from "./types" */

import { h, setTabStop } from "../kit/dom.js";
import { walkTabs } from "../kit/shell.js";
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
    this.root = h("div.mw-canvas.mw-tabs.mw-scroll-row", { role: "tablist", "aria-label": model.label }, ...this.tabs);
    walkTabs(this.root);
    new ResizeObserver(() => this.reveal(this.model.active)).observe(this.root);
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
    this.reveal(active);
  }

  /** Scroll a tab into view. @param {number} active */
  reveal(active) {
    const { offsetLeft: left, offsetWidth: width } = this.tabs[active];
    const { scrollLeft: from, clientWidth: room } = this.root;
    if (left < from || left + width > from + room) this.root.scrollLeft = left - (room - width) / 2;
  }
}
