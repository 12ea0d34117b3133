"""Start and end times of the steps of expert layers, shown in the view of a block's layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from meshwave.engine.experts import LAYER_OPS, StepOp
from meshwave.engine.runs.recording import STEP, LayerPass, LayerSteps
from meshwave.engine.runtime.device.clock import Clock, Stamp

EndStep = Callable[[], None]
"""Function that records the end of a step."""
_OP_NUMBER = {op: number for number, op in enumerate(LAYER_OPS)}


class StepPosition(NamedTuple):
    """Direction and chunk of slots of a step."""

    way: LayerPass = LayerPass.FORWARD
    chunk: int = -1  # -1 if all slots are sent at once


BeginStep = Callable[[StepOp, StepPosition], EndStep]
"""Function that records the start of a step and returns the function that records its end."""


def ignore_step(op: StepOp, position: StepPosition) -> EndStep:
    """Record nothing, for layers that are not traced."""
    return do_nothing


def do_nothing() -> None:
    """End a step that is not recorded."""


class StepTrace:
    """Recorder of the steps of a process's expert layers while :attr:`is_on`.

    A step ends when its result is used: for a message that arrives while its receiver computes, when the receiver waits
    for it. Recording takes two time stamps per step and no wait.
    """

    def __init__(self, clock: Clock) -> None:
        self.is_on = False
        self._clock, self._stamp = clock, clock.stamp
        self._notes: list[tuple[int, int, StepPosition, Stamp, Stamp]] = []

    def recorder(self, layer: int) -> BeginStep:
        """Return the function that a layer calls at the start of its steps."""
        return partial(self._record_begin, layer)

    def _record_begin(self, layer: int, op: StepOp, position: StepPosition) -> EndStep:
        if not self.is_on:
            return do_nothing
        number, stamp, start = _OP_NUMBER[op], self._stamp, self._stamp()
        return lambda: self._notes.append((layer, number, position, start, stamp()))

    def take(self) -> LayerSteps:
        """Return the steps recorded since the last call. Must be called before the clock begins another step."""
        notes, self._notes = self._notes, []
        steps = np.zeros(len(notes), STEP)
        if notes:
            layers, ops, positions, starts, ends = zip(*notes, strict=True)
            steps["layer"], steps["op"] = layers, ops
            steps["way"], steps["chunk"] = zip(*positions, strict=True)
            steps["start_ns"], steps["end_ns"] = map(self._clock.nanoseconds, (starts, ends))
        return steps
