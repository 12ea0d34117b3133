"""The message about an internal error, which is the same wherever it is caught."""

from __future__ import annotations


def defect_text(error: BaseException) -> str:
    """Return the message to show for an exception that no code expects; its traceback is printed elsewhere."""
    return f"internal error in Meshwave: {error!r}; the terminal shows the traceback"
