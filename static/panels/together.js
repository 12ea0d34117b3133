// Shared designs: the people who have the design open, its links, and the user's values that others have changed.

/** @import { ReplacedValue, SharedPerson, TogetherModel } from "./types" */

import { button } from "../kit/controls.js";
import { h, keepFocus } from "../kit/dom.js";
import { icon } from "../kit/icons.js";
import { keepNames } from "../kit/language.js";
import { css, ink, rgb } from "../kit/palette.js";
import { Tips, dropdown, tool } from "../kit/shell.js";
import { Widget } from "../kit/widget.js";

const MEMBER_KEY = "meshwave.member"; // of the tab: a reloaded tab joins as the same person
const NAME_KEY = "meshwave.name"; // of the browser: name of the user
const MOST_SHOWN = 4; // largest number of people in the bar

/** @param {{model: TogetherModel}} args */
export const render = ({ model }) => new Together(model).root;

/** @extends {Widget<TogetherModel>} */
class Together extends Widget {
  opener = tool("Share", { glyph: "people", tip: "Edit this design together with others" });
  initials = h("div.mw-initials");
  notices = h("div.mw-replaced", { role: "status" });
  live = h("div.mw-sr", { role: "status", "aria-live": "polite" });
  refusal = h("p.mw-share-refused", { role: "alert" });
  ownName = h("input.mw-input", { "aria-label": "Your name", autocomplete: "nickname" });
  /** Names of the people before the last change. @type {string[] | null} */ names = null;

  /** @param {TogetherModel} model */
  constructor(model) {
    super(model);
    this.panel = dropdown(this.opener, "Share", () => this.content());
    this.panel.classList.add("mw-share");
    this.bar = h(
      "div.mw-people",
      { role: "group", "aria-label": "People who have this design open" },
      this.initials,
      this.opener,
    );
    this.root = h("div.mw-canvas.mw-shell.mw-together", {}, this.bar, this.panel, this.notices, this.live);
    this.tips = new Tips(this.root);
    this.watch = new ResizeObserver(() => this.reserve());
    this.watch.observe(this.bar);
    model.on(["people", "links", "read_only", "can_share", "can_rename"], () => this.draw());
    model.on("replaced", () => this.drawReplaced());
    model.on("member", () => this.keepMember());
    model.on("revision", () => this.confirm());
    setTimeout(() => this.enter());
    this.draw();
    this.drawReplaced();
  }

  remove() {
    this.watch.disconnect();
    document.documentElement.style.removeProperty("--mw-people-width");
  }

  // ── this tab among the people ──

  enter() {
    const member = sessionStorage.getItem(MEMBER_KEY) ?? "";
    if (!member) this.keepMember();
    this.send("enter", { member, name: localStorage.getItem(NAME_KEY) ?? "" });
    this.confirm();
  }

  keepMember() {
    if (this.model.member) sessionStorage.setItem(MEMBER_KEY, this.model.member);
  }

  /** Confirm that the page has drawn a revision. */
  confirm() {
    const { revision } = this.model;
    requestAnimationFrame(() => this.send("drawn", { revision }));
  }

  /** Reserve room for this bar in the top bar. */
  reserve() {
    document.documentElement.style.setProperty("--mw-people-width", `${Math.ceil(this.bar.offsetWidth)}px`);
  }

  // ── the bar ──

  draw() {
    const { people, read_only: isReadOnly, can_share: canShare, links } = this.model;
    keepNames(people.map(({ name }) => name));
    this.opener.hidden = !(canShare || links.edit || people.length);
    const shown = people.length > MOST_SHOWN ? people.slice(0, MOST_SHOWN - 1) : people;
    const more = people.length - shown.length;
    this.initials.replaceChildren(
      isReadOnly ? h("span.mw-read-only", {}, "Read-only") : "",
      ...shown.map((person) => this.badge(person)),
      more ? h("span.mw-initial.mw-more", { "data-tip": this.others(shown.length) }, `+${more}`) : "",
    );
    if (this.panel.matches(":popover-open"))
      keepFocus(this.root, () => this.panel.replaceChildren(...this.content()), this.opener);
    this.announce();
  }

