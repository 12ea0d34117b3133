"""Labels of the categories of memory."""

from __future__ import annotations

LABELS = {"working": "workspace"}
"""Labels that differ from the names of the categories."""


def memory_label(category: str) -> str:
    """Return the label of a category of :class:`meshwave.engine.costs.PeakMemory`."""
    return LABELS.get(category, category)
