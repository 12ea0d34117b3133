"""The plans of a transfer by every strategy with every ordering, one after another: a job beside the page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from meshwave.engine.document.transfer_document import TransferSpec
from meshwave.engine.predict.transfer_comparison import compared
from meshwave.engine.units import quantity

TOLD_EVERY_S = 0.15


def planned_rows(spec: TransferSpec) -> Iterator[list[dict[str, Any]]]:
    """Yield rows of the table of plans as they come, several at a time."""
    rows: list[dict[str, Any]] = []
    told = time.monotonic()
    for row in compared(spec):
        words = {name: quantity(row[f"{name}_s"], "s") for name in ("makespan", "played", "bound")}
        rows.append({**row, **words})
        if time.monotonic() - told > TOLD_EVERY_S:
            yield rows
            rows, told = [], time.monotonic()
    yield rows
