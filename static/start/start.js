// The start page: new designs, the designs of the library, runs, examples and lessons. Every entry is a link.

/** @import { Answer, Message } from "../kit/types" */
/** @import { DesignCard, LessonLine, PublishedLine, RecentLine, RunLine, StartModel } from "./types" */

import { Theme, brand, download, filePicker, sizeProblem, themePicker } from "../kit/bars.js";
import { withArrow } from "../kit/differences.js";
import { consume, h, keepFocus } from "../kit/dom.js";
import { openHelpOnF1 } from "../kit/help.js";
import { icon } from "../kit/icons.js";
import { keepNames } from "../kit/language.js";
import { drawSchedule } from "../kit/schedule_picture.js";
import { Modal, Tips, menu, tool } from "../kit/shell.js";
import { signOut } from "../kit/sign_out.js";
import { Widget, plainData } from "../kit/widget.js";

const NEW = [
  {
    href: "./?new=pipeline",
    glyph: "gallery",
    title: "Pipeline",
    note: "Draw meshes, choose a schedule, simulate a step",
  },
  { href: "./?new=experts", glyph: "examples", title: "Experts", note: "Place the experts of an MoE model on devices" },
  { href: "transfer", glyph: "transfer", title: "Transfer lab", note: "Reshard a tensor between two meshes" },
];
const TOUR = { glyph: "help", title: "Guided tour", note: "First visit? Take a three-minute tour" };
const KINDS = { draft: "Design", example: "Example", run: "Run", lesson: "Lesson" };
const LINK_KEY = "design=";

/** @param {{model: StartModel}} args */
export const render = ({ model }) => new Start(model).root;

/** @extends {Widget<StartModel>} */
class Start extends Widget {
  leaving = new AbortController(); // removes the listeners outside the page
  isEditing = false; // true while a card has a text field
  isOutdated = false; // true if the cards have changed meanwhile
  tag = ""; // the tag by which designs are filtered; "" shows all designs
  /** @type {DesignCard | null} */ compared = null; // the design with which another design is to be compared
  created = h("div.mw-start-grid.mw-start-new");
  designs = h("div.mw-start-grid");
  tags = h("div.mw-start-tags", { role: "group", "aria-label": "Tags" });
  recent = h("ul.mw-start-recent");
  runs = h("ul.mw-start-list");
  lessons = h("ul.mw-start-list");
  examples = h("div.mw-start-grid");
  published = h("ul.mw-start-list");
  toast = h("div.mw-start-toast", { role: "status", popover: "manual" });

  /** @param {StartModel} model */
  constructor(model) {
    super(model);
    const accepted = [".json", ".html", ".png", ...model.suffixes].join();
    this.picker = filePicker("Design file", accepted, (file) => this.open(file));
    this.search = h("input.mw-start-search", {
      type: "search",
      placeholder: "Search designs",
      "aria-label": "Search designs",
      oninput: () => this.drawDesigns(),
    });
    this.differences = new Modal(h("dialog.mw-dialog", { "aria-labelledby": "mw-differences" }));
    const head = h("h2", {}, "My designs");
    this.recentSection = section("Recent", this.recent);
    const main = h(
      "main.mw-start-main",
      {},
      h("h1.mw-start-title", {}, "Meshwave"),
      section("New", this.created),
      this.recentSection,
      h("section", { "aria-label": "My designs" }, h("div.mw-start-head", {}, head, this.tags), this.designs),
      h(
        "div.mw-start-columns",
        {},
        h("div", {}, section("Runs", this.runs), section("Published runs", this.published)),
        section("Lessons", this.lessons),
      ),
      section("Examples", this.examples),
    );
    this.root = h("div.mw-canvas.mw-shell.mw-start", {}, this.bar(), main, this.toast, this.differences.dialog);
    this.tips = new Tips(this.root);
    model.on("tour", () => this.drawNew());
    model.on("designs", () => this.drawDesigns());
    model.on("examples", () => this.drawExamples());
    model.on(["recent", "runs", "lessons"], () => this.drawLists());
    this.listen();
    this.drawNew();
    this.drawDesigns();
    this.drawExamples();
    this.drawLists();
    document.title = "Meshwave";
  }

