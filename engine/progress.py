"""Progress of long computations: reported by the computing code, received by the waiting caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watch = Callable[[float, str], None]
"""Function that receives the completed fraction of the work, 0 to 1, and the name of the current part."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def report_progress_to(watch: Watch) -> Iterator[None]:
    """Report the progress of all work in this context to ``watch``; each thread has its own context."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def report_progress(share: float, words: str) -> None:
    """Report the completed fraction of the work, 0 to 1, and the name of the part that begins."""
    watch = _watch.get()
    if watch is not None:
        watch(share, words)
