// Selection of a schedule by thumbnails, which are simulated timelines of four meshes.

/** @import { ScheduleChoice, SchedulePicture } from "./types" */

import { ARROW_STEPS, closest, consume, h, s, setTabStop } from "./dom.js";
import { boxOf } from "./zoom.js";

const SIZE = { width: 84, height: 38 };
const OPS = ["f", "b", "i", "w"];

/**
 * A timeline as a small picture, or a pencil if there is none. `half` is the half of the lane for an action that
 * shares its slot with another action: 1 is the upper, 2 the lower half.
 * @param {SchedulePicture | undefined} spans
 */
export function drawSchedule(spans) {
  const picture = s("svg.mw-mini", {
    viewBox: `0 0 ${SIZE.width} ${SIZE.height}`,
    preserveAspectRatio: spans ? "none" : "xMidYMid",
    "aria-hidden": "true",
  });
  if (!spans) {
    picture.append(s("path.mw-pencil", { d: "M30 27 46 11l6 6-16 16h-6z M43 14l6 6" }));
    return picture;
  }
  const lane = SIZE.height / spans.ranks;
  const scale = SIZE.width / spans.makespan;
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

/** A row of schedules, of which one is selected. A press on an unsupported schedule calls `onblocked` with the
 * reason. */
export class ScheduleRow {
  /** @type {HTMLButtonElement[]} */ cards = [];
  /** @type {ScheduleChoice[]} */ schedules = [];
  names = "";
  current = "";

  /** @param {{onchoose: (name: string) => void, onblocked: (reason: string, card: HTMLElement) => void}} listeners */
  constructor({ onchoose, onblocked }) {
    this.onchoose = onchoose;
    this.onblocked = onblocked;
    this.element = h("div.mw-schedules", { role: "radiogroup", "aria-label": "Schedule" });
    this.element.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.tabStop && this.reveal(this.tabStop)).observe(this.element);
  }

  /** @param {ScheduleChoice[]} schedules @param {Record<string, SchedulePicture>} pictures @param {string} current */
  set(schedules, pictures, current) {
    this.schedules = schedules;
    const names = schedules.map(({ name }) => name).join();
    if (names !== this.names) {
      this.names = names;
      this.cards = schedules.map((schedule, index) => this.card(schedule, index, pictures[schedule.name]));
      this.element.replaceChildren(...this.cards);
    }
    schedules.forEach(({ name, title, blurb, reason }, index) => {
      const card = this.cards[index];
      card.setAttribute("aria-checked", String(name === current));
      card.setAttribute("aria-disabled", String(Boolean(reason)));
      card.setAttribute("aria-label", reason ? `${title}: not supported. ${reason}` : `${title}. ${blurb}`);
      card.title = reason ? `${title}: ${reason}` : `${title}. ${blurb}`;
    });
    const chosen = this.cards.find((card) => card.dataset.schedule === current);
    setTabStop(this.cards, chosen ?? this.cards[0]);
    if (this.current === current) return;
    this.current = current;
    const isPressed = this.element.matches(":active"); // a press ends on the card on which it began
    if (chosen && !isPressed) this.reveal(chosen);
  }

  /** The card with the tab stop. */
  get tabStop() {
    return this.cards.find((card) => card.tabIndex === 0) ?? null;
  }

  /** @param {HTMLElement} card */
  reveal(card) {
    const [row, box] = [boxOf(this.element), boxOf(card)];
    if (box.left < row.left) this.element.scrollLeft -= row.left - box.left + 12;
    if (box.right > row.right) this.element.scrollLeft += box.right - row.right + 12;
  }

  /** @param {ScheduleChoice} schedule @param {number} index @param {SchedulePicture} spans */
  card({ name, title }, index, spans) {
    const attributes = { type: "button", role: "radio", "data-schedule": name };
    const card = h("button.mw-schedule", attributes, drawSchedule(spans), h("span", {}, title));
    card.addEventListener("click", () => {
      const { reason } = this.schedules[index];
      if (reason) this.onblocked(reason, card);
      else this.onchoose(name); // also for the current schedule: Python may not have responded to an earlier choice yet
    });
    return card;
  }

  /** Arrow keys move the focus; Enter or Space chooses. @param {KeyboardEvent} event */
  key(event) {
    const step = ARROW_STEPS[event.key];
    if (!step) return;
    const at = this.cards.findIndex((card) => card === closest(event, ".mw-schedule"));
    const card = this.cards[(at + step + this.cards.length) % this.cards.length];
    card.focus();
    this.reveal(card);
    consume(event);
  }
}

const round = (/** @type {number} */ number) => Math.round(number * 100) / 100;
