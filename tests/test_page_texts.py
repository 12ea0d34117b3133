"""Languages of the page: every text has a translation, and the sources are read completely."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = sorted(path.stem for path in (ROOT / "static" / "locale").glob("*.json"))


@pytest.fixture(scope="module")
def page_texts() -> Iterator[ModuleType]:
    """The module ``scripts/page_texts.py``, which is not in a package."""
    spec = importlib.util.spec_from_file_location("page_texts", ROOT / "scripts" / "page_texts.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a NamedTuple finds its module there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.slow
@pytest.mark.parametrize("code", LANGUAGES)
def test_a_language_file_has_an_entry_for_each_text_of_the_page_and_no_other(code: str, page_texts: ModuleType) -> None:
    defects = list(page_texts.find_defects(page_texts.read_entries(code), page_texts.page_texts()))

    assert not defects, f"static/locale/{code}.json: " + "; ".join(defects)


def test_defects_of_a_language_file_name_what_to_do(page_texts: ModuleType) -> None:
    texts = page_texts.PageTexts({"Runs": "a.js:1", "Run {0}": "a.js:2", "Copy": "a.js:3", "Close": "a.js:4"}, {})
    entries = {"Runs": "Close", "Run {0}": "Lauf", "Old": "Alt", "Close": "Schließen"}

    assert list(page_texts.find_defects(entries, texts)) == [
        'add an entry for "Copy" (a.js:3)',
        'translate "Runs" otherwise: its translation is another English text',
        'use the values of "Run {0}" in its translation, each once',
        'remove the entry for "Old": no source has this text',
    ]


def test_texts_of_javascript_are_found_with_their_values(page_texts: ModuleType) -> None:
    source = 'a = `Mesh ${b ? `in ${c} d` : "none"} of\\n${e}` + " devices"; // "comment"\nf = /["`]/.test("it\'s");'

    assert page_texts.js_literals(source) == [
        (1, "Mesh {} of\n{} devices"), (1, "in {} d"), (1, "none"), (2, "it's"),
    ]  # fmt: skip


def test_texts_of_python_are_found_without_docstrings_annotations_and_exceptions(page_texts: ModuleType) -> None:
    source = '"""Module."""\ndef f(a: "int") -> "str":\n    assert a, "b"\n    raise ValueError("c")\nx = f"{f(1)} runs" + "d"'

    assert page_texts.python_literals(source) == [(5, "{} runs"), (5, "d")]
