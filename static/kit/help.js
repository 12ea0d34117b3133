// Help for the page: links to the documentation site, which the server provides at docs/, and to entries of its
// glossary.

import { originalText } from "./language.js";

const LONGEST_LABEL = 60; // characters; longer text is a sentence, which may contain several terms

/** Pages in the help menu. */
export const PAGES = [
  ["First tutorial", "tutorial.html"],
  ["User guide", "guide/index.html"],
  ["Glossary", "glossary.html"],
  ["Design document", "reference/document.html"],
];

/** The glossary entry for each term of the page. @type {Record<string, string>} */
export const TERMS = {
  activation: "activations-in-flight",
  "activation offload": "activation-offload",
  alpha: "alpha",
  axis: "axis",
  backward: "backward",
  balance: "balance",
  bandwidth: "beta",
  beta: "beta",
  boundary: "boundary",
  bound: "lower-bound",
  bubble: "bubble-ratio",
  calibration: "calibration-profile",
  capacity: "capacity",
  checkpoint: "checkpoint",
  chunk: "chunk",
  clock: "clock-skew",
  combine: "combine",
  communication: "exposed-communication",
  "critical path": "critical-path",
  deadlock: "deadlock",
  device: "device",
  dispatch: "dispatch",
  dp: "dp",
  draft: "draft",
  dropped: "dropped-tokens",
  "dry run": "dry-run",
  ep: "ep",
  esp: "esp",
  expert: "expert",
  exposed: "exposed-communication",
  forward: "forward",
  gate: "gate",
  "going up": "return",
  "gradient reduction": "collective",
  host: "emulated-host",
  idle: "bubble",
  "input gradient": "input-gradient",
  iteration: "iteration",
  lane: "lane",
  latency: "alpha",
  launch: "launch-target",
  layer: "layer",
  link: "port",
  load: "expert-load",
  mark: "mark",
  measured: "measured",
  memory: "peak-memory",
  mesh: "mesh",
  mfu: "MFU",
  microbatch: "microbatch",
  mp: "mp",
  nic: "NIC",
  node: "node",
  "optimizer step": "optimizer-step",
  ordering: "ordering",
  overlay: "overlay",
  partial: "partial",
  "peak memory": "peak-memory",
  pin: "pinned-design",
  placement: "expert-placement",
  plan: "plan",
  pp: "pp",
  predicted: "predicted",
  process: "process",
  profile: "calibration-profile",
  program: "program",
  rank: "rank",
  recompute: "recomputation",
  replica: "replica",
  roofline: "roofline",
  run: "run",
  schedule: "schedule",
  "sharding spec": "sharding-spec",
  skip: "skip-connection",
  slack: "slack",
  slot: "slot",
  split: "split-backward",
  stage: "stage",
  "step time": "step-time",
  strategy: "strategy",
  throughput: "throughput",
  timeline: "timeline",
  "top k": "top-k",
  tp: "tp",
  traffic: "transfer",
  transfer: "transfer",
  "unit cost": "unit-cost",
  "unit task": "unit-task",
  uplink: "uplink",
  wave: "wave",
  "weight gradient": "weight-gradient",
};

const WORDS = new RegExp(
  `(?<![\\w-])(${Object.keys(TERMS)
    .toSorted((one, other) => other.length - one.length)
    .join("|")})(?:e?s)?(?![\\w-])`,
  "i",
);

/** The glossary entry of the first term in a label, or undefined. @param {string} label */
export function entryOf(label) {
  const found = label.length <= LONGEST_LABEL ? WORDS.exec(label) : null;
  return found ? `glossary.html#term-${TERMS[found[1].toLowerCase()]}` : undefined;
}

/** The description of a key of the document, such as `pipeline.microbatches`. @param {string} path */
export const referenceOf = (path) => `reference/document.html#confval-${path}`;

/**
 * The documentation page for an element: the entry of the field's key, of the term in its label or in an enclosing
 * label, or of its section.
 * @param {Element} element
 */
export function helpOn(element) {
  /** @type {HTMLElement[]} */
  const around = [];
  for (let at = /** @type {any} */ (element); at; at = at.parentNode ?? at.host)
    if (at instanceof Element) around.push(/** @type {HTMLElement} */ (at));
  const field = around.find((each) => each.dataset.path);
  if (field?.dataset.path) return referenceOf(field.dataset.path);
  const labels = around.flatMap((each) => [originalText(each.textContent ?? ""), originalText(each.ariaLabel ?? "")]);
  const section = around.find((each) => each.dataset.section);
  return labels.map(entryOf).find(Boolean) ?? (section?.dataset.section && referenceOf(section.dataset.section));
}

/** Open a page of the documentation site in a new tab. @param {string} page */
export function openPage(page) {
  window.open(`docs/${page}`, "_blank", "noopener");
}

/**
 * On F1, open the documentation page for the element under the pointer or with the focus.
 * @param {AbortSignal} signal
 */
export function openHelpOnF1(signal) {
  let isPointing = false;
  window.addEventListener("pointermove", () => (isPointing = true), { signal });
  window.addEventListener(
    "keydown",
    (event) => {
      if (event.key !== "F1") {
        isPointing = false;
        return;
      }
      event.preventDefault();
      openPage(helpOn(isPointing ? innermost(":hover") : innermost(":focus")) ?? "index.html");
    },
    { signal },
  );
}

/** The innermost element that matches a selector, including elements inside shadow roots. @param {string} selector */
function innermost(selector) {
  let found = document.documentElement;
  for (let root = /** @type {ParentNode | null} */ (document); root; root = found.shadowRoot) {
    const last = [...root.querySelectorAll(selector)].at(-1);
    if (!last) break;
    found = /** @type {HTMLElement} */ (last);
  }
  return found;
}
