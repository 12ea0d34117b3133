// The texts of edit mode: the state of the order, and the effect of a move.

/** @import { Child } from "../kit/types" */
/** @import { Edit } from "./edit.js" */
/** @import { BlockName, OrderState, Preview } from "./types" */

import { h } from "../kit/dom.js";
import { count, percent } from "../kit/numbers.js";
import { amount, bytes } from "./units.js";

const MOST_BLOCKS = 6;
const MOST_MESHES = 3;
const SAME = 5e-5; // part of the step; smaller changes are shown as unchanged

/** @param {string} text @param {string} [kind] */
const part = (text, kind = "") => h("span", { "data-kind": kind }, text);

/** @param {string} text */
const hint = (text) => part(text, "muted");

/** @param {Child[]} parts */
const line = (...parts) => h("span.mw-order-line", {}, ...parts);

/** The state of the order while nothing is moved. @param {Edit} edit */
export function stateLine(edit) {
  const { state } = edit;
  if (!state) return line();
  return line(
    ...subject(edit, state),
    state.fault && part(`Draft: ${state.fault}.`, "worse"),
    state.difference && hint(state.difference.words),
  );
}

/** @param {Edit} edit @param {OrderState} state @returns {Child[]} */
function subject({ result, selected, chart }, state) {
  const { refused, fault } = state;
  if (refused) return [part(`The order cannot be edited: ${refused}`, "worse")];
  if (result) return [part(result.words, result.isError ? "worse" : "")];
  if (selected.length) {
    const blocks = part(selectedText(selected, chart.model.palette.names));
    return [
      blocks,
      !fault &&
        hint("Drag the selected blocks, or press Alt with an arrow key to move them; Shift selects more blocks"),
    ];
  }
  if (fault) return [];
  const first = `The first move turns ${state.schedule} into a custom order.`;
  return [
    part("Drag a block along its lane, or use the arrow keys and select with Enter."),
    !state.is_custom && hint(first),
  ];
}

/** @param {BlockName[]} selected @param {string[]} names */
function selectedText(selected, names) {
  const shown = selected.slice(0, MOST_BLOCKS).map(([op, stage, mb]) => `${stage}${names[op]}${mb}`);
  const more = selected.length > MOST_BLOCKS ? ` and ${selected.length - MOST_BLOCKS} more` : "";
  return `${selected.length === 1 ? "Selected" : `${selected.length} selected`}: ${shown.join(", ")}${more}`;
}

/** The effect of a move. @param {Preview} preview @param {string} unit */
export function effectLine(preview, unit) {
  const { label, fault } = preview;
  const title = h("b", {}, label.charAt(0).toUpperCase() + label.slice(1));
  if (fault)
    return line(
      title,
      part(`${fault}.`, "worse"),
      hint("This position makes the order invalid. Drop the block here and press Repair to fix it."),
    );
  if (preview.mends)
    return line(title, part(`The order is valid again: ${amount(preview.makespan[1], unit)}.`, "better"));
  return line(title, stepTime(preview, unit), ...memory(preview), shifted(preview));
}

/** @param {Preview} preview @param {string} unit */
function stepTime({ makespan: [before, after], bubble: [idleBefore, idleAfter] }, unit) {
  const change = before ? after / before - 1 : 0;
  if (Math.abs(change) < SAME) return part(`step time unchanged: ${amount(after, unit)}`);
  const [was, is] = [percent(idleBefore), percent(idleAfter)];
  const bubbles = was === is ? "" : `, bubble ratio ${was} → ${is}`;
  const size = `${sign(change)}${percent(Math.abs(change))}`;
  return part(
    `step time ${amount(before, unit)} → ${amount(after, unit)} (${size})${bubbles}`,
    change > 0 ? "worse" : "better",
  );
}

/** @param {number} change */
const sign = (change) => (change > 0 ? "+" : "\u2212");

/** @param {Preview} preview */
function memory({ memory: changed }) {
  if (!changed.length) return [hint("memory unchanged")];
  const meshes = changed.slice(0, MOST_MESHES).map(([mesh, before, after]) => {
    const change = after - before;
    return part(`memory of ${mesh} ${sign(change)}${bytes(Math.abs(change))}`, change > 0 ? "worse" : "better");
  });
  const more = changed.length - MOST_MESHES;
  return more > 0 ? [...meshes, hint(`and ${count(more, "more mesh", "more meshes")}`)] : meshes;
}

/** @param {Preview} preview */
function shifted({ later, earlier }) {
  const parts = [later && `${count(later, "block")} later`, earlier && `${count(earlier, "block")} earlier`];
  return hint(parts.filter(Boolean).join(", ") || "no start times changed");
}
