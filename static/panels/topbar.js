// The top bar: files come from and go to the person's own machine; keys of the whole page end here.

import { Theme, brand, download, tellTurn, themePicker, tooLarge } from "../kit/bars.js";
import { followTheme, h, send } from "../kit/canvas.js";
import { PAGES, openHelpOnF1, openPage } from "../kit/help.js";
import { Modal, Tips, dropdown, icon, menu, tool } from "../kit/shell.js";

const APPLE = /Mac|iPhone|iPad/.test(navigator.platform);

export const render = ({ model }) => new TopBar(model).root;

class TopBar {
  constructor(model) {
    this.model = model;
    this.leaving = new AbortController(); // ends what listens outside the bar
    this.theme = new Theme(this.leaving.signal, (shown) => model.theme !== shown && (model.theme = shown));
    this.build();
    model.on(["name_of_design", "history", "unsaved", "notice"], () => this.draw());
    model.on("msg:custom", (message) => this.told(message));
    this.listen();
    this.draw();
    model.on("remove", () => this.leaving.abort());
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
  }

  send(type, gesture = {}) {
    send(this.model, { type, ...gesture });
  }

  // ── elements ──

  build() {
    const { exports } = this.model;
    const [theme, themes] = themePicker(this.theme);
    const tools = {
      open: tool("Open a design", {
        glyph: "open",
        text: "Open",
        tip: `Open a design, or a file of another tool such as a torch CSV schedule (${keys("Ctrl+O")}); or drop one`,
        onclick: () => this.picker.click(),
      }),
      examples: tool("Examples", { glyph: "examples", text: "Examples", tip: "Designs to start from" }),
      save: tool("Save", {
        glyph: "save",
        text: "Save",
        tip: `Download the design as JSON (${keys("Ctrl+S")})`,
        onclick: () => this.send("save"),
      }),
      saveAs: tool("Save as", { glyph: "saveAs", text: "Save as", tip: "Download the design under another name" }),
      export: tool("Export", { glyph: "share", text: "Export", tip: "Write the predicted step in another form" }),
      gallery: tool("Gallery of schedules", {
        glyph: "gallery",
        text: "Gallery",
        tip: "Every schedule for this design, side by side (G)",
        onclick: () => this.send("gallery"),
      }),
      lab: h(
        "a",
        {
          class: "mw-button mw-tool",
          href: "transfer",
          target: "_blank",
          "aria-label": "Transfer lab",
          "data-tip": "A tensor between two meshes, cut and planned by itself; an arrow of the timeline opens its own",
        },
        icon("transfer"),
        h("span", {}, "Transfers"),
      ),
      undo: tool("Undo", { glyph: "undo", onclick: () => this.send("undo") }),
      redo: tool("Redo", { glyph: "redo", onclick: () => this.send("redo") }),
      theme,
      help: tool("Help", { glyph: "help", tip: "Documentation and keyboard (?)" }),
    };
    for (const name of ["examples", "export"]) tools[name].append(icon("down"));
    tools.export.hidden = !exports.length;
    this.tools = tools;
    this.picker = h("input", {
      type: "file",
      accept: [".json", "application/json", ...this.model.suffixes].join(),
      hidden: true,
      tabindex: -1,
      "aria-label": "A design's file or a schedule",
    });
    this.picker.addEventListener("change", () => this.picked());
    this.dropZone = h(
      "div",
      { class: "mw-drop-zone", popover: "manual" },
      h("span", {}, "Drop to open the design or schedule"),
    );
    this.notice = h("div", { class: "mw-notice", role: "status" });
    this.trouble = h("div", { class: "mw-trouble", popover: "manual", role: "alert" });
    this.help = new Modal(h("dialog", { class: "mw-help", "aria-labelledby": "mw-help-title" }));
    const rule = () => h("span", { class: "mw-rule", "aria-hidden": "true" });
    this.root = h(
      "div",
      { class: "mw-canvas mw-shell mw-topbar", role: "banner" },
      ...[
        brand(),
        rule(),
        this.buildTitle(),
        rule(),
        tools.open,
        tools.examples,
        tools.save,
        tools.saveAs,
        tools.export,
      ],
      ...[
        rule(),
        tools.gallery,
        tools.lab,
        rule(),
        tools.undo,
        tools.redo,
        h("span", { class: "mw-grow" }),
        this.notice,
        tools.theme,
        tools.help,
      ],
      ...[...this.buildMenus(), themes, this.picker, this.trouble, this.dropZone, this.help.dialog],
    );
    this.tips = new Tips(this.root);
  }

