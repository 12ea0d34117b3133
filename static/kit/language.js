// The language of the page. Python and the other modules write English; the texts of the page are replaced by those of
// a language file, static/locale/CODE.json. In English, nothing is loaded and nothing is watched.

const KEY = "meshwave.language"; // key of the choice in the browser's storage: a code such as "de", or "browser"
const ENGLISH = "en";
const BROWSER = "browser";
const ATTRIBUTES = [
  "aria-description",
  "aria-label",
  "aria-roledescription",
  "data-tip",
  "label",
  "placeholder",
  "title",
];
/** Elements whose texts are names, code or typed text. */
const KEPT = "[translate='no'], code, kbd, pre, script, style, textarea";
const VALUE = /\{(\d+)\}/g; // a value in a template: "mesh {0} of {1}"
const AMOUNT = /^[−+≤]?\d[\d.,]*(?:%| [kMGT]?B(?:\/s)?| [mµn]?s)?$/; // a number with its unit
const QUOTED = /^(".*"|'.*'|`.*`|“.*”)$/s; // a name or a code
const SENTENCES = /\n+|(?<=[.!?…]) /;
const LONGEST_NAME = 20; // letters; a value with more letters without a translation is a text without an entry
/** Where texts are divided: into sentences, clauses, items, and numbers with their nouns. */
const SEPARATORS = [
  /(\n+|(?<=[.!?…]) )/,
  /([.!?…]$)/,
  /(?<=^[^:]*)(: )/,
  /( · |: |; )/,
  /( \(|\))/,
  /(, |[“”])/,
  /((?:^|\s)[−+≤]?\d[\d.,]*(?:%| [kMGT]?B(?:\/s)?| [mµn]?s)?(?:\s|$))/,
];
const CACHED = 5000; // maximum number of texts and parts of texts whose translations are kept
const ORIGINALS = 50_000; // maximum number of translations whose English texts are known
const MASK = 0xf0000; // the first of the private characters that stand for names while a text is translated
const MASKED = /[\u{f0000}-\u{ffffd}]/gu;

/**
 * @typedef {object} Template a translation with values
 * @property {string} part the longest part of the English text between values
 * @property {RegExp} pattern
 * @property {string} translation
 * @property {Set<string>} names numbers of values in quotation marks, which are not translated
 */
/** @typedef {{text: string, rest: number}} Found a translation, and the number of its letters that are still English */

/** Translations of English texts and templates. */
export class Dictionary {
  /** @type {Map<string, string>} */ exact = new Map();
  /** @type {Template[]} */ templates = [];
  /** @type {Map<string, Found>} */ found = new Map();
  /** @type {Map<string, string>} */ originals = new Map();
  /** @type {string[]} */ names = [];
  /** Matches the names that are no words of the table. @type {RegExp | null} */ typed = null;
  /** Words of the table, in lower case. @type {Set<string> | undefined} */ words;

