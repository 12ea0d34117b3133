// The gallery: every schedule for the open design as a card, sorted and filtered here, found in Python.

import { button, followTheme, h, send } from "../kit/canvas.js";
import { Overlay, Tips, tool } from "../kit/shell.js";
import { drawSchedule } from "../kit/schedule_picture.js";

const ORDERS = [
  ["iteration", "Iteration", "Time of one training step"],
  ["bubble", "Bubble", "Share of all meshes' time in which they do not compute"],
  ["memory", "Memory", "The most that any device holds"],
  ["traffic", "Traffic", "Bytes that all devices send from mesh to mesh in a step"],
  ["weights", "Weights", "Copies of the model's weights"],
];
const SPAN = "The span bubble counts each mesh from its own first start to its own last end.";

export const render = ({ model }) => new Gallery(model).root;

class Gallery {
  constructor(model) {
    this.model = model;
    this.order = "iteration";
    this.fitting = false;
    this.all = false;
    this.forget("");
    this.build();
    model.on("pinned", () => this.markPins());
    model.on("msg:custom", (message) => this.told(message));
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
    this.overlay.follow();
  }

  forget(about) {
    this.about = about;
    this.cards = new Map(); // by key: what Python found
    this.elements = new Map();
    this.axis = 1;
    this.notes = [];
    this.done = false;
  }

  // ── elements ──

  build() {
    this.subtitle = h("p", { class: "mw-dialog-about" });
    this.state = h("span", { class: "mw-gallery-state", role: "status" });
    this.sorts = ORDERS.map(([key, text, tip]) =>
      segment(text, `${tip}: the least first${key === "bubble" ? `. ${SPAN}` : ""}`, () => this.sort(key)),
    );
    this.kinds = [
      segment("Best of each", "The best variant of each schedule by what is sorted by, and what you have", () =>
        this.show(false),
      ),
      segment(
        "All variants",
        "Every number of waves, chunks and replicas, every grouping, whole and split backwards",
        () => this.show(true),
      ),
    ];
    this.fits = h("input", { type: "checkbox", id: "mw-gallery-fits" });
    this.fits.addEventListener("change", () => this.filter(this.fits.checked));
    this.grid = h("div", { class: "mw-cards", role: "group", "aria-label": "Schedules" });
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.lessons = h("aside", { class: "mw-lessons", "aria-label": "What the numbers say" });
    this.refusal = h("div", { class: "mw-dialog-refusal", role: "alert", hidden: true });
    const close = tool("Close", { glyph: "close", tip: "Close (Esc)", onclick: () => this.overlay.close() });
    const group = (label, parts) => h("div", { class: "mw-segments", role: "group", "aria-label": label }, ...parts);
    this.dialog = h(
      "dialog",
      { class: "mw-dialog mw-gallery-dialog", "aria-labelledby": "mw-gallery-title" },
      h(
        "header",
        {},
        h("div", {}, h("h2", { id: "mw-gallery-title" }, "Gallery of schedules"), this.subtitle),
        h("span", { class: "mw-grow" }),
        this.state,
        close,
      ),
      h(
        "div",
        { class: "mw-gallery-bar" },
        ...[h("span", { class: "mw-quiet" }, "Sort by"), group("Sort by", this.sorts), group("Variants", this.kinds)],
        ...[
          h("label", { class: "mw-fits" }, this.fits, "Fits in memory"),
          h("span", { class: "mw-grow" }),
          this.refusal,
          legend(this.model.words),
        ],
      ),
      h("div", { class: "mw-gallery-body" }, this.grid, this.lessons),
    );
    this.overlay = new Overlay(this.model, this.dialog, () => this.opened());
    this.root = h("div", { class: "mw-canvas mw-shell mw-overlay mw-gallery" }, this.dialog);
    this.tips = new Tips(this.dialog);
  }

  opened() {
    this.draw();
    this.reach();
  }

  // ── what Python says ──

  told(message) {
    if (message.type === "reset") {
      this.forget(message.about);
    } else if (message.type === "found") {
      for (const card of message.cards) this.cards.set(card.key, card);
      this.axis = message.axis;
      this.notes = message.notes;
      this.elements.clear(); // the axis may be another
    } else if (message.type === "done") {
      this.done = true;
    } else if (message.type === "answered") {
      this.refusal.textContent = message.refused ?? "";
      this.refusal.hidden = !message.refused;
      return;
    }
    this.draw();
    if (message.type === "found") this.reach();
  }

