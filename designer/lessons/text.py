"""Conversion of lesson text from Markdown to HTML, with computed numbers, glossary terms and pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.lessons import Lesson, fill_numbers
from meshwave.engine.lessons.glossary import glossary, replace_terms
from meshwave.engine.lessons.pictures import read_picture

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_TERM = "term:"


def to_html(lesson: Lesson, text: str, *, inline: bool = False) -> str:
    """Convert a text of a lesson to HTML without scripts and external resources; with ``inline``, without paragraphs."""
    linked = replace_terms(fill_numbers(lesson, text), lambda shown, term: f"[{shown}]({_TERM}{quote(term)})")
    parse = _MARKDOWN.parseInline if inline else _MARKDOWN.parse
    tokens = parse(linked)
    for token in _walk_tokens(tokens):
        _make_safe(lesson, token)
    _explain_terms(tokens)
    return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))


def _walk_tokens(tokens: Iterable[Token]) -> Iterable[Token]:
    for token in tokens:
        yield token
        yield from _walk_tokens(token.children or ())


def _make_safe(lesson: Lesson, token: Token) -> None:
    """Embed the data of pictures, and open links in a new tab."""
    if token.type == "image":
        token.attrs["src"] = _picture(lesson, str(token.attrs["src"]))
    elif token.type == "link_open":
        token.attrs |= {"target": "_blank", "rel": "noopener noreferrer"}


def _picture(lesson: Lesson, name: str) -> str:
    try:
        return read_picture(lesson.folder, unquote(name))
    except MeshwaveError:  # the picture existed when the lesson was read
        return ""


def _explain_terms(tokens: Sequence[Token]) -> None:
    """Replace links to terms by words with their definitions as tooltips."""
    in_term = False
    for token in _walk_tokens(tokens):
        if token.type == "link_open":
            href = str(token.attrs["href"])
            in_term = href.startswith(_TERM)
            if in_term:
                meaning = glossary().get(unquote(href.removeprefix(_TERM)), "")
                token.attrs = {"class": "mw-term", "tabindex": "0", "data-tip": meaning, "aria-description": meaning}
        if in_term and token.type in ("link_open", "link_close"):
            token.tag = "span"


def strip_marks(text: str) -> str:
    """Return a lesson text without the markup of terms and code."""
    return re.sub(r"[`*]", "", replace_terms(text, lambda shown, term: shown))
