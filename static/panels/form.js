// The form: one input a field, as Python lists them. What is typed goes up as it is; a value that
// is refused stays in its input with the words beside it, until it is changed or taken back.

import { followTheme, h, plain, send } from "../kit/canvas.js";
import { count } from "../kit/numbers.js";
import { Tips, icon } from "../kit/shell.js";

const FOLDED = "meshwave.form.folded"; // the sections that a person folded, in this browser
const LINES = ["lines", "rows"]; // kinds that take several lines
const FOLDED_AT_FIRST = ["cluster"];

export const render = ({ model }) => new Form(model).root;

class Form {
  constructor(model) {
    this.model = model;
    this.sections = new Map();
    this.fields = new Map();
    this.root = h("form", { class: "mw-canvas mw-shell mw-form", "aria-label": "Design", novalidate: true });
    this.root.addEventListener("submit", (event) => event.preventDefault());
    this.tips = new Tips(this.root);
    this.root.addEventListener("scroll", () => this.tips.hide());
    model.on(["sections", "problems"], () => this.draw());
    model.on("turned", () => this.fields.forEach((field) => field.giveUp?.()));
    model.on("msg:custom", (message) => this.told(message));
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
    this.draw();
  }

  send(field, value) {
    send(this.model, { type: "change", path: field.data.path, value });
  }

  told(message) {
    if (message.type === "focus") this.focus(message.path);
    else if (message.type === "changed") this.fields.get(message.path)?.answered(message.refused);
  }

  focus(path) {
    const field = this.fields.get(path);
    if (!field) return;
    field.element.closest("details").open = true;
    field.element.classList.add("mw-found");
    setTimeout(() => field.element.classList.remove("mw-found"), 900);
    requestAnimationFrame(() => {
      field.element.scrollIntoView({ block: "center" }); // when the form is at the front again
      field.input.focus({ preventScroll: true });
    });
  }

  draw() {
    const shown = plain(this.model, "sections").map((section) => this.section(section));
    keep(this.root, [this.tips.box, ...shown]);
  }

  section(data) {
    const { element, flaws, body } = this.sections.get(data.key) ?? this.makeSection(data);
    const groups = [];
    let group = "";
    for (const field of data.fields) {
      if (field.group !== group && field.kind !== "switch" && field.group)
        groups.push(this.heading(data.key, field.group));
      group = field.group;
      groups.push(this.field(field).element);
    }
    if (data.action) groups.push(this.action(data));
    keep(body, groups);
    this.drawFlaws(flaws, data.fields);
    return element;
  }

  makeSection({ key, title, help }) {
    const folded = readFolded();
    const flaws = h("span", { class: "mw-flaws" });
    const body = h("div", { class: "mw-fields" });
    const head = h("summary", { "data-tip": help }, icon("down"), h("span", {}, title), flaws);
    const element = h(
      "details",
      { class: "mw-section", "aria-label": title, "data-section": key, open: !folded.includes(key) },
      head,
      body,
    );
    element.addEventListener("toggle", () => writeFolded(key, !element.open));
    this.sections.set(key, { element, flaws, body });
    return this.sections.get(key);
  }

  /** What is wrong inside, so that a folded section does not hide it. */
  drawFlaws(flaws, fields) {
    const found = fields.flatMap((field) => this.model.problems[field.path] ?? []);
    const errors = found.filter((problem) => problem.severity === "error").length;
    flaws.dataset.severity = errors ? "error" : "warning";
    flaws.replaceChildren(
      ...(found.length
        ? [icon(flaws.dataset.severity), errors ? count(errors, "error") : count(found.length, "warning")]
        : []),
    );
  }

  /** A button below the fields of a section. */
  action({ key, action: { title, help } }) {
    const name = `${key}!`;
    if (!this.fields.has(name)) {
      const act = () => send(this.model, { type: "act", section: key });
      this.fields.set(name, {
        element: h("button", { type: "button", class: "mw-button mw-act", "data-tip": help, onclick: act }, title),
      });
    }
    return this.fields.get(name).element;
  }

  heading(section, title) {
    const key = `${section}/${title}`;
    if (!this.fields.has(key)) this.fields.set(key, h("h3", { class: "mw-group" }, title));
    return this.fields.get(key);
  }

  field(data) {
    const shape = JSON.stringify([data.kind, data.label, data.options]);
    let field = this.fields.get(data.path);
    if (field?.shape !== shape) {
      field = new Field(this, data, shape);
      this.fields.set(data.path, field);
    }
    field.set(data, this.model.problems[data.path] ?? []);
    return field;
  }
}

/** Put `children` into `parent` in this order, moving none that already stands: a move loses the focus. */
function keep(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  children.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
}

// ── one field ───────────────────────────────────────────────────────────────────────────────

