// The context menu of a place in the timeline: actions on the block, the lane and the time at the place.

/** @import { MenuEntry, Point } from "../kit/types" */
/** @import { Chart } from "./timeline.js" */
/** @import { Place } from "./types" */

import { offsetIn } from "../kit/canvas.js";
import { openOnContext, pointMenu } from "../kit/shell.js";
import { keepLane } from "./pinned_lanes.js";
import { laneAt, placeAt } from "./place.js";

/** Create the context menu of a chart and return its element. @param {Chart} chart */
export function contextMenu(chart) {
  const menu = pointMenu("Timeline");
  openOnContext(chart.stage, (at, _, isByKey) => {
    if (!chart.hasData || chart.edit.isOn) return false;
    chart.tooltip.hide();
    menu.open(at, entriesAt(chart, isByKey ? null : at));
    return true;
  });
  return menu.element;
}

/** The entries for a point, or for the focused block. @param {Chart} chart @param {Point | null} point */
function entriesAt(chart, point) {
  const { depth, view } = chart;
  const at = point && offsetIn(point, chart.stage);
  const place = at ? placeAt(chart, at) : (chart.focus ?? chart.pinned);
  /** @type {MenuEntry[]} */
  const back = depth.isDeep ? [{ text: "Back", note: "Backspace", choose: () => depth.back() }] : [];
  return [
    ...(place && place.span >= 0 ? blockEntries(chart, place) : []),
    ...(at ? pointEntries(chart, at) : []),
    ...back,
    { text: "Show the whole step", note: "0", choose: () => view.fit() },
  ];
}

/** @param {Chart} chart @param {Place} place @returns {MenuEntry[]} */
function blockEntries(chart, place) {
  const { depth, pinned, view } = chart;
  const isPinned = pinned?.layer === place.layer && pinned.span === place.span;
  return [
    { text: isPinned ? "Unpin" : "Pin", note: "Enter", choose: () => chart.pin(place) },
    ...(depth.canOpen(place) ? [{ text: "Open", note: "Enter", choose: () => depth.open(place) }] : []),
    { text: "Zoom to block", note: "F", choose: () => view.show(place) },
  ];
}

/** @param {Chart} chart @param {Point} at @returns {MenuEntry[]} */
function pointEntries(chart, at) {
  const { frame, marks, overlay } = chart;
  const lane = laneAt(chart, at);
  const name = lane?.kept ? "Unpin lane" : "Pin lane to the top";
  const mark = { text: "Toggle mark here", note: "X", choose: () => marks.toggle(frame.tick(at.x)) };
  const note = { text: "Add a note here", choose: () => overlay.notes.writeAt(marks.snapToMark(at)) };
  const section =
    lane &&
    !lane.kept &&
    chart.plan.titles.find(({ row, ranks }) => row.includes(lane.layer) && ranks.includes(lane.rank));
  return [
    ...(section ? [{ text: "Collapse these lanes", choose: () => chart.collapse.turn(section) }] : []),
    ...(lane ? [{ text: name, note: "U", choose: () => keepLane(chart, lane) }] : []),
    ...(at.x >= frame.left ? [mark] : []),
    ...(at.x >= frame.left && overlay.notes.canAdd ? [note] : []),
  ];
}
