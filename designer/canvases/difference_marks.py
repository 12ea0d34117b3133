"""Marks on the canvases at the differences of the open design from the pinned design."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import param

from meshwave.designer.canvases.expert_metrics import explicit_placement, place_devices, place_name
from meshwave.designer.kit.canvas import Canvas
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.expert_edits import drawn_layer, find_block
from meshwave.engine.document import Design
from meshwave.engine.document.differences import match_meshes
from meshwave.engine.experts import Layer
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.difference_marks import (
    ExpertMark,
    MeshMark,
    StageMark,
    expert_marks,
    mesh_marks,
    stage_marks,
)

MOST_WORDS = 100
"""Largest number of differences that are written out for screen readers."""


class MarkedCanvas(Canvas):
    """Base class of the canvases that mark differences; ``marks_shown`` is their switch on the page."""

    differences = param.Dict(
        default={}, doc="Name of the pinned design, and the marks of the differences from it; empty without one."
    )
    marks_shown = param.Boolean(default=True)

    __abstract = True


def share_switch(canvases: Sequence[MarkedCanvas]) -> None:
    """Show the marks on all canvases, or on none."""

    def set_all(change: Any) -> None:
        for canvas in canvases:
            canvas.marks_shown = change.new

    for canvas in canvases:
        canvas.param.watch(set_all, "marks_shown")


class Marks(NamedTuple):
    """Data of the marks on the cluster, the wave and the experts of a mesh."""

    cluster: dict[str, Any]
    wave: dict[str, Any]
    experts: dict[str, Any]


def difference_marks(session: Session, rank: int = 0) -> Marks:
    """Return the marks of the open design against the first pinned design; none if they are equal.

    ``rank`` is the mesh whose experts are shown.
    """
    reference = session.pinned[0] if session.pinned else None
    if reference is None or reference.design == session.design:
        return Marks({}, {}, {})
    stages = [] if session.is_stale or session.prediction is None else stage_marks(session.prediction, reference)
    found = (
        mesh_marks(session.design, reference.design),
        stages,
        _expert_marks(session.design, reference.design, rank),
    )
    return Marks(*(marks_data(reference.design, marks) for marks in found))


def _expert_marks(design: Design, reference: Design, rank: int) -> list[ExpertMark]:
    ranks = {after: before for before, after in match_meshes(reference, design).items()}
    now, before = _expert_layer(design, rank), _expert_layer(reference, ranks.get(rank, -1))
    if now is None or before is None:
        return []
    devices, _ = find_block(design, rank, now)
    names = [place_name(own) for own in place_devices(now, devices)]
    return expert_marks(explicit_placement(now), explicit_placement(before), names)


def _expert_layer(design: Design, rank: int) -> Layer | None:
    """Return the expert layer on a mesh, or None if there is none to draw."""
    if design.model.moe is None or not 0 <= rank < design.ranks:
        return None
    try:
        return drawn_layer(design, rank)
    except DesignError:
        return None


def marks_data(reference: Design, marks: Iterable[MeshMark | StageMark | ExpertMark]) -> dict[str, Any]:
    """Return marks as plain data."""
    found = [mark._asdict() for mark in marks]
    more = [f"and {len(found) - MOST_WORDS} more"] if len(found) > MOST_WORDS else []
    words = [mark["words"] for mark in found[:MOST_WORDS]] + more
    return {"name": reference.name, "marks": found, "words": words}
