"""Long searches: how they tell how far they are, and how they are ended by those who no longer want to know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watch = Callable[[float | None, str], None]
"""Hears which part of a search is done, 0 to 1, and what it does now; with None only that it goes on. What
it raises ends the search."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Let ``watch`` hear of every search in this context; a thread has a context of its own."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def tell(done: float, words: str) -> None:
    """So much of a search is done."""
    watch = _watch.get()
    if watch is not None:
        watch(done, words)


def go_on() -> None:
    """Raise what the watcher raises if the search is wanted no longer."""
    watch = _watch.get()
    if watch is not None:
        watch(None, "")
