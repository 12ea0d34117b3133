// The schedules of the expert layer side by side: a card per schedule with the timeline of the slowest device.

/** @import { CardData, ExpertSchedulesModel } from "./types" */

import { consume, countPerRow, findAll, focusedElement, h, indexByKey, s, setTabStop } from "../kit/dom.js";
import { withDefinitions } from "../kit/glossary.js";
import { DialogWidget, tipped, walkTabs, walkTips } from "../kit/shell.js";
import { ExpertMap } from "./map.js";

const SIZE = { width: 300, lane: 20, gap: 3 };
const TABS = [
  ["layer", "This layer"],
  ["map", "1,296 layers"],
];

/** @param {{model: ExpertSchedulesModel}} args */
export const render = ({ model }) => new ExpertSchedules(model).root;

/** @extends {DialogWidget<ExpertSchedulesModel>} */
class ExpertSchedules extends DialogWidget {
  tab = "layer";

  /** @param {ExpertSchedulesModel} model */
  constructor(model) {
    super(model);
    this.map = new ExpertMap(model.links, (links) => this.send("map", { links }));
    this.about = h("p.mw-dialog-about");
    this.grid = h("div.mw-es-cards", { role: "group", "aria-label": "Expert schedules" });
    this.grid.addEventListener("keydown", (event) => this.key(event));
    const kinds = Object.entries(model.words).map(([kind, word]) =>
      h("span", tipped(model.help[kind]), h("i", { style: { "--kind": `var(--step-${kind})` } }), word),
    );
    this.legend = h("div.mw-legend", {}, ...kinds);
    walkTips(this.legend)();
    this.tabs = TABS.map(([tab, text]) => {
      const attributes = { type: "button", role: "tab", "data-tab": tab };
      return h("button.mw-es-tab", { ...attributes, onclick: () => this.setTab(tab) }, text);
    });
    const tabs = h("div.mw-es-tabs", { role: "tablist", "aria-label": "Comparison" }, ...this.tabs);
    walkTabs(tabs);
    const inHeader = [this.refusal, this.legend];
    this.build("expert-schedules", "Expert schedules", [this.about], inHeader, [tabs, this.grid, this.map.element]);
    model.on("map", () => this.tab === "map" && this.map.draw(model.map));
    model.on(["cards", "about"], () => this.draw());
  }

  onopen() {
    this.tab = "layer";
    this.draw();
    (this.picks().find((pick) => pick.ariaCurrent === "true") ?? this.picks()[0])?.focus();
  }

  /** @param {string} tab */
  setTab(tab) {
    this.tab = tab;
    if (tab === "map") this.map.request();
    this.draw();
  }

  draw() {
    const isMap = this.tab === "map";
    for (const tab of this.tabs) tab.setAttribute("aria-selected", String(tab.dataset.tab === this.tab));
    setTabStop(
      this.tabs,
      this.tabs.find((tab) => tab.dataset.tab === this.tab),
    );
    this.grid.hidden = this.legend.hidden = isMap;
    this.map.element.hidden = !isMap;
    if (isMap) this.map.draw(this.model.map);
    this.about.textContent = isMap
      ? "Fastest expert schedule for each of 1,296 layer configurations, and its speedup over the second fastest"
      : this.model.about;
    this.drawCards();
  }

  drawCards() {
    const focused = focusedElement(this.root);
    /** @type {HTMLElement | null | undefined} */
    const focusedCard = focused?.closest(".mw-es-card");
    const tip = focusedCard ? tipsOf(focusedCard).findIndex((each) => each === focused) : -1;
    this.grid.replaceChildren(...this.model.cards.map((card) => this.card(card)));
    const picks = this.picks();
    const current =
      picks.find((pick) => cardOf(pick).dataset.name === focusedCard?.dataset.name) ??
      picks.find((pick) => pick.ariaCurrent === "true") ??
      picks[0];
    this.setCardStop(current);
    if (focusedCard && current) (tipsOf(cardOf(current))[tip] ?? current).focus();
  }

  /** Make one card the tab stop, and the first of its tooltips the next one. @param {HTMLElement} [current] */
  setCardStop(current) {
    setTabStop(this.picks(), current);
    for (const pick of this.picks())
      setTabStop(tipsOf(cardOf(pick)), pick === current ? tipsOf(cardOf(pick))[0] : undefined);
  }

