// Questions to Python (QUESTIONS in designer/views/timeline.py).

/** @import { Layer } from "./data.js" */
/** @import { TimelineModel } from "./types" */

import { send } from "../kit/widget.js";

/** @typedef {(found: any, refused: string) => void} AnswerListener */

/** Sends questions to Python and passes the answers on. Only the latest question of each kind is answered. */
export class Asker {
  number = 0; // number of the last question
  /** @type {Map<string, {ask: number, onanswer: AnswerListener}>} */ open = new Map(); // by kind of question

  /** @param {TimelineModel} model */
  constructor(model) {
    this.model = model;
    model.on("msg:custom", ({ type, ask, found, refused }) => {
      if (type === "told") this.answer(ask, found ?? null, refused ?? "");
    });
  }

  /**
   * Ask about a layer. The listener receives the answer, or null and the reason for a refusal.
   * @param {string} what @param {Layer} layer @param {object} question @param {AnswerListener} onanswer
   */
  ask(what, layer, question, onanswer) {
    const ask = ++this.number;
    this.open.set(what, { ask, onanswer });
    send(this.model, { type: "ask", ask, what, layer: layer.number, ...question });
  }

  /** Discard the answer to the last question of a kind. @param {string} what */
  forget(what) {
    this.open.delete(what);
  }

  /** @param {number} ask @param {any} found @param {string} refused */
  answer(ask, found, refused) {
    for (const [what, question] of this.open) {
      if (question.ask !== ask) continue;
      this.open.delete(what);
      question.onanswer(found, refused);
    }
  }
}
