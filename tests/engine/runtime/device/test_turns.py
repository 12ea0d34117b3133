"""Turns of two computations: one continues while the other waits for a collective."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs.overlapped_slots import Piece, Pieces, PlacedPiece, join_pieces, place_overlapped_pieces
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
        return Collective(lambda: self.done.append(words))


class Collective(NamedTuple):
    wait: Callable[[], None]


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

    def run_alone() -> None:
        with keep_turn():
            first()

    Turns().run(run_alone, log.computation("B", 1))
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


times = st.integers(0, 4).map(float)
pieces = st.lists(st.builds(Piece, times, times), max_size=6).map(join_pieces)


class VirtualTime:
    """Virtual clock that runs pieces in the time that they state; one collective is in flight at a time."""

    def __init__(self) -> None:
        self.now = self.link_free = 0.0

    def computation(self, pieces: Pieces, placed: list[PlacedPiece]) -> Callable[[], None]:
        def compute() -> None:
            for compute_s, wait_s in pieces:
                start = self.now
                self.now = collective_start = end = start + compute_s
                if wait_s:
                    collective_start = max(self.now, self.link_free)
                    self.link_free = end = collective_start + wait_s
                placed.append(PlacedPiece(start, collective_start, end))
                if wait_s:
                    wait_in_turn(Collective(lambda end=end: self._advance(end)))

        return compute

    def _advance(self, end: float) -> None:
        self.now = max(self.now, end)


@given(pieces, pieces)
def test_computations_take_turns_as_the_cost_model_predicts(first: Pieces, second: Pieces) -> None:
    clock, placed = VirtualTime(), (list[PlacedPiece](), list[PlacedPiece]())
    Turns().run(clock.computation(first, placed[0]), clock.computation(second, placed[1]))
    assert placed == place_overlapped_pieces(first, second)


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
