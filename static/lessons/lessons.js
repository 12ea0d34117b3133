// The lesson pane: the list of lessons, or the open step of a lesson. Python checks the answers; it converts texts to
// HTML from Markdown without raw HTML.

/** @import { Check, LessonEntry, LessonsModel, StepData, Verdict } from "./types" */

import { button } from "../kit/controls.js";
import { find, focusedElement, h, setStyle } from "../kit/dom.js";
import { translate } from "../kit/language.js";
import { Tips, tool } from "../kit/shell.js";
import { Widget } from "../kit/widget.js";
import { boxOf, chooseTextSize, textSize } from "../kit/zoom.js";

const RING_INTERVAL_MS = 250;
const RING_MARGIN = 4;

const toggleSize = () => chooseTextSize(textSize() === "large" ? "normal" : "large");

/** @param {{model: LessonsModel}} args */
export const render = ({ model }) => new Lessons(model).root;

/** @extends {Widget<LessonsModel>} */
class Lessons extends Widget {
  title = h("span.mw-lesson-name");
  body = h("div.mw-lesson-body");
  refusal = h("p.mw-lesson-refused", { role: "alert" });
  live = h("div.mw-sr", { role: "status", "aria-live": "polite" });
  ring = h("div.mw-lesson-ring", { popover: "manual", "aria-hidden": "true" });
  place = ""; // key of the step that is shown
  wasShown = false;
  /** @type {{name: string, element: Element} | null} */ highlighted = null;

  /** @param {LessonsModel} model */
  constructor(model) {
    super(model);
    const parts = [this.head(), this.body, this.live, this.ring];
    this.root = h("section.mw-canvas.mw-shell.mw-lesson", { "aria-label": "Lesson", tabindex: -1 }, ...parts);
    this.tips = new Tips(this.root);
    model.on(["step", "lessons", "refusal"], () => this.draw());
    this.timer = setInterval(() => this.drawRing(), RING_INTERVAL_MS);
    this.observer = new ResizeObserver(() => this.focusWhenShown());
    this.observer.observe(this.root);
    this.draw();
  }

  remove() {
    clearInterval(this.timer);
    this.observer.disconnect();
  }

  head() {
    const [all, larger] = ["All lessons; your design is restored", "Larger text, for example for a projector"];
    return h(
      "header.mw-lesson-head",
      {},
      this.title,
      h("span.mw-grow"),
      tool("All lessons", { text: "All", tip: all, onclick: () => this.send("list") }),
      tool("Larger text", { text: "A+", tip: larger, onclick: toggleSize }),
      tool("Close the lesson", {
        glyph: "close",
        tip: "Close; your design is restored",
        onclick: () => this.send("leave"),
      }),
    );
  }

  focusWhenShown() {
    const isShown = this.root.offsetWidth > 0;
    if (isShown && !this.wasShown) find(this.body, "h2")?.focus();
    this.wasShown = isShown;
  }

  // ── drawing ──

  /** Draw the list or the step. Redrawing the same step keeps the typed answer and the focus. */
  draw() {
    const { step, refusal } = this.model;
    const place = step ? `${step.lesson}/${step.number}` : "";
    this.title.textContent = step ? step.lesson : "Lessons";
    this.refusal.textContent = refusal;
    this.live.textContent = step?.verdict?.reply ?? "";
    const parts = step ? this.step(step) : this.list();
    if (this.place === place) this.redraw(parts);
    else this.open(parts);
    this.place = place;
  }

  /** @param {(Node | string)[]} parts */
  open(parts) {
    this.body.replaceChildren(...parts);
    this.body.scrollTop = 0;
    find(this.body, "h2")?.focus();
  }

  /** @param {(Node | string)[]} parts */
  redraw(parts) {
    const { answer } = this;
    const focused = focusedElement(this.root)?.dataset.stop;
    this.body.replaceChildren(...parts);
    if (answer) this.restoreAnswer(answer);
    if (focused) find(this.body, `[data-stop="${focused}"]`)?.focus();
  }

  /** The typed number or the selected option. */
  get answer() {
    const field = /** @type {HTMLInputElement | null} */ (find(this.body, "input:is(:checked, .mw-lesson-number)"));
    return field?.value ?? "";
  }

  /** @param {string} answer */
  restoreAnswer(answer) {
    const field = /** @type {HTMLInputElement | null} */ (find(this.body, ".mw-lesson-number"));
    const option = find(this.body, `input[type="radio"][value="${CSS.escape(answer)}"]`);
    if (field) field.value = answer;
    if (option) /** @type {HTMLInputElement} */ (option).checked = true;
  }

  list() {
    return [h("h2", { tabindex: -1 }, "Lessons"), this.refusal, ...this.model.lessons.map((each) => this.card(each))];
  }

  /** @param {LessonEntry} entry */
  card({ name, title, note, summary, state }) {
    return h(
      "button.mw-lesson-card",
      { type: "button", "data-lesson": name, onclick: () => this.send("start", { name }) },
      h("b", { translate: "no" }, title),
      h("span.mw-lesson-note", {}, [note, state].filter(Boolean).join(" · ")),
      h("span", { translate: "no" }, summary),
    );
  }

  /** @param {StepData} step */
  step(step) {
    const { number, count, check, explanation } = step;
    return [
      h("div.mw-lesson-note", {}, `Step ${number + 1} of ${count}`),
      h("progress", { max: count, value: number + 1, "aria-label": "Progress" }),
      h("h2", { tabindex: -1, translate: "no" }, step.title),
      html(step.text),
      check ? this.check(step, check) : "",
      explanation ? html(explanation, "mw-lesson-explanation") : "",
      step.sources.length
        ? h("div.mw-lesson-note", {}, "Sources:", ...step.sources.map((each) => h("div", {}, each)))
        : "",
      this.foot(step),
    ];
  }

