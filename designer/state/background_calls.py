"""Calls in threads of their own, for functions that may wait for a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from meshwave.designer.state.jobs import Later, run_now

T = TypeVar("T")


def call_in_background(work: Callable[[], T], later: Later | None, end: Callable[[Future[T]], None]) -> None:
    """Call a function in a thread of its own, so that the event loop of the page stays responsive.

    Args:
        work: the function.
        later: schedules a callback in the event loop of the page; without it, ``work`` is called in this thread.
        end: handles the completed future: its result, or the exception of ``work``.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)
        (later or run_now)(partial(end, done))

    if later is None:
        run()
    else:
        threading.Thread(target=run, daemon=True, name="background-call").start()
