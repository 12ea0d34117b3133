"""A search for an order that goes on while the page lives: in a thread of its own, with progress, and with an end."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from meshwave.engine.document import Design
from meshwave.engine.errors import Problem
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.schedules import schedules, watched

PATIENCE_S = 0.25
"""A search that takes no longer is waited for: nothing on the page needs to say that it goes on."""
TOLD_EVERY_S = 0.2

Outcome = tuple[list[Problem], Prediction | None]
Later = Callable[[Callable[[], None]], Any]
"""Runs something in the page's own turn; called from any thread."""

RUNS = Problem("", "searching", "the order of this schedule is being searched; until it is found the last one is shown")
STOPPED = Problem(
    "", "search_stopped", "the search for an order was stopped; search again, undo, or choose another schedule"
)
CODES = {RUNS.code: "runs", STOPPED.code: "stopped"}
"""Problems that are none: the order of the design is not known yet."""


def in_words(search: Mapping[str, Any]) -> str:
    """How far a search is, as ``Session.search`` has it; empty where none goes on."""
    if not search:
        return ""
    if search["state"] == "stopped":
        return "The search for an order was stopped"
    doing = f", {search['words']}" if search["words"] else ""
    return f"Searching an order: {100 * search['share']:.0f} %{doing}"


def searches(design: Design) -> bool:
    """Whether the schedule of a design looks for its order, which can take many seconds."""
    pipeline: Any = design.pipeline
    return schedules[pipeline.schedule].weighs


class Search:
    """Finds what follows from a design, and tells of it from time to time."""

    def __init__(
        self,
        find: Callable[[], Outcome],
        later: Later,
        on_progress: Callable[[Search, Mapping[str, Any]], None],
        on_end: Callable[[Search, Outcome], None],
    ) -> None:
        self._find, self._later, self._on_progress, self._on_end = find, later, on_progress, on_end
        self._over = threading.Event()
        self._told = 0.0
        self._lock = threading.Lock()
        self._waited_for = True
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)

    def start(self) -> Outcome | None:
        """Begin; the outcome if it is found at once, else None: then ``on_end`` hears of it."""
        self._thread.start()
        self._thread.join(PATIENCE_S)
        with self._lock:
            self._waited_for = self._outcome is not None or self._error is not None
        if self._error is not None:
            raise self._error
        return self._outcome

    def stop(self) -> None:
        """End it soon; nothing more is told of it."""
        self._over.set()

    def _run(self) -> None:
        try:
            with watched(self._watch):
                outcome, error = self._find(), None
        except Stopped:
            return
        except Exception as wrong:  # a defect of ours: whoever waits must not wait for ever
            traceback.print_exc()
            words = f"the search for an order ended early inside Meshwave ({wrong!r}); the terminal says more"
            outcome, error = ([STOPPED._replace(message=words)], None), wrong
        with self._lock:
            if self._waited_for:
                self._outcome, self._error = (None, error) if error else (outcome, None)
                return
        self._later(lambda: None if self._over.is_set() else self._on_end(self, outcome))

    def _watch(self, done: float | None, words: str) -> None:
        if self._over.is_set():
            raise Stopped
        if done is None or time.monotonic() - self._told < TOLD_EVERY_S:
            return
        self._told = time.monotonic()
        progress = {"state": "runs", "share": done, "words": words}
        self._later(lambda: None if self._over.is_set() else self._on_progress(self, progress))


class Stopped(BaseException):
    """Nobody wants to know any more."""
