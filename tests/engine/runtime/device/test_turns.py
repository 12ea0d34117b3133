"""Two computations take turns: one goes on while the other waits for a collective."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from meshwave.engine.runtime.device.turns import Turns, keep_turn, wait_in_turn


class Log:
    """Actions of two computations, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def computation(self, name: str, collectives: int) -> Callable[[], None]:
        def compute() -> None:
            for number in range(collectives):
                self.done.append(f"{name}{number}")
                wait_in_turn(self.collective(f"{name}{number} waited"))
            self.done.append(f"{name} ended")

        return compute

    def collective(self, words: str) -> Collective:
        return Collective(self, words)


class Collective:
    def __init__(self, log: Log, words: str) -> None:
        self._log, self._words = log, words

    def wait(self) -> None:
        self._log.done.append(self._words)


def test_the_turn_passes_at_every_wait_and_the_longer_one_ends_alone() -> None:
    log, turns = Log(), Turns()
    turns.run(log.computation("F", 1), log.computation("B", 3))
    assert log.done == [
        *("F0", "B0"),
        *("F0 waited", "F ended", "B0 waited"),
        *("B1", "B1 waited", "B2", "B2 waited", "B ended"),
    ]
    log.done.clear()
    turns.run(log.computation("F", 2), log.computation("B", 0))
    assert log.done == ["F0", "B ended", "F0 waited", "F1", "F1 waited", "F ended"]


def test_a_kept_turn_does_not_pass() -> None:
    log = Log()
    first = log.computation("F", 1)

    def alone() -> None:
        with keep_turn():
            first()

    Turns().run(alone, log.computation("B", 1))
    assert log.done == ["F0", "F0 waited", "F ended", "B0", "B0 waited", "B ended"]


def test_the_thread_forgets_its_computation_and_ends_with_its_owner() -> None:
    log, turns, threads = Log(), Turns(), list[threading.Thread]()

    def second() -> None:
        threads.append(threading.current_thread())

    forgotten = weakref.ref(second)
    turns.run(log.computation("F", 1), second)
    del second
    deadline = time.monotonic() + 10
    while forgotten() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert forgotten() is None
    del turns
    gc.collect()
    threads[0].join(10)
    assert not threads[0].is_alive()


def test_outside_a_slot_a_wait_only_waits() -> None:
    log = Log()
    log.computation("F", 1)()
    assert log.done == ["F0", "F0 waited", "F ended"]


@pytest.mark.parametrize("place", [0, 1])
def test_an_error_of_either_computation_ends_the_slot(place: int) -> None:
    log, turns = Log(), Turns()

    def fail() -> None:
        wait_in_turn(log.collective("before the error"))
        raise ValueError("failed")

    both = [log.computation("other", 3), log.computation("other", 3)]
    both[place] = fail
    with pytest.raises(ValueError, match="failed"):
        turns.run(*both)
    assert "other ended" not in log.done

    log.done.clear()
    turns.run(log.computation("F", 0), log.computation("B", 0))
    assert log.done == ["F ended", "B ended"]
