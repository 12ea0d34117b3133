// What the drawing canvases share: elements, small controls, the theme, words at the cursor.

import { clamp } from "./numbers.js";

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; `on...` attributes are listeners, null and false ones are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// ── what goes to Python ─────────────────────────────────────────────────────────────────────

let leaving = false; // the page is being left: its socket is closed a moment before its timers end

let lost = false; // the server is gone

const listened = new WeakSet();

for (const sign of ["beforeunload", "pagehide"]) window.addEventListener(sign, () => (leaving = true));

for (const sign of ["pageshow", "pointerdown", "keydown"]) window.addEventListener(sign, () => (leaving = false), true);

setTimeout(listen);

function listen() {
  for (const page of globalThis.Bokeh?.documents ?? []) {
    if (listened.has(page)) continue;
    listened.add(page);
    page.on_event("connection_lost", () => (lost = true));
    page.on_event("client_reconnected", () => (lost = false));
  }
}

const parsed = new WeakMap();

/** The plain data of a parameter that travels as JSON text; each text is parsed once. */
export function plain(model, name) {
  const known = parsed.get(model) ?? parsed.set(model, {}).get(model);
  const text = model[name];
  if (known[name]?.text !== text) known[name] = { text, value: JSON.parse(text) };
  return known[name].value;
}

/** Send Python a message of a widget, as long as there is somebody to hear it. */
export function send(model, message) {
  listen();
  const goes = !leaving && !lost;
  if (goes) model.send_msg(message);
  return goes;
}

/** The colour of a mesh: the page may override the palette by --mw-mesh-N. */
export function meshColour(palette, rank) {
  const place = rank % palette.length;
  return `var(--mw-mesh-${place}, ${palette[place]})`;
}

/** Run `draw` once per frame however often it is asked for. */
export function perFrame(draw) {
  let asked = 0;
  const ask = () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      draw();
    });
  };
  ask.cancel = () => cancelAnimationFrame(asked);
  return ask;
}

/** Copy `data-theme` of the nearest ancestor, also from outside a shadow root; returns an undo. */
export function followTheme(root) {
  const observer = new MutationObserver(read);
  function read() {
    let node = root.parentNode;
    while (node && !node.dataset?.theme) node = node.parentNode ?? node.host;
    if (node?.dataset) root.dataset.theme = node.dataset.theme;
    else delete root.dataset.theme;
  }
  for (let node = root.parentNode; node; node = node.parentNode ?? node.host) {
    if (node.nodeType === 1) observer.observe(node, { attributes: true, attributeFilter: ["data-theme"] });
  }
  read();
  return () => observer.disconnect();
}

const STOPS = "button, input, select, textarea, summary, a[href], [tabindex]";

const CALM_MS = 800; // whoever presses once more within means what was there before

/** Run `change`, which may draw anew or hide what has the keyboard in `root`: then what stands in its place takes it,
    or `otherwise` where nothing is left. */
export function keepFocus(root, change, otherwise = null) {
  const can = (stop) => !stop.disabled && stop.checkVisibility();
  const stops = () => [...root.querySelectorAll(STOPS)].filter(can);
  const held = root.getRootNode().activeElement;
  const at = stops().indexOf(held);
  change();
  if (at < 0 || (root.contains(held) && can(held))) return;
  const left = stops();
  const next = left[Math.min(at, left.length - 1)] ?? otherwise;
  next?.focus();
  if (next && !next.matches("input, select, textarea")) calm(next);
}

