// Runs: follow one live, lay what it measured over the prediction, look at earlier ones.

import { followTheme, h, keepFocus, send } from "../kit/canvas.js";
import { LossChart } from "./loss_chart.js";

const WORDS = {
  STARTING: "starting",
  RUNNING: "running",
  SUCCEEDED: "done",
  FAILED: "failed",
  CANCELLED: "cancelled",
  LOST: "lost",
};

export const render = ({ model }) => new Runs(model).root;

export class Runs {
  constructor(model) {
    this.model = model;
    this.head = h("div", { class: "mw-run-part" });
    this.loss = new LossChart(this);
    this.compared = h("div", { class: "mw-run-part" });
    this.past = h("div", { class: "mw-run-part" });
    this.unfolded = new Set(); // parts of the comparison, by their titles
    this.notes = h("div", { class: "mw-run-part" });
    this.log = h("pre", { class: "mw-log", tabindex: 0, role: "log", "aria-label": "Log of the run" });
    this.run = h(
      "section",
      { class: "mw-run", "aria-label": "The run that is shown" },
      this.head,
      this.loss.element,
      this.compared,
      this.past,
      this.notes,
      this.log,
    );
    this.follows = true; // the end of the log
    this.log.addEventListener("scroll", () => this.scrolled());
    this.sized = new ResizeObserver(() => this.toEnd()); // also when it comes into the page
    this.sized.observe(this.log);
    this.list = h("div", { class: "mw-runs-list", role: "group", "aria-label": "Runs" });
    this.root = h(
      "div",
      { class: "mw-canvas mw-runs" },
      this.textRow(),
      this.hostsRow(),
      this.run,
      h("h3", {}, "Runs"),
      this.list,
    );
    model.on("run", () => this.showRun());
    model.on(["run", "losses"], () => this.loss.draw());
    model.on("comparison", () => keepFocus(this.compared, () => this.showComparison()));
    model.on("outcomes", () => this.showOutcomes());
    model.on("log", () => this.showLog());
    model.on("runs", () => this.showList());
    model.on("text", () => this.showText());
    model.on("hosts", () => this.showHosts());
    model.on("msg:custom", (message) => this.answered(message.data ?? message));
    for (const show of ["Text", "Hosts", "Run", "Comparison", "Outcomes", "Log", "List"]) this[`show${show}`]();
    this.loss.draw();
    model.on("remove", () => this.sized.disconnect());
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
    window.meshwaveRuns = { model, root: this.root };
  }

  // ---- the text to train on ----

  textRow() {
    this.picker = h("input", {
      type: "file",
      accept: "text/*,.txt,.md,.csv,.json",
      hidden: true,
      tabindex: -1,
      "aria-label": "A text to train on",
      onchange: () => this.bring(),
    });
    this.choose = h(
      "button",
      { type: "button", class: "mw-button", onclick: () => this.picker.click() },
      "Train on your own text...",
    );
    this.back = h(
      "button",
      {
        type: "button",
        class: "mw-button",
        title: "Train on the text that comes with Meshwave",
        onclick: () => send(this.model, { type: "default_text" }),
      },
      "Use Meshwave's",
    );
    this.textName = h("span", { class: "mw-text-name" });
    this.textTrouble = h("div", { class: "mw-run-reason", role: "alert" });
    return h(
      "section",
      { class: "mw-text", "aria-label": "The text to train on" },
      this.textName,
      this.choose,
      this.back,
      this.picker,
      this.textTrouble,
    );
  }

  showText() {
    const { name } = this.model.text;
    this.textName.textContent = name ? `Text: ${name}` : "Text: the text that comes with Meshwave";
    this.textName.title = name ?? "";
    keepFocus(this.back.parentElement, () => (this.back.hidden = !name));
    this.textTrouble.textContent = "";
  }

  async bring() {
    const [file] = this.picker.files;
    if (!file) return;
    const { largest } = this.model.text;
    this.textTrouble.textContent = "";
    try {
      if (file.size > largest)
        throw new RangeError(
          `${file.name} has ${(file.size / 1e6).toFixed(1)} MB, and the page takes texts up to ${largest / 1e6} MB.`,
        );
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      send(this.model, { type: "bring_text", name: file.name, text });
    } catch (error) {
      this.textTrouble.textContent =
        error instanceof RangeError ? error.message : `${file.name} is no text in UTF-8, so it was not taken.`;
    } finally {
      this.picker.value = ""; // so that the same file can be chosen again
    }
  }

  answered({ type, gesture, refused }) {
    if (type === "answered" && gesture?.endsWith("_text")) this.textTrouble.textContent = refused ?? "";
  }

  // ---- the network to run over ----

  hostsRow() {
    this.onHosts = h("input", {
      type: "checkbox",
      onchange: () => send(this.model, { type: "hosts", on: this.onHosts.checked }),
    });
    this.hostsWords = h("span");
    this.hosts = h(
      "label",
      {
        class: "mw-check",
        title:
          "Processes of a node share a network namespace's links, held to the drawn rates by the kernel; otherwise " +
          "they talk over the loopback",
      },
      this.onHosts,
      this.hostsWords,
    );
    return this.hosts;
  }

  showHosts() {
    const { on, words } = this.model.hosts;
    this.hosts.hidden = !words;
    this.onHosts.checked = Boolean(on);
    this.hostsWords.textContent = `Emulate the drawn network: ${words}`;
  }

  // ---- the run ----

