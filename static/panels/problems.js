// The list of problems, errors first. A problem leads to its field, and its fixes are buttons below it. Then the
// results of a search for a better order.

import { button, followTheme, h, send } from "../kit/canvas.js";
import { icon } from "../kit/shell.js";

const WORDS = { error: "Error", launch: "Blocks launch", warning: "Warning", computing: "Computing" };
const GLYPHS = { launch: "warning", computing: "help" };

export function render({ model }) {
  const list = h("ul", { class: "mw-problem-list" });
  const none = h(
    "div",
    { class: "mw-none" },
    icon("check"),
    h("div", {}, "No problems"),
    h("div", { class: "mw-none-note" }, "This design can be simulated as it stands."),
  );
  const found = h("section", { class: "mw-found", "aria-label": "What the search tried" });
  const better = h("section", { class: "mw-found mw-better", "aria-label": "A better order", hidden: true });
  const aloud = h("div", { class: "mw-sr", role: "status", "aria-live": "polite" });
  const root = h(
    "section",
    { class: "mw-canvas mw-shell mw-problems", "aria-label": "Problems" },
    list,
    none,
    found,
    better,
    aloud,
  );
  requestAnimationFrame(() => model.on("remove", followTheme(root)));

  const draw = () => {
    const { problems } = model;
    const at = root.getRootNode().activeElement?.dataset?.place;
    list.replaceChildren(...problems.map((problem, place) => h("li", {}, ...line(model, problem, place))));
    list.hidden = !problems.length;
    none.hidden = problems.length > 0;
    if (at !== undefined) list.querySelector(`[data-place="${Math.min(at, problems.length - 1)}"]`)?.focus();
    const counts = Object.keys(WORDS).map((severity) => [
      severity,
      problems.filter((problem) => problem.severity === severity).length,
    ]);
    aloud.textContent = problems.length
      ? counts.map(([severity, number]) => `${WORDS[severity].toLowerCase()}: ${number}`).join(", ")
      : "No problems";
  };
  const tell = () => {
    found.hidden = !model.findings.length;
    found.replaceChildren(
      h("h3", {}, "What the search tried"),
      ...model.findings.map((sentence) => h("p", {}, sentence)),
    );
  };
  const offer = () => {
    const { state, words, share, use } = model.better;
    better.hidden = !state;
    if (!state) return;
    const act = (label, type, kind) => button(label, { kind, onclick: () => send(model, { type }) });
    const parts = {
      open: [
        h("p", {}, "Auto searches an order for these very stages, with your own costs and memory."),
        act("Search", "search"),
      ],
      runs: [
        h("p", { role: "status" }, words),
        h("div", { class: "mw-better-bar" }, h("div", { style: { width: `${100 * share}%` } })),
        act("Stop", "stop"),
      ],
      found: [h("p", { role: "status" }, words), use ? act("Use it", "use", "mw-primary") : act("Search", "search")],
    }[state];
    const held = better.contains(root.getRootNode().activeElement);
    better.replaceChildren(h("h3", {}, "A better order?"), ...parts);
    if (held) better.querySelector("button")?.focus();
  };
  model.on("better", offer);
  model.on("problems", draw);
  model.on("findings", tell);
  draw();
  tell();
  offer();
  return root;
}

function line(model, { severity, where, code, message, fixes }, place) {
  const go = () => send(model, { type: "focus", where });
  const head = h(
    "span",
    { class: "mw-problem-head" },
    h("b", {}, WORDS[severity]),
    where ? h("code", {}, where) : null,
  );
  const attributes = {
    type: "button",
    class: "mw-problem",
    "data-severity": severity,
    "data-where": where,
    "data-place": place,
    onclick: go,
    onkeydown: step,
  };
  const problem = h(
    "button",
    attributes,
    icon(GLYPHS[severity] ?? severity),
    h("span", { class: "mw-problem-body" }, head, h("span", {}, message)),
  );
  const apply = (fix) => button(fix, { kind: "mw-fix", onclick: () => send(model, { type: "fix", where, code, fix }) });
  return fixes.length ? [problem, h("div", { class: "mw-fixes" }, ...fixes.map(apply))] : [problem];
}

/** Arrows go from line to line. */
function step(event) {
  const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (!next) return;
  event.preventDefault();
  event.currentTarget.parentElement[next]?.firstElementChild.focus();
}
