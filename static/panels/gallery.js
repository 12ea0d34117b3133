// The schedule gallery: a card per schedule for the open design. Python simulates the schedules; the cards are sorted
// and filtered here.

/** @import { Message } from "../kit/types" */
/** @import { Card, GalleryModel, Note, SimulatedCard } from "./types" */

import { button } from "../kit/controls.js";
import { closest, consume, countPerRow, find, findAll, focusedElement, h, indexByKey, setTabStop } from "../kit/dom.js";
import { count } from "../kit/numbers.js";
import { drawSchedule } from "../kit/schedule_picture.js";
import { DialogWidget, tool } from "../kit/shell.js";

const ORDERS = [
  ["iteration", "Iteration", "Time of one training step"],
  ["bubble", "Bubble", "Fraction of time in which meshes do not compute"],
  ["memory", "Memory", "Peak memory of a device"],
  ["traffic", "Traffic", "Bytes sent between meshes per step"],
  ["weights", "Weights", "Copies of the model weights"],
];
const SPAN = "The span bubble of a mesh is measured from the start of its first action to the end of its last one.";

/** @param {{model: GalleryModel}} args */
export const render = ({ model }) => new Gallery(model).root;

/** @extends {DialogWidget<GalleryModel>} */
class Gallery extends DialogWidget {
  order = "iteration";
  onlyFitting = false;
  allVariants = false;
  about = "";
  /** @type {Map<string, Card | SimulatedCard>} */ cards = new Map();
  /** @type {Map<string, HTMLElement>} */ elements = new Map();
  /** @type {Note[]} */ notes = [];
  axis = 1;
  isDone = false;

  /** @param {GalleryModel} model */
  constructor(model) {
    super(model);
    this.subtitle = h("p.mw-dialog-about");
    this.progress = h("span.mw-gallery-state", { role: "status" });
    this.sorts = ORDERS.map(([order, text, tip]) =>
      segment(text, `${tip}, lowest first${order === "bubble" ? `. ${SPAN}` : ""}`, () => this.update({ order })),
    );
    this.kinds = [
      segment("Best variants", "The best variant of each schedule, and the current one", () =>
        this.update({ allVariants: false }),
      ),
      segment(
        "All variants",
        "All numbers of waves, chunks and replicas, all groupings, full and split backwards",
        () => this.update({ allVariants: true }),
      ),
    ];
    this.fits = h("input", { type: "checkbox", id: "mw-gallery-fits" });
    this.fits.addEventListener("change", () => this.update({ onlyFitting: this.fits.checked }));
    this.grid = h("div.mw-cards", { role: "group", "aria-label": "Schedules" });
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.lessons = h("aside.mw-lessons", { "aria-label": "Findings" });
    const segments = (/** @type {string} */ label, /** @type {HTMLElement[]} */ parts) =>
      h("div.mw-segments", { role: "group", "aria-label": label }, ...parts);
    const bar = [
      h("span.mw-quiet", {}, "Sort by"),
      segments("Sort by", this.sorts),
      segments("Variants", this.kinds),
      h("label.mw-fits", {}, this.fits, "Fits in memory"),
      h("span.mw-grow"),
      this.refusal,
      legend(model.words),
    ];
    this.build(
      "gallery",
      "Schedule gallery",
      [this.subtitle],
      [this.progress],
      [h("div.mw-gallery-bar", {}, ...bar), h("div.mw-gallery-body", {}, this.grid, this.lessons)],
    );
    model.on("pinned", () => this.markPins());
  }

  onopen() {
    this.draw();
    this.focusCurrent();
  }

  /** @param {Message} message */
  receive(message) {
    if (message.type === "answered") return super.receive(message);
    if (message.type === "reset") {
      Object.assign(this, { about: message.about, cards: new Map(), elements: new Map(), notes: [], isDone: false });
      this.axis = 1;
    } else if (message.type === "found") {
      for (const card of message.cards) this.cards.set(card.key, card);
      this.axis = message.axis;
      this.notes = message.notes;
      this.elements.clear(); // the common axis may have changed
    } else if (message.type === "done") {
      this.isDone = true;
    }
    this.draw();
    if (message.type === "found") this.focusCurrent();
  }

  /** Focus the card of the current schedule, unless the focus was moved elsewhere in the gallery. */
  focusCurrent() {
    const focused = focusedElement(this.root);
    const isElsewhere =
      focused && focused !== this.dialog && this.dialog.contains(focused) && !focused.closest("header");
    if (this.dialog.open && !isElsewhere)
      this.picks()
        .find((pick) => pick.tabIndex === 0)
        ?.focus();
  }