  /** Give the keyboard to the card of the present schedule, unless a person has gone elsewhere. */
  reach() {
    const at = this.root.getRootNode().activeElement;
    if (this.dialog.open && (!at || !this.dialog.contains(at) || at === this.dialog || at.closest("header")))
      this.picks()
        .find((pick) => pick.tabIndex === 0)
        ?.focus();
  }

  // ── sorting and filtering ──

  sort(key) {
    this.order = key;
    this.draw();
  }

  show(all) {
    this.all = all;
    this.draw();
  }

  filter(fitting) {
    this.fitting = fitting;
    this.draw();
  }

  /** The cards to show, in order: those without numbers last. */
  sorted() {
    const value = (card) => card.by?.[this.order] ?? Infinity;
    const byTime = (card) => card.by?.iteration ?? Infinity;
    const cards = [...this.cards.values()].filter((card) => !this.fitting || card.fits || card.present);
    cards.sort((a, b) => compare(value(a), value(b)) || compare(byTime(a), byTime(b)));
    if (this.all) return cards;
    const seen = new Set();
    return cards.filter((card) => {
      const first = !seen.has(card.schedule);
      seen.add(card.schedule);
      return first || card.present;
    });
  }

  draw() {
    const cards = this.sorted();
    this.subtitle.textContent = this.about;
    const count = `${this.cards.size} variant${this.cards.size === 1 ? "" : "s"}`;
    this.state.textContent = this.done ? `${count}, ${cards.length} shown` : `Simulating … ${count} so far`;
    this.state.toggleAttribute("data-busy", !this.done);
    this.sorts.forEach((button, place) => button.setAttribute("aria-pressed", String(ORDERS[place][0] === this.order)));
    this.kinds.forEach((button, place) => button.setAttribute("aria-pressed", String(this.all === Boolean(place))));
    const held = this.root.getRootNode().activeElement;
    const key = held?.closest?.(".mw-card")?.dataset.key;
    this.grid.replaceChildren(...cards.map((card) => this.element(card)));
    const picks = this.picks();
    const current =
      picks.find((pick) => pick.parentElement.dataset.key === key) ??
      picks.find((pick) => pick.parentElement.hasAttribute("data-present")) ??
      picks[0];
    stopAt(picks, current);
    if (key) current?.focus();
    this.lessons.replaceChildren(...this.lesson());
    this.markPins();
  }

  markPins() {
    for (const pin of this.grid.querySelectorAll(".mw-card-pin")) {
      const pinned = this.model.pinned.includes(pin.parentElement.dataset.key);
      pin.setAttribute("aria-pressed", String(pinned));
      pin.dataset.tip = pinned
        ? "Pinned to compare with; press to unpin (P)"
        : "Pin it, to compare with your design (P)";
    }
  }

  lesson() {
    return [
      h("h3", { class: "mw-lessons-title" }, this.done ? "What the numbers say" : "What the numbers say so far"),
      ...this.notes.flatMap((note) => this.note(note)),
    ];
  }

  /** What the numbers say, and where they speak for a variant a button that takes it. */
  note({ title, text, advised, advised_title: named }) {
    const use =
      advised && this.cards.get(advised)?.choosable
        ? button(`Use ${named}`, {
            content: "Use it",
            title: `Use ${named}`,
            onclick: () => send(this.model, { type: "choose", key: advised }),
          })
        : null;
    return [h("h4", {}, title), h("p", {}, text), ...(use ? [h("div", { class: "mw-lesson-use" }, use)] : [])];
  }

  // ── a card ──

  element(card) {
    const kept = this.elements.get(card.key);
    if (kept) return kept;
    const made = card.reason ? this.refused(card) : this.judged(card);
    made.toggleAttribute("data-present", card.present);
    made.dataset.key = card.key;
    this.elements.set(card.key, made);
    return made;
  }

