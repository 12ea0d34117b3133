// The dictionary of the page, as node runs it: npm run check.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { Dictionary } from "../../static/kit/language.js";

const dictionary = new Dictionary({
  Runs: "Läufe",
  "No problems": "Keine Probleme",
  "delete mesh {0}": "Mesh {0} löschen",
  "{0} of {1}": "{0} von {1}",
  "{0} instead of {1}": "{0} statt {1}",
  "the port is busy {0}": "der Port ist {0} belegt",
  "{0}; the port, {1} of the step": "{0}; der Port, {1} des Schritts",
  'delete "{0}" in {1}': "„{0}“ in {1} löschen",
  "mesh {0} sends to mesh {1}": "an Mesh {1} sendet Mesh {0}",
  "more than the mean": "mehr als der Mittelwert",
  block: "Block",
  blocks: "Blöcke",
  memory: "Speicher",
});
const check = (/** @type {string} */ english, /** @type {string} */ german) =>
  assert.equal(dictionary.translate(english), german);

test("a text has the translation of its entry, with the space around it", () => {
  check("Runs", "Läufe");
  check(" No problems\n", " Keine Probleme\n");
});

test("a text without an entry stays as it is", () => check("Frobnicate", "Frobnicate"));

test("values are translated and take the places that the translation gives them", () => {
  check("mesh A sends to mesh B", "an Mesh B sendet Mesh A");
  check("blocks of memory", "Blöcke von Speicher");
});

test("values in quotation marks are names", () => check('delete "Runs" in Runs', "„Runs“ in Läufe löschen"));

test("the first letter may be another one than in the source", () => {
  check("Delete mesh 2", "Mesh 2 löschen");
  check("Memory", "Speicher");
  check("runs", "runs"); // a code, not the title
});

test("the most specific template is used", () =>
  check("the port is busy 3%; the port, 5% of the step", "der Port ist 3% belegt; der Port, 5% des Schritts"));

test("a template of one sentence does not match several", () =>
  check("3 blocks. memory instead of blocks.", "3 Blöcke. Speicher statt Blöcke."));

test("sentences, clauses, items and counted nouns are translated one by one", () => {
  check("No problems. Runs: 1 block, 3 blocks (memory)", "Keine Probleme. Läufe: 1 Block, 3 Blöcke (Speicher)");
  check("1 block · 2 kB/s memory", "1 Block · 2 kB/s Speicher");
});

test("names that people typed are kept in all texts", () => {
  const names = new Dictionary({ "delete mesh {0}": "Mesh {0} löschen", "{0} of {1}": "{0} von {1}", Runs: "Läufe" });
  assert.equal(names.translate("Runs of the class"), "Läufe von the class");
  assert.ok(names.keep(["Runs of the class", "Runs", "A"]));
  assert.ok(!names.keep(["Runs", "A"]));
  assert.equal(names.translate("Runs of the class"), "Runs of the class");
  assert.equal(names.translate("Delete mesh Runs of the class"), "Mesh Runs of the class löschen");
  assert.equal(names.translate("Delete mesh Runs"), "Mesh Runs löschen");
  assert.equal(names.translate("Runs"), "Läufe"); // a title of the page, where an element does not say otherwise
});

test("a translated text is not translated again", () => {
  assert.equal(dictionary.translate(dictionary.translate("delete mesh 2")), "Mesh 2 löschen");
});

test("the English text of a translation stays known while many other texts are translated", () => {
  const table = new Dictionary({ "Theme, size": "Design, Größe", Design: "Entwurf", "mesh {0}": "Mesh {0}" });
  const translation = table.translate("Theme, size");
  for (let number = 0; number < 6000; number += 1) table.translate(`the mesh ${number}`);
  assert.equal(table.originals.get(translation), "Theme, size");
});

const german = () =>
  new Dictionary(JSON.parse(readFileSync(new URL("../../static/locale/de.json", import.meta.url), "utf8")));

test("the alternatives in a message are translated with it", () =>
  assert.equal(german().translate("2 or 4"), "2 oder 4"));

test("a share that is too small for a digit is translated, alone and in a text", () => {
  assert.equal(german().translate("under 0.1%"), "unter 0.1%");
  assert.equal(german().translate("under 0.1% of the iteration"), "unter 0.1% der Iteration");
});

test("the conditions of a task are translated with their numbers and values", () => {
  const [table, unmet] = [german(), "the design does not meet this condition: "];
  assert.equal(table.translate("Sequences per step at least 32"), "Sequenzen pro Schritt mindestens 32");
  assert.equal(table.translate("Memory per device = 40 GB"), "Speicher pro Gerät = 40 GB");
  assert.equal(table.translate("Peak memory of rank 0 less than 8 MB"), "Spitzenspeicher von Rank 0 weniger als 8 MB");
  assert.equal(
    table.translate(`${unmet}Fits in memory = yes; its value is no`),
    "der Entwurf erfüllt diese Bedingung nicht: Passt in den Speicher = ja; sein Wert ist nein",
  );
});

test("a message with clauses is translated as a whole after the name of its place", () => {
  const place = new Dictionary({
    model: "Modell",
    "use {0}; or {1}": "{0} verwenden; oder {1}",
    "mesh {0}": "Mesh {0}",
  });
  assert.equal(place.translate("model: use mesh 2; or mesh 3"), "Modell: Mesh 2 verwenden; oder Mesh 3");
});