/** For a moment Enter and Space press nothing here. */
function calm(stop) {
  const over = new AbortController();
  const hold = (event) => {
    if (event.type === "click" ? event.detail : !["Enter", " "].includes(event.key)) return; // a pointer may
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  for (const type of ["keydown", "keyup", "click"])
    stop.addEventListener(type, hold, { capture: true, signal: over.signal });
  setTimeout(() => over.abort(), CALM_MS);
}

/**
 * Follow a pressed pointer wherever it goes; Escape, or losing it, cancels, and `pressed` hears of the other keys as
 * they go down and up. Gives what ends it, once or more often.
 */
export function trackPointer({ moved, released, cancel, pressed = (_key) => {} }) {
  const over = new AbortController();
  const key = (event) => {
    if (event.key !== "Escape") return pressed(event);
    event.stopPropagation();
    event.preventDefault();
    cancel();
  };
  const heard = { pointermove: moved, pointerup: released, pointercancel: cancel, keydown: key, keyup: pressed };
  for (const [name, listener] of Object.entries(heard))
    window.addEventListener(name, listener, { signal: over.signal, capture: true });
  return () => over.abort();
}

/** Words near the pointer, and aloud. `say` fades by itself, `show` stays until `hide`. */
export class Notice {
  constructor(root) {
    this.root = root;
    this.box = h("div", { class: "mw-notice", "aria-hidden": "true" });
    this.live = h("div", { class: "mw-sr", role: "status", "aria-live": "polite" });
    root.append(this.box, this.live);
  }

  show(text, x, y, kind = "tell") {
    clearTimeout(this.timer);
    this.text = text;
    this.last = text;
    this.box.textContent = text;
    this.box.dataset.kind = kind;
    this.box.dataset.shown = "";
    const { width, height } = this.root.getBoundingClientRect();
    const left = clamp(x + 14, 6, Math.max(6, width - this.box.offsetWidth - 6));
    const below = y + 18 + this.box.offsetHeight < height;
    const top = below ? y + 18 : Math.max(6, y - this.box.offsetHeight - 10);
    this.box.style.left = `${left}px`;
    this.box.style.top = `${top}px`;
  }

  say(text, x, y, kind = "no") {
    this.show(text, x, y, kind);
    this.live.textContent = text;
    this.timer = setTimeout(() => this.hide(), 1800 + 45 * text.length);
  }

  hide() {
    clearTimeout(this.timer);
    this.text = "";
    delete this.box.dataset.shown;
  }
}

/**
 * A canvas: what is drawn on the `board` of a `root`, at most once a frame, with words near the pointer. Who extends it
 * builds both, calls `start`, and has `draw`, and `told` for what Python says.
 */
export class Drawing {
  root = null; // this and the board are built by who extends it
  board = null;

  constructor(model) {
    this.model = model;
    this.pointer = { x: 40, y: 40 }; // where it was last, or what stands for it
    this.redraw = perFrame(() => this.draw());
  }

  /** Draw the whole picture; a canvas has its own. */
  draw() {}

  /** Take a message of Python; a canvas has its own. */
  told(_message) {}

  start() {
    this.notice = new Notice(this.root);
    this.root.addEventListener("pointermove", (event) => (this.pointer = this.within(event)), true);
    this.root.mw = this;
    this.observer = new ResizeObserver(() => this.redraw());
    this.observer.observe(this.board);
    this.model.on("msg:custom", (message) => this.told(message));
    this.model.on("remove", () => this.remove());
    requestAnimationFrame(() => this.model.on("remove", followTheme(this.root)));
  }

  remove() {
    this.observer.disconnect();
    this.redraw.cancel();
  }

  send(type, gesture = {}) {
    send(this.model, { type, ...gesture });
  }

  /** Where an event is on the canvas. */
  within(event) {
    const box = this.root.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  say(words) {
    this.notice.say(words, this.pointer.x, this.pointer.y);
  }

  sayAt(element, words) {
    const [box, at] = [this.root.getBoundingClientRect(), element.getBoundingClientRect()];
    this.notice.say(words, at.left - box.left - 14, at.bottom - box.top - 12);
  }
}

/**
 * A button that stays focusable when it cannot be used, so that its reason can be read.
 * @param {string} label
 * @param {{onclick?: (event: MouseEvent) => void, title?: string, kind?: string, content?: Node | string}} options
 */
export function button(label, { onclick, title, kind = "", content } = {}) {
  const element = h("button", {
    type: "button",
    class: `mw-button ${kind}`,
    "aria-label": label,
    title: title ?? null,
  });
  element.append(content ?? label);
  element.addEventListener("click", (event) => {
    if (element.getAttribute("aria-disabled") === "true") element.refuse?.(element.title, event);
    else onclick?.(event);
  });
  element.allow = (allowed, words) => {
    element.setAttribute("aria-disabled", String(!allowed));
    if (words !== undefined) element.title = words;
  };
  return element;
}

/**
 * − number +, with a field that takes digits, Enter, arrows. A press counts from what the presses before it
 * asked for, also while Python has not answered them: n presses are n steps. `set` tells what Python holds and
 * changes nothing while answers are on their way; `answered` takes note of one.
 */
export function stepper({ label, one = label, min = 1, max = Infinity, onchange, onrefuse }) {
  let value = min; // what is shown
  let awaited = 0; // answers
  let typed = false; // and not yet asked for
  let reasons = {};
  const field = h("input", { class: "mw-number", type: "number", "aria-label": label, min, step: 1 });
  const less = button(`one ${one} less`, { content: "−", onclick: () => ask(value - 1) });
  const more = button(`one ${one} more`, { content: "+", onclick: () => ask(value + 1) });
  less.refuse = more.refuse = (reason) => onrefuse?.(reason, element);
  field.addEventListener("input", () => (typed = true));
  field.addEventListener("change", () => ask(Number.parseInt(field.value, 10)));
  field.atRest = () => Number.parseInt(field.value, 10) === value;
  field.addEventListener("blur", () => field.atRest() || ask(Number.parseInt(field.value, 10)));
  field.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
    if (event.key === "Escape") {
      typed = false;
      field.value = value;
      field.blur();
    }
  });
  const element = h(
    "span",
    { class: "mw-stepper" },
    h("span", { class: "mw-stepper-box" }, less, field, more),
    h("span", {}, label),
  );

  function ask(wanted) {
    if (!Number.isInteger(wanted) || wanted < min || wanted > max) {
      onrefuse?.(reasons[wanted > max ? "more" : "less"] ?? `${label}: a whole number from ${min} to ${max}`, element);
    } else if (wanted !== value) {
      value = wanted;
      awaited++;
      onchange(wanted);
    }
    typed = false;
    field.value = value;
    allow();
  }

  function allow() {
    less.allow(value > min, reasons.less ?? (value > min ? "" : `at least ${min}`));
    more.allow(value < max, reasons.more ?? (value < max ? "" : `at most ${max}`));
  }

  element.set = (
    held,
    { least = min, most = max, less: lessReason = undefined, more: moreReason = undefined } = {},
  ) => {
    [min, max] = [least, most];
    reasons = { less: lessReason, more: moreReason };
    if (!awaited) value = held;
    if (!typed && field.value !== String(value)) field.value = value;
    allow();
  };
  element.answered = () => (awaited = Math.max(0, awaited - 1));
  return element;
}

