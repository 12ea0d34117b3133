"""Message to the user about an internal error."""

from __future__ import annotations


def defect_text(error: BaseException) -> str:
    """Return the message to show for an unexpected exception; the caller prints its traceback."""
    return f"internal error in Meshwave: {error!r}; the terminal shows the traceback"
