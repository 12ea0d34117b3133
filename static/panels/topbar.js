// The top bar: the name of the design, files on the user's machine, undo, theme, and keyboard shortcuts.

/** @import { Message } from "../kit/types" */
/** @import { Command, FileMessage, NamedEntry, Shortcut, TopBarModel } from "./types" */

import { Theme, brand, copyLink, download, filePicker, labelUndo, sizeProblem, themePicker } from "../kit/bars.js";
import { focusedElement, h } from "../kit/dom.js";
import { PAGES, openHelpOnF1, openPage } from "../kit/help.js";
import { pressKey, takesKeys } from "../kit/key_targets.js";
import { icon } from "../kit/icons.js";
import { keepNames } from "../kit/language.js";
import { Modal, Tips, dropdown, menu, tool } from "../kit/shell.js";
import { signOut } from "../kit/sign_out.js";
import { Widget } from "../kit/widget.js";
import { boxOf, pageWidth } from "../kit/zoom.js";
import { CommandPalette } from "./commands.js";
import { drawerButton, focusPane, paneButtons, splitters } from "./layout.js";
import { helpGroup, isForTarget, keyNames, shortcutOf } from "./shortcuts.js";
import { readFile } from "./trace_file.js";
import { versionPanel } from "./versions.js";

/** @param {{model: TopBarModel}} args */
export const render = ({ model }) => new TopBar(model).root;

/** @extends {Widget<TopBarModel>} */
class TopBar extends Widget {
  leaving = new AbortController(); // removes the listeners outside the bar
  shownName = "";

  /** @param {TopBarModel} model */
  constructor(model) {
    super(model);
    this.theme = new Theme(this.leaving.signal, (shown) => model.theme !== shown && (model.theme = shown));
    const [theme, themes] = themePicker(this.theme);
    const accepted = [".json", "application/json", ".html", ".png", ...model.suffixes].join();
    this.picker = filePicker("Design, schedule or trace files", accepted, (_, files) => this.open(files), true);
    this.tools = this.makeTools();
    this.tools.export.hidden = !model.exports.length;
    this.tools.versions.hidden = !model.versions;
    this.versions = versionPanel(model, (type, gesture) => this.send(type, gesture));
    for (const button of [this.tools.examples, this.tools.export]) button.append(icon("down"));
    this.name = this.makeNameField();
    this.unsaved = h("span.mw-unsaved", {
      role: "img",
      "aria-label": "Unsaved changes",
      "data-tip": "Changed since it was opened or saved",
    });
    const dropped = h("span", {}, "Drop to open the design, schedule or trace");
    this.dropZone = h("div.mw-drop-zone", { popover: "manual" }, dropped);
    this.notice = h("div.mw-notice", { role: "status" });
    this.messageBox = h("div.mw-trouble", { popover: "manual", role: "alert" });
    this.help = new Modal(h("dialog.mw-help", { "aria-labelledby": "mw-help-title" }));
    this.commands = new CommandPalette(() => this.listCommands(), keyNames);
    const { open, examples, save, saveAs, gallery, lab, versions, undo, redo, help } = this.tools;
    const rule = () => h("span.mw-rule", { "aria-hidden": "true" });
    const homeTip = "My designs, runs, examples and lessons";
    const home = h("a.mw-home", { href: "start", "aria-label": "Meshwave start page", "data-tip": homeTip }, brand());
    const files = [open, examples, save, saveAs, this.tools.export];
    const bar = [
      home,
      rule(),
      h("div.mw-title", {}, this.name, this.unsaved),
      rule(),
      h("div.mw-topbar-tools", {}, ...files, rule(), gallery, lab, rule(), versions, undo, redo),
      h("span.mw-grow"),
      ...[this.notice, theme, help, ...signOut(), drawerButton()],
    ];
    const hidden = [
      ...splitters(),
      paneButtons(),
      ...this.makeMenus(),
      themes,
      this.picker,
      this.messageBox,
      this.dropZone,
      this.help.dialog,
      this.commands.modal.dialog,
    ];
    this.root = h("div.mw-canvas.mw-shell.mw-topbar", { role: "banner" }, ...bar, ...hidden);
    this.tips = new Tips(this.root);
    model.on(["name_of_design", "history", "unsaved", "notice"], () => this.draw());
    this.listen();
    this.draw();
  }

