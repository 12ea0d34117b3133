// The form: an input per field of the list that Python sends. Inputs are sent as typed. A refused input stays in the
// field, with the reason below it, until it is changed or reverted.

/** @import { Message } from "../kit/types" */
/** @import { FieldData, FieldProblem, FieldValue, FormModel, SectionData } from "./types" */

import { button } from "../kit/controls.js";
import { consume, find, findAll, focusedElement, h, keepFocus } from "../kit/dom.js";
import { icon } from "../kit/icons.js";
import { translate } from "../kit/language.js";
import { count } from "../kit/numbers.js";
import { Tips } from "../kit/shell.js";
import { Widget, plainData } from "../kit/widget.js";

const FOLDED_KEY = "meshwave.form.folded"; // key of the folded sections in the browser's storage
const MULTILINE = ["lines", "rows", "costs"]; // kinds of fields
const FOLDED_AT_FIRST = ["cluster"];

/** @param {{model: FormModel}} args */
export const render = ({ model }) => new Form(model).root;

/** @extends {Widget<FormModel>} */
class Form extends Widget {
  /** @type {Map<string, ReturnType<typeof makeSection>>} */ sections = new Map();
  /** @type {Map<string, Field>} */ fields = new Map();
  /** @type {Map<string, HTMLElement>} */ others = new Map(); // headings, buttons and folds
  /** @type {string[]} */ words = []; // words of the search

  /** @param {FormModel} model */
  constructor(model) {
    super(model);
    this.root = h("form.mw-canvas.mw-shell.mw-form", { "aria-label": "Design", novalidate: true });
    this.root.addEventListener("submit", (event) => event.preventDefault());
    this.tips = new Tips(this.root);
    this.search = h("input.mw-input", {
      type: "search",
      placeholder: "Find a setting",
      "aria-label": "Find a setting",
    });
    this.search.addEventListener("input", () => this.find(this.search.value));
    this.none = h("p.mw-hint", { role: "status" });
    this.root.addEventListener("scroll", () => this.tips.hide());
    model.on(["sections", "problems"], () => this.draw());
    model.on("turned", () => this.fields.forEach((field) => field.revert()));
    this.draw();
  }

  /** @param {Message} message */
  receive(message) {
    const field = this.fields.get(message.path);
    if (message.type === "focus") field?.reveal();
    else if (message.type === "changed") field?.acknowledge(message.refused);
  }

  draw() {
    const sections = /** @type {SectionData[]} */ (plainData(this.model, "sections")).map((each) => this.section(each));
    const search = this.once("search", () => h("div.mw-form-search", {}, this.search, this.none));
    replaceChildren(this.root, [this.tips.box, search, ...sections]);
    if (this.words.length) this.showFound();
  }

  // ── the search ──

  /** Show only the fields that have all words of a text; without words, all fields. @param {string} text */
  find(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.showFound();
    if (this.words.length) return;
    for (const [key, { element }] of this.sections) element.open = !readFolded().includes(key);
    for (const fold of findAll(this.root, ".mw-advanced")) /** @type {HTMLDetailsElement} */ (fold).open = false;
  }

  showFound() {
    const isSearching = this.words.length > 0;
    this.root.toggleAttribute("data-searching", isSearching);
    for (const field of this.fields.values()) field.element.hidden = !this.isFound(field.data);
    for (const fold of findAll(this.root, "details")) {
      const details = /** @type {HTMLDetailsElement} */ (fold);
      details.hidden = isSearching && !find(details, ".mw-field:not([hidden])");
      if (isSearching) details.open = !details.hidden;
    }
    const isNone = isSearching && !find(this.root, ".mw-field:not([hidden])");
    this.none.textContent = isNone ? "No matching settings" : "";
  }

  /** @param {FieldData} field */
  isFound({ path, label, group, help }) {
    const text = `${path} ${group} ${label} ${help}`.toLowerCase();
    return this.words.every((word) => text.includes(word));
  }