  remove() {
    this.leaving.abort();
  }

  bar() {
    const [theme, themes] = themePicker(new Theme(this.leaving.signal));
    const open = tool("Open a file", {
      glyph: "open",
      text: "Open a file",
      tip: "Open or drop a design, an exported HTML page or PNG, or a schedule; or paste a link to a design",
      onclick: () => this.picker.click(),
    });
    const help = h("a.mw-button.mw-tool", { href: "docs/", target: "_blank", "aria-label": "Documentation" });
    help.append(icon("help"));
    const parts = [brand(), h("span.mw-grow"), this.search, open, theme, help, ...signOut(), themes, this.picker];
    return h("header.mw-start-bar", {}, ...parts);
  }

  listen() {
    const { signal } = this.leaving;
    openHelpOnF1(signal);
    window.addEventListener("hashchange", () => this.openLink(location.hash), { signal });
    window.addEventListener("paste", (event) => this.openLink(event.clipboardData?.getData("text") ?? ""), { signal });
    window.addEventListener("dragover", (event) => event.preventDefault(), { signal });
    window.addEventListener("drop", (event) => this.drop(event), { signal });
    window.addEventListener("keydown", (event) => event.key === "Escape" && this.compare(null), { signal });
    document.addEventListener("visibilitychange", () => document.hidden || this.send("refresh"), { signal });
    requestAnimationFrame(() => this.openLink(location.hash)); // after the connection is ready
  }

  // ── messages from Python ──

  /** @param {Message} message */
  receive(message) {
    if (message.type === "go") location.assign(`./?draft=${message.design}`);
    else if (message.type === "download") download(message.name, new Blob([message.content], { type: message.mime }));
    else if (message.type === "differences") this.showDifferences(message.title, message.lines);
    else if (message.type === "answered") this.say(/** @type {Answer} */ (message).refused);
  }

  /** Show a message at the bottom, with a button that reverts the reported action. @param {string | null} words */
  say(words, /** @type {(() => void) | null} */ revert = null) {
    if (!words) return;
    const close = () => this.toast.hidePopover();
    const undo = () => {
      close();
      revert?.();
    };
    const actions = [revert && tool("Undo", { text: "Undo", tip: "", onclick: undo })];
    this.toast.replaceChildren(words, ...actions.filter((each) => each !== null));
    this.toast.append(tool("Close", { glyph: "close", tip: "", onclick: close }));
    this.toast.showPopover();
  }

  drawNew() {
    const { tour } = this.model;
    const entries = tour ? [{ href: `./?lesson=${tour}`, ...TOUR }, ...NEW] : NEW;
    this.created.replaceChildren(...entries.map(newCard));
  }

  drawDesigns() {
    this.isOutdated = this.isEditing;
    if (this.isEditing) return;
    /** @type {DesignCard[]} */
    const all = plainData(this.model, "designs");
    const tags = [...new Set(all.flatMap((card) => card.tags ?? []))].sort();
    if (!tags.includes(this.tag)) this.tag = "";
    keepNames(all.map(({ name }) => name ?? ""));
    const words = this.search.value.toLowerCase().split(/\s+/);
    const found = all.filter((card) => this.matches(card, words));
    const nothing = all.length ? "No design matches." : "Designs are saved here as you edit them.";
    keepFocus(this.root, () => {
      this.tags.replaceChildren(...tags.map((tag) => this.tagButton(tag)));
      this.designs.replaceChildren(...found.map((card) => this.designCard(card)));
      if (!found.length) this.designs.append(h("p.mw-start-empty", {}, nothing));
    });
  }

