// The schedules of the expert layer side by side: a card each, with what its slowest device does when.

import { followTheme, h, s, send } from "../kit/canvas.js";
import { ExpertMap } from "./map.js";
import { explained } from "../kit/glossary.js";
import { Overlay, Tips, tipped, tool, walkTips } from "../kit/shell.js";

const BOX = { width: 300, lane: 20, gap: 3 };

export const render = ({ model }) => new ExpertSchedules(model).root;

class ExpertSchedules {
  constructor(model) {
    this.model = model;
    this.tab = "layer";
    this.map = new ExpertMap(model.links, (links) => send(model, { type: "map", links }));
    this.build();
    model.on("map", () => this.tab === "map" && this.map.draw(this.model.map));
    model.on(["cards", "about"], () => this.draw());
    model.on("msg:custom", (message) => this.answered(message));
    this.dialog.querySelector('[role="tablist"]').addEventListener("keydown", (event) => this.walkTabs(event));
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
    this.overlay.follow();
  }

  build() {
    const { words, help } = this.model;
    const close = tool("Close", { glyph: "close", tip: "Close (Esc)", onclick: () => this.overlay.close() });
    this.about = h("p", { class: "mw-dialog-about" });
    this.refusal = h("span", { class: "mw-dialog-refusal", role: "alert" });
    this.grid = h("div", { class: "mw-es-cards", role: "group", "aria-label": "Expert schedules" });
    this.grid.addEventListener("keydown", (event) => this.key(event));
    const legend = h(
      "div",
      { class: "mw-legend" },
      ...Object.entries(words).map(([kind, word]) =>
        h("span", tipped(help[kind]), h("i", { style: { "--kind": `var(--step-${kind})` } }), word),
      ),
    );
    walkTips(legend)();
    this.tabs = [
      ["layer", "This layer"],
      ["map", "1,296 layers"],
    ].map(([tab, text]) =>
      h(
        "button",
        { type: "button", role: "tab", class: "mw-es-tab", "data-tab": tab, onclick: () => this.turn(tab) },
        text,
      ),
    );
    this.legend = legend;
    this.dialog = h(
      "dialog",
      { class: "mw-dialog mw-es-dialog", "aria-labelledby": "mw-es-title" },
      h(
        "header",
        {},
        h("div", {}, h("h2", { id: "mw-es-title" }, "Expert schedules"), this.about),
        h("span", { class: "mw-grow" }),
        this.refusal,
        legend,
        close,
      ),
      h("div", { class: "mw-es-tabs", role: "tablist", "aria-label": "What is compared" }, ...this.tabs),
      this.grid,
      this.map.element,
    );
    this.overlay = new Overlay(this.model, this.dialog, () => this.opened());
    this.root = h("div", { class: "mw-canvas mw-shell mw-overlay mw-expert-schedules" }, this.dialog);
    this.tips = new Tips(this.dialog);
  }

  opened() {
    this.refusal.textContent = "";
    this.tab = "layer";
    this.draw();
    (this.picks().find((pick) => pick.ariaCurrent === "true") ?? this.picks()[0])?.focus();
  }

  answered({ type, refused }) {
    if (type === "answered") this.refusal.textContent = refused ?? "";
  }

  turn(tab) {
    this.tab = tab;
    if (tab === "map") this.map.ask();
    this.draw();
  }

  draw() {
    const onMap = this.tab === "map";
    for (const tab of this.tabs) {
      tab.setAttribute("aria-selected", String(tab.dataset.tab === this.tab));
      tab.tabIndex = tab.dataset.tab === this.tab ? 0 : -1;
    }
    this.grid.hidden = this.legend.hidden = onMap;
    this.map.element.hidden = !onMap;
    if (onMap) this.map.draw(this.model.map);
    this.about.textContent = onMap
      ? "Which schedule is the fastest over a grid of layers, and by how much"
      : this.model.about;
    const focus = this.root.getRootNode().activeElement;
    const held = focus?.closest?.(".mw-es-card");
    const tip = held ? tipsOf(held).indexOf(focus) : -1;
    this.grid.replaceChildren(...this.model.cards.map((card) => this.card(card)));
    const picks = this.picks();
    const current =
      picks.find((pick) => cardOf(pick).dataset.name === held?.dataset.name) ??
      picks.find((pick) => pick.ariaCurrent === "true") ??
      picks[0];
    this.stopAt(current);
    if (held && current) (tipsOf(cardOf(current))[tip] ?? current).focus();
  }

  /** Tab stops at one card of all, and at what explains itself in it. */
  stopAt(current) {
    for (const pick of this.picks()) {
      pick.tabIndex = pick === current ? 0 : -1;
      tipsOf(cardOf(pick)).forEach((tip, number) => (tip.tabIndex = pick === current && !number ? 0 : -1));
    }
  }