  buildTitle() {
    this.name = h("input", {
      class: "mw-title-input",
      "aria-label": "Name of the design",
      maxlength: this.model.longest_name,
      spellcheck: "false",
      autocomplete: "off",
      "data-tip": "Rename the design",
    });
    this.name.addEventListener("change", () => this.rename());
    this.name.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.name.value = this.model.name_of_design;
      if (event.key === "Enter" || event.key === "Escape") this.name.blur();
    });
    this.dot = h("span", {
      class: "mw-unsaved",
      role: "img",
      "aria-label": "Not saved",
      "data-tip": "Changed since it was opened or saved",
    });
    return h("div", { class: "mw-title" }, this.name, this.dot);
  }

  buildMenus() {
    const { tools, model } = this;
    const examples = () =>
      model.examples.map(({ name, title, note }) => ({
        text: title,
        note,
        choose: () => this.send("example", { name }),
      }));
    const exports = () =>
      model.exports.map(({ name, title, note }) => ({
        text: title,
        note,
        choose: () => this.send("export", { name }),
      }));
    const help = () => [
      ...Object.entries(PAGES).map(([text, page]) => ({ text, choose: () => openPage(page) })),
      { text: "Keyboard", note: "?", choose: () => this.showHelp() },
    ];
    return [
      menu(tools.examples, "Examples", examples),
      menu(tools.export, "Export", exports),
      menu(tools.help, "Help", help),
      dropdown(tools.saveAs, "Save as", (panel) => [this.buildSaveAs(panel)]),
    ];
  }

  buildSaveAs(panel) {
    const field = h("input", {
      "aria-label": "Save under the name",
      value: this.model.name_of_design,
      maxlength: this.model.longest_name,
      autofocus: true,
      autocomplete: "off",
    });
    field.addEventListener("focus", () => field.select(), { once: true });
    const form = h(
      "form",
      { class: "mw-save-as" },
      field,
      h("button", { class: "mw-button mw-primary", type: "submit" }, "Save"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!field.value.trim()) return field.focus();
      panel.hidePopover();
      this.send("save_as", { name: field.value });
    });
    return form;
  }

  // ── what Python says ──

  draw() {
    const { name_of_design: name, history, unsaved, notice } = this.model;
    if (!this.typing) this.name.value = name;
    this.shown = name;
    this.name.setAttribute("size", Math.max(8, Math.min(48, name.length)));
    this.dot.hidden = !unsaved;
    if (this.notice.title !== notice)
      this.notice.replaceChildren(...(notice ? [icon("warning"), h("span", {}, notice)] : []));
    this.notice.title = notice;
    document.title = `${unsaved ? "• " : ""}${name} · Meshwave`;
    tellTurn(this.tools.undo, "Undo", history[0], keys("Ctrl+Z"));
    tellTurn(this.tools.redo, "Redo", history[1], keys("Ctrl+Shift+Z"));
  }

  get typing() {
    return this.name === this.root.getRootNode().activeElement && this.name.value !== this.shown;
  }

  told(message) {
    if (message.type === "download") download(message);
    else if (message.type === "trouble") this.showTrouble(message.title, message.lines);
    else if (message.type === "notes") this.showTrouble(message.title, message.lines, "warning");
    else if (message.type === "answered") this.answered(message);
  }

  answered({ gesture, refused }) {
    if (gesture === "rename") this.name.value = this.model.name_of_design;
    if (refused) this.showTrouble(refused, []);
  }

  // ── the name ──

  rename() {
    const name = this.name.value.trim();
    if (name && name !== this.model.name_of_design) this.send("rename", { name });
    else this.name.value = this.model.name_of_design;
  }

  // ── files ──

  picked() {
    const [file] = this.picker.files;
    if (file) this.open(file);
    this.picker.value = ""; // so that the same file can be opened again
  }

  async open(file) {
    const why = tooLarge(file, this.model.largest);
    if (why) return this.showTrouble(`${file.name} was not opened`, [{ where: "", message: `It ${why}.` }]);
    this.hideTrouble();
    this.send("open", { file: file.name, text: await file.text() });
  }

  /**
   * Say what went wrong with a file, or, as a "warning", what else to know of it. A line may have an
   * excerpt of the file and the fixes of a problem.
   */
  showTrouble(title, lines, glyph = "error") {
    const close = tool("Close", { glyph: "close", tip: "", onclick: () => this.hideTrouble() });
    const list = lines.map(({ where, message, excerpt = "", fixes = [] }) =>
      h(
        "li",
        {},
        where ? h("code", {}, where) : null,
        message,
        excerpt ? h("pre", {}, excerpt.replace(/^ {4}/gm, "")) : null,
        ...fixes.map((fix) => h("div", { class: "mw-trouble-fix" }, `Fix: ${fix}`)),
      ),
    );
    this.trouble.classList.toggle("mw-noted", glyph === "warning");
    this.trouble.replaceChildren(
      h("div", { class: "mw-trouble-head" }, icon(glyph), h("span", {}, title), close),
      h("ul", { hidden: !lines.length }, ...list),
    );
    const at = this.name.getBoundingClientRect();
    Object.assign(this.trouble.style, { top: `${at.bottom + 10}px`, left: `${at.left}px` });
    this.trouble.showPopover();
  }

  hideTrouble() {
    if (!this.trouble.matches(":popover-open")) return;
    if (this.trouble.matches(":focus-within")) this.tools.open.focus();
    this.trouble.hidePopover();
  }

  // ── help ──

  showHelp() {
    if (this.help.isOpen) return;
    const groups = grouped(this.model.shortcuts);
    const close = tool("Close", { glyph: "close", tip: "", onclick: () => this.help.close() });
    this.help.dialog.replaceChildren(
      h("div", { class: "mw-help-head" }, h("h2", { id: "mw-help-title" }, "Keyboard"), close),
      h("div", { class: "mw-help-groups" }, ...[...groups].map(([title, lines]) => helpGroup(title, lines))),
    );
    this.help.open();
  }

  // ── the whole page ──

  listen() {
    const { signal } = this.leaving;
    openHelpOnF1(signal);
    window.addEventListener("keydown", (event) => this.key(event), { signal });
    window.addEventListener("dragover", (event) => this.drag(event), { signal });
    window.addEventListener("dragleave", (event) => event.relatedTarget || this.dropZone.hidePopover(), { signal });
    window.addEventListener("drop", (event) => this.drop(event), { signal });
  }

  key(event) {
    if (event.defaultPrevented || event.isComposing || this.help.isOpen) return;
    if (event.key === "Escape") return this.hideTrouble();
    const target = event.composedPath()[0]; // what is behind the shadow roots
    const view = this.viewOf(event);
    const name = view ? "view" : shortcut(event);
    if (!name || (refuses(target, name) && !goesBack(target, name))) return;
    event.preventDefault();
    if (name === "save" || name === "open") target.blur?.(); // take over what is being typed
    if (name === "save" || name === "open") this.tools[name].click();
    else if (name === "help") this.showHelp();
    else this.send(name, view && { name: view.name });
  }

  /** The view that a key press brings to the front. */
  viewOf(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.repeat) return undefined;
    return this.model.views.find(({ key }) => key && key === event.key.toLowerCase());
  }

  drag(event) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    if (!this.dropZone.matches(":popover-open")) this.dropZone.showPopover();
  }

  drop(event) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    this.dropZone.hidePopover();
    const [file] = event.dataTransfer.files;
    if (file) this.open(file);
  }
}