  /** @param {SectionData} data */
  section(data) {
    const { element, summary, body } = this.sections.get(data.key) ?? this.addSection(data);
    const { key, action } = data;
    const usual = data.fields.filter((field) => !field.is_advanced);
    const children = this.fieldElements(key, usual);
    const advanced = data.fields.filter((field) => field.is_advanced);
    if (advanced.length) children.push(this.advanced(key, advanced));
    if (action) {
      const attributes = { type: "button", "data-tip": action.help, onclick: () => this.send("open_profiles") };
      children.push(this.once(`${key}!`, () => h("button.mw-button.mw-act", attributes, action.title)));
    }
    replaceChildren(body, children);
    this.drawSummary(summary, data.fields);
    return element;
  }

  /** The fields below the headings of their groups. @param {string} place @param {FieldData[]} fields */
  fieldElements(place, fields) {
    const children = [];
    let group = "";
    for (const field of fields) {
      if (field.group !== group && field.kind !== "switch" && field.group)
        children.push(this.once(`${place}/${field.group}`, () => h("h3.mw-group", {}, field.group)));
      group = field.group;
      children.push(this.field(field).element);
    }
    return children;
  }

  /**
   * The folded group of rarely changed fields; it opens if one of them has an error.
   * @param {string} key @param {FieldData[]} fields
   */
  advanced(key, fields) {
    const body = this.once(`${key}/advanced body`, () => h("div.mw-fields"));
    const make = () => h("details.mw-advanced", {}, h("summary", {}, icon("down"), "Advanced"), body);
    const fold = /** @type {HTMLDetailsElement} */ (this.once(`${key}/advanced`, make));
    replaceChildren(body, this.fieldElements(`${key}/advanced`, fields));
    const isWrong = (/** @type {FieldData} */ { path }) =>
      this.model.problems[path]?.some(({ severity }) => severity === "error");
    fold.open ||= fields.some(isWrong);
    return fold;
  }

  /** @param {SectionData} data */
  addSection(data) {
    const section = makeSection(data, () => this.words.length > 0);
    this.sections.set(data.key, section);
    return section;
  }

  /**
   * Show the number of problems in the heading of a section, which may be folded.
   * @param {HTMLElement} summary @param {FieldData[]} fields
   */
  drawSummary(summary, fields) {
    const problems = fields.flatMap((field) => this.model.problems[field.path] ?? []);
    const errors = problems.filter((problem) => problem.severity === "error").length;
    const severity = errors ? "error" : "warning";
    summary.dataset.severity = severity;
    summary.replaceChildren(...(problems.length ? [icon(severity), count(errors || problems.length, severity)] : []));
  }

  /** An element that is made at the first call and then reused. @param {string} key @param {() => HTMLElement} make */
  once(key, make) {
    const element = this.others.get(key) ?? make();
    this.others.set(key, element);
    return element;
  }

  /** @param {FieldData} data */
  field(data) {
    const shape = JSON.stringify([data.kind, data.label, data.options]);
    let field = this.fields.get(data.path);
    if (field?.shape !== shape) {
      field = new Field(this, data, shape);
      this.fields.set(data.path, field);
    }
    const shown = data.options ? { ...data, text: translate(data.text) } : data; // the label of a word
    field.set(shown, this.model.problems[data.path] ?? []);
    return field;
  }
}

/** @param {SectionData} data @param {() => boolean} isSearching */
function makeSection({ key, title, help }, isSearching) {
  const summary = h("span.mw-flaws");
  const body = h("div.mw-fields");
  const head = h("summary", { "data-tip": help }, icon("down"), h("span", {}, title), summary);
  const attributes = { "aria-label": title, "data-section": key, open: !readFolded().includes(key) };
  const element = h("details.mw-section", attributes, head, body);
  element.addEventListener("toggle", () => isSearching() || writeFolded(key, !element.open));
  return { element, summary, body };
}

/**
 * Set the children of an element without moving children that are in place, since a move loses the focus.
 * @param {HTMLElement} parent @param {HTMLElement[]} children
 */
function replaceChildren(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(/** @type {HTMLElement} */ (child))) child.remove();
  children.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
}

