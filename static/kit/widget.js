// Parts shared by all widgets: the model, messages to Python, the theme, and drawing once per frame.

/** @import { Message, Model } from "./types" */

import { h } from "./dom.js";

let isLeaving = false; // true while the page is being left: its socket closes before its timers end

let isDisconnected = false;

const LOSS_MS = 3000; // a page that is connected again sooner says nothing

const lossNote = h(
  "div.mw-connection",
  { role: "alert" },
  "The connection to the server is lost, or an administrator ended this session. ",
  h("button", { type: "button", onclick: () => location.reload() }, "Reload"),
);

const watchedDocuments = new WeakSet();

for (const type of ["beforeunload", "pagehide"]) window.addEventListener(type, () => (isLeaving = true));

for (const type of ["pageshow", "pointerdown", "keydown"])
  window.addEventListener(type, () => (isLeaving = false), true);

setTimeout(watchConnection);

function watchConnection() {
  for (const page of globalThis.Bokeh?.documents ?? []) {
    if (watchedDocuments.has(page)) continue;
    watchedDocuments.add(page);
    page.on_event("connection_lost", () => setDisconnected(true));
    page.on_event("client_reconnected", () => setDisconnected(false));
  }
}

/** @param {boolean} isLost */
function setDisconnected(isLost) {
  isDisconnected = isLost;
  if (!isLost) lossNote.remove();
  else setTimeout(() => isDisconnected && !isLeaving && document.body.append(lossNote), LOSS_MS);
}

/**
 * Send Python a message and return true, or false if the connection is closed.
 * @param {Model} model @param {Message} message
 */
export function send(model, message) {
  watchConnection();
  const isOpen = !isLeaving && !isDisconnected;
  if (isOpen) model.send_msg(message);
  return isOpen;
}

const ACTIVITY_INTERVAL_MS = 10_000; // at most one report in this time

/** The models of the page. @type {Set<Model>} */
const models = new Set();

let activityTimer = 0;

for (const type of ["pointerdown", "keydown", "wheel"])
  window.addEventListener(type, reportActivity, { capture: true, passive: true });

/**
 * Report to Python that a person uses the page, also by gestures that no widget reports. The report is sent later, so
 * that the message of a gesture never waits for it.
 */
function reportActivity() {
  activityTimer ||= setTimeout(() => {
    activityTimer = 0;
    const [model] = models;
    if (model) send(model, { type: "active" });
  }, ACTIVITY_INTERVAL_MS);
}

/** @type {WeakMap<Model, Record<string, {text: string, value: any}>>} */
const parsed = new WeakMap();

/**
 * The data of a parameter that is sent as JSON text (PlainData of designer/kit/canvas.py). Each text is parsed once.
 * @param {Model} model @param {string} name
 */
export function plainData(model, name) {
  const known = parsed.get(model) ?? {};
  parsed.set(model, known);
  const text = /** @type {any} */ (model)[name];
  if (known[name]?.text !== text) known[name] = { text, value: JSON.parse(text) };
  return known[name].value;
}

/** Return a function that runs `draw` once per frame, however often it is called. @param {() => void} draw */
export function oncePerFrame(draw) {
  let frame = 0;
  const request = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  };
  return Object.assign(request, { cancel: () => cancelAnimationFrame(frame) });
}

/**
 * Keep `data-theme` equal to that of the nearest ancestor with a theme. Return a function that stops this.
 * @param {HTMLElement} root
 */
export function followTheme(root) {
  const copy = () => {
    const theme = ancestors(root).find((element) => element.dataset.theme)?.dataset.theme;
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  const observer = new MutationObserver(copy);
  for (const element of ancestors(root))
    observer.observe(element, { attributes: true, attributeFilter: ["data-theme"] });
  copy();
  return () => observer.disconnect();
}

/** The ancestors of an element, including those outside its shadow root. @param {HTMLElement} element */
function ancestors(element) {
  const found = [];
  for (let node = /** @type {any} */ (element); node; node = node.parentNode ?? node.host)
    if (node !== element && node instanceof HTMLElement) found.push(node);
  return found;
}

/**
 * Call `onchange` when the window moves to a screen with another pixel ratio. Return a function that stops this.
 * @param {() => void} onchange
 */
export function watchPixelRatio(onchange) {
  const end = new AbortController();
  const watch = () =>
    matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`).addEventListener(
      "change",
      () => {
        watch();
        onchange();
      },
      { once: true, signal: end.signal },
    );
  watch();
  return () => end.abort();
}

/**
 * Base class of the widgets. The constructor of each subclass sets `root`.
 * @template {Model} M
 */
export class Widget {
  /** @type {HTMLElement} */ root;
  /** The element that shows why the last gesture was refused. @type {HTMLElement | undefined} */ refusal;

  /** @param {M} model */
  constructor(model) {
    this.model = model;
    model.on("msg:custom", (message) => this.receive(message));
    models.add(model);
    model.on("remove", () => {
      models.delete(model);
      this.remove();
    });
    requestAnimationFrame(() => model.on("remove", followTheme(this.root)));
  }

  /** @param {string} type @param {object} [gesture] */
  send(type, gesture = {}) {
    return send(this.model, { type, ...gesture });
  }

  /** Handle a message from Python. @param {Message} message */
  receive({ type, refused }) {
    if (type === "answered" && this.refusal) this.refusal.textContent = refused ?? "";
  }

  /** Stop listeners and timers that would outlive the element. */
  remove() {}
}
