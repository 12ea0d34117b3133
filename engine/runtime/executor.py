"""Plays the program of one rank: one method an op, one table, one loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import RunError
from engine.program.action import Action, Op, backward, forward
from engine.runtime.clock import Clock, Stamp
from engine.runtime.layout import Layout
from engine.runtime.stages import LocalStage, Saved
from engine.runtime.update import Update
from engine.runtime.wire import Pending, Wire


class ExecutionError(RunError):
    """An action failed: "rank 3, action 17 of 64, 3F2: RuntimeError('...')"."""

    def __init__(self, message: str, rank: int, action: Action) -> None:
        super().__init__(message)
        self.rank = rank
        self.action = action


@dataclass(frozen=True)
class Measured:
    """One step of one rank: a row an action, nanoseconds of the host's clock."""

    start: NDArray[np.int64]  # when the action held its inputs; when a RECV was posted
    end: NDArray[np.int64]  # when it was done; when what a RECV or REDUCE_GRAD is for was in hand
    wait: NDArray[np.int64]  # how long the rank stood still for the inputs; for a RECV its consumer did
    losses: list[Tensor]  # of the microbatches whose last stage is here


class Executor:
    """Runs the actions of a rank, step after step.

    What is made is named by the action that made it, on the shelf and on the wire, so a stage
    next door and a stage across the network look the same.
    """

    def __init__(
        self, layout: Layout, process: int, stages: Mapping[int, LocalStage], wire: Wire, update: Update, clock: Clock
    ) -> None:
        self._layout = layout
        self._rank = layout.rank(process)
        self._copy = layout.copy(process)
        self._actions = layout.program.actions(self._rank)
        self._row_of = {action: row for row, action in enumerate(self._actions)}
        self._last = layout.program.stages - 1
        self._stages = stages
        self._wire = wire
        self._update = update
        self._clock = clock
        self._do: dict[Op, Callable[[int, int], None]] = {
            Op.F: self._forward,
            Op.B: self._backward,
            Op.I: self._input_gradient,
            Op.W: self._weight_gradient,
            Op.SEND_F: lambda stage, mb: self._send(forward(stage, mb), stage + 1),
            Op.SEND_B: lambda stage, mb: self._send(backward(stage, mb), stage - 1),
            Op.RECV_F: lambda stage, mb: self._receive(forward(stage - 1, mb)),
            Op.RECV_B: lambda stage, mb: self._receive(backward(stage + 1, mb)),
            Op.REDUCE_GRAD: lambda stage, mb: self._update.reduce(stage),
            Op.STEP: self._step,
        }

    def run(self, batch: Sequence[tuple[Tensor, Tensor]]) -> Measured:
        """Run one step over ``batch``, inputs and targets of each microbatch.

        Raises:
            ExecutionError: an action failed; it says which, and of how many.
        """
        self._shelf: dict[Action, Tensor | tuple[int, Pending]] = {}
        self._saved: dict[Action, Saved] = {}
        self._gradients: dict[Action, Tensor | None] = {}  # what W needs of what I was given
        self._targets = [targets for _, targets in batch]
        self._losses: list[Tensor] = []
        for mb, (inputs, _) in enumerate(batch):
            self._shelf[forward(-1, mb)] = inputs
        rows = len(self._actions)
        self._start: list[Stamp] = [0] * rows
        self._end, self._asked, self._held = self._start.copy(), self._start.copy(), self._start.copy()
        self._clock.begin()
        now = self._clock.stamp()
        for row, action in enumerate(self._actions):
            self._row = row
            self._start[row] = self._asked[row] = self._held[row] = now
            try:
                self._do[action.op](action.stage, action.microbatch)
            except Exception as error:
                where = f"rank {self._rank}, action {row + 1} of {rows}, {action}"
                raise ExecutionError(f"{where}: {error!r}", self._rank, action) from error
            self._end[row] = now = self._clock.stamp()
        self._wire.flush()
        return self._measured()

    def _forward(self, stage: int, mb: int) -> None:
        x = self._take(forward(stage - 1, mb))
        saved = self._stages[stage].forward(x, self._targets[mb] if stage == self._last else None)
        self._saved[forward(stage, mb)] = saved
        if stage == self._last:
            self._losses.append(saved.y.detach())
        else:
            self._shelf[forward(stage, mb)] = saved.y.detach()

    def _backward(self, stage: int, mb: int) -> None:
        gradient = self._take_gradient(stage, mb)
        saved = self._saved.pop(forward(stage, mb))
        self._put_gradient(stage, mb, self._stages[stage].backward(saved, gradient))

    def _input_gradient(self, stage: int, mb: int) -> None:
        made = forward(stage, mb)
        self._gradients[made] = self._take_gradient(stage, mb)
        self._put_gradient(stage, mb, self._stages[stage].input_gradient(self._saved[made], self._gradients[made]))

    def _weight_gradient(self, stage: int, mb: int) -> None:
        made = forward(stage, mb)
        self._stages[stage].weight_gradient(self._saved.pop(made), self._gradients.pop(made))

    def _send(self, made: Action, taker: int) -> None:
        """Send what was made here to the rank of the stage that takes it."""
        tensor = self._shelf.pop(made)
        assert isinstance(tensor, Tensor), "a rank sends what it has made itself"
        self._wire.send(made, tensor, self._process_of(taker, made.microbatch))

    def _receive(self, made: Action) -> None:
        """Post it; the action that takes it waits."""
        source = self._process_of(made.stage, made.microbatch)
        self._shelf[made] = self._row, self._wire.receive(made, source)

    def _process_of(self, stage: int, mb: int) -> int:
        return self._layout.process(self._layout.rank_of(stage, mb), self._copy)

    def _step(self, _stage: int, _mb: int) -> None:
        reductions = self._update.collect()
        self._holds_inputs()
        for stage, reduction in reductions.items():
            self._note_arrival(self._row_of[Action(Op.REDUCE_GRAD, stage)], reduction)
        self._update.apply()

    def _take(self, made: Action) -> Tensor:
        held = self._shelf.pop(made)
        if isinstance(held, Tensor):
            return held
        row, pending = held
        tensor = pending.wait()
        self._holds_inputs()
        self._note_arrival(row, pending)
        return tensor

    def _take_gradient(self, stage: int, mb: int) -> Tensor | None:
        return None if stage == self._last else self._take(backward(stage + 1, mb))

    def _put_gradient(self, stage: int, mb: int, gradient: Tensor | None) -> None:
        if gradient is not None:
            self._shelf[backward(stage, mb)] = gradient

    def _holds_inputs(self) -> None:
        """An action starts when it holds its inputs; before is bubble."""
        self._start[self._row] = self._held[self._row] = self._clock.stamp()

    def _note_arrival(self, row: int, pending: Pending) -> None:
        self._end[row] = pending.arrived or self._start[self._row]
        self._asked[row], self._held[row] = self._asked[self._row], self._held[self._row]

    def _measured(self) -> Measured:
        start, end, asked, held = map(self._clock.nanoseconds, (self._start, self._end, self._asked, self._held))
        return Measured(start, end, held - asked, self._losses)
