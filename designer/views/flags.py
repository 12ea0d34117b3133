"""Marks on the canvases for meshes and blocks that other people have selected or that have comments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from meshwave.designer.state.comments import Comment, Target
from meshwave.designer.state.shared_design import Block, Presence
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.program.action import parse_action
from meshwave.engine.units import format_count

COMMENT_COLOUR = "#f0e442"
"""Yellow of Okabe and Ito's set, which no person has."""


def mesh_flags(people: Sequence[Presence], comments: Iterable[Comment], design: Design) -> list[dict[str, Any]]:
    """Return the marks of meshes: rank, colour, text, and True if somebody has selected the mesh."""
    ranks = {mesh.name: rank for rank, mesh in enumerate(design.meshes)}
    selected = [
        {"rank": ranks[each.mesh], "colour": each.colour, "text": each.name, "selects": True}
        for each in people
        if not each.is_self and each.mesh in ranks
    ]
    return selected + [
        {"rank": ranks[target.name], "colour": COMMENT_COLOUR, "text": text, "selects": False}
        for target, text in _open_comments(comments, "mesh")
        if target.name in ranks
    ]


def block_flags(people: Sequence[Presence], comments: Iterable[Comment]) -> list[dict[str, Any]]:
    """Return the marks of blocks: rank, op, stage, microbatch, colour and text."""
    blocks = []
    for target, text in _open_comments(comments, "block"):
        try:
            blocks.append((Block(target.rank, parse_action(target.name)), COMMENT_COLOUR, text))
        except InputError:  # a file that was changed by hand
            continue
    blocks += [(each.block, each.colour, each.name) for each in people if not each.is_self and each.block is not None]
    return [
        {"rank": rank, "op": int(op), "stage": stage, "mb": microbatch, "colour": colour, "text": text}
        for (rank, (op, stage, microbatch, *_)), colour, text in blocks
    ]


def _open_comments(comments: Iterable[Comment], kind: str) -> Iterator[tuple[Target, str]]:
    """Yield each target with unresolved comments, and their number as text."""
    counts = Counter(each.target for each in comments if each.target.kind == kind and not each.is_resolved)
    for target, number in counts.items():
        yield target, format_count(number, "comment")
