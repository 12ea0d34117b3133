// The words of edit mode: how things stand, and what a move would do.

import { h } from "../kit/canvas.js";
import { amount, bytes, percent } from "./units.js";

const MOST_NAMED = 6; // blocks
const MOST_MESHES = 3;

const said = (words, kind = "") => h("span", { "data-kind": kind }, words);

/** How things stand while nothing moves. */
export function stands({ state, said: last, chosen, chart }) {
  const line = h("span", { class: "mw-order-line" });
  if (!state) return line;
  if (state.refused) line.append(said(`The order cannot be edited: ${state.refused}`, "worse"));
  else if (last) line.append(said(last.words, last.kind === "no" ? "worse" : ""));
  else if (chosen.length)
    line.append(
      said(chosenWords(chosen, chart.model.palette.names)),
      state.fault ? "" : hint("Drag, or Alt with an arrow, moves; Shift adds"),
    );
  else if (!state.fault)
    line.append(said("Drag a block along its lane, or walk with the arrows and choose with Enter."), first(state));
  if (state.fault) line.append(said(`Draft: ${state.fault}.`, "worse"));
  if (state.difference) line.append(said(state.difference.words, "muted"));
  return line;
}

const hint = (words) => said(words, "muted");

const first = ({ is_custom: isCustom, schedule }) =>
  isCustom ? "" : hint(`The first move turns ${schedule} into a custom order.`);

function chosenWords(chosen, names) {
  const shown = chosen.slice(0, MOST_NAMED).map(([op, stage, mb]) => `${stage}${names[op]}${mb}`);
  const more = chosen.length > MOST_NAMED ? ` and ${chosen.length - MOST_NAMED} more` : "";
  return `${chosen.length === 1 ? "Chosen" : `${chosen.length} chosen`}: ${shown.join(", ")}${more}`;
}

/** What a move would do: of a layer that has its unit. */
export function consequence(preview, { unit }) {
  const line = h(
    "span",
    { class: "mw-order-line" },
    h("b", {}, preview.label.charAt(0).toUpperCase() + preview.label.slice(1)),
  );
  if (preview.fault)
    line.append(said(`${preview.fault}.`, "worse"), hint("Dropped here it is a draft, which can be repaired."));
  else if (preview.mends) line.append(said(`The order can run again: ${amount(preview.makespan[1], unit)}.`, "better"));
  else line.append(iteration(preview, unit), ...memory(preview), shifted(preview));
  return line;
}

function iteration({ makespan: [was, now], bubble: [idle, idleNow] }, unit) {
  const change = was ? now / was - 1 : 0;
  if (Math.abs(change) < 5e-5) return said(`iteration stays ${amount(now, unit)}`);
  const bubble = percent(idle) === percent(idleNow) ? "" : `, bubble ${percent(idle)} → ${percent(idleNow)}`;
  return said(
    `iteration ${amount(was, unit)} → ${amount(now, unit)} (${signed(change)})${bubble}`,
    change > 0 ? "worse" : "better",
  );
}

const signed = (change) => `${change > 0 ? "+" : "\u2212"}${percent(Math.abs(change))}`;

function memory({ memory: changed }) {
  if (!changed.length) return [hint("memory stays")];
  const told = changed
    .slice(0, MOST_MESHES)
    .map(([mesh, was, now]) =>
      said(
        `memory of ${mesh} ${now > was ? "+" : "\u2212"}${bytes(Math.abs(now - was))}`,
        now > was ? "worse" : "better",
      ),
    );
  return changed.length > MOST_MESHES ? [...told, hint(`and of ${changed.length - MOST_MESHES} more`)] : told;
}

function shifted({ later, earlier }) {
  const parts = [later && `${later} later`, earlier && `${earlier} earlier`].filter(Boolean);
  return hint(parts.length ? `${parts.join(", ")}` : "nothing starts at another time");
}