  remove() {
    this.leaving.abort();
  }

  // ── elements ──

  makeTools() {
    return {
      open: tool("Open a design", {
        glyph: "open",
        text: "Open",
        tip: `Open or drop a design or a file of another tool, such as a torch CSV schedule (${keyNames("Ctrl+O")})`,
        onclick: () => this.picker.click(),
      }),
      examples: tool("Examples", { glyph: "examples", text: "Examples", tip: "Example designs" }),
      save: tool("Save", {
        glyph: "save",
        text: "Save",
        tip: `Download the design as JSON (${keyNames("Ctrl+S")})`,
        onclick: () => this.send("save"),
      }),
      saveAs: tool("Save as", { glyph: "saveAs", text: "Save as", tip: "Download the design under another name" }),
      export: tool("Export", { glyph: "share", text: "Export", tip: "Export the predicted step" }),
      gallery: tool("Schedule gallery", {
        glyph: "gallery",
        text: "Gallery",
        tip: "Compare all schedules for this design (G)",
        onclick: () => this.send("gallery"),
      }),
      lab: h(
        "a.mw-button.mw-tool",
        {
          href: "transfer",
          target: "_blank",
          "aria-label": "Transfer lab",
          "data-tip":
            "Plan the transfer of a tensor between two meshes. " +
            "To open a transfer of this design, click its arrow in the timeline.",
        },
        icon("transfer"),
        h("span", {}, "Transfer lab"),
      ),
      versions: tool("Versions", {
        glyph: "versions",
        tip: "Named versions of this design",
        onclick: () => this.send("list_versions"),
      }),
      undo: tool("Undo", { glyph: "undo", onclick: () => this.send("undo") }),
      redo: tool("Redo", { glyph: "redo", onclick: () => this.send("redo") }),
      help: tool("Help", { glyph: "help", tip: "Documentation and keyboard shortcuts (?)" }),
    };
  }

