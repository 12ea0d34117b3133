// The tabs of the side panel. Arrows go from one to the next, as the pattern of ARIA has it.

import { followTheme, h, send } from "../kit/canvas.js";

export const render = ({ model }) => new Tabs(model).root;

class Tabs {
  constructor(model) {
    this.model = model;
    this.root = h("div", { class: "mw-canvas mw-tabs", role: "tablist", "aria-label": model.label });
    this.tabs = model.titles.map((title, place) => this.tab(title, place));
    this.root.append(...this.tabs);
    this.root.addEventListener("keydown", (event) => this.key(event));
    model.on(["active", "badges"], () => this.draw());
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
    this.draw();
  }

  tab(title, place) {
    return h(
      "button",
      { type: "button", role: "tab", class: "mw-tab", onclick: () => this.turn(place) },
      h("span", {}, title),
      h("span", { class: "mw-tab-badge" }),
    );
  }

  turn(to) {
    this.mark(to);
    send(this.model, { type: "turn", to });
  }

  draw() {
    const { badges, active } = this.model;
    this.tabs.forEach((tab, place) => {
      const [badge, severity] = badges[place] ?? ["", ""];
      Object.assign(tab.lastChild, { textContent: badge, hidden: !badge });
      tab.lastChild.dataset.severity = severity;
    });
    this.mark(active);
  }

  mark(active) {
    this.tabs.forEach((tab, place) => {
      tab.setAttribute("aria-selected", String(place === active));
      tab.tabIndex = place === active ? 0 : -1;
    });
  }

  key(event) {
    const at = this.tabs.indexOf(event.target.closest(".mw-tab"));
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    const place = (to + this.tabs.length) % this.tabs.length;
    this.tabs[place].focus();
    this.turn(place);
    event.preventDefault();
    event.stopPropagation();
  }
}