  /** @param {StepData} step @param {Check} check */
  check(step, check) {
    const { kind, label, unit, options } = check;
    const asks = kind === "number" || kind === "choice";
    const hidden = asks && !step.is_done && "The predicted metrics are hidden until you answer.";
    const onsubmit = (/** @type {Event} */ event) => {
      event.preventDefault();
      this.send("answer", { given: this.answer });
    };
    return h(
      "form.mw-lesson-check",
      { "aria-label": label, "data-kind": kind, onsubmit },
      html(check.text, "mw-lesson-question"),
      kind === "number" && numberField(label, unit),
      ...options.map(optionField),
      hidden && h("div.mw-lesson-note", {}, hidden),
      step.verdict && verdictOf(step.verdict),
      this.refusal,
      ...step.hints.map((hint, place) => h("div.mw-lesson-hint", {}, h("b", {}, `Hint ${place + 1}`), html(hint))),
      h("div.mw-bar", {}, ...(step.is_done ? [] : this.actions(step, asks))),
    );
  }

  /** @param {StepData} step @param {boolean} asks */
  actions({ hints, hint_count: count }, asks) {
    const left = count - hints.length;
    return [
      asks && h("button.mw-button.mw-primary", { type: "submit", "data-stop": "answer" }, "Answer"),
      left > 0 && stop("hint", `Hint (${left})`, () => this.send("hint")),
      stop("show", "Show the answer", () => this.send("show_answer")),
    ];
  }

  /** @param {StepData} step */
  foot({ number, count, is_done: isDone }) {
    const go = (/** @type {number} */ to) => () => this.send("go", { step: to });
    const kind = isDone ? "mw-primary" : "";
    const isLast = number === count - 1;
    return h(
      "nav.mw-bar.mw-lesson-foot",
      { "aria-label": "Steps" },
      number > 0 && stop("back", "Back", go(number - 1)),
      h("span.mw-grow"),
      isLast && stop("keep", "Keep this design", () => this.send("keep")),
      isLast ? stop("finish", "Finish", () => this.send("finish"), kind) : stop("next", "Next", go(number + 1), kind),
    );
  }

  // ── the highlighted control ──

  drawRing() {
    const { highlight } = this.model;
    const target = highlight && this.root.checkVisibility() ? this.control(highlight) : null;
    const isShown = Boolean(target?.checkVisibility({ visibilityProperty: true }));
    if (isShown !== this.ring.matches(":popover-open")) this.ring.togglePopover(isShown);
    if (!target || !isShown) return;
    const { left, top, width, height } = boxOf(target);
    setStyle(this.ring, {
      left: `${left - RING_MARGIN}px`,
      top: `${top - RING_MARGIN}px`,
      width: `${width + 2 * RING_MARGIN}px`,
      height: `${height + 2 * RING_MARGIN}px`,
    });
  }

  /** The control with a path or label; the result is cached until the control is removed. @param {string} name */
  control(name) {
    if (this.highlighted?.name === name && this.highlighted.element.isConnected) return this.highlighted.element;
    const label = CSS.escape(translate(name));
    const element = findInside(document, `[data-path="${CSS.escape(name)}"], [aria-label="${label}"]`);
    element?.scrollIntoView({ block: "nearest" });
    this.highlighted = element && { name, element };
    return element;
  }
}

/**
 * The first element that matches a selector, including elements inside shadow roots.
 * @param {ParentNode} root @param {string} selector
 */
function findInside(root, selector) {
  /** @type {Element | null} */ let found = root.querySelector(selector);
  for (const { shadowRoot } of root.querySelectorAll("*")) {
    if (found) break;
    if (shadowRoot) found = findInside(shadowRoot, selector);
  }
  return found;
}

/** HTML that Python converted from Markdown. @param {string} text */
function html(text, kind = "") {
  const box = h("div", { class: `mw-lesson-text ${kind}`, translate: "no" });
  box.innerHTML = text;
  return box;
}

/**
 * A button that keeps the focus when the step is drawn again.
 * @param {string} name @param {string} label @param {() => void} onclick
 */
function stop(name, label, onclick, kind = "") {
  const element = button(label, { kind, onclick });
  element.dataset.stop = name;
  return element;
}

/** @param {string} label @param {string} unit */
function numberField(label, unit) {
  const attributes = { inputmode: "decimal", autocomplete: "off", "aria-label": label, "data-stop": "number" };
  return h("span.mw-lesson-typed", {}, h("input.mw-lesson-number", attributes), unit);
}

/** @param {string} text @param {number} place */
function optionField(text, place) {
  const attributes = { type: "radio", name: "option", value: place, "data-stop": `option${place}` };
  return h("label.mw-lesson-option", {}, h("input", attributes), html(text));
}

/** @param {Verdict} verdict */
function verdictOf({ passed, reply, conditions }) {
  const sign = (/** @type {boolean} */ isMet) => (isMet ? "✓ " : "✗ ");
  const lines = conditions.map(({ text, value, is_met: isMet }) =>
    h("li", { "data-met": String(isMet) }, h("span", {}, sign(isMet), text), h("output", {}, value)),
  );
  return h(
    "div.mw-lesson-verdict",
    { "data-passed": String(passed) },
    lines.length > 0 && h("ul", {}, ...lines),
    reply && h("p", {}, sign(passed), reply),
  );
}