/** A menu under `anchor`; closes on choice, Escape and a press elsewhere. */
export function openMenu(root, anchor, label, items) {
  const menu = h("div", { class: "mw-menu", role: "menu", "aria-label": label });
  const before = root.getRootNode().activeElement;
  const close = () => {
    menu.remove();
    root.removeEventListener("pointerdown", outside, true);
    root.getRootNode().removeEventListener("focusout", left);
    before?.focus?.();
  };
  const outside = (event) => menu.contains(event.target) || close();
  const left = (event) =>
    event.relatedTarget && !menu.contains(event.relatedTarget) && menu.contains(event.target) && close();
  for (const { text, checked, choose } of items) {
    const chosen = () => {
      close();
      choose();
    };
    menu.append(
      h(
        "button",
        { class: "mw-menu-item", role: "menuitemradio", "aria-checked": String(checked), onclick: chosen },
        text,
      ),
    );
  }
  menu.addEventListener("keydown", (event) => {
    const entries = [...menu.children];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) entries.at((entries.indexOf(menu.getRootNode().activeElement) + step) % entries.length).focus();
    else if (event.key === "Escape") close();
    else if (event.key !== "Enter" && event.key !== " ") return;
    else return event.stopPropagation();
    event.preventDefault();
    event.stopPropagation();
  });
  root.append(menu);
  const [box, at] = [root.getBoundingClientRect(), anchor.getBoundingClientRect()];
  const above = at.bottom - box.top + menu.offsetHeight + 6 > box.height;
  menu.style.left = `${clamp(at.left - box.left, 4, Math.max(4, box.width - menu.offsetWidth - 4))}px`;
  menu.style.top = `${Math.max(4, above ? at.top - box.top - menu.offsetHeight - 3 : at.bottom - box.top + 3)}px`;
  root.addEventListener("pointerdown", outside, true);
  root.getRootNode().addEventListener("focusout", left);
  (menu.querySelector('[aria-checked="true"]') ?? menu.firstElementChild)?.focus();
  return menu;
}

/** Call back when the device's pixels get another size, as when a window moves to another screen. */
export function onRatio(then) {
  let query;
  const listen = () => {
    query?.removeEventListener("change", changed);
    query = matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`);
    query.addEventListener("change", changed);
  };
  const changed = () => {
    listen();
    then();
  };
  listen();
  return () => query.removeEventListener("change", changed);
}
