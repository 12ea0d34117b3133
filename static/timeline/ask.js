// Questions to Python (designer/views/timeline.py, QUESTIONS): the page draws, Python works things out.

import { send } from "../kit/canvas.js";

/** Asks, and hears the answers; of several questions of one kind only the latest is answered. */
export class Asker {
  constructor(model) {
    this.model = model;
    this.asked = 0;
    this.open = new Map(); // kind of question: its number and what to do with the answer
    model.on("msg:custom", (message) => this._told(message.data ?? message));
  }

  /** Ask of a layer; `then` is given what was found and, where nothing was, the sentence that says why. */
  ask(what, layer, question, then) {
    const ask = ++this.asked;
    this.open.set(what, { ask, then });
    send(this.model, { type: "ask", ask, what, layer: layer.number, ...question });
  }

  /** Care no longer for answers to a kind of question. */
  forget(what) {
    this.open.delete(what);
  }

  _told({ type, ask, found, refused }) {
    if (type !== "told") return;
    for (const [what, question] of this.open) {
      if (question.ask !== ask) continue;
      this.open.delete(what);
      question.then(found ?? null, refused ?? "");
    }
  }
}
