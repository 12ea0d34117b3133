// Controls shared by the canvases: buttons and steppers.

/** @import { Button } from "./types" */

import { h } from "./dom.js";

/**
 * A button that can be focused while it is disabled, so that the reason can be read.
 * @param {string} label
 * @param {{onclick?: (event: MouseEvent) => void, title?: string, kind?: string, content?: Node | string}} options
 * @returns {Button}
 */
export function button(label, { onclick, title, kind = "", content } = {}) {
  const element = Object.assign(
    h("button", { type: "button", class: `mw-button ${kind}`, "aria-label": label, title }, content ?? label),
    {
      onblocked: /** @type {Button["onblocked"]} */ (null),
      enable(/** @type {boolean} */ isEnabled, title = element.title) {
        element.setAttribute("aria-disabled", String(!isEnabled));
        element.title = title;
      },
    },
  );
  element.addEventListener("click", (event) => {
    if (element.ariaDisabled === "true") element.onblocked?.(element.title, element);
    else onclick?.(event);
  });
  return element;
}

/**
 * A number field between − and + buttons, which also takes digits, Enter and arrow keys. Each press changes the value
 * that was requested last, even before Python has responded: n presses are n steps. `set` shows the current value of
 * the design, unless responses are outstanding; `acknowledge` counts a response.
 * @param {object} options @param {string} options.label @param {string} [options.text] the label on screen
 * @param {number} [options.min] @param {(value: number) => void} options.onchange
 * @param {(reason: string, stepper: HTMLElement) => void} options.onblocked
 */
export function stepper({ label, text = label, min = 1, onchange, onblocked }) {
  let max = Infinity;
  let value = min; // the value that is shown
  let outstanding = 0; // outstanding responses
  let isTyping = false;
  /** @type {{less?: string, more?: string}} */
  let reasons = {};
  const field = h("input.mw-number", { type: "number", "aria-label": label, min, step: 1 });
  const typed = () => Number.parseInt(field.value, 10);
  const less = button(`Decrease ${label}`, { content: "−", onclick: () => request(value - 1) });
  const more = button(`Increase ${label}`, { content: "+", onclick: () => request(value + 1) });
  less.onblocked = more.onblocked = (reason) => onblocked(reason, element);
  field.isUnedited = () => typed() === value;
  field.addEventListener("input", () => (isTyping = true));
  field.addEventListener("change", () => request(typed()));
  field.addEventListener("blur", () => typed() === value || request(typed()));
  field.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
    if (event.key !== "Escape") return;
    isTyping = false;
    field.value = String(value);
    field.blur();
  });

  /** @param {number} wanted */
  function request(wanted) {
    if (!Number.isInteger(wanted) || wanted < min || wanted > max) {
      onblocked(reasons[wanted > max ? "more" : "less"] ?? `${label}: enter an integer from ${min} to ${max}`, element);
    } else if (wanted !== value) {
      value = wanted;
      outstanding++;
      onchange(wanted);
    }
    isTyping = false;
    field.value = String(value);
    update();
  }

  function update() {
    less.enable(value > min, reasons.less ?? (value > min ? "" : `Minimum: ${min}`));
    more.enable(value < max, reasons.more ?? (value < max ? "" : `Maximum: ${max}`));
  }

  const element = Object.assign(
    h("span.mw-stepper", { title: label }, h("span.mw-stepper-box", {}, less, field, more), h("span", {}, text)),
    {
      /** @param {number} held @param {{least?: number, most?: number, less?: string, more?: string}} [limits] */
      set(held, { least = min, most = max, ...limitReasons } = {}) {
        [min, max, reasons] = [least, most, limitReasons];
        if (!outstanding) value = held;
        if (!isTyping && field.value !== String(value)) field.value = String(value);
        update();
      },
      acknowledge() {
        outstanding = Math.max(0, outstanding - 1);
      },
    },
  );
  return element;
}
