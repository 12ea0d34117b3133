// The time axis, its grid through the lanes, and the bars that tell which part is in view.

import { clamp } from "../kit/numbers.js";
import { css } from "../kit/palette.js";
import { TICKS } from "./columns.js";
import { AXIS } from "./layout.js";
import { line } from "./shapes.js";
import { axisUnit, onAxis, ticks } from "./ticks.js";

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

export function paintAxis(context, chart) {
  const { frame, plan, colours, data } = chart;
  context.fillStyle = css(colours.background);
  context.fillRect(0, 0, plan.width, AXIS);
  context.strokeStyle = css(colours.line);
  context.lineWidth = 1;
  line(context, 0, AXIS - 0.5, plan.width, AXIS - 0.5);
  context.font = `11px ${colours.font}`;
  context.textBaseline = "middle";
  context.textAlign = "center";
  const [layer] = data.layers;
  const unit = axisUnit(frame.to * layer.scale, layer.unit);
  for (const { x, value, step } of ticks(frame, layer)) {
    context.strokeStyle = css(colours.strong);
    line(context, Math.round(x) + 0.5, AXIS - 5, Math.round(x) + 0.5, AXIS - 1);
    context.fillStyle = css(colours.muted);
    if (x > frame.left - 2 && x < plan.width - 14) context.fillText(onAxis(value, step, unit), x, AXIS / 2 - 1);
  }
  context.textAlign = "left";
  context.fillStyle = css(colours.muted);
  context.fillText(unit.name || "time", 10, AXIS / 2 - 1);
  if (!chart.view.isWhole) paintWindow(context, chart);
}

/** Which part of the step is in view: a bar at the top of the axis. */
function paintWindow(context, { frame, colours }) {
  const room = frame.right - frame.left;
  const at = (tick) => frame.left + clamp(tick / TICKS, 0, 1) * room;
  context.fillStyle = css(colours.line);
  context.fillRect(frame.left, 0, room, 3);
  context.fillStyle = css(colours.accent);
  context.fillRect(at(frame.from), 0, Math.max(4, at(frame.to) - at(frame.from)), 3);
}

export function paintScrollbar(context, { plan, frame, colours }) {
  const shown = frame.bottom - frame.split;
  if (plan.content <= shown + 1) return;
  context.fillStyle = css(colours.text, 0.25);
  context.beginPath();
  context.roundRect(
    plan.width - 6,
    frame.split + (plan.scroll / plan.content) * shown,
    4,
    Math.max(16, (shown * shown) / plan.content),
    2,
  );
  context.fill();
}
