"""Marks on the canvases: what the others have selected, in their colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwave.designer.state.shared_design import Person
from meshwave.engine.document import Design


def mesh_flags(people: Sequence[Person], design: Design) -> list[dict[str, Any]]:
    """Return the marks of meshes: rank, colour, text, and whether somebody has selected the mesh."""
    ranks = {mesh.name: rank for rank, mesh in enumerate(design.meshes)}
    return [
        {"rank": ranks[each.mesh], "colour": each.colour, "text": each.name, "selects": True}
        for each in people
        if not each.is_self and each.mesh in ranks
    ]


def block_flags(people: Sequence[Person]) -> list[dict[str, Any]]:
    """Return the marks of blocks: rank, op, stage, microbatch, colour and text."""
    found = []
    for each in people:
        if not each.is_self and each.block is not None:
            rank, action = each.block
            place = {"rank": rank, "op": int(action.op), "stage": action.stage, "mb": action.microbatch}
            found.append({**place, "colour": each.colour, "text": each.name})
    return found
