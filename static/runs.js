// Runs: follow one live, lay what it measured over the prediction, look at earlier ones.

import { count, followTheme, h, s } from "static/canvas.js";

const WORDS = {
  STARTING: "starting", RUNNING: "running", SUCCEEDED: "done", FAILED: "failed", CANCELLED: "cancelled", LOST: "lost",
};
const CHART = { width: 300, height: 96, pad: 6 };

export function render({ model }) {
  const runs = new Runs(model);
  model.on("remove", () => runs.remove());
  return runs.root;
}

class Runs {
  constructor(model) {
    this.model = model;
    this.run = h("section", { class: "mw-run", "aria-label": "The run that is shown" });
    this.log = h("pre", { class: "mw-log", tabindex: 0, role: "log", "aria-label": "Log of the run" });
    this.list = h("div", { class: "mw-runs-list", role: "list" });
    this.root = h(
      "div",
      { class: "mw-canvas mw-runs" },
      this.textRow(),
      this.run,
      h("h3", {}, "Runs"),
      this.list,
    );
    model.on("run", () => this.showRun());
    model.on("losses", () => this.showLoss());
    model.on("comparison", () => this.showRun());
    model.on("log", () => this.showLog());
    model.on("runs", () => this.showList());
    model.on("text", () => this.showText());
    model.on("msg:custom", (message) => this.answered(message.data ?? message));
    this.showText();
    this.showRun();
    this.showList();
    requestAnimationFrame(() => (this.unfollow = followTheme(this.root)));
    window.meshwaveRuns = { model, root: this.root };
  }

  remove() {
    this.unfollow?.();
  }

  // ---- the text to train on ----

  textRow() {
    this.picker = h("input", { type: "file", accept: "text/*,.txt,.md,.csv,.json", hidden: true, tabindex: -1, "aria-label": "A text to train on", onchange: () => this.bring() });
    this.choose = h("button", { type: "button", class: "mw-button", onclick: () => this.picker.click() }, "Train on your own text...");
    this.back = h("button", { type: "button", class: "mw-button", title: "Train on the text that comes with Meshwave", onclick: () => this.model.send_msg({ type: "default_text" }) }, "Use Meshwave's");
    this.textName = h("span", { class: "mw-text-name" });
    this.textTrouble = h("div", { class: "mw-run-reason", role: "alert" });
    return h("section", { class: "mw-text", "aria-label": "The text to train on" }, this.textName, this.choose, this.back, this.picker, this.textTrouble);
  }

  showText() {
    const { name } = this.model.text;
    this.textName.textContent = name ? `Text: ${name}` : "Text: the text that comes with Meshwave";
    this.textName.title = name ?? "";
    this.back.hidden = !name;
    this.textTrouble.textContent = "";
  }