  /** @param {number} from */
  others(from) {
    return this.model.people
      .slice(from)
      .map(({ name }) => name)
      .join(", ");
  }

  /** @param {SharedPerson} person */
  badge(person) {
    const colour = rgb(person.colour);
    const letters = [...person.name.trim()].slice(0, 1).join("").toUpperCase();
    return h(
      "span.mw-initial",
      {
        role: "img",
        "aria-label": personText(person),
        "data-tip": personText(person),
        style: { background: css(colour), color: ink(colour) },
      },
      letters,
    );
  }

  /** Announce to screen readers who joined or left. */
  announce() {
    const before = this.names;
    this.names = this.model.people.filter((person) => !person.self).map(({ name }) => name);
    if (!before) return;
    const joined = this.names.filter((name) => !before.includes(name));
    const left = before.filter((name) => !this.names?.includes(name));
    const told = [...joined.map((name) => `${name} joined.`), ...left.map((name) => `${name} left.`)];
    if (told.length) this.live.textContent = told.join(" ");
  }

  // ── the panel ──

  content() {
    const parts = this.model.people.length ? this.sharedContent() : this.offer();
    return [h("h2", {}, "Edit together"), ...parts.filter((part) => part instanceof Node), this.refusal];
  }

  offer() {
    const about =
      "People with the link can edit this design together with you. People with the read-only link can only watch.";
    return [h("p", {}, about), button("Share", { kind: "mw-primary", onclick: () => this.send("share") })];
  }

  sharedContent() {
    const { people, links, can_share: canShare, can_rename: canRename } = this.model;
    return [
      links.edit && this.link("Copy link", links.edit),
      links.view && this.link("Copy read-only link", links.view),
      h("ul.mw-share-people", {}, ...people.map((person) => this.line(person))),
      canRename && this.nameForm(),
      canShare && button("Stop sharing", { onclick: () => this.send("end_sharing") }),
    ];
  }

  /** @param {string} label @param {string} key */
  link(label, key) {
    const url = new URL("./", document.baseURI);
    url.search = `?shared=${key}`;
    const field = h("input.mw-input", { readonly: true, value: url.href, "aria-label": label.replace("Copy ", "") });
    field.addEventListener("focus", () => field.select());
    const copy = button(label, {
      onclick: async () => {
        field.select();
        try {
          await navigator.clipboard.writeText(url.href);
          this.live.textContent = "Link copied.";
          copy.textContent = "Copied";
        } catch {
          field.focus(); // select the link, so that it can be copied with the keyboard
        }
      },
    });
    return h("div.mw-share-link", {}, field, copy);
  }

  /** @param {SharedPerson} person */
  line(person) {
    return h("li", {}, h("i", { style: { background: person.colour } }), personText(person));
  }

  nameForm() {
    const own = this.model.people.find((person) => person.self);
    const field = this.ownName;
    const name = own?.name ?? "";
    if (field.value === field.defaultValue) field.value = name; // else what is typed stays
    field.defaultValue = name;
    field.maxLength = this.model.longest_name;
    const form = h("form.mw-share-link", {}, field, h("button.mw-button", { type: "submit" }, "Change my name"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      localStorage.setItem(NAME_KEY, field.value);
      field.defaultValue = field.value; // the name that Python returns may differ
      this.send("rename", { name: field.value });
    });
    return form;
  }

  // ── values that others have changed ──

  drawReplaced() {
    const { replaced } = this.model;
    keepFocus(this.root, () => this.notices.replaceChildren(...replaced.map((each) => this.notice(each))), this.opener);
    this.notices.hidden = !replaced.length;
  }

  /** @param {ReplacedValue} value */
  notice({ number, text }) {
    return h(
      "div.mw-replaced-value",
      {},
      icon("warning"),
      h("span", {}, text),
      button("Restore my value", { onclick: () => this.send("restore", { number }) }),
      button("Accept the change", { onclick: () => this.send("dismiss", { number }) }),
    );
  }
}

/** @param {SharedPerson} person */
const personText = ({ name, self, reads }) => `${name}${self ? " (you)" : ""}${reads ? ", read-only" : ""}`;
