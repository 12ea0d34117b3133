"""Notes on times and areas of the timeline: comments on the design that the timeline shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from meshwave.designer.kit.canvas import parse_integers, plain_text, read_value
from meshwave.designer.state.comments import Comment, Target
from meshwave.designer.state.draft import Draft
from meshwave.designer.views.flags import COMMENT_COLOUR
from meshwave.engine.errors import MeshwaveError


def timeline_notes(comments: Iterable[Comment]) -> list[dict[str, Any]]:
    """Return the kind, start, end, unit, ranks, text and colour of each note that is not resolved."""
    return [
        {
            **each.target.model_dump(mode="json", exclude={"name", "rank"}),
            "text": each.text,
            "colour": COMMENT_COLOUR,
        }
        for each in comments
        if each.target.kind in ("time", "area") and not each.is_resolved
    ]


def add_note(tab: Draft, message: Mapping[str, Any]) -> str:
    """Add the note of a message from the timeline; return the reason for a refusal, or an empty text."""
    try:
        target, text = read_value(message, "target", _read_target), read_value(message, "text", plain_text)
        tab.change_comments(lambda comments: comments.add(target, text, tab.author))
    except MeshwaveError as error:
        return str(error)
    return ""


def _read_target(value: Mapping[str, Any]) -> Target:
    try:
        return Target(
            kind="area" if value["ranks"] else "time",
            start=float(value["start"]),
            end=float(value["end"]),
            unit=value["unit"],
            ranks=tuple(parse_integers(value["ranks"])),
        )
    except ValidationError:
        raise ValueError from None