  async bring() {
    const [file] = this.picker.files;
    if (!file) return;
    const { largest } = this.model.text;
    this.textTrouble.textContent = "";
    try {
      if (file.size > largest) throw new RangeError(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB, and the page takes texts up to ${largest / 1e6} MB.`);
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      this.model.send_msg({ type: "bring_text", name: file.name, text });
    } catch (error) {
      this.textTrouble.textContent = error instanceof RangeError ? error.message : `${file.name} is no text in UTF-8, so it was not taken.`;
    } finally {
      this.picker.value = ""; // so that the same file can be chosen again
    }
  }

  answered({ type, gesture, refused }) {
    if (type === "answered" && gesture?.endsWith("_text")) this.textTrouble.textContent = refused ?? "";
  }

  // ---- the run ----

  showRun() {
    const run = this.model.run;
    this.run.hidden = !run?.id;
    if (!run?.id) return;
    const { comparison } = this.model;
    const follows = this.atEnd; // building anew takes the log out of the page, and with it where it was scrolled to
    const share = run.total ? run.done / run.total : 0;
    this.run.replaceChildren(
      h(
        "div",
        { class: "mw-run-head" },
        h("span", { class: "mw-run-name", title: `${run.name} (${run.id})` }, run.name),
        h("span", { class: "mw-state", "data-state": run.state }, WORDS[run.state] ?? run.state),
      ),
      h(
        "div",
        { class: "mw-progress", role: "progressbar", "aria-valuenow": run.done, "aria-valuemin": 0, "aria-valuemax": run.total, "aria-label": "Steps done" },
        h("div", { style: { width: `${100 * share}%` } }),
      ),
      h("div", { class: "mw-run-figures" }, ...run.figures.map(([value, name]) => h("div", { class: "mw-figure" }, h("b", {}, value), h("span", {}, name)))),
    );
    if (run.reason && run.state !== "SUCCEEDED" && run.state !== "RUNNING") {
      this.run.append(h("div", { class: "mw-run-reason", role: "alert" }, run.reason));
    }
    this.loss = h("div", { class: "mw-loss-box" });
    this.run.append(this.loss);
    this.showLoss();
    if (comparison?.rows?.length) this.run.append(this.compare(comparison));
    for (const note of run.notes ?? []) this.run.append(h("div", { class: "mw-quiet", style: { "white-space": "normal" } }, note));
    this.run.append(this.log);
    this.showLog(follows);
  }

  compare({ rows, laid, same, whose }) {
    const box = h("input", { type: "checkbox", onchange: () => this.model.send_msg({ type: "overlay", on: box.checked }) });
    box.checked = laid;
    const cells = (row) => row.map((cell) => h("td", {}, cell));
    return h(
      "div",
      {},
      h(
        "table",
        { class: "mw-compare" },
        h("caption", {}, `Measured against predicted${whose}`),
        h("thead", {}, h("tr", {}, ...["", "predicted", "measured", "error"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, ...rows.map((row) => h("tr", {}, ...cells(row)))),
      ),
      same ? h("label", { class: "mw-check" }, box, "Lay the measured timeline over the predicted one") : null,
    );
  }

  showLoss() {
    if (!this.loss) return;
    const { losses, run } = this.model;
    const known = losses.filter((loss) => loss !== null);
    this.loss.hidden = known.length < 2;
    if (known.length < 2) return;
    const { width, height, pad } = CHART;
    const [low, high] = extremes(known);
    const x = (place) => (place / (losses.length - 1)) * width;
    const y = (loss) => pad + (1 - (loss - low) / (high - low || 1)) * (height - 2 * pad);
    const lines = stretches(losses).map((points) => points.map(([place, loss]) => `${x(place).toFixed(1)},${y(loss).toFixed(1)}`).join(" "));
    const last = losses.at(-1)?.toFixed(3) ?? "not a number";
    const words = `Loss over ${count(run.done, "step")}: from ${known[0].toFixed(3)} to ${last}`;
    this.loss.replaceChildren(
      s(
        "svg",
        { class: "mw-loss", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": words },
        ...[low, (low + high) / 2, high].map((loss) => s("line", { class: "mw-loss-grid", x1: 0, x2: width, y1: y(loss), y2: y(loss) })),
        ...lines.map((points) => s("polyline", { class: "mw-loss-line", points })),
      ),
      h("span", { class: "mw-loss-top" }, `loss ${high.toFixed(2)}`),
      h("span", { class: "mw-loss-low" }, low.toFixed(2)),
      h("span", { class: "mw-loss-last" }, count(run.done, "step")),
    );
  }

  /** Whether the end of the log is in sight: then it stays so, whatever is added. */
  get atEnd() {
    return this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 4;
  }

  showLog(atEnd = this.atEnd) {
    const text = this.model.log;
    if (this.log.textContent !== text) this.log.textContent = text;
    this.log.hidden = !text;
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  showList() {
    const rows = this.model.runs.map(({ id, name, state, when, shown, steps }) =>
      h(
        "button",
        { type: "button", class: "mw-runs-row", "aria-current": String(shown), title: id, onclick: () => this.model.send_msg({ type: "open", run: id }) },
        h("span", {}, name),
        h("span", { class: "mw-quiet" }, `${steps}, ${when}`),
        h("span", { class: "mw-state", "data-state": state }, WORDS[state] ?? state),
      ),
    );
    this.list.replaceChildren(...(rows.length ? rows : [h("div", { class: "mw-quiet" }, "Nothing ran yet: press Launch.")]));
  }
}

function extremes(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** The runs of numbers between nulls, each a list of [place, value]. */
function stretches(values) {
  const found = [[]];
  values.forEach((value, place) => {
    if (value !== null) found.at(-1).push([place, value]);
    else if (found.at(-1).length) found.push([]);
  });
  return found.filter((points) => points.length);
}