class Field {
  constructor(form, data, shape) {
    this.form = form;
    this.shape = shape;
    this.known = null; // what Python has last shown
    this.asked = null; // what was typed and is on its way
    this.answers = 0; // that are still to come
    this.refused = ""; // why what stands in the input is not taken
    const id = `mw-${data.path.replaceAll(/\W/g, "-")}`;
    this.hint = h("div", { class: "mw-hint", id: `${id}-hint` });
    this.words = h("div", { id: `${id}-words`, "aria-live": "polite" });
    this.help = h("span", { class: "mw-sr", id: `${id}-help` }, data.help);
    this.input = this.makeInput(id, data);
    this.input.atRest = () => !this.refused && this.input.value === (this.answers ? this.asked : this.known);
    this.input.setAttribute(
      "aria-label",
      [data.group !== data.label && data.group, data.label, data.unit].filter(Boolean).join(" "),
    );
    this.input.setAttribute("aria-describedby", `${id}-words ${id}-hint ${id}-help`);
    this.label = h(
      "label",
      { for: id, "data-tip": data.help },
      h("span", {}, data.label),
      data.unit ? h("span", { class: "mw-unit" }, data.unit) : null,
    );
    this.element = h("div", { class: data.wide ? "mw-field mw-wide" : "mw-field", "data-path": data.path });
    if (data.kind === "switch") this.element.append(h("div", { class: "mw-check" }, this.input, this.label));
    else this.element.append(this.label, this.input);
    this.element.append(this.hint, this.words, this.help);
  }

  makeInput(id, data) {
    const common = { id, class: "mw-input", name: data.path, autocomplete: "off", spellcheck: "false" };
    if (data.kind === "switch")
      return h("input", { id, name: data.path, type: "checkbox", onchange: () => this.ask(this.input.checked) });
    if (data.kind === "choice") return this.makeChoice(common, data);
    const commit = {
      onchange: () => this.commit(),
      onblur: () => this.commit(),
      onkeydown: (event) => this.key(event),
    };
    if (LINES.includes(data.kind))
      return h("textarea", { ...common, ...commit, rows: data.kind === "rows" ? 2 : 4, wrap: "off" });
    const type =
      data.kind === "integer"
        ? { type: "number", step: 1 }
        : { type: "text", inputmode: data.kind === "number" ? "decimal" : null };
    return h("input", { ...common, ...commit, ...type });
  }

  makeChoice(common, data) {
    const options = data.options.map(({ title, help }, place) =>
      h("option", { value: place, title: help || null }, title),
    );
    if (data.optional) options.unshift(h("option", { value: "", disabled: true }, data.placeholder));
    return h(
      "select",
      { ...common, onchange: () => this.ask(this.data.options[Number(this.input.value)].value) },
      ...options,
    );
  }

  /** Show what Python knows, but never over what somebody is typing or has just asked for. */
  set(data, problems) {
    const typing = this.focused && !this.isChoice(data) && this.known !== null && this.input.value !== this.known;
    if (!typing && (data.text !== this.known || data.value !== this.data?.value)) this.refused = "";
    this.data = data;
    this.problems = problems;
    this.known = data.text;
    if (!typing && !this.answers && !this.refused) this.restore();
    this.input.placeholder = data.placeholder;
    this.hint.textContent = data.hint;
    this.hint.title = data.hint;
    this.label.dataset.tip = this.help.textContent = data.help;
    this.drawWords();
  }

  get focused() {
    return this.input === this.form.root.getRootNode().activeElement;
  }

  isChoice({ kind }) {
    return kind === "choice" || kind === "switch";
  }

  restore() {
    const { kind, value, text, options } = this.data;
    if (kind === "switch") this.input.checked = value;
    else if (kind === "choice")
      this.input.value = String(options.findIndex((option) => option.value === value)).replace("-1", "");
    else if (this.input.value !== text) this.input.value = text;
  }

  key(event) {
    if (event.key === "Escape") this.giveUp();
    else if (event.key === "Enter" && (!LINES.includes(this.data.kind) || event.ctrlKey || event.metaKey))
      this.commit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  giveUp() {
    this.refused = "";
    this.restore();
    this.drawWords();
  }

  commit() {
    const typed = this.input.value;
    const last = this.refused && typed === this.asked ? typed : this.answers ? this.asked : this.known;
    if (typed === last && this.refused) return; // it was told
    if (this.input.validity?.badInput) this.refuse("this is not a number");
    else if (typed !== last) this.ask(typed);
    else if (!this.answers) this.giveUp();
  }

  ask(value) {
    this.asked = value;
    this.answers += 1;
    this.form.send(this, value);
  }

  answered(refused) {
    this.answers -= 1;
    if (this.answers) return; // a later one decides
    this.refused = refused ?? "";
    if (this.isChoice(this.data) || (!refused && this.input.value === this.asked)) this.restore();
    this.drawWords();
  }

  refuse(words) {
    this.refused = words;
    this.drawWords();
  }

  drawWords() {
    const said = this.refused ? [{ severity: "error", message: this.refused }] : this.problems;
    const wrong = said.some(({ severity }) => severity === "error");
    this.input.setAttribute("aria-invalid", String(wrong));
    const lines = said.map(({ severity, message }) =>
      h("div", { class: "mw-word", "data-severity": severity }, icon(severity), h("span", {}, message)),
    );
    if (this.words.textContent !== said.map(({ message }) => message).join("")) this.words.replaceChildren(...lines);
    this.hint.hidden = !this.data.hint || wrong;
  }
}

// ── folded sections ─────────────────────────────────────────────────────────────────────────

function readFolded() {
  try {
    return JSON.parse(localStorage.getItem(FOLDED)) ?? FOLDED_AT_FIRST;
  } catch {
    return FOLDED_AT_FIRST;
  }
}

function writeFolded(key, folded) {
  const others = readFolded().filter((name) => name !== key);
  try {
    localStorage.setItem(FOLDED, JSON.stringify(folded ? [...others, key] : others));
  } catch {
    // a browser that keeps nothing folds anew each time
  }
}