  /** @param {Record<string, string>} table translations by English text; values are {0}, {1}, ... in both */
  constructor(table) {
    for (const entry of Object.entries(table)) {
      const [english, translation] = entry.map((text) => text.replace(/^[,;:.] /, "")); // as in the parts of a text
      const parts = english.split(VALUE).filter((_, place) => place % 2 === 0);
      if (parts.length === 1) this.addText(english, translation);
      else {
        const part = parts.reduce((longest, each) => (each.length > longest.length ? each : longest));
        const pattern = new RegExp(`^${parts.map(escapePattern).join("(.*?)")}$`, "s");
        const names = new Set(parts.flatMap((each, place) => (/["“'`]$/.test(each) ? [String(place)] : [])));
        this.templates.push({ part, pattern, translation, names });
      }
    }
    const size = (/** @type {Template} */ { pattern }) => pattern.source.replaceAll("(.*?)", "").length;
    this.templates.sort((one, other) => size(other) - size(one)); // the most specific template first
  }

  /** Add an entry without values, and its sentences, which a text may have on their own. @param {string[]} entry */
  addText(...entry) {
    const [english, translation] = entry.map((text) => text.split(SENTENCES));
    this.exact.set(entry[0], entry[1]);
    if (english.length === translation.length)
      english.forEach((text, at) => this.exact.has(text) || this.exact.set(text, translation[at]));
  }

  /** The translation of a text, or the text itself if there is none. @param {string} text */
  translate(text) {
    if (this.found.size > CACHED) this.found.clear();
    if (this.originals.size > ORIGINALS) this.originals.clear();
    const found = this.unmask(this.find(this.mask(text)).text);
    if (found === text) return text;
    this.found.set(found, { text: found, rest: 0 }); // a translated text on the page stays as it is
    this.originals.set(found, text);
    return found;
  }

  /**
   * Keep names that people typed as they are in all texts. A name that is a word of the table, such as "Runs", is kept
   * only where it is a value of a text. Return true if there is a new name.
   * @param {string[]} names
   */
  keep(names) {
    const added = new Set(names.filter((name) => /[A-Za-z]{2}/.test(name) && !this.names.includes(name)));
    if (!added.size) return false;
    this.names.push(...added);
    this.words ??= new Set([...this.exact.keys(), ...this.templates.map(({ part }) => part)].flatMap(wordsOf));
    const typed = this.names.filter((name) => !this.exact.has(name) && !this.words?.has(name.toLowerCase()));
    typed.sort((one, other) => other.length - one.length);
    const pattern = typed.map(escapePattern).join("|");
    this.typed = pattern ? new RegExp(`(?<![\\p{L}\\p{N}])(?:${pattern})(?![\\p{L}\\p{N}])`, "gu") : null;
    this.found.clear();
    return true;
  }

  /** Replace typed names by private characters, which have no translation. @param {string} text */
  mask(text) {
    if (!this.typed || this.exact.has(text)) return text;
    return text.replace(this.typed, (name) => String.fromCodePoint(MASK + this.names.indexOf(name)));
  }

  /** @param {string} text */
  unmask(text) {
    return text.replace(MASKED, (mask) => this.names[/** @type {number} */ (mask.codePointAt(0)) - MASK]);
  }

  /** @param {string} text */
  find(text) {
    const known = this.found.get(text);
    if (known) return known;
    const [, before, core, after] = /** @type {string[]} */ (/^((?:[,;:.] )?\s*)(.*?)(\s*)$/s.exec(text));
    const { text: translation, rest } = this.search(core);
    const found = { text: before + translation + after, rest };
    this.found.set(text, found);
    return found;
  }

  /** The translation that leaves the fewest letters in English. @param {string} text @returns {Found} */
  search(text) {
    let best = { text, rest: text.match(/[A-Za-z]/g)?.length ?? 0 };
    if (best.rest < 2 || QUOTED.test(text) || AMOUNT.test(text)) return { text, rest: 0 };
    for (const found of this.candidates(text)) {
      if (found.rest < best.rest) best = found;
      if (best.rest === 0) break;
    }
    return best;
  }

  /** Translations by an entry, by the templates that match, and part by part. @param {string} text */
  *candidates(text) {
    const lower = text.charAt(0).toLowerCase() + text.slice(1); // a source may write the first letter small
    const sentence = text.includes(" ") ? text.charAt(0).toUpperCase() + text.slice(1) : text; // or large
    const exact = this.exact.get(text) ?? this.exact.get(lower) ?? this.exact.get(sentence);
    const found = exact === undefined ? this.byTemplate(text, lower) : [{ text: exact, rest: 0 }];
    for (const each of found)
      yield text === lower ? each : { ...each, text: each.text.charAt(0).toUpperCase() + each.text.slice(1) };
    yield* this.byParts(text);
  }

  /** @param {string} text @param {string} lower */
  *byTemplate(text, lower) {
    for (const { part, pattern, translation, names } of this.templates) {
      if (!text.includes(part) && !lower.includes(part)) continue;
      const match = pattern.exec(text) ?? pattern.exec(lower);
      if (match) yield this.fill(translation, match.slice(1), names);
    }
  }

  /** @param {string} text */
  *byParts(text) {
    for (const separator of SEPARATORS) {
      const parts = text.split(separator);
      if (parts.filter(Boolean).length < 2) continue;
      const found = parts.map((part, at) => (at % 2 ? { text: part, rest: 0 } : this.find(part)));
      yield { text: found.map((each) => each.text).join(""), rest: found.reduce((sum, each) => sum + each.rest, 0) };
    }
  }

  /** @param {string} translation @param {string[]} values @param {Set<string>} names */
  fill(translation, values, names) {
    let rest = 0;
    const text = translation.replace(VALUE, (_, place) => {
      if (names.has(place) || this.names.includes(values[place])) return values[place];
      const found = this.find(values[place]);
      rest += found.rest > LONGEST_NAME ? Infinity : found.rest;
      return found.text;
    });
    return { text, rest };
  }
}

/** @param {string} text */
const wordsOf = (text) => text.toLowerCase().match(/[a-z]+/g) ?? [];

/** @param {string} text */
const escapePattern = (text) => text.replace(/[$()*+.?[\\\]^{|}]/g, "\\$&");

// ── the choice ──────────────────────────────────────────────────────────────────────────────

/** Addresses of the language files by code; empty where no server provides them. @returns {Record<string, string>} */
function languageFiles() {
  const element = /** @type {HTMLMetaElement | null} */ (document.querySelector("meta[name='meshwave-languages']"));
  return JSON.parse(element?.content ?? "{}");
}

/** The language of a link with `?lang=`, for this tab, else the choice of the user. @returns {string} */
function readChoice() {
  try {
    const linked = new URLSearchParams(location.search).get("lang");
    if (linked) sessionStorage.setItem(KEY, linked);
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? ENGLISH;
  } catch {
    return ENGLISH; // without storage
  }
}

/** Keep a choice and show the page in it. @param {string} code */
function choose(code) {
  sessionStorage.removeItem(KEY);
  localStorage.setItem(KEY, code);
  const url = new URL(location.href);
  url.searchParams.delete("lang");
  if (url.href === location.href) location.reload();
  else location.replace(url);
}

/** The choices of the language as entries of a menu; empty if English is the only language. */
export function languageEntries() {
  const codes = Object.keys(languageFiles());
  const chosen = readChoice();
  const name = (/** @type {string} */ code) => new Intl.DisplayNames([code], { type: "language" }).of(code) ?? code;
  const entry = (/** @type {string} */ code, text = name(code)) => ({
    text,
    isName: code !== BROWSER,
    checked: code === chosen,
    choose: () => choose(code),
  });
  return codes.length ? [...[ENGLISH, ...codes].map((code) => entry(code)), entry(BROWSER, "Browser's language")] : [];
}

// ── the page ────────────────────────────────────────────────────────────────────────────────

/** @type {Dictionary | undefined} */
let dictionary;

/** The text in the language of the page. Only texts that are drawn on a canvas need it. @param {string} text */
export const translate = (text) => dictionary?.translate(text) ?? text;

/** Keep names that people typed as they are, also in texts that are already shown. @param {string[]} names */
export function keepNames(names) {
  if (dictionary?.keep(names)) watch(document.documentElement);
}

/** The English text of a text on the page. @param {string} text */
export const originalText = (text) => dictionary?.originals.get(text) ?? text;

/** Show the page in the chosen language. The widgets wait for this, so that they draw no English text first. */
export async function startTranslation() {
  const files = languageFiles();
  const wanted = readChoice();
  const codes = wanted === BROWSER ? navigator.languages.map((each) => each.split("-")[0]) : [wanted];
  const code = codes.find((each) => each === ENGLISH || each in files) ?? ENGLISH;
  if (code === ENGLISH) return;
  try {
    const response = await fetch(new URL(files[code], document.baseURI));
    dictionary = new Dictionary(await response.json());
  } catch {
    return; // the page is shown in English without the file
  }
  document.documentElement.lang = code;
  watch(document.documentElement);
}

/** @type {WeakSet<HTMLElement | ShadowRoot>} */
const watched = new WeakSet();

/** Translate all texts in a tree, and those that change later. @param {HTMLElement | ShadowRoot} root */
function watch(root) {
  root.childNodes.forEach(translateTree);
  if (watched.has(root)) return;
  watched.add(root);
  const observer = new MutationObserver((records) => {
    for (const { type, target, attributeName, addedNodes } of records)
      if (type === "characterData") translateText(/** @type {Text} */ (target));
      else if (attributeName) translateAttribute(/** @type {Element} */ (target), attributeName);
      else addedNodes.forEach(translateTree);
  });
  observer.observe(root, {
    subtree: true,
    childList: true,
    characterData: true,
    attributes: true,
    attributeFilter: ATTRIBUTES,
  });
}

/** @param {Node} node */
function translateTree(node) {
  if (node instanceof Text) return translateText(node);
  if (!(node instanceof Element)) return;
  for (const name of ATTRIBUTES) translateAttribute(node, name);
  if (node.shadowRoot) watch(node.shadowRoot);
  if (!node.matches(KEPT)) node.childNodes.forEach(translateTree);
}

/** @param {Text} node */
function translateText(node) {
  if (node.parentElement?.closest(KEPT)) return;
  const text = translate(originalText(node.data));
  if (text !== node.data) node.data = text;
}

/** @param {Element} element @param {string} name */
function translateAttribute(element, name) {
  const value = element.getAttribute(name);
  if (!value || element.closest("[translate='no']")) return;
  const text = translate(originalText(value));
  if (text !== value) element.setAttribute(name, text);
}