// ── one field ───────────────────────────────────────────────────────────────────────────────

class Field {
  /** @type {string | null} */ known = null; // the text that Python sent last
  /** @type {FieldValue} */ requested = null; // the input to which Python has not responded yet
  outstanding = 0; // answers
  refusal = ""; // reason for which the input is refused
  /** @type {FieldProblem[]} */ problems = [];

  /** @param {Form} form @param {FieldData} data @param {string} shape */
  constructor(form, data, shape) {
    this.form = form;
    this.data = data;
    this.shape = shape;
    const id = `mw-${data.path.replaceAll(/\W/g, "-")}`;
    this.hint = h("div.mw-hint", { id: `${id}-hint` });
    this.messages = h("div", { id: `${id}-words`, "aria-live": "polite" });
    this.help = h("span.mw-sr", { id: `${id}-help` }, data.help);
    this.input = /** @type {HTMLInputElement} */ (this.makeInput(id, data));
    this.input.isUnedited = () =>
      !this.refusal && this.input.value === (this.outstanding ? this.requested : this.known);
    const labels = [data.group === data.label ? "" : data.group, data.label, data.unit].filter(Boolean);
    this.input.setAttribute("aria-label", labels.map(translate).join(" "));
    this.input.setAttribute("aria-describedby", `${id}-words ${id}-hint ${id}-help`);
    this.label = h("label", { for: id, "data-tip": data.help }, h("span", {}, data.label));
    const control = data.kind === "switch" ? [h("div.mw-check", {}, this.input, this.label)] : [this.label, this.input];
    this.element = h(
      "div",
      { class: data.wide ? "mw-field mw-wide" : "mw-field", "data-path": data.path, "data-group": data.group || null },
      ...control,
      this.hint,
      this.messages,
      this.help,
    );
  }

