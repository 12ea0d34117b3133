"""Rows of the timeline that the page shows, so that exported pictures have the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from meshwave.engine.exports.pictures.rows import Row
from meshwave.engine.findings import Refusal
from meshwave.engine.program.timeline import Timeline

_ROWS = TypeAdapter(tuple[Row, ...])
_NEEDED = {"summary": "ranks", "memory": "ranks", "links": "ports"}


def read_shown_rows(shown: Mapping[str, Any], timeline: Timeline) -> Sequence[Row]:
    """Return the rows that the page shows of a timeline; empty if it shows another one, such as the inside of a block.

    Raises:
        Refusal: the rows are invalid, for example because the page is of another version.
    """
    if shown.get("digest") != timeline.digest:
        return ()
    try:
        rows = _ROWS.validate_python(shown.get("rows"))
    except ValidationError as error:
        raise Refusal("invalid_gesture", {"key": "rows"}) from error
    if not all(map(_is_complete, rows)) or not all(0 <= rank < timeline.ranks for row in rows for rank in row.ranks):
        raise Refusal("invalid_gesture", {"key": "rows"})
    return rows


def _is_complete(row: Row) -> bool:
    return row.kind not in _NEEDED or bool(getattr(row, _NEEDED[row.kind]))
