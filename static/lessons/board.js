// The teacher's board: how to join, the current step of each learner, leaderboards, and announcements.

/** @import { Message } from "../kit/types" */
/** @import { BoardModel, BoardState, ShownPerson } from "./types" */

import { button } from "../kit/controls.js";
import { h, keepFocus } from "../kit/dom.js";
import { keepNames } from "../kit/language.js";
import { signOut } from "../kit/sign_out.js";
import { Widget, plainData } from "../kit/widget.js";
import { leaderboard } from "./leaderboard.js";

const CLOCK_MS = 5000;
const LONG_S = 600; // time at one step after which a learner may need help

/** @param {{model: BoardModel}} args */
export const render = ({ model }) => new Board(model).root;

/** @extends {Widget<BoardModel>} */
class Board extends Widget {
  people = h("div.mw-board-people");
  challenges = h("div.mw-board-challenges");
  told = h("p.mw-board-told", { role: "status" });
  refusal = h("p.mw-board-refused", { role: "alert" });
  message = /** @type {HTMLInputElement} */ (
    h("input.mw-input", {
      "aria-label": "Message to all learners",
      placeholder: "Message to all learners",
      maxlength: "300",
    })
  );
  steps = /** @type {HTMLSelectElement} */ (h("select.mw-input", { "aria-label": "Class step" }));
  pause = button("", { onclick: () => this.send("pause", { paused: !this.state.announcement.is_paused }) });
  removing = ""; // person whose removal is to be confirmed
  behindS = 0; // seconds by which the clock of this browser is behind the server's

  /** @param {BoardModel} model */
  constructor(model) {
    super(model);
    this.root = h("main.mw-canvas.mw-shell.mw-board", { "aria-label": "Workshop board" }, this.head(), this.controls());
    this.root.append(this.refusal, this.told, this.people, this.challenges);
    model.on("state", () => this.draw());
    this.timer = setInterval(() => this.draw(), CLOCK_MS);
    this.draw();
  }

  remove() {
    clearInterval(this.timer);
  }

  /** @returns {BoardState} */
  get state() {
    return plainData(this.model, "state");
  }

  /** @param {Message} message */
  receive(message) {
    super.receive(message);
    if (message.type === "open") window.open(`./?${message.query}`, "_blank");
  }

  head() {
    const { title, code, link, picture } = this.state;
    const box = h("div.mw-board-picture", { role: "img", "aria-label": "QR code of the link to join" });
    box.innerHTML = picture;
    const lines = [
      h("h1", { translate: "no" }, title),
      h("p", {}, "Open ", h("a", { href: link }, link), " and type the code"),
    ];
    return h("header.mw-board-head", {}, h("div", {}, ...lines, h("strong.mw-board-code", {}, code)), box);
  }

  controls() {
    this.steps.append(h("option", { value: "" }, "No step"));
    for (const { name, title, steps } of this.state.lessons) {
      const options = steps.map((step, number) =>
        h("option", { value: `${name} ${number}`, translate: "no" }, `${number + 1}. ${step}`),
      );
      this.steps.append(h("optgroup", { label: title }, ...options));
    }
    const form = h(
      "form.mw-board-row",
      {},
      this.message,
      button("Send to everyone", { onclick: () => this.announce() }),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.announce();
    });
    const point = button("Send learners to this step", { onclick: () => this.point() });
    return h(
      "section.mw-board-controls",
      {},
      form,
      h("div.mw-board-row", {}, this.steps, point, this.pause, ...signOut("Sign out")),
    );
  }

  announce() {
    this.send("announce", { message: this.message.value });
  }

  point() {
    const [lesson = "", step = "0"] = this.steps.value.split(" ");
    this.send("point", { lesson, step: Number(step) });
  }

  draw() {
    const { announcement, class_step: step, people, most, challenges, now_s: now } = this.state;
    keepNames([announcement.message, step, ...people.flatMap((person) => [person.name, person.step])]);
    this.behindS = Math.max(this.behindS, now - Date.now() / 1000);
    this.pause.textContent = announcement.is_paused ? "Continue" : "Pause all";
    const told = [
      announcement.message && `Message: ${announcement.message}`,
      step && `Class step: ${step}`,
      announcement.is_paused && "Paused",
    ];
    this.told.textContent = told.filter(Boolean).join(" · ");
    keepFocus(this.root, () => {
      this.people.replaceChildren(h("h2", {}, `${people.length} of at most ${most} people`), this.table(people));
      this.challenges.replaceChildren(...challenges.map((each) => this.challenge(each)));
    });
  }

  /** @param {ShownPerson[]} people */
  table(people) {
    if (people.length === 0) return h("p.mw-quiet", {}, "Nobody has joined yet.");
    const head = ["Name", "Step", "Since", "Passed", "Answers shown", ""].map((text) =>
      h("th", { scope: "col" }, text),
    );
    const longest = [...people].sort((one, other) => one.since_s - other.since_s);
    const lines = longest.map((person) => this.line(person));
    return h("table.mw-class-table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...lines));
  }

  /** @param {ShownPerson} person */
  line({ id, name, step, since_s: since, passed, shown, has_design: hasDesign }) {
    const seconds = Math.max(0, Date.now() / 1000 + this.behindS - since);
    const isLong = Boolean(step) && seconds > LONG_S;
    const join = {
      onclick: () => this.send("join", { person: id }),
      title: `Edit the open design of ${name} together`,
    };
    const watch = {
      onclick: () => this.send("watch", { person: id }),
      title: `Watch the open design of ${name} without editing it`,
    };
    return h(
      "tr",
      { "data-long": String(isLong) },
      h("td", { translate: "no" }, name),
      h("td", {}, step || "no lesson open"),
      h("td", {}, `${Math.floor(seconds / 60)} min`, isLong ? " (long)" : ""),
      h("td", {}, `${passed}`),
      h("td", {}, `${shown}`),
      h(
        "td",
        {},
        h(
          "div.mw-board-row",
          {},
          hasDesign && button(`Open together with ${name}`, { content: "Open together", ...join }),
          hasDesign && button(`Open design of ${name} read-only`, { content: "Read-only", ...watch }),
          this.remover(id, name),
        ),
      ),
    );
  }

  /**
   * A button that removes a person at the second click, since the scores cannot be restored.
   * @param {string} id @param {string} name
   */
  remover(id, name) {
    const isAsking = this.removing === id;
    const [label, content] = isAsking
      ? [`Remove ${name} and the scores`, "Remove with scores?"]
      : [`Remove ${name}`, "Remove"];
    return button(label, {
      content,
      onclick: () => {
        this.removing = isAsking ? "" : id;
        if (isAsking) this.send("remove", { person: id });
        else this.draw();
      },
    });
  }

  /** @param {import("./types").Challenge} challenge */
  challenge({ name, title, leaders }) {
    const open = (/** @type {{person: string, name: string}} */ leader) =>
      button(`Open design of ${leader.name}`, {
        content: "Open design",
        onclick: () => this.send("open", { person: leader.person, challenge: name }),
      });
    return h("section", { "aria-label": title }, h("h2", { translate: "no" }, title), leaderboard(leaders, open));
  }
}