  showRun() {
    const run = this.model.run;
    this.run.hidden = !run?.id;
    if (!run?.id) return;
    const share = run.total ? run.done / run.total : 0;
    this.head.replaceChildren(
      h(
        "div",
        { class: "mw-run-head" },
        h("span", { class: "mw-run-name", title: `${run.name} (${run.id})` }, run.name),
        h("span", { class: "mw-state", "data-state": run.state }, WORDS[run.state] ?? run.state),
      ),
      h(
        "div",
        {
          class: "mw-progress",
          role: "progressbar",
          "aria-valuenow": run.done,
          "aria-valuemin": 0,
          "aria-valuemax": run.total,
          "aria-label": "Steps done",
        },
        h("div", { style: { width: `${100 * share}%` } }),
      ),
      h(
        "div",
        { class: "mw-run-figures" },
        ...run.figures.map(([value, name]) => h("div", { class: "mw-figure" }, h("b", {}, value), h("span", {}, name))),
      ),
    );
    if (run.reason && run.state !== "SUCCEEDED" && run.state !== "RUNNING") {
      this.head.append(h("div", { class: "mw-run-reason", role: "alert" }, run.reason));
    }
    this.notes.replaceChildren(
      ...(run.notes ?? []).map((note) => h("div", { class: "mw-quiet", style: { "white-space": "normal" } }, note)),
    );
  }

  showComparison() {
    const { comparison } = this.model;
    this.compared.replaceChildren(...(comparison?.rows?.length ? [this.compare(comparison)] : []));
  }

  compare({ rows, parts = [], spread, cause, label, clocks, laid, same, whose, usable }) {
    const box = h("input", {
      type: "checkbox",
      onchange: () => send(this.model, { type: "overlay", on: box.checked }),
    });
    box.checked = laid;
    const said = (words, kind = "mw-quiet") => (words ? h("div", { class: `mw-told ${kind}` }, words) : null);
    return h(
      "div",
      {},
      said(label, "mw-rehearsed"),
      table("mw-compare", `Measured against predicted${whose}`, rows),
      said(spread),
      said(cause, "mw-cause"),
      ...parts.map((part) => this.part(part)),
      said(clocks),
      same ? h("label", { class: "mw-check" }, box, "Lay the measured timeline over the predicted one") : null,
      usable ? this.useMeasured() : null,
    );
  }

  /** A part of the comparison, folded up unless a person unfolded it; it is drawn anew while a run goes on. */
  part({ title, rows }) {
    const found = h(
      "details",
      { class: "mw-compared-part", "aria-label": title },
      h("summary", {}, title),
      table("mw-beside", null, rows, title),
    );
    found.open = this.unfolded.has(title);
    found.addEventListener("toggle", () => this.unfolded[found.open ? "add" : "delete"](title));
    return found;
  }

  useMeasured() {
    return h(
      "button",
      {
        type: "button",
        class: "mw-button",
        title: "Keep this run as a profile and price the open design by it",
        onclick: () => send(this.model, { type: "use_measured" }),
      },
      "Use what was measured",
    );
  }

  // ---- earlier runs of the design ----

  showOutcomes() {
    const { outcomes } = this.model;
    this.past.replaceChildren(...(outcomes.length ? [this.history(outcomes)] : []));
  }

  /** A bar a run from the middle, to the right where it took longer than predicted. */
  history(outcomes) {
    const bar = (share) =>
      h("span", {
        class: "mw-past-bar",
        style: { left: `${50 + 50 * Math.min(share, 0)}%`, width: `${50 * Math.abs(share)}%` },
      });
    return h(
      "table",
      { class: "mw-beside mw-past" },
      h("caption", {}, "Errors of the predictions of this design, run by run"),
      h(
        "tbody",
        {},
        ...outcomes.map(({ run, shown, share, error, words }) =>
          h(
            "tr",
            { "aria-current": String(shown), title: run },
            h("td", {}, words),
            h("td", { class: "mw-past-axis" }, bar(share)),
            h("td", {}, error),
          ),
        ),
      ),
    );
  }

  showLog() {
    const text = this.model.log;
    if (this.log.textContent !== text) this.log.textContent = text;
    this.log.hidden = !text;
    this.follows ||= !text; // another run begins
    this.toEnd();
  }

  /** Keep the end of the log in sight, unless a person scrolled up to read. */
  toEnd() {
    if (this.follows) this.log.scrollTop = this.log.scrollHeight;
  }

  scrolled() {
    this.follows = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 4;
  }

  showList() {
    const at = [...this.list.children].indexOf(this.root.getRootNode().activeElement);
    const rows = this.model.runs.map(({ id, name, state, words, shown }) =>
      h(
        "button",
        {
          type: "button",
          class: "mw-runs-row",
          "aria-current": String(shown),
          title: id,
          onclick: () => send(this.model, { type: "open", run: id }),
        },
        h("span", {}, name),
        h("span", { class: "mw-state", "data-state": state }, WORDS[state] ?? state),
        h("span", { class: "mw-quiet" }, words),
      ),
    );
    this.list.replaceChildren(
      ...(rows.length ? rows : [h("div", { class: "mw-quiet" }, "Nothing ran yet: press Launch.")]),
    );
    if (at >= 0) rows[Math.min(at, rows.length - 1)]?.focus();
  }
}

/** Rows of what it is, predicted, measured and error. */
function table(kind, caption, rows, label = null) {
  return h(
    "table",
    { class: kind, "aria-label": label },
    caption ? h("caption", {}, caption) : null,
    h(
      "thead",
      {},
      h("tr", {}, ...["", "predicted", "measured", "error"].map((name) => h("th", { scope: "col" }, name))),
    ),
    h(
      "tbody",
      {},
      ...rows.map(([name, ...cells]) =>
        h("tr", {}, h("th", { scope: "row" }, name), ...cells.map((cell) => h("td", {}, cell))),
      ),
    ),
  );
}
