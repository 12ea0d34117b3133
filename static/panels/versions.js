// The named versions of a design, in a panel of the top bar.

/** @import { NamedVersion, TopBarModel } from "./types" */

import { h } from "../kit/dom.js";
import { keepNames } from "../kit/language.js";
import { tool } from "../kit/shell.js";

/**
 * The content of the panel: a form that saves a version, and the list of versions.
 * @param {TopBarModel} model @param {(type: string, gesture: object) => void} send
 */
export function versionPanel(model, send) {
  const list = h("ul.mw-versions");
  const draw = () => {
    const versions = model.versions ?? [];
    keepNames(versions.map(({ name }) => name));
    list.replaceChildren(...versions.map((version) => versionLine(version, send)));
  };
  model.on("versions", draw);
  draw();
  const form = versionForm(send);
  model.on("msg:custom", ({ type, gesture, refused }) => {
    if (type === "answered" && gesture === "add_version" && !refused) form.reset();
  });
  return [form, list];
}

/** @param {(type: string, gesture: object) => void} send */
function versionForm(send) {
  const field = h("input", { "aria-label": "Version name", placeholder: "Version name", autofocus: true });
  const form = h("form.mw-save-as", {}, field, h("button.mw-button.mw-primary", { type: "submit" }, "Save version"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim()) send("add_version", { name: field.value });
  });
  return form;
}

/** @param {NamedVersion} version @param {(type: string, gesture: object) => void} send */
function versionLine({ name, when, changes }, send) {
  const about = changes.length ? `Differs: ${changes.join("; ")}` : "Same as the open design";
  const restore = tool(`Restore ${name}`, {
    text: "Restore",
    tip: "",
    onclick: () => send("restore_version", { name }),
  });
  const forget = tool(`Delete ${name}`, { text: "Delete", tip: "", onclick: () => send("forget_version", { name }) });
  const title = h("b", { translate: "no" }, name);
  const head = h("div.mw-version", {}, title, h("span.mw-quiet", {}, when), h("span.mw-grow"));
  head.append(restore, forget);
  return h("li", {}, head, h("div.mw-version-about", {}, about));
}
