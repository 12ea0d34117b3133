// The comments on the design, its meshes, blocks and runs, and a form for a new one.

/** @import { Message } from "../kit/types" */
/** @import { CommentEntry, CommentsModel } from "./types" */

import { button } from "../kit/controls.js";
import { h, keepFocus } from "../kit/dom.js";
import { keepNames } from "../kit/language.js";
import { Widget, plainData } from "../kit/widget.js";

/** @param {{model: CommentsModel}} args */
export const render = ({ model }) => new Comments(model).root;

/** @extends {Widget<CommentsModel>} */
class Comments extends Widget {
  list = h("ul.mw-comment-list");
  none = h("p.mw-comment-none");
  refusal = h("p.mw-comment-refused", { role: "alert" });
  targets = h("select.mw-comment-field", { "aria-label": "Comment on" });

  /** @param {CommentsModel} model */
  constructor(model) {
    super(model);
    this.text = h("textarea.mw-comment-field", { "aria-label": "Comment", rows: 3, maxlength: model.longest });
    this.form = this.makeForm();
    const parts = [this.form, this.refusal, this.none, this.list];
    this.root = h("section.mw-canvas.mw-shell.mw-comments", { "aria-label": "Comments" }, ...parts);
    model.on(["comments", "notice"], () => this.drawList());
    model.on(["targets", "can_write"], () => this.drawForm());
    this.drawForm();
    this.drawList();
  }

  /** @param {Message} message */
  receive({ type, gesture, refused }) {
    if (type !== "answered") return;
    this.refusal.textContent = refused ?? "";
    if (gesture === "add" && !refused) this.text.value = "";
  }

  makeForm() {
    const add = h("button.mw-button.mw-primary", { type: "submit" }, "Add comment");
    const form = h("form.mw-comment-form", {}, this.targets, this.text, add);
    form.addEventListener("focusin", () => this.send("refresh")); // the selection may have changed
    form.addEventListener("pointerenter", () => this.send("refresh"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const target = this.model.targets[Number(this.targets.value)];
      if (target) this.send("add", { text: this.text.value, target });
    });
    return form;
  }

  drawForm() {
    const { targets, can_write: canWrite } = this.model;
    const chosen = this.targets.selectedOptions[0]?.textContent;
    const options = targets.map(({ title }, at) => h("option", { value: at, selected: title === chosen }, title));
    this.targets.replaceChildren(...options);
    this.form.hidden = !canWrite;
  }

  drawList() {
    /** @type {CommentEntry[]} */
    const comments = plainData(this.model, "comments");
    keepNames(comments.map(({ author }) => author));
    keepFocus(this.root, () => this.list.replaceChildren(...comments.map((comment) => this.line(comment))), this.text);
    this.none.textContent = this.model.notice || "No comments yet.";
    this.none.hidden = comments.length > 0;
  }

  /** @param {CommentEntry} comment */
  line({ id, about, text, author, when, resolved, can_delete: canDelete }) {
    const of = `the comment of ${author} on ${about}`;
    const resolve = button(resolved ? `Reopen ${of}` : `Resolve ${of}`, {
      content: resolved ? "Reopen" : "Resolve",
      onclick: () => this.send("resolve", { comment: id, on: !resolved }),
    });
    const remove = button(`Delete ${of}`, { content: "Delete", onclick: () => this.send("delete", { comment: id }) });
    return h(
      "li",
      { "data-resolved": String(resolved) },
      h("div.mw-comment-about", {}, h("b", {}, about), resolved && h("span.mw-quiet", {}, "resolved")),
      h("div.mw-comment-text", { translate: "no" }, text),
      h("div.mw-comment-by", {}, `${author}, ${when}`),
      this.model.can_write && h("div.mw-comment-row", {}, resolve, canDelete && remove),
    );
  }
}
