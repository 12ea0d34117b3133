"""Execution of two computations in turns on one device: one continues while the other waits for a collective."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

Compute = Callable[[], None]
FIRST, SECOND = range(2)

_local = threading.local()
"""The pair of computations that this thread belongs to, and the index of its computation in the pair."""


def wait_in_turn(work: Any) -> None:
    """Wait for a collective. In a shared slot, the other one continues first."""
    pair = getattr(_local, "pair", None)
    if pair is not None:
        pair.pass_turn(_local.place)
    work.wait()


@contextmanager
def keep_turn() -> Iterator[None]:
    """Do not pass the turn while another thread issues collectives, so that their order is the same on all processes."""
    pair, _local.pair = getattr(_local, "pair", None), None
    try:
        yield
    finally:
        _local.pair = pair


class Turns:
    """Executor of two computations, of which one computes at a time.

    The turn passes at every wait for a collective, whether the collective has ended or not. All members of a group
    therefore issue their collectives in one order, as torch.distributed requires, and need no second group. The first
    computation runs on the calling thread, the second one on a thread that is reused.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Compute | None] | None = None

    def run(self, first: Compute, second: Compute) -> None:
        """Run both computations; if one fails, the other is not continued."""
        pair, jobs = _Pair(), self._jobs or self._start_thread()
        self._jobs = None  # a pair that fails may leave its thread waiting; the next pair starts another one
        jobs.put(lambda: pair.run_second(second))
        pair.run_first(first)
        self._jobs = jobs

    def _start_thread(self) -> SimpleQueue[Compute | None]:
        """Start a thread that ends when this object is deleted, and return the queue of its computations."""
        jobs: SimpleQueue[Compute | None] = SimpleQueue()

        def work() -> None:
            while (job := jobs.get()) is not None:
                job()
                del job  # so that the tensors of the computation are freed

        threading.Thread(target=work, name="second-of-a-slot", daemon=True).start()
        weakref.finalize(self, jobs.put, None)
        return jobs


class _Pair:
    """Pair of computations that pass the turn to each other."""

    def __init__(self) -> None:
        self._turn = threading.Semaphore(0), threading.Semaphore(0)
        self._has_ended = [False, False]
        self._error: BaseException | None = None

    def run_first(self, compute: Compute) -> None:
        """Run the first computation, then wait for the rest of the second one."""
        self._run(FIRST, compute)
        if not self._has_ended[SECOND]:
            self._turn[SECOND].release()
            self._turn[FIRST].acquire()
        if self._error is not None:
            raise self._error

    def run_second(self, compute: Compute) -> None:
        """Run the second computation when it first receives the turn."""
        self._turn[SECOND].acquire()
        try:
            self._run(SECOND, compute)
        except BaseException as error:
            self._error = error
        self._has_ended[SECOND] = True
        self._turn[FIRST].release()

    def _run(self, place: int, compute: Compute) -> None:
        _local.pair, _local.place = self, place
        try:
            compute()
        finally:
            _local.pair = None
        self._has_ended[place] = True

    def pass_turn(self, place: int) -> None:
        """Pass the turn to the other computation until it waits or ends."""
        other = 1 - place
        if self._has_ended[other]:
            return
        self._turn[other].release()
        self._turn[place].acquire()
        if self._error is not None:
            raise self._error
