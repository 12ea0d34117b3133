"""Labels in the documentation: each text that a guide tells the user to press exists in the designer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwave.engine.schedules import schedules

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs" / "guide").glob("*.md")), ROOT / "docs" / "tutorial.md", ROOT / "README.md"]
TEXTS = set(json.loads((ROOT / "static" / "locale" / "de.json").read_text()))
"""Texts of the page; tests/test_page_texts.py compares them with its sources."""
UNTRANSLATED = {"+", "A+", "PNG", *(schedule.title for schedule in schedules.values())}

CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
LABEL = re.compile(r"(?<![*\w])\*([^*\n]+(?:\n[^*\n]+)?)\*(?![*\w])|(?:[Pp]ress|[Cc]hoose)\s+\*\*([^*]+)\*\*")


def labels(page: str) -> Iterator[str]:
    """Yield texts in italics, and bold texts that the reader is told to press or choose."""
    for italic, bold in LABEL.findall(CODE.sub("", page)):
        yield " ".join((italic or bold).split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_label_that_a_page_names_is_a_text_of_the_designer(page: Path) -> None:
    known = {_normalize(text) for text in TEXTS | UNTRANSLATED}

    assert [label for label in labels(page.read_text()) if _normalize(label) not in known] == []


def test_labels_are_found_in_italics_and_after_press() -> None:
    page = "Press **Dry run**, and *Calibration\nprofiles* below. **Move**: drag `*x*`."

    assert list(labels(page)) == ["Dry run", "Calibration profiles"]


def _normalize(label: str) -> str:
    return label.rstrip(" …").lower()
