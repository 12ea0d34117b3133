"""Markdown of the pages that benchmarks write."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 118


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def wrap_section(section: str) -> str:
    """Wrap a paragraph to lines of at most ``WIDTH`` characters; tables, lists, headings and comments are unchanged."""
    plain = "\n" not in section and section[0] not in "#|!-<"
    return textwrap.fill(section, WIDTH, break_long_words=False, break_on_hyphens=False) if plain else section
