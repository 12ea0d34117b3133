"""Plans of a transfer: one that is drawn, and those by every strategy with every ordering, as jobs beside the page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import prod
from typing import Any

from meshwave.designer.state.transfer_drawing import Drawing
from meshwave.engine.document.transfer_document import TransferSpec
from meshwave.engine.predict.transfer_comparison import compare_plans
from meshwave.engine.progress import tell
from meshwave.engine.resharding import boxes
from meshwave.engine.units import quantity

TOLD_EVERY_S = 0.15
SMALL = 1_500
"""Pairs of pieces, one of each side, that are planned in the page's own turn: in 0.15 s."""


def is_small(spec: TransferSpec) -> bool:
    """Return whether a plan is made at once."""
    sides = (spec.source, spec.destination)
    return prod(len(set(boxes(side.mesh, side.entries, spec.tensor.shape))) for side in sides) <= SMALL


def drawing(spec: TransferSpec, strategy: str, ordering: str) -> Drawing:
    """Plan a transfer and play it.

    Raises:
        InputError: there is no such strategy or ordering, or there are more unit tasks than can be drawn.
    """
    found = Drawing.of(spec, strategy, ordering)
    tell(0.5, "playing the plan")
    found.played  # noqa: B018  it is drawn
    return found


def planned_rows(spec: TransferSpec) -> Iterator[list[dict[str, Any]]]:
    """Yield rows of the table of plans as they come, several at a time."""
    rows: list[dict[str, Any]] = []
    told = time.monotonic()
    for row in compare_plans(spec):
        words = {name: quantity(row[f"{name}_s"], "s") for name in ("makespan", "played", "bound")}
        rows.append({**row, **words})
        if time.monotonic() - told > TOLD_EVERY_S:
            yield rows
            rows, told = [], time.monotonic()
    yield rows