  /** @param {{order?: string, allVariants?: boolean, onlyFitting?: boolean}} choice */
  update(choice) {
    Object.assign(this, choice);
    this.draw();
  }

  /** The cards to show in their order; cards without metrics come last. */
  sorted() {
    const value = (/** @type {Card | SimulatedCard} */ card, order = this.order) =>
      "by" in card ? card.by[order] : Infinity;
    const cards = [...this.cards.values()].filter(
      (card) => !this.onlyFitting || ("fits" in card && card.fits) || card.present,
    );
    cards.sort((a, b) => compare(value(a), value(b)) || compare(value(a, "iteration"), value(b, "iteration")));
    if (this.allVariants) return cards;
    const seen = new Set();
    return cards.filter((card) => {
      const isFirst = !seen.has(card.schedule);
      seen.add(card.schedule);
      return isFirst || card.present;
    });
  }

  draw() {
    const cards = this.sorted();
    this.subtitle.textContent = this.about;
    const variants = count(this.cards.size, "variant");
    this.progress.textContent = this.isDone ? `${variants}, ${cards.length} shown` : `Simulating … ${variants} so far`;
    this.progress.toggleAttribute("data-busy", !this.isDone);
    this.sorts.forEach((button, i) => button.setAttribute("aria-pressed", String(ORDERS[i][0] === this.order)));
    this.kinds.forEach((button, i) => button.setAttribute("aria-pressed", String(this.allVariants === Boolean(i))));
    const key = focusedElement(this.root)?.closest(".mw-card")?.getAttribute("data-key");
    this.grid.replaceChildren(...cards.map((card) => this.element(card)));
    const picks = this.picks();
    const current =
      picks.find((pick) => cardOf(pick).dataset.key === key) ??
      picks.find((pick) => cardOf(pick).hasAttribute("data-present")) ??
      picks[0];
    setCardStop(picks, current);
    if (key) current?.focus();
    this.lessons.replaceChildren(
      h("h3.mw-lessons-title", {}, this.isDone ? "Findings" : "Findings so far"),
      ...this.notes.flatMap((note) => this.note(note)),
    );
    this.markPins();
  }

  markPins() {
    for (const pin of findAll(this.grid, ".mw-card-pin")) {
      const isPinned = this.model.pinned.includes(cardOf(pin).dataset.key ?? "");
      pin.setAttribute("aria-pressed", String(isPinned));
      pin.dataset.tip = isPinned ? "Pinned for comparison; press to unpin (P)" : "Pin for comparison (P)";
    }
  }

  /** A finding, with a button to apply the variant that it recommends. @param {Note} note */
  note({ title, text, advised, advised_title: advisedTitle }) {
    const use =
      advised &&
      this.cards.get(advised)?.choosable &&
      button(`Use ${advisedTitle}`, {
        content: "Apply",
        title: `Use ${advisedTitle}`,
        onclick: () => this.send("choose", { key: advised }),
      });
    return [h("h4", {}, title), h("p", {}, text), use ? h("div.mw-lesson-use", {}, use) : ""];
  }

  // ── a card ──

  /** @param {Card | SimulatedCard} card */
  element(card) {
    const known = this.elements.get(card.key);
    if (known) return known;
    const element = "by" in card ? this.simulatedCard(card) : this.refusedCard(card);
    element.toggleAttribute("data-present", card.present);
    element.dataset.key = card.key;
    this.elements.set(card.key, element);
    return element;
  }

