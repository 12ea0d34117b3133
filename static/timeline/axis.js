// The time axis, its grid lines through the lanes, and the bars that show the visible part of the step.

/** @import { Chart } from "./timeline.js" */

import { clamp } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { TICKS } from "./columns.js";
import { AXIS } from "./layout.js";
import { line, write } from "./shapes.js";
import { axisText, axisUnit, ticks } from "./ticks.js";

/** @param {CanvasRenderingContext2D} context @param {Chart} chart */
export function paintGrid(context, { frame, data, colours }) {
  context.strokeStyle = css(colours.text, 0.07);
  context.lineWidth = 1;
  context.beginPath();
  for (const { x } of ticks(frame, data.layers[0])) {
    context.moveTo(Math.round(x) + 0.5, frame.top);
    context.lineTo(Math.round(x) + 0.5, frame.bottom);
  }
  context.stroke();
}

/** @param {CanvasRenderingContext2D} context @param {Chart} chart */
export function paintAxis(context, chart) {
  const { frame, plan, colours, data } = chart;
  context.fillStyle = css(colours.background);
  context.fillRect(0, 0, plan.width, AXIS);
  context.strokeStyle = css(colours.line);
  context.lineWidth = 1;
  line(context, 0, AXIS - 0.5, plan.width, AXIS - 0.5);
  const style = { font: `11px ${colours.font}`, colour: css(colours.muted) };
  const [layer] = data.layers;
  const unit = axisUnit(frame.to * layer.scale, layer.unit);
  context.strokeStyle = css(colours.strong);
  for (const { x, value, step } of ticks(frame, layer)) {
    line(context, Math.round(x) + 0.5, AXIS - 5, Math.round(x) + 0.5, AXIS - 1);
    if (x > frame.left - 2 && x < plan.width - 14)
      write(context, axisText(value, step, unit), x, AXIS / 2 - 1, { ...style, align: "center" });
  }
  write(context, unit.name || "Time", 10, AXIS / 2 - 1, style);
  if (!chart.view.isWhole) paintWindow(context, chart);
}

/**
 * Show the visible part of the step as a bar at the top of the axis.
 * @param {CanvasRenderingContext2D} context @param {Chart} chart
 */
function paintWindow(context, { frame, colours }) {
  const width = frame.right - frame.left;
  const x = (/** @type {number} */ tick) => frame.left + clamp(tick / TICKS, 0, 1) * width;
  context.fillStyle = css(colours.line);
  context.fillRect(frame.left, 0, width, 3);
  context.fillStyle = css(colours.accent);
  context.fillRect(x(frame.from), 0, Math.max(4, x(frame.to) - x(frame.from)), 3);
}

/** @param {CanvasRenderingContext2D} context @param {Chart} chart */
export function paintScrollbar(context, { plan, frame, colours }) {
  const visible = frame.bottom - frame.split;
  if (plan.content <= visible + 1) return;
  const top = frame.split + (plan.scroll / plan.content) * visible;
  context.fillStyle = css(colours.text, 0.25);
  context.beginPath();
  context.roundRect(plan.width - 6, top, 4, Math.max(16, (visible * visible) / plan.content), 2);
  context.fill();
}
