"""Functions that jobs run for the transfer lab: plan one transfer, and compare all strategies and orderings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import prod
from typing import Any

from meshwave.designer.state.transfer_drawing import TransferDrawing
from meshwave.engine.document.transfer_document import TransferSpec
from meshwave.engine.predict.transfer_comparison import compare_plans
from meshwave.engine.progress import report_progress
from meshwave.engine.resharding import rank_boxes
from meshwave.engine.units import quantity

BATCH_INTERVAL_S = 0.15
SMALL_TRANSFER_PAIRS = 1_500
"""Number of pairs of source and destination pieces up to which the server plans a transfer itself, in 0.15 s."""


def is_small_transfer(spec: TransferSpec) -> bool:
    """Return whether a transfer is planned in the server instead of by a job."""
    sides = (spec.source, spec.destination)
    return (
        prod(len(set(rank_boxes(side.mesh, side.entries, spec.tensor.shape))) for side in sides) <= SMALL_TRANSFER_PAIRS
    )


def draw_plan(spec: TransferSpec, strategy: str, ordering: str) -> TransferDrawing:
    """Plan a transfer and simulate the plan.

    Raises:
        InputError: the strategy or ordering is unknown, or there are more unit tasks than can be drawn.
    """
    found = TransferDrawing.from_spec(spec, strategy, ordering)
    report_progress(0.5, "simulating the plan")
    found.simulation  # noqa: B018  a cached property that the page draws
    return found


def compare_rows(spec: TransferSpec) -> Iterator[list[dict[str, Any]]]:
    """Yield rows of the table of plans in batches as they are computed."""
    rows: list[dict[str, Any]] = []
    last_sent_s = time.monotonic()
    for row in compare_plans(spec):
        words = {name: quantity(row[f"{name}_s"], "s") for name in ("makespan", "simulated", "bound")}
        rows.append({**row, **words})
        if time.monotonic() - last_sent_s > BATCH_INTERVAL_S:
            yield rows
            rows, last_sent_s = [], time.monotonic()
    yield rows
