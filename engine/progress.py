"""Progress of long work: told where it is done, heard by whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watch = Callable[[float, str], None]
"""Hears which share of the work is done, 0 to 1, and what is done now."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Let ``watch`` hear of all work in this context; a thread has a context of its own."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def tell(share: float, words: str) -> None:
    """Tell how much is done and what comes now."""
    watch = _watch.get()
    if watch is not None:
        watch(share, words)
