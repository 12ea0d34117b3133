// Schedules to choose from by their small pictures: real timelines on four meshes.

import { h, s } from "./canvas.js";

const BOX = { width: 84, height: 38 };
const OPS = ["f", "b", "i", "w"]; // by number of the op

/** A timeline of columns (rank, op, shade, start, end) as a small picture; a pencil where there is none.
    A column `half` says of a slot of two which half of the lane a computation takes: 1 the upper, 2 the lower. */
export function drawSchedule(spans) {
  const picture = s("svg", {
    class: "mw-mini",
    viewBox: `0 0 ${BOX.width} ${BOX.height}`,
    preserveAspectRatio: spans ? "none" : "xMidYMid",
    "aria-hidden": "true",
  });
  if (!spans) {
    picture.append(s("path", { class: "mw-pencil", d: "M30 27 46 11l6 6-16 16h-6z M43 14l6 6" }));
    return picture;
  }
  const lane = BOX.height / spans.ranks;
  const scale = BOX.width / spans.makespan;
  const gap = Math.min(0.7, lane / 8, Math.min(...spans.end.map((end, i) => end - spans.start[i])) * scale * 0.14);
  const shapes = new Map();
  spans.rank.forEach((rank, i) => {
    const kind = `mw-op mw-op-${OPS[spans.op[i]]} mw-shade-${spans.shade[i]}`;
    const width = Math.max(0.5, (spans.end[i] - spans.start[i]) * scale - gap);
    const half = spans.half?.[i] ?? 0;
    const height = (lane - 2 * gap) / (half ? 2 : 1);
    const top = rank * lane + gap + (half === 2 ? height : 0);
    const block = `M${round(spans.start[i] * scale)} ${round(top)}h${round(width)}v${round(height)}h${-round(width)}z`;
    shapes.set(kind, (shapes.get(kind) ?? "") + block);
  });
  for (const [kind, d] of shapes) picture.append(s("path", { class: kind, d }));
  return picture;
}

/** A row of pictures, one of them chosen; those that cannot be say why. */
export class ScheduleRow {
  constructor({ onchoose, onrefuse }) {
    this.onchoose = onchoose;
    this.onrefuse = onrefuse;
    this.element = h("div", { class: "mw-schedules", role: "radiogroup", "aria-label": "schedule" });
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.cards = [];
  }

  /**
   * Show `schedules`, a list of { name, title, blurb, reason }, with their pictures by name and one marked as current.
   */
  set(schedules, pictures, current) {
    const names = schedules.map(({ name }) => name).join();
    if (names !== this.names) {
      this.names = names;
      this.cards = schedules.map(({ name, title }) => this.card(name, title, pictures[name]));
      this.element.replaceChildren(...this.cards);
    }
    schedules.forEach(({ name, title, blurb, reason }, place) => {
      const card = this.cards[place];
      card.setAttribute("aria-checked", String(name === current));
      card.setAttribute("aria-disabled", String(Boolean(reason)));
      card.setAttribute("aria-label", reason ? `${title}: cannot be used. ${reason}` : `${title}. ${blurb}`);
      card.title = reason ? `${title}: ${reason}` : `${title}. ${blurb}`;
      card.reason = reason;
      card.tabIndex = name === current ? 0 : -1;
    });
    if (!this.stop && this.cards.length) this.cards[0].tabIndex = 0;
    if (this.current !== current) {
      this.current = current;
      const pressed = this.element.matches(":active"); // a press ends on the card where it began
      if (!pressed) this.reveal(this.cards.find((card) => card.dataset.schedule === current));
    }
  }

  /** What takes the keyboard. */
  get stop() {
    return this.cards.find((card) => card.tabIndex === 0);
  }

  reveal(card) {
    if (!card) return;
    const [row, box] = [this.element.getBoundingClientRect(), card.getBoundingClientRect()];
    if (box.left < row.left) this.element.scrollLeft -= row.left - box.left + 12;
    if (box.right > row.right) this.element.scrollLeft += box.right - row.right + 12;
  }

  card(name, title, spans) {
    const card = h(
      "button",
      { class: "mw-schedule", type: "button", role: "radio", "data-schedule": name },
      drawSchedule(spans),
      h("span", {}, title),
    );
    card.addEventListener("click", () => {
      if (card.reason) this.onrefuse(card.reason, card);
      else this.onchoose(name); // also the one that is marked: an earlier choice may not be answered yet
    });
    return card;
  }

  /** Arrows walk along the pictures, Enter or Space chooses: walking alone edits nothing. */
  key(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const at = this.cards.indexOf(event.target.closest(".mw-schedule"));
    const card = this.cards.at((at + step) % this.cards.length);
    card.focus();
    this.reveal(card);
    event.preventDefault();
    event.stopPropagation();
  }
}

const round = (number) => Math.round(number * 100) / 100;