  /** @param {SimulatedCard} card */
  simulatedCard(card) {
    const isCut = card.makespan > this.axis * 1.001;
    const picture = h("div.mw-picture", {}, drawSchedule({ ...card.picture, makespan: this.axis }));
    if (isCut) picture.append(h("span.mw-longer", {}, "continues"));
    const used = h("div", { style: { width: `${Math.min(100, 100 * card.filled)}%` } });
    const figures = [
      figure("Bubble", card.bubble, `span ${card.span}`),
      figure("Memory", card.memory, card.fits ? `of ${card.capacity}` : "does not fit", !card.fits),
      figure("Traffic", card.traffic, ""),
      figure("Weights", card.copies, ""),
    ];
    const label =
      `${card.title}${card.present ? ", current" : ""}: iteration ${card.iteration}` +
      `${card.change ? `, ${card.change} relative to the current schedule` : ""}, bubble ${card.bubble}, ` +
      `memory ${card.memory}${card.fits ? "" : ", does not fit"}, traffic ${card.traffic}, weights ${card.copies}`;
    const [amount, ...unit] = card.iteration.split(" ");
    const change = h("span.mw-card-change", { "data-better": card.better }, card.change);
    const time = h("strong", {}, amount, h("span", {}, ` ${unit.join(" ")}`));
    const pick = this.pick(
      card,
      label,
      head(card),
      picture,
      h("div.mw-card-time", {}, time, change),
      h("dl", {}, ...figures.flat()),
      h("div.mw-meter", { "data-wrong": !card.fits }, used),
    );
    if (card.present) return h("div.mw-card", {}, pick);
    const onclick = () => this.send("pin", { key: card.key });
    return h("div.mw-card", {}, pick, tool(`Compare ${card.title}`, { glyph: "pin", kind: "mw-card-pin", onclick }));
  }

  /** @param {Card} card */
  refusedCard(card) {
    const pick = this.pick(card, `${card.title}: ${card.reason}`, head(card), h("p.mw-reason", {}, card.reason));
    pick.setAttribute("aria-disabled", String(!card.choosable));
    return h("div.mw-card", { "data-refused": true }, pick);
  }

  /** @param {Card} card @param {string} label @param {HTMLElement[]} parts */
  pick(card, label, ...parts) {
    const onclick = () => {
      if (card.choosable) this.send("choose", { key: card.key });
      else if (card.present) this.overlay.close();
    };
    const current = card.present ? "true" : null;
    const attributes = { type: "button", "aria-label": label, "aria-current": current, tabindex: -1, onclick };
    return h("button.mw-choice.mw-pick", attributes, ...parts);
  }

  picks() {
    return findAll(this.grid, ".mw-pick");
  }

  /** Arrow keys move the focus, Enter chooses, P pins the card. @param {KeyboardEvent} event */
  key(event) {
    const picks = this.picks();
    const at = picks.findIndex((pick) => cardOf(pick) === closest(event, ".mw-card"));
    if (at < 0) return;
    if (event.key.toLowerCase() === "p" && !event.ctrlKey && !event.metaKey) {
      find(cardOf(picks[at]), ".mw-card-pin")?.click();
    } else {
      const index = indexByKey(event.key, at, picks.length, countPerRow(picks));
      if (index === undefined) return;
      setCardStop(picks, picks[index]);
      picks[index].focus();
      picks[index].scrollIntoView({ block: "nearest" });
    }
    consume(event);
  }
}

/** @param {number} a @param {number} b */
const compare = (a, b) => (a === b ? 0 : a < b ? -1 : 1);

/** @param {HTMLElement} pick */
const cardOf = (pick) => /** @type {HTMLElement} */ (pick.parentElement);

/** Make one card and its pin the tab stops. @param {HTMLElement[]} picks @param {HTMLElement | undefined} current */
function setCardStop(picks, current) {
  const parts = picks.flatMap((pick) => findAll(cardOf(pick), ":scope > *"));
  setTabStop(parts);
  for (const part of current ? findAll(cardOf(current), ":scope > *") : []) part.tabIndex = 0;
}

/** @param {Card} card */
function head(card) {
  const [name, ...options] = card.title.split(", ");
  return h(
    "div.mw-card-head",
    { "data-tip": options.length ? card.title : null },
    h("span.mw-card-name", {}, name),
    h("span.mw-card-options", {}, options.join(", ")),
    card.present && h("span.mw-now", {}, "current"),
  );
}

/** The colour of each kind of computation. @param {Record<string, string>} words */
function legend(words) {
  const entries = Object.entries(words).map(([kind, word]) =>
    h("span", {}, h("i", { style: { "--kind": `var(--op-${kind.toLowerCase()})` } }), word),
  );
  return h("div.mw-legend", {}, ...entries);
}

/** @param {string} text @param {string} tip @param {() => void} onclick */
const segment = (text, tip, onclick) => h("button.mw-segment", { type: "button", "data-tip": tip, onclick }, text);

/** @param {string} name @param {string} value @param {string} small @param {boolean} [isWrong] */
function figure(name, value, small, isWrong = false) {
  const note = small && h("span", { class: isWrong ? "mw-wrong" : "mw-small" }, small);
  return [h("dt", {}, name), h("dd", { "data-tip": name === "Bubble" ? SPAN : null }, value, note ? " " : null, note)];
}