  makeNameField() {
    const field = h("input.mw-title-input", {
      "aria-label": "Design name",
      maxlength: this.model.longest_name,
      spellcheck: "false",
      autocomplete: "off",
      "data-tip": "Rename the design",
    });
    field.addEventListener("change", () => this.rename());
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") field.value = this.model.name_of_design;
      if (event.key === "Enter" || event.key === "Escape") field.blur();
    });
    return field;
  }

  makeMenus() {
    const { tools, model } = this;
    const entries = (/** @type {NamedEntry[]} */ named, /** @type {string} */ type) => () =>
      named.map(({ name, title, note }) => ({
        text: title,
        isName: type === "example",
        note,
        choose: () => this.send(type, { name }),
      }));
    const help = () => [
      { text: "Lessons", choose: () => this.send("lessons") },
      ...PAGES.map(([text, page]) => ({ text, choose: () => openPage(page) })),
      { text: "Keyboard shortcuts", note: "?", choose: () => this.showHelp() },
    ];
    return [
      menu(tools.examples, "Examples", entries(model.examples, "example")),
      menu(tools.export, "Export", () => [
        { text: "Copy link", note: "link that contains the design", choose: () => this.send("link") },
        ...entries(model.exports, "export")(),
      ]),
      menu(tools.help, "Help", help),
      dropdown(tools.versions, "Versions", () => this.versions),
      dropdown(tools.saveAs, "Save as", (panel) => [this.saveAsForm(panel)]),
    ];
  }

  /** @param {HTMLElement} panel */
  saveAsForm(panel) {
    const field = h("input", {
      "aria-label": "File name",
      value: this.model.name_of_design,
      maxlength: this.model.longest_name,
      autofocus: true,
      autocomplete: "off",
    });
    field.addEventListener("focus", () => field.select(), { once: true });
    const form = h("form.mw-save-as", {}, field, h("button.mw-button.mw-primary", { type: "submit" }, "Save"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!field.value.trim()) return field.focus();
      panel.hidePopover();
      this.send("save_as", { name: field.value });
    });
    return form;
  }

  // ── messages from Python ──

  draw() {
    const { name_of_design: name, history, unsaved, notice } = this.model;
    keepNames([name]);
    const isTyping = this.name === focusedElement(this.root) && this.name.value !== this.shownName;
    if (!isTyping) this.name.value = name;
    this.shownName = name;
    this.name.setAttribute("size", String(Math.max(8, Math.min(48, name.length))));
    this.unsaved.hidden = !unsaved;
    if (this.notice.dataset.text !== notice)
      this.notice.replaceChildren(...(notice ? [icon("warning"), h("span", {}, notice)] : []));
    this.notice.dataset.text = this.notice.title = notice;
    document.querySelector("title")?.setAttribute("translate", "no");
    document.title = `${unsaved ? "• " : ""}${name} · Meshwave`;
    labelUndo(this.tools.undo, "Undo", history[0], keyNames("Ctrl+Z"));
    labelUndo(this.tools.redo, "Redo", history[1], keyNames("Ctrl+Shift+Z"));
  }

  /** @param {Message} message */
  receive(message) {
    if (message.type === "link") copyLink(message.fragment, (words) => this.showMessage(words, [], "check"));
    else if (message.type === "download") download(message.name, new Blob([message.content], { type: message.mime }));
    else if (message.type === "trouble") this.showMessage(message.title, message.lines);
    else if (message.type === "notes") this.showMessage(message.title, message.lines, "warning");
    else if (message.type === "answered") {
      if (message.gesture === "rename") this.name.value = this.model.name_of_design;
      if (message.refused) this.showMessage(message.refused, []);
    }
  }

  rename() {
    const name = this.name.value.trim();
    if (name && name !== this.model.name_of_design) this.send("rename", { name });
    else this.name.value = this.model.name_of_design;
  }

  // ── files ──

  /** Open a design, a schedule, or the traces of a run. @param {File[]} files */
  async open(files) {
    const texts = await Promise.all(files.map((file) => readFile(file, this.model.largest)));
    const size = texts.reduce((sum, text, i) => sum + (text?.length ?? files[i].size), 0);
    const names = files.map((file) => file.name);
    keepNames(names);
    const name = names.join(", ");
    const problem = sizeProblem({ name, size }, this.model.largest);
    if (problem) {
      const message = `${problem} The command meshwave import reads larger traces.`;
      return this.showMessage(`Cannot open ${name}`, [{ where: "", message }]);
    }
    this.hideMessage();
    this.send("open", { files: files.map((file, i) => ({ file: file.name, text: texts[i] })) });
  }

  /**
   * Show the problems of a file, or notes on the file as a "warning". A line may contain an excerpt of the file and
   * the fixes of a problem.
   * @param {string} title @param {FileMessage[]} lines @param {string} [glyph]
   */
  showMessage(title, lines, glyph = "error") {
    const close = tool("Close", { glyph: "close", tip: "", onclick: () => this.hideMessage() });
    const list = lines.map(({ where, message, excerpt, fixes = [] }) =>
      h(
        "li",
        {},
        where && h("code", {}, where),
        message,
        excerpt && h("pre", {}, excerpt.replace(/^ {4}/gm, "")),
        ...fixes.map((fix) => h("div.mw-trouble-fix", {}, `Fix: ${fix}`)),
      ),
    );
    this.messageBox.dataset.kind = glyph;
    this.messageBox.replaceChildren(
      h("div.mw-trouble-head", {}, icon(glyph), h("span", {}, title), close),
      h("ul", { hidden: !lines.length }, ...list),
    );
    const at = boxOf(this.name);
    this.messageBox.showPopover();
    const left = Math.max(6, Math.min(at.left, pageWidth() - this.messageBox.offsetWidth - 6));
    Object.assign(this.messageBox.style, { top: `${at.bottom + 10}px`, left: `${left}px` });
  }

  hideMessage() {
    if (!this.messageBox.matches(":popover-open")) return;
    if (this.messageBox.matches(":focus-within")) this.tools.open.focus();
    this.messageBox.hidePopover();
  }

  showHelp() {
    if (this.help.isOpen) return;
    /** @type {Map<string, Shortcut[]>} */
    const groups = new Map();
    for (const line of this.model.shortcuts) groups.set(line.group, [...(groups.get(line.group) ?? []), line]);
    const close = tool("Close", { glyph: "close", tip: "", onclick: () => this.help.close() });
    this.help.dialog.replaceChildren(
      h("div.mw-help-head", {}, h("h2", { id: "mw-help-title" }, "Keyboard shortcuts"), close),
      h("div.mw-help-groups", {}, ...[...groups].map(([title, lines]) => helpGroup(title, lines))),
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

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.defaultPrevented || event.isComposing || this.help.isOpen) return;
    if (event.key === "Escape") return this.hideMessage();
    const target = /** @type {HTMLElement} */ (event.composedPath()[0]); // the target inside the shadow roots
    const view = this.viewOf(event);
    const name = view ? "view" : shortcutOf(event, this.model.shortcuts);
    if (!name || isForTarget(target, name)) return;
    event.preventDefault();
    if (view) this.send("view", { name: view.name });
    else if (name === "panes") focusPane(this.root, event.shiftKey);
    else this.run(name, target);
  }

  /** The view that a key press shows. @param {KeyboardEvent} event */
  viewOf(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.repeat) return undefined;
    return this.model.views.find(({ key }) => key && key === event.key.toLowerCase());
  }

  /** @param {string} name of a shortcut @param {HTMLElement} target */
  run(name, target) {
    if (name === "help") return this.showHelp();
    if (name === "commands") return this.commands.open();
    if (name === "panes") return focusPane(this.root);
    if (name !== "save" && name !== "open") return this.send(name);
    target.blur?.(); // commit the input that is being typed
    this.tools[name].click();
  }

  /** All commands of the page: those of the keyboard help, the views, exports and lessons. @returns {Command[]} */
  listCommands() {
    const { shortcuts, views, exports } = this.model;
    const applies = (/** @type {Shortcut} */ { group, command }) =>
      command === "key" ? this.hasView(group) || takesKeys(group) : command && command !== "commands";
    const named = shortcuts.filter(applies);
    return [
      ...named.map(({ group, keys, does, command }) => ({
        group,
        title: does[0].toUpperCase() + does.slice(1),
        keys,
        run: () => (command === "key" ? this.pressKey(group, keys) : this.run(command, this.root)),
      })),
      ...views.map(({ name, title, key }) => ({
        group: "View",
        title,
        keys: key.toUpperCase(),
        run: () => void this.send("view", { name }),
      })),
      ...exports.map(({ name, title }) => ({
        group: "Export",
        title,
        keys: "",
        run: () => void this.send("export", { name }),
      })),
      { group: "Help", title: "Lessons", keys: "", run: () => void this.send("lessons") },
    ];
  }

  /** True if the canvas of a group is a view, which may be behind another tab. @param {string} group */
  hasView(group) {
    return this.model.views.some(({ name }) => name === group.toLowerCase());
  }

  /** @param {string} group @param {string} keys */
  pressKey(group, keys) {
    if (this.hasView(group)) this.send("view", { name: group.toLowerCase() }); // it may be behind another tab
    pressKey(group, keys);
  }

  /** @param {DragEvent} event */
  drag(event) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    if (!this.dropZone.matches(":popover-open")) this.dropZone.showPopover();
  }

  /** @param {DragEvent} event */
  drop(event) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    this.dropZone.hidePopover();
    const files = [...event.dataTransfer.files];
    if (files.length) this.open(files);
  }
}
