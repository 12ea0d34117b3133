// All widgets by the path of their module. Pages load this module, or the bundle of it if there is one.

import { keepClicks } from "./kit/clicks.js";
import { loadFont } from "./kit/font.js";
import { startTranslation } from "./kit/language.js";

export { render as "admin/admin.js" } from "./admin/admin.js";
export { render as "cluster/cluster.js" } from "./cluster/cluster.js";
export { render as "experts/experts.js" } from "./experts/experts.js";
export { render as "experts/schedules.js" } from "./experts/schedules.js";
export { render as "lessons/board.js" } from "./lessons/board.js";
export { render as "lessons/class_bar.js" } from "./lessons/class_bar.js";
export { render as "lessons/lessons.js" } from "./lessons/lessons.js";
export { render as "panels/breakdown.js" } from "./panels/breakdown.js";
export { render as "panels/comments.js" } from "./panels/comments.js";
export { render as "panels/comparison.js" } from "./panels/comparison.js";
export { render as "panels/form.js" } from "./panels/form.js";
export { render as "panels/gallery.js" } from "./panels/gallery.js";
export { render as "panels/launch.js" } from "./panels/launch.js";
export { render as "panels/memory.js" } from "./panels/memory.js";
export { render as "panels/numbers.js" } from "./panels/numbers.js";
export { render as "panels/problems.js" } from "./panels/problems.js";
export { render as "panels/profile.js" } from "./panels/profile.js";
export { render as "panels/run_log.js" } from "./panels/run_log.js";
export { render as "panels/run_table.js" } from "./panels/run_table.js";
export { render as "panels/runs.js" } from "./panels/runs.js";
export { render as "panels/side.js" } from "./panels/side.js";
export { render as "panels/slowdowns.js" } from "./panels/slowdowns.js";
export { render as "panels/together.js" } from "./panels/together.js";
export { render as "panels/topbar.js" } from "./panels/topbar.js";
export { render as "start/start.js" } from "./start/start.js";
export { render as "timeline/timeline.js" } from "./timeline/timeline.js";
export { render as "transfer/transfer.js" } from "./transfer/transfer.js";
export { render as "wave/wave.js" } from "./wave/wave.js";

keepClicks();

/**
 * Resolved when widgets can be shown. This is no await of the module: where several widgets import a module that
 * awaits, WebKit gives it to all but the first before it has run.
 */
export const ready = Promise.all([startTranslation(), loadFont()]);
