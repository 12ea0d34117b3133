// The link with which a person signs out of a server for several people or of a workshop.

import { h } from "./dom.js";
import { icon } from "./icons.js";

/**
 * A link that signs out the person whom the head of the page names; empty where nobody can sign out.
 * @param {string} [text]
 */
export function signOut(text = "") {
  const name = document.querySelector("meta[name=mw-signed-in-as]")?.getAttribute("content");
  if (!name) return [];
  const label = `Sign out ${name}`;
  const link = h("a.mw-button.mw-tool", { href: "sign-out", "aria-label": label, "data-tip": label }, icon("signOut"));
  if (text) link.append(h("span", {}, text));
  return [link];
}
