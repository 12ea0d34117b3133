"""Glossary of the documentation, to whose terms lessons link."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

from meshwave.engine.files import glossary_file

_BLOCK = re.compile(r"^```\{glossary\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ROLE = re.compile(r"\{term\}`([^`<]+?)(?:\s*<[^>]*>)?`")
_LINK = re.compile(r"\[\[([^\]|]+)(?:\|([^\]]+))?\]\]")


@cache
def glossary() -> dict[str, str]:
    """Return the definition of each term."""
    entries: dict[str, str] = {}
    for block in _BLOCK.findall(glossary_file().read_text(encoding="utf-8")):
        for entry in block.strip().split("\n\n"):
            terms = [line.strip() for line in entry.splitlines() if not line.startswith(" ")]
            meaning = " ".join(line.strip() for line in entry.splitlines() if line.startswith(" "))
            entries |= dict.fromkeys(terms, re.sub(r"[`*$]", "", _ROLE.sub(r"\1", meaning)))
    return entries


def linked_terms(text: str) -> Iterator[str]:
    """Yield the terms to which a text links: for ``[[microbatches|microbatch]]``, the second part."""
    return (term or shown for shown, term in _LINK.findall(text))


def replace_terms(text: str, write: Callable[[str, str], str]) -> str:
    """Replace each linked term by the result of ``write``, which is called with the displayed words and the term."""
    return _LINK.sub(lambda found: write(found[1], found[2] or found[1]), text)