  judged(card) {
    const longer = card.makespan > this.axis * 1.001;
    const picture = h("div", { class: "mw-picture" }, drawSchedule({ ...card.picture, makespan: this.axis }));
    if (longer) picture.append(h("span", { class: "mw-longer" }, "goes on"));
    const memory = h(
      "div",
      { class: "mw-meter" },
      h("div", { style: { width: `${Math.min(100, 100 * card.filled)}%` } }),
    );
    memory.toggleAttribute("data-wrong", !card.fits);
    const figures = [
      figure("Bubble", card.bubble, `span ${card.span}`),
      figure("Memory", card.memory, card.fits ? `of ${card.capacity}` : "does not fit", !card.fits),
      figure("Traffic", card.traffic, ""),
      figure("Weights", card.copies, ""),
    ];
    const spoken =
      `${card.title}${card.present ? ", what you have" : ""}: iteration ` +
      `${card.iteration}${card.change ? `, ${card.change} against what you have` : ""}, bubble ${card.bubble}, ` +
      `memory ${card.memory}${card.fits ? "" : ", does not fit"}, traffic ${card.traffic}, weights ${card.copies}`;
    const change = h("span", { class: "mw-card-change", "data-better": card.better ? "" : null }, card.change);
    const pick = this.pick(
      card,
      spoken,
      ...[
        this.head(card),
        picture,
        h("div", { class: "mw-card-time" }, h("strong", {}, ...unit(card.iteration)), change),
      ],
      ...[h("dl", {}, ...figures.flat()), memory],
    );
    const pin = tool(`Compare ${card.title}`, {
      glyph: "pin",
      onclick: () => send(this.model, { type: "pin", key: card.key }),
    });
    pin.classList.add("mw-card-pin");
    return h("div", { class: "mw-card" }, pick, card.present ? null : pin);
  }

  refused(card) {
    const pick = this.pick(
      card,
      `${card.title}: ${card.reason}`,
      this.head(card),
      h("p", { class: "mw-reason" }, card.reason),
    );
    pick.setAttribute("aria-disabled", String(!card.choosable));
    return h("div", { class: "mw-card", "data-refused": "" }, pick);
  }

  head(card) {
    const [name, ...rest] = card.title.split(", ");
    const now = card.present ? h("span", { class: "mw-now" }, "now") : null;
    return h(
      "div",
      { class: "mw-card-head", "data-tip": rest.length ? card.title : null },
      h("span", { class: "mw-card-name" }, name),
      h("span", { class: "mw-card-options" }, rest.join(", ")),
      now,
    );
  }

  pick(card, label, ...parts) {
    const pick = h(
      "button",
      {
        class: "mw-choice mw-pick",
        type: "button",
        "aria-label": label,
        "aria-current": card.present ? "true" : null,
        tabindex: -1,
      },
      ...parts,
    );
    pick.addEventListener("click", () => {
      if (card.choosable) send(this.model, { type: "choose", key: card.key });
      else if (card.present) this.overlay.close();
    });
    return pick;
  }

  picks() {
    return [...this.grid.querySelectorAll(".mw-pick")];
  }

  /** Arrows walk over the cards as they lie, Enter chooses: walking alone edits nothing. P pins the card. */
  key(event) {
    const picks = this.picks();
    const at = picks.indexOf(event.target.closest(".mw-card")?.querySelector(".mw-pick"));
    if (at < 0) return;
    if (event.key.toLowerCase() === "p" && !event.ctrlKey && !event.metaKey) {
      picks[at].parentElement.querySelector(".mw-card-pin")?.click();
    } else {
      const row = columnsOf(picks);
      const step = {
        ArrowRight: 1,
        ArrowLeft: -1,
        ArrowDown: row,
        ArrowUp: -row,
        Home: -at,
        End: picks.length - 1 - at,
      }[event.key];
      if (step === undefined) return;
      const next = picks[Math.max(0, Math.min(picks.length - 1, at + step))];
      stopAt(picks, next);
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

// ── small things ────────────────────────────────────────────────────────────────────────────

const compare = (a, b) => (a === b ? 0 : a < b ? -1 : 1);

/** Tab stops at one card, and at its pin. */
function stopAt(picks, current) {
  for (const pick of picks) for (const part of pick.parentElement.children) part.tabIndex = pick === current ? 0 : -1;
}

/** The colour of each kind of computation. */
function legend(words) {
  return h(
    "div",
    { class: "mw-legend" },
    ...Object.entries(words).map(([kind, word]) =>
      h("span", {}, h("i", { style: { "--kind": `var(--op-${kind.toLowerCase()})` } }), word),
    ),
  );
}

function segment(text, tip, onclick) {
  return h("button", { class: "mw-segment", type: "button", "data-tip": tip, onclick }, text);
}

function figure(name, value, small, wrong = false) {
  const note = small ? h("span", { class: wrong ? "mw-wrong" : "mw-small" }, small) : null;
  return [h("dt", {}, name), h("dd", { "data-tip": name === "Bubble" ? SPAN : null }, value, note ? " " : null, note)];
}

function unit(text) {
  const [amount, ...rest] = text.split(" ");
  return [amount, h("span", {}, ` ${rest.join(" ")}`)];
}

/** How many cards lie in the first row. */
function columnsOf(picks) {
  const top = picks[0].getBoundingClientRect().top;
  const next = picks.findIndex((pick) => pick.getBoundingClientRect().top > top + 4);
  return next < 0 ? picks.length : next;
}
