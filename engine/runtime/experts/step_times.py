"""Start and end times of the steps of expert layers, from which the inside of a block is drawn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from meshwave.engine.experts import LAYER_OPS, StepOp
from meshwave.engine.runs.recording import STEP, LayerSteps, Way
from meshwave.engine.runtime.device.clock import Clock, Stamp

EndStep = Callable[[], None]
"""Records that a step has ended."""
_OP_NUMBER = {op: number for number, op in enumerate(LAYER_OPS)}


class StepPosition(NamedTuple):
    """The direction and the chunk of slots that a step belongs to."""

    way: Way = Way.FORWARD
    chunk: int = -1  # -1 if all slots are sent at once


BeginStep = Callable[[StepOp, StepPosition], EndStep]
"""Records that a step begins."""


def ignore_step(op: StepOp, position: StepPosition) -> EndStep:
    """Record nothing, for layers that are not traced."""
    return do_nothing


def do_nothing() -> None:
    """End a step that is not recorded."""


class StepTrace:
    """Records the steps of the expert layers of a process while :attr:`is_on`.

    A step ends when its result is in use: a message that arrives while its receiver computes
    ends when the receiver turns to it. A step costs two stamps, and nothing waits for it.
    """

    def __init__(self, clock: Clock) -> None:
        self.is_on = False
        self._clock, self._stamp = clock, clock.stamp
        self._notes: list[tuple[int, int, StepPosition, Stamp, Stamp]] = []

    def recorder(self, layer: int) -> BeginStep:
        """Return the function that a layer of the model calls at the beginning of its steps."""
        return partial(self._begin, layer)

    def _begin(self, layer: int, op: StepOp, position: StepPosition) -> EndStep:
        if not self.is_on:
            return do_nothing
        number, stamp, start = _OP_NUMBER[op], self._stamp, self._stamp()
        return lambda: self._notes.append((layer, number, position, start, stamp()))

    def take(self) -> LayerSteps:
        """Return the steps since the last call. To be called before the clock starts another step."""
        notes, self._notes = self._notes, []
        steps = np.zeros(len(notes), STEP)
        if notes:
            layers, ops, positions, starts, ends = zip(*notes, strict=True)
            steps["layer"], steps["op"] = layers, ops
            steps["way"], steps["chunk"] = zip(*positions, strict=True)
            steps["start_ns"], steps["end_ns"] = map(self._clock.nanoseconds, (starts, ends))
        return steps
