// The leaderboard of a challenge, for learners and the teacher.

/** @import { Leader } from "./types" */

import { h } from "../kit/dom.js";

/**
 * A table of the leaders; `action` adds a control to a line.
 * @param {Leader[]} leaders @param {(leader: Leader) => HTMLElement | string} action
 */
export function leaderboard(leaders, action = () => "") {
  if (leaders.length === 0) return h("p.mw-quiet", {}, "No designs yet.");
  const lines = leaders.map((leader) =>
    h(
      "tr",
      {},
      h("td", {}, `${leader.rank}`),
      h("td", { translate: "no" }, leader.name),
      h("td", {}, leader.text),
      h("td", {}, leader.run && (leader.result || "in progress")),
      h("td", {}, action(leader)),
    ),
  );
  const head = ["Place", "Name", "Score", "Dry run", ""].map((text) => h("th", { scope: "col" }, text));
  return h("table.mw-class-table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...lines));
}