  /** @param {string} id @param {FieldData} data */
  makeInput(id, { path, kind, options = [], optional, placeholder }) {
    if (kind === "switch")
      return h("input", { id, name: path, type: "checkbox", onchange: () => this.request(this.input.checked) });
    const common = { id, name: path, autocomplete: "off", spellcheck: "false" };
    if (kind === "choice") {
      // the options of an optional choice are names of presets
      const choices = options.map(({ title, help }, place) =>
        h("option", { value: place, title: help || null, translate: optional ? "no" : null }, title),
      );
      if (optional) choices.unshift(h("option", { value: "", disabled: true }, placeholder));
      const onchange = () => this.request(this.data.options?.[Number(this.input.value)].value ?? null);
      return h("select.mw-input", { ...common, onchange }, ...choices);
    }
    const listeners = {
      onchange: () => this.commit(),
      onblur: () => this.commit(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    };
    if (MULTILINE.includes(kind))
      return h("textarea.mw-input", { ...common, ...listeners, rows: kind === "rows" ? 2 : 4, wrap: "off" });
    const type =
      kind === "integer" && !options.length
        ? { type: "number", step: 1 }
        : { type: "text", inputmode: kind === "number" ? "decimal" : null };
    return h("input.mw-input", { ...common, ...listeners, ...type });
  }

  /**
   * Show the value that Python sends, unless the user is typing or a response is outstanding.
   * @param {FieldData} data @param {FieldProblem[]} problems
   */
  set(data, problems) {
    const isTyping = this.isFocused && !isChoice(data) && this.known !== null && this.input.value !== this.known;
    if (!isTyping && (data.text !== this.known || data.value !== this.data.value)) this.refusal = "";
    this.data = data;
    this.problems = problems;
    this.known = data.text;
    if (!isTyping && !this.outstanding && !this.refusal) this.restore();
    this.input.placeholder = data.placeholder;
    this.hint.textContent = data.hint;
    this.hint.title = data.hint;
    this.label.dataset.tip = this.help.textContent = data.help;
    this.drawMessages();
  }

  get isFocused() {
    return this.input === focusedElement(this.form.root);
  }

  /** Bring the field into view and focus it. */
  reveal() {
    document.documentElement.style.setProperty("--mw-drawer", "grid"); // where the side panel is a drawer
    if (this.form.words.length) this.form.find((this.form.search.value = ""));
    for (let fold = this.element.closest("details"); fold; fold = fold.parentElement?.closest("details") ?? null)
      fold.open = true;
    this.element.classList.add("mw-found");
    setTimeout(() => this.element.classList.remove("mw-found"), 900);
    requestAnimationFrame(() => {
      this.element.scrollIntoView({ block: "center" }); // after the form is shown
      this.input.focus({ preventScroll: true });
    });
  }

  restore() {
    const { kind, value, text, options = [] } = this.data;
    if (kind === "switch") this.input.checked = Boolean(value);
    else if (kind === "choice")
      this.input.value = String(options.findIndex((option) => option.value === value)).replace("-1", "");
    else if (this.input.value !== text) this.input.value = text;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const commits = !MULTILINE.includes(this.data.kind) || event.ctrlKey || event.metaKey;
    if (event.key === "Escape") this.revert();
    else if (event.key === "Enter" && commits) this.commit();
    else return;
    consume(event);
  }

  revert() {
    this.refusal = "";
    this.restore();
    this.drawMessages();
  }

  commit() {
    const typed = this.input.value;
    if (this.refusal && typed === this.requested) return; // the input was refused already
    const last = this.outstanding ? this.requested : this.known;
    if (this.input.validity?.badInput) this.refuse("Enter a number");
    else if (typed !== last) this.request(typed);
    else if (!this.outstanding) this.revert();
  }

  /** @param {FieldValue} value */
  request(value) {
    this.requested = value;
    this.outstanding += 1;
    const title = this.data.options?.find((option) => translate(option.title) === value)?.title;
    this.form.send("change", { path: this.data.path, value: title ?? value });
  }

  /** @param {string | null} refusal */
  acknowledge(refusal) {
    this.outstanding -= 1;
    if (this.outstanding) return; // a later response decides
    if (isChoice(this.data) || (!refusal && this.input.value === this.requested)) this.restore();
    this.refuse(refusal ?? "");
  }

  /** @param {string} reason */
  refuse(reason) {
    this.refusal = reason;
    this.drawMessages();
  }

  drawMessages() {
    const refused = { severity: "error", message: this.refusal, fixes: [], where: "", code: "" };
    const shown = this.refusal ? [refused] : this.problems;
    const isWrong = shown.some(({ severity }) => severity === "error");
    this.input.setAttribute("aria-invalid", String(isWrong));
    if (JSON.stringify(shown) !== this.messages.dataset.shown) {
      this.messages.dataset.shown = JSON.stringify(shown);
      const lines = shown.flatMap((each) => this.problem(each));
      keepFocus(this.messages, () => this.messages.replaceChildren(...lines), this.input);
    }
    this.hint.hidden = !this.data.hint || isWrong;
  }

  /** A problem with its fixes as buttons. @param {FieldProblem} problem */
  problem({ severity, message, fixes, where, code }) {
    const words = h("div.mw-word", { "data-severity": severity }, icon(severity), h("span", {}, message));
    const apply = (/** @type {string} */ fix) =>
      button(fix, { kind: "mw-fix", onclick: () => this.form.send("fix", { where, code, fix }) });
    return [words, ...fixes.map(apply)];
  }
}

/** @param {FieldData} data */
const isChoice = ({ kind }) => kind === "choice" || kind === "switch";

// ── folded sections ─────────────────────────────────────────────────────────────────────────

/** @returns {string[]} */
function readFolded() {
  try {
    return JSON.parse(localStorage.getItem(FOLDED_KEY) ?? "null") ?? FOLDED_AT_FIRST;
  } catch {
    return FOLDED_AT_FIRST;
  }
}

/** @param {string} key @param {boolean} isFolded */
function writeFolded(key, isFolded) {
  const others = readFolded().filter((name) => name !== key);
  try {
    localStorage.setItem(FOLDED_KEY, JSON.stringify(isFolded ? [...others, key] : others));
  } catch {
    // without storage, the folded sections are lost when the page is left
  }
}