  /** @param {DesignCard} card @param {string[]} words */
  matches({ name, schedule, tags = [] }, words) {
    const text = [name, schedule, ...tags].join(" ").toLowerCase();
    return words.every((word) => text.includes(word)) && (!this.tag || tags.includes(this.tag));
  }

  drawExamples() {
    /** @type {DesignCard[]} */
    const all = plainData(this.model, "examples");
    const element = (/** @type {DesignCard} */ card) =>
      h("div.mw-start-card", {}, cardLink(`./?example=${card.id}`, card));
    this.examples.replaceChildren(...all.map(element));
  }

  drawLists() {
    /** @type {RecentLine[]} */
    const recent = plainData(this.model, "recent");
    this.recentSection.hidden = !recent.length;
    this.recent.replaceChildren(
      ...recent.map(({ kind, name, title, when }) =>
        line(`./?${kind}=${name}`, title, KINDS[kind], h("span.mw-start-about", { translate: "no" }, when)),
      ),
    );
    /** @type {RunLine[]} */
    const runs = plainData(this.model, "runs");
    /** @type {PublishedLine[]} */
    const published = plainData(this.model, "published");
    this.published.replaceChildren(
      ...published.map(({ id, name, compared, source }) =>
        line(`./?example=${id}`, name, compared, h("div.mw-start-about", { translate: "no" }, source)),
      ),
    );
    /** @type {LessonLine[]} */
    const lessons = plainData(this.model, "lessons");
    this.runs.replaceChildren(
      ...runs.map((run) => line(`./?run=${run.id}`, run.name, `${run.state.toLowerCase()}, ${run.when}`)),
    );
    if (!runs.length) this.runs.append(h("li.mw-start-empty", {}, "Runs that you launch are listed here."));
    this.lessons.replaceChildren(
      ...lessons.map(({ name, title, note, state }) => line(`./?lesson=${name}`, title, state || note)),
    );
  }

  // ── designs ──

  /** @param {string} tag */
  tagButton(tag) {
    const onclick = () => {
      this.tag = this.tag === tag ? "" : tag;
      this.drawDesigns();
    };
    const attributes = { type: "button", translate: "no", "aria-pressed": String(this.tag === tag), onclick };
    return h("button.mw-start-tag", attributes, tag);
  }

  /** @param {DesignCard} card */
  designCard(card) {
    const link = cardLink(`./?draft=${card.id}`, card);
    link.addEventListener("click", (event) => {
      if (!this.compared) return;
      event.preventDefault();
      this.send("compare", { design: this.compared.id, other: card.id });
      this.compare(null);
    });
    const more = tool(`Actions on ${card.name}`, { text: "⋯", tip: "", kind: "mw-start-more" });
    const element = h("article.mw-start-card", { "data-design": card.id }, link, more);
    const choices = menu(more, "Actions", () => this.actions(card, element));
    element.addEventListener("contextmenu", (event) => {
      event.preventDefault();
      choices.showPopover();
    });
    element.append(choices);
    return element;
  }

  /** @param {DesignCard} card @param {HTMLElement} element */
  actions(card, element) {
    const design = card.id;
    const remove = () => {
      this.send("delete", { design });
      this.say(`${card.name} was deleted.`, () => this.send("restore", { design }));
    };
    return [
      {
        text: "Rename",
        choose: () => this.edit(element, "Name", card.name, (name) => this.send("rename", { design, name })),
      },
      { text: "Duplicate", choose: () => this.send("duplicate", { design }) },
      {
        text: "Tags",
        choose: () =>
          this.edit(element, "Tags, separated by commas", card.tags?.join(", "), (tags) =>
            this.send("tag", { design, tags }),
          ),
      },
      { text: "Compare with", choose: () => this.compare(card) },
      { text: "Download", choose: () => this.send("download", { design }) },
      { text: "Delete", choose: remove },
    ];
  }

