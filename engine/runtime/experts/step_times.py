"""When each step of the expert layers began and ended: what the inside of a block is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from meshwave.engine.experts import LAYER_OPS, StepOp
from meshwave.engine.runs.recording import STEP, LayerSteps, Way
from meshwave.engine.runtime.device.clock import Clock, Stamp

Ends = Callable[[], None]
"""Notes that a step is done."""
_NUMBER = {op: number for number, op in enumerate(LAYER_OPS)}


class At(NamedTuple):
    """Where in a layer a step is played."""

    way: Way = Way.FORWARD
    chunk: int = -1  # -1 where all slots go at once


Begins = Callable[[StepOp, At], Ends]
"""Notes that a step begins."""


def unseen(op: StepOp, at: At) -> Ends:
    """For layers that nobody watches."""
    return nothing


def nothing() -> None:
    """The end of a step that nobody wants to know of."""


class Trace:
    """Notes the steps of the expert layers of a process while it is :attr:`on`.

    A step ends when what it is for was in hand: a message that came while its receiver was computing
    ends when the receiver turns to it. It costs two stamps a step, and nothing waits for it.
    """

    def __init__(self, clock: Clock) -> None:
        self.on = False
        self._clock, self._stamp = clock, clock.stamp
        self._notes: list[tuple[int, int, At, Stamp, Stamp]] = []

    def of(self, layer: int) -> Begins:
        """What a layer of the model tells its steps."""
        return partial(self._begins, layer)

    def _begins(self, layer: int, op: StepOp, at: At) -> Ends:
        if not self.on:
            return nothing
        number, stamp, began = _NUMBER[op], self._stamp, self._stamp()
        return lambda: self._notes.append((layer, number, at, began, stamp()))

    def take(self) -> LayerSteps:
        """What was noted since the last call, to be asked for before the clock starts another step."""
        notes, self._notes = self._notes, []
        found = np.zeros(len(notes), STEP)
        if notes:
            layers, ops, places, began, ended = zip(*notes, strict=True)
            found["layer"], found["op"] = layers, ops
            found["way"], found["chunk"] = zip(*places, strict=True)
            found["start_ns"], found["end_ns"] = map(self._clock.nanoseconds, (began, ended))
        return found