// ── keys ────────────────────────────────────────────────────────────────────────────────────

const WITH_CONTROL = { z: "undo", y: "redo", s: "save", o: "open" };
const ALONE = { p: "pin", l: "launch", g: "gallery", v: "compare", x: "experts", "?": "help" };

/** What a key press asks for, or undefined. */
function shortcut(event) {
  const key = event.key.toLowerCase();
  if (event.altKey) return undefined;
  if (!event.ctrlKey && !event.metaKey) return event.repeat ? undefined : ALONE[key];
  if (event.shiftKey) return key === "z" ? "redo" : undefined;
  return WITH_CONTROL[key];
}

/** Whether a press belongs to what has the keyboard: typing, choosing from a list, an open menu. */
function refuses(target, name) {
  if (name === "save" || name === "open") return false;
  if (target.closest?.('[role="menu"]')) return true;
  const tag = target.tagName;
  if (tag === "SELECT") return name in { pin: 1, launch: 1, gallery: 1, compare: 1, experts: 1, view: 1, help: 1 };
  const typed =
    tag === "TEXTAREA" ||
    target.isContentEditable ||
    (tag === "INPUT" && !["checkbox", "radio", "range", "button", "file"].includes(target.type));
  return typed;
}

/** Whether an input has nothing of its own to take back: its value is the design's. */
function goesBack(target, name) {
  return (name === "undo" || name === "redo") && Boolean(target.atRest?.());
}

/** A combination as this system writes it. */
function keys(combination) {
  return APPLE ? combination.replaceAll("Ctrl+", "⌘").replaceAll("Shift+", "⇧") : combination;
}

function grouped(lines) {
  const groups = new Map();
  for (const line of lines) groups.set(line.group, [...(groups.get(line.group) ?? []), line]);
  return groups;
}

function helpGroup(title, lines) {
  const rows = lines.flatMap(({ keys: combinations, does }) => [
    h("dt", {}, ...combinations.split(", ").map((combination) => h("kbd", {}, keys(combination)))),
    h("dd", {}, does),
  ]);
  return h("section", {}, h("h3", {}, title), h("dl", {}, ...rows));
}