  /**
   * Show a text field on a card, whose text counts unless Escape is pressed. The cards are not drawn again until the
   * field is left.
   * @param {HTMLElement} element @param {string} label @param {string | undefined} value
   * @param {(value: string) => void} commit
   */
  edit(element, label, value, commit) {
    const attributes = { "aria-label": label, placeholder: label, value, maxlength: this.model.longest_name };
    const field = h("input.mw-start-edit", attributes);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") field.value = field.defaultValue;
      if (event.key !== "Enter" && event.key !== "Escape") return;
      consume(event);
      field.blur();
    });
    field.addEventListener("blur", () => {
      if (!document.hasFocus()) return; // another window has the focus
      this.isEditing = false;
      field.remove();
      if (field.value !== field.defaultValue) commit(field.value);
      if (this.isOutdated) requestAnimationFrame(() => this.drawDesigns()); // after the next element has the focus
    });
    this.isEditing = true;
    element.append(field);
    field.select();
    field.focus();
  }

  /** Ask for the second design of a comparison; null cancels the comparison. @param {DesignCard | null} card */
  compare(card) {
    this.compared = card;
    this.root.classList.toggle("mw-start-compares", Boolean(card));
    if (card) this.say(`Choose the design to compare ${card.name} with.`);
    else if (this.toast.matches(":popover-open")) this.toast.hidePopover();
  }

  /** @param {string} title @param {string[]} lines */
  showDifferences(title, lines) {
    const close = tool("Close", { glyph: "close", tip: "", onclick: () => this.differences.close() });
    const shown = lines.length ? lines : ["The designs differ only in their names."];
    this.differences.dialog.replaceChildren(
      h("header", {}, h("h2", { id: "mw-differences" }, title), h("span.mw-grow"), close),
      h("ul.mw-start-differences", {}, ...shown.map((each) => h("li", {}, ...withArrow(each)))),
    );
    this.differences.open();
  }

  // ── files and links ──

  /** @param {string} text */
  openLink(text) {
    if (!text.includes(LINK_KEY)) return;
    history.replaceState(history.state, "", location.pathname);
    this.send("open_link", { link: text });
  }

  /** @param {DragEvent} event */
  drop(event) {
    event.preventDefault();
    const [file] = event.dataTransfer?.files ?? [];
    if (file) this.open(file);
  }

  /** @param {File} file */
  async open(file) {
    keepNames([file.name]);
    const problem = sizeProblem(file, this.model.largest);
    if (problem) this.say(problem);
    else this.send("open", { file: file.name, text: await file.text() });
  }
}

/** @param {string} title @param {HTMLElement} content */
const section = (title, content) => h("section", { "aria-label": title }, h("h2", {}, title), content);

/** @param {typeof NEW[number]} entry */
const newCard = ({ href, glyph, title, note }) =>
  h(
    "a.mw-start-card.mw-start-link",
    { href },
    icon(glyph),
    h("div", {}, h("div.mw-start-name", {}, title), h("div.mw-start-about", {}, note)),
  );

/** @param {string} href @param {DesignCard} card */
function cardLink(href, { id, name = id, schedule, meshes, step, picture, when, tags = [] }) {
  const about = [schedule, meshes, step].filter(Boolean).join(" · ");
  return h(
    "a.mw-start-link",
    { href },
    h("div.mw-start-picture", {}, picture ? drawSchedule(picture) : null),
    h("div.mw-start-name", { translate: "no" }, name),
    h("div.mw-start-about", {}, about),
    when && h("div.mw-start-about", {}, `Edited ${when}`),
    tags.length > 0 &&
      h("div.mw-start-tags", {}, ...tags.map((tag) => h("span.mw-start-tag", { translate: "no" }, tag))),
  );
}

/** @param {string} href @param {string} text @param {string} note @param {...HTMLElement} more */
const line = (href, text, note, ...more) =>
  h(
    "li",
    {},
    h("a.mw-start-line", { href }, h("span", { translate: "no" }, text), h("span.mw-start-about", {}, note), ...more),
  );
