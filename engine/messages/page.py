"""Messages of the page about its computations."""

from __future__ import annotations

from meshwave.engine.messages import Message

MESSAGES: dict[str, Message] = {
    "computing": "the step is being computed; the previous one is shown meanwhile",
    "stopped": "the computation was stopped; compute again, undo, or change the design",
    "computation_failed": "the computation failed: {reason}; compute again, undo, or change the design",
    "page_limit": (
        "{subject} of {computations:,} computations is too large for the page, which computes up to {limit:,}; "
        "use fewer microbatches or stages, or the command line: meshwave simulate"
    ),
}