  /** @param {CardData} card */
  card(card) {
    const { name, title, help, present, best, reason, layout } = card;
    const head = h(
      "div.mw-es-head",
      {},
      h("strong", {}, title),
      present && h("span.mw-es-mark", { "data-kind": "now" }, "current"),
      best && h("span.mw-es-mark", { "data-kind": "best" }, "fastest"),
      h("span.mw-grow"),
      layout && h("span.mw-quiet", {}, layout),
    );
    const current = present ? "true" : null;
    const attributes = { type: "button", "aria-label": cardLabel(card), "aria-current": current, tabindex: -1 };
    const pick = h("button.mw-es-pick", attributes, head);
    const body = reason
      ? [h("p.mw-es-help", {}, help), h("p.mw-es-reason", {}, reason)]
      : [drawLayer(card, this.model), ...figures(card, this.model.help), explanation(card)];
    const element = h(
      "div.mw-choice.mw-es-card",
      { role: "group", "aria-label": title, "data-name": name, "data-refused": Boolean(reason) },
      pick,
      ...body,
    );
    element.addEventListener("click", () => (present ? this.overlay.close() : this.send("choose", { name })));
    element.addEventListener("focusin", () => pick.tabIndex && this.setCardStop(pick));
    walkTips(element);
    return element;
  }

  picks() {
    return findAll(this.grid, ".mw-es-pick");
  }

  /** Arrow keys move the focus between cards, Enter chooses. @param {KeyboardEvent} event */
  key(event) {
    const picks = this.picks();
    const at = picks.findIndex((pick) => pick === event.target);
    if (at < 0) return;
    const index = indexByKey(event.key, at, picks.length, countPerRow(picks));
    if (index === undefined) return;
    picks[index].focus();
    consume(event);
  }
}

/** @param {HTMLElement} pick */
const cardOf = (pick) => /** @type {HTMLElement} */ (pick.closest(".mw-es-card"));

/** @param {HTMLElement} card */
const tipsOf = (card) => findAll(card, "[data-tip]");

/** @param {CardData} card */
function cardLabel({ title, present, best, reason, change, time, inter, intra, memory }) {
  if (reason) return `${title}: cannot run this layer. ${reason}`;
  const marks = `${present ? ", current" : ""}${best ? ", the fastest" : ""}`;
  const traffic = `between nodes ${inter}, inside nodes ${intra}`;
  return `${title}${marks}: ${time}${change ? `, ${change}` : ""}, ${traffic}, memory ${memory}`;
}

/** @param {CardData} card */
const explanation = ({ choice, help, terms }) => h("p.mw-es-help", {}, ...withDefinitions(choice || help, terms));

/**
 * Three lanes of one device: compute, links inside its node, links to other nodes; first the forward, then the
 * backward.
 * @param {CardData} card @param {ExpertSchedulesModel} model
 */
function drawLayer({ picture, axis }, { lanes, help }) {
  const top = (/** @type {number} */ lane) => lane * (SIZE.lane + SIZE.gap);
  const height = top(lanes.length);
  const scale = SIZE.width / axis;
  const rows = lanes.map((_, lane) =>
    s("rect.mw-es-lane", { x: 0, y: top(lane), width: SIZE.width, height: SIZE.lane }),
  );
  const spans = picture.lane.map((lane, i) => {
    const width = Math.max(0.6, (picture.end[i] - picture.start[i]) * scale - 0.4);
    const fill = `var(--step-${picture.kind[i]})`;
    return s("rect", { x: picture.start[i] * scale, y: top(lane), width, height: SIZE.lane, fill });
  });
  const turn = picture.turn * scale;
  const svg = s(
    "svg.mw-es-picture",
    { viewBox: `0 0 ${SIZE.width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    ...rows,
    ...spans,
    s("line.mw-es-turn", { x1: turn, x2: turn, y1: 0, y2: height }),
  );
  return h(
    "div.mw-es-lanes",
    { role: "group", "aria-label": "Timeline of the slowest device", ...tipped(help.lanes) },
    h("div.mw-es-names", {}, ...lanes.map((lane) => h("span", {}, lane))),
    svg,
  );
}

/** @param {CardData} card @param {Record<string, string>} help */
function figures({ time, parts, inter, intra, memory, buffers, change }, help) {
  const row = (/** @type {string} */ key, /** @type {string[]} */ ...[name, value, small]) => [
    h("dt", {}, h("span", tipped(help[key]), name)),
    h("dd", {}, value, h("span.mw-quiet", {}, ` ${small}`)),
  ];
  return [
    h(
      "div.mw-es-time",
      {},
      h("strong", {}, h("span", tipped(help.time), time)),
      h("span.mw-quiet", {}, ` ${parts}`),
      h("span.mw-grow"),
      h("span.mw-es-change", { "data-better": change?.startsWith("-") }, change ?? ""),
    ),
    h(
      "dl",
      {},
      ...row("inter", "Between nodes", inter, "per device, forward"),
      ...row("intra", "Inside nodes", intra, "per device, forward"),
      ...row("memory", "Memory", memory, `+ ${buffers} of buffers`),
    ),
  ];
}