  card(card) {
    const { name, title, help, present, best, reason, layout, change, choice, terms } = card;
    const marks = [
      present && h("span", { class: "mw-es-mark", "data-kind": "now" }, "now"),
      best && h("span", { class: "mw-es-mark", "data-kind": "best" }, "fastest"),
    ];
    const head = h(
      "div",
      { class: "mw-es-head" },
      h("strong", {}, title),
      ...marks.filter(Boolean),
      h("span", { class: "mw-grow" }),
      layout ? h("span", { class: "mw-quiet" }, layout) : "",
    );
    const spoken = reason
      ? `${title}: cannot run this layer. ${reason}`
      : `${title}${present ? ", what you have" : ""}${best ? ", the fastest" : ""}: ` +
        `${card.time}${change ? `, ${change}` : ""}, between nodes ${card.inter}, inside ${card.intra}, memory ` +
        `${card.memory}`;
    const body = reason
      ? [h("p", { class: "mw-es-help" }, help), h("p", { class: "mw-es-reason" }, reason)]
      : [
          drawLayer(card, this.model),
          ...figures(card, change, this.model.help),
          h("p", { class: "mw-es-help" }, ...explained(choice || help, terms)),
        ];
    const pick = h(
      "button",
      {
        class: "mw-es-pick",
        type: "button",
        "aria-label": spoken,
        "aria-current": present ? "true" : null,
        tabindex: -1,
      },
      head,
    );
    const element = h(
      "div",
      { class: "mw-choice mw-es-card", role: "group", "aria-label": title, "data-name": name },
      pick,
      ...body,
    );
    element.toggleAttribute("data-refused", Boolean(reason));
    element.addEventListener("click", () =>
      present ? this.overlay.close() : send(this.model, { type: "choose", name }),
    ); // of the button too
    element.addEventListener("focusin", () => pick.tabIndex && this.stopAt(pick));
    walkTips(element);
    return element;
  }

  walkTabs(event) {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    const next = this.tabs.find((tab) => tab.dataset.tab !== this.tab);
    this.turn(next.dataset.tab);
    next.focus();
    event.preventDefault();
    event.stopPropagation();
  }

  picks() {
    return [...this.grid.querySelectorAll(".mw-es-pick")];
  }

  /** Arrows walk over the cards as they lie, Enter chooses: walking alone edits nothing. */
  key(event) {
    const picks = this.picks();
    const at = picks.indexOf(event.target);
    const top = picks[0] && cardOf(picks[0]).offsetTop;
    const row = Math.max(1, picks.filter((pick) => cardOf(pick).offsetTop === top).length);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, Home: -at, End: picks.length - 1 - at }[
      event.key
    ];
    if (at < 0 || step === undefined) return;
    picks[Math.max(0, Math.min(picks.length - 1, at + step))].focus();
    event.preventDefault();
    event.stopPropagation();
  }
}

const cardOf = (pick) => pick.closest(".mw-es-card");

const tipsOf = (card) => [...card.querySelectorAll("[data-tip]")];

/** Three lanes of one device: computing, links inside its node, links to others; the forward, then the backward. */
function drawLayer({ picture, axis }, { lanes, help }) {
  const height = lanes.length * (BOX.lane + BOX.gap);
  const svg = s("svg", {
    class: "mw-es-picture",
    viewBox: `0 0 ${BOX.width} ${height}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  const scale = BOX.width / axis;
  lanes.forEach((_, lane) =>
    svg.append(
      s("rect", { class: "mw-es-lane", x: 0, y: lane * (BOX.lane + BOX.gap), width: BOX.width, height: BOX.lane }),
    ),
  );
  picture.lane.forEach((lane, i) => {
    const width = Math.max(0.6, (picture.end[i] - picture.start[i]) * scale - 0.4);
    svg.append(
      s("rect", {
        x: picture.start[i] * scale,
        y: lane * (BOX.lane + BOX.gap),
        width,
        height: BOX.lane,
        fill: `var(--step-${picture.kind[i]})`,
      }),
    );
  });
  const turn = picture.turn * scale;
  svg.append(s("line", { class: "mw-es-turn", x1: turn, x2: turn, y1: 0, y2: height }));
  return h(
    "div",
    { class: "mw-es-lanes", role: "group", "aria-label": "timeline of the slowest device", ...tipped(help.lanes) },
    h("div", { class: "mw-es-names" }, ...lanes.map((lane) => h("span", {}, lane))),
    svg,
  );
}

function figures({ time, parts, inter, intra, memory, buffers }, change, help) {
  const better = change?.startsWith("-");
  const row = (key, name, value, small) => [
    h("dt", {}, h("span", tipped(help[key]), name)),
    h("dd", {}, value, small ? h("span", { class: "mw-quiet" }, ` ${small}`) : ""),
  ];
  return [
    h(
      "div",
      { class: "mw-es-time" },
      h("strong", {}, h("span", tipped(help.time), time)),
      h("span", { class: "mw-quiet" }, ` ${parts}`),
      h("span", { class: "mw-grow" }),
      h("span", { class: "mw-es-change", "data-better": better ? "" : null }, change ?? ""),
    ),
    h(
      "dl",
      {},
      ...row("inter", "Between nodes", inter, "a device, forward"),
      ...row("intra", "Inside nodes", intra, "a device, forward"),
      ...row("memory", "Memory", memory, `+ ${buffers} of buffers`),
    ),
  ];
}
