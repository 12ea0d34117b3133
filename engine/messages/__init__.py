"""Message catalogue: the text of every finding, by its code.

A finding is data (:mod:`meshwave.engine.findings`): a code, a location and parameters. Its text is rendered here, for
the command line, the page and JSON. Each module of this package contains the messages of one subject in a dictionary
``MESSAGES``; a member of a registry adds its own messages with :func:`add_messages`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from string import Formatter
from typing import Any, Literal

from meshwave.engine.errors import shorten, suggestion_text
from meshwave.engine.units import quantity

Message = str | Callable[..., str]
"""A template in the syntax of :func:`str.format`, or a function of the parameters that returns the text."""

LONGEST_LIST = 6
"""Maximum number of items of a list that a message shows."""
LONGEST_QUOTE = 40
"""Maximum number of characters of a typed text that a message shows."""
LONGEST_NAME = 200
"""Maximum number of characters of a quoted name or of an item of a list that a message shows."""
LONGEST_LINE = 500
"""Maximum number of characters of each line of a parameter that a message shows."""

RENAMED = {"process_without_room": "process_without_space", "unsummable_dtype": "unsupported_sum_dtype"}
"""Current codes by former ones, which stored runs may contain."""

_added: dict[str, Message] = {}


def add_messages(**messages: Message) -> None:
    """Add the messages of a member of a registry, such as a schedule, under their codes.

    Raises:
        ValueError: a code already has another message.
    """
    for code, message in messages.items():
        if _added.setdefault(code, message) != message or code in _catalogue():
            raise ValueError(f"message code {code!r} is already registered")


def render(code: str, params: Mapping[str, Any]) -> str:
    """Return the text of a finding; a message that is a function calls :func:`fill_template` for its parts.

    Raises:
        KeyError: the catalogue lacks the code, or the parameters lack one that the message names.
    """
    params = {key: _shorten_lines(value) if isinstance(value, str) else value for key, value in params.items()}
    code = RENAMED.get(code, code)
    message = _added[code] if code in _added else _catalogue()[code]
    text = message(**params) if callable(message) else fill_template(message, **params)
    return f"{text}\n{params['excerpt']}" if "excerpt" in params else text


def fill_template(template: str, **params: Any) -> str:
    """Return a template with its parameters filled in.

    In addition to the format specifications of Python, a template can use, after the colon: ``list`` and ``or`` ("0, 1
    and 3", "4 or 8"), ``plural|mesh|meshes`` (the noun for a number), ``quantity|B`` (a number with its unit),
    ``typed`` (a text in quotes, shortened), ``hint`` (known names, after the parameter ``suggestion`` if it is not
    None), ``rank`` ("rank 2", "ranks 0 and 2") and ``action`` ("2F0"). If the parameters contain the names of
    ``meshes``, a rank is shown as its mesh. If they contain the ``cells`` of a table by action, an action is shown with
    its cell, and a rank as its row.
    """
    return _MessageFormatter(params).vformat(template, (), params)


def catalogue() -> dict[str, Message]:
    """Return all messages by code: those of the catalogue, and those that imported members added."""
    return {**_catalogue(), **_added}


@cache
def _catalogue() -> dict[str, Message]:
    found: dict[str, Message] = {}
    for module in pkgutil.iter_modules(__path__):
        messages = importlib.import_module(f"{__name__}.{module.name}").MESSAGES
        if repeated := found.keys() & messages.keys():
            raise ValueError(f"two messages for {', '.join(sorted(repeated))}")
        found.update(messages)
    return found


class _MessageFormatter(Formatter):
    """Formatter with the format specifications of :func:`fill_template`."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params
        self._meshes: Sequence[str] = params.get("meshes", ())
        self._cells: Mapping[str, str] | None = params.get("cells")

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        """Return a value as text, such as a name in quotes, which is shortened."""
        shown = shorten(value, LONGEST_NAME) if conversion == "r" and isinstance(value, str) else value
        return super().convert_field(shown, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value formatted by its specification."""
        kind, _, rest = format_spec.partition("|")
        if isinstance(value, bool) and not kind:
            return str(value).lower()  # as in documents
        match kind:
            case "list":
                return join_list(value, "and")
            case "or":
                return join_list(value, "or")
            case "plural":
                one, _, many = rest.partition("|")
                return one if _count(value) == 1 else many
            case "quantity":
                return quantity(value, rest)
            case "hint":
                return suggestion_text(value, self._params["suggestion"], self._params.get("other", ()))
            case "typed":
                return _quote(value)
            case "rank":
                return self._place(value)
            case "action":
                return f"{value} ({self._cells[value]})" if self._cells and value in self._cells else str(value)
        return str(super().format_field(value, format_spec))

    def _place(self, rank: int | Sequence[int]) -> str:
        """Return ranks as text, such as "rank 2" or "ranks 0 and 2".

        With names of meshes the text is "mesh C", and in a table "row 3".
        """
        ranks = [rank] if isinstance(rank, int) else list(rank)
        nouns = (
            ("row", "rows") if self._cells is not None else ("mesh", "meshes") if self._meshes else ("rank", "ranks")
        )
        return f"{nouns[len(ranks) != 1]} {join_list([self._name(each) for each in ranks], 'and')}"

    def _name(self, rank: int) -> str:
        if self._cells is not None:
            return str(rank + 1)
        return self._meshes[rank] if rank < len(self._meshes) else str(rank)


def _quote(text: str) -> str:
    return repr(shorten(text.strip(), LONGEST_QUOTE))


def _shorten_lines(text: str) -> str:
    return "\n".join(shorten(line, LONGEST_LINE) for line in text.split("\n"))


def _count(value: Any) -> int:
    return value if isinstance(value, int) else len(value)


def join_list(items: Sequence[Any], conjunction: Literal["and", "or"], longest: int = LONGEST_LIST) -> str:
    """Return a list as text, such as "0, 1 and 3"; after ``longest`` items, the rest is shown as "..."."""
    words = [shorten(str(item), LONGEST_NAME) for item in items]
    if len(words) > longest:
        return f"{', '.join(words[:longest])}, ..."
    *others, last = words or [""]
    if not others:
        return last
    first = ", ".join(others)
    return f"{first} or {last}" if conjunction == "or" else f"{first} and {last}"
