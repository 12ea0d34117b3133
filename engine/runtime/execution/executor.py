"""Plays the program of one rank: one method an op, one table, one loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from meshwave.engine.errors import RunError
from meshwave.engine.program.action import RECEIVES, Action, Op, backward, format_cells, forward, message_key
from meshwave.engine.runtime.communication.communicator import PendingTensor
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.device.clock import Clock, Stamp
from meshwave.engine.runtime.device.streams import Streams
from meshwave.engine.runtime.execution.stages import Saved, Tensors
from meshwave.engine.runtime.modules.deferred_gradients import DeferredGradient, compute_deferred

Batch = Mapping[int, tuple[Tensor, Tensor]]
"""Inputs and targets by microbatch, for those whose first or last stage is here."""

Play = Callable[[], None]
"""Runs an action."""

Inputs = tuple[Any, tuple[Tensor, ...]]
"""What a computation takes: what its neighbour made (None where it starts from the loss), and what skipped stages
on its way here."""


class Computes(Protocol):
    """A stage: a :class:`~meshwave.engine.runtime.execution.stages.LocalStage`, or what waits in its place."""

    recomputed: bool
    skip_sources: tuple[int, ...]
    skip_targets: tuple[int, ...]

    def forward(self, x: Tensor, targets: Tensor | None, skips: Tensors = ()) -> tuple[Tensor, Saved]: ...
    def backward(self, saved: Saved, gradient: Tensor | None, of_given: Tensors = ()) -> Tensor | None: ...
    def input_gradient(
        self, saved: Saved, gradient: Tensor | None, of_given: Tensors = ()
    ) -> tuple[Tensor | None, list[DeferredGradient]]: ...
    def forget(self) -> None: ...


class Ways(Protocol):
    """The messages of a step: a :class:`~meshwave.engine.runtime.communication.communicator.Communicator`, or what holds them back."""

    def sender(self, made: Action, rank: int) -> Callable[[Tensor], None]: ...
    def receiver(self, made: Action, rank: int) -> Callable[[], PendingTensor]: ...
    def flush(self) -> None: ...


class Updates(Protocol):
    """The end of a step: an :class:`~meshwave.engine.runtime.execution.update.Update`, or what waits in its place."""

    def reduce(self, stage: int) -> None: ...
    def collect(self) -> dict[int, PendingTensor]: ...
    def apply(self) -> None: ...


class ExecutionError(RunError):
    """An action failed: "rank 3, action 17 of 64, 3F2: RuntimeError('...')"."""

    def __init__(self, message: str, rank: int, action: Action) -> None:
        super().__init__(message)
        self.rank = rank
        self.action = action


@dataclass(frozen=True)
class Measured:
    """One step of one rank: a row an action, nanoseconds of the host's clock."""

    start: NDArray[np.int64]  # when the action (both of a slot) held its inputs; when a RECV was posted
    end: NDArray[np.int64]  # when it was done; when what a RECV or REDUCE_GRAD is for was in hand
    wait: NDArray[np.int64]  # how long the rank stood still for the inputs; for a RECV its consumer did
    losses: list[Tensor]  # of the microbatches whose last stage is here


class Computation(NamedTuple):
    """An action that takes tensors, perhaps after a wait, and computes on them."""

    made: Action  # the forward that it is, or is the backward of
    take: Callable[[], Inputs]
    run: Callable[[Inputs], None]


class Slot(NamedTuple):
    """One action, or a forward and a backward that share their time."""

    row: int
    last: int  # row, or the one after it
    play: Play


class Executor:
    """Runs the actions of a rank, step after step.

    What is made is named by the action that made it, on the shelf and on the communicator, so a stage
    next door and a stage across the network look the same. Everything that a step would look up
    again and again, such as who sends what to whom, is bound into the actions once.
    """

    def __init__(
        self,
        layout: ProcessLayout,
        process: int,
        stages: Mapping[int, Computes],
        communicator: Ways,
        update: Updates,
        clock: Clock,
        streams: Streams,
    ) -> None:
        self._layout = layout
        self._rank = layout.rank(process)
        self._actions = layout.program.actions(self._rank)
        self._row_of = {action._replace(fused=0): row for row, action in enumerate(self._actions)}
        receives = (row for row, action in enumerate(self._actions) if action.op in RECEIVES)
        self._received_at = {_carried(self._actions[row])[0]: row for row in receives}  # what was made elsewhere
        self._last = layout.program.stages - 1
        self._stages = stages
        self._communicator = communicator
        self._update = update
        self._clock = clock
        self._stamp = clock.stamp
        self._streams = streams

        self._batch: Batch = {}
        self._shelf: dict[Action, Tensor] = {}
        self._coming: dict[Action, PendingTensor] = {}
        self._saved: dict[Action, Saved] = {}
        self._due: dict[Action, list[DeferredGradient]] = {}  # what a W has to do
        self._losses: list[Tensor] = []
        rows = len(self._actions)
        self._start: list[Stamp] = [0] * rows
        self._end, self._asked, self._held = self._start.copy(), self._start.copy(), self._start.copy()
        self._slots = self._bind()

    def run(self, batch: Batch) -> Measured:
        """Run one step over ``batch``.

        Raises:
            ExecutionError: an action failed; it says which, and of how many.
        """
        self._batch = batch
        self._losses = []
        for shelf in (self._shelf, self._coming, self._saved, self._due):
            shelf.clear()
        start, end, asked, held, stamp = self._start, self._end, self._asked, self._held, self._stamp
        self._clock.begin()
        now = stamp()
        row = last = 0
        try:
            for row, last, play in self._slots:
                start[row] = asked[row] = held[row] = now
                play()
                end[row] = end[last] = now = stamp()
        except Exception as error:
            (cell,) = format_cells(self._actions[row : last + 1])
            where = f"rank {self._rank}, action {row + 1} of {len(self._actions)}, {cell}"
            raise ExecutionError(f"{where}: {error!r}", self._rank, self._actions[row]) from error
        self._communicator.flush()
        return self._measured()

    # ---- actions are bound once ----

    def _bind(self) -> list[Slot]:
        bind: dict[Op, Callable[[int, int, int], Any]] = {  # a Play, or a Computation
            Op.F: self._forward,
            Op.B: self._backward,
            Op.I: self._input_gradient,
            Op.W: self._weight_gradient,
            Op.SEND_F: lambda row, stage, mb: self._send(*_carried(self._actions[row])),
            Op.SEND_B: lambda row, stage, mb: self._send(*_carried(self._actions[row])),
            Op.RECV_F: lambda row, stage, mb: self._receive(_carried(self._actions[row])[0]),
            Op.RECV_B: lambda row, stage, mb: self._receive(_carried(self._actions[row])[0]),
            Op.REDUCE_GRAD: lambda row, stage, mb: lambda: self._update.reduce(stage),
            Op.STEP: lambda row, stage, mb: lambda: self._step(row),
        }
        bound = [bind[op](row, stage, mb) for row, (op, stage, mb, *_) in enumerate(self._actions)]
        slots: list[Slot] = []
        for row, (action, play) in enumerate(zip(self._actions, bound, strict=True)):
            if action.fused:
                slots[-1] = Slot(row - 1, row, self._overlapped(row, bound[row - 1], play))
            else:
                slots.append(Slot(row, row, play if callable(play) else self._alone(action.op, play)))
        return slots

    def _forward(self, row: int, stage: int, mb: int) -> Computation:
        made, local, is_last = forward(stage, mb), self._stages[stage], stage == self._last
        gives = [made._replace(other=later) for later in local.skip_targets]
        saved, shelf = self._saved, self._shelf

        def run(inputs: Inputs) -> None:
            x, skips = inputs
            y, kept = local.forward(x, self._batch[mb][1] if is_last else None, skips)
            if is_last:
                self._losses.append(y)
            else:
                shelf[made] = y
            for name, tensor in zip(gives, kept.given, strict=True):
                shelf[name] = tensor.detach()
            saved[made] = kept._replace(given=()) if local.recomputed else kept

        take = self._taker(row, forward(stage - 1, mb)) if stage else lambda: self._batch[mb][0]
        skips = [forward(earlier, mb)._replace(other=stage) for earlier in local.skip_sources]
        return Computation(made, self._with_skips(row, take, skips), run)

    def _backward(self, row: int, stage: int, mb: int) -> Computation:
        made, compute, put = forward(stage, mb), self._stages[stage].backward, self._putter(stage, mb)
        saved = self._saved

        def run(gradients: Inputs) -> None:
            kept = saved.pop(made)
            put(compute(kept, *gradients), kept)

        return Computation(made, self._gradient_taker(row, stage, mb), run)

    def _input_gradient(self, row: int, stage: int, mb: int) -> Computation:
        made, compute, put = forward(stage, mb), self._stages[stage].input_gradient, self._putter(stage, mb)
        saved, due = self._saved, self._due

        def run(gradients: Inputs) -> None:
            kept = saved.pop(made)
            of_input, due[made] = compute(kept, *gradients)
            put(of_input, kept)

        return Computation(made, self._gradient_taker(row, stage, mb), run)

    def _weight_gradient(self, row: int, stage: int, mb: int) -> Play:
        made, due = forward(stage, mb), self._due
        return lambda: compute_deferred(due.pop(made))

    def _send(self, made: Action, taker: int) -> Play:
        """Send what was made here to the rank of the stage that takes it."""
        send, shelf = self._communicator.sender(made, self._layout.rank_of(taker, made.microbatch)), self._shelf
        return lambda: send(shelf.pop(made))

    def _receive(self, made: Action) -> Play:
        """Post it; the action that takes it waits."""
        receive, coming = (
            self._communicator.receiver(made, self._layout.rank_of(made.stage, made.microbatch)),
            self._coming,
        )

        def play() -> None:
            coming[made] = receive()

        return play

    def _alone(self, op: Op, computation: Computation) -> Play:
        made, take, run = computation
        if op == Op.F:
            return lambda: run(take())

        def play() -> None:
            gradients = take()
            self._streams.backward(made, lambda: run(gradients))

        return play

    def _overlapped(self, row: int, first: Computation, second: Computation) -> Play:
        """The forward of row - 1 and the backward of row, once both have what they need."""
        start, asked, held = self._start, self._asked, self._held
        made = None if self._stages[first.made.stage].recomputed else first.made

        def play() -> None:
            inputs = first.take()
            asked[row] = held[row] = held[row - 1]
            gradients = second.take()
            start[row - 1] = start[row] = held[row]
            self._streams.overlap(made, lambda: first.run(inputs), second.made, lambda: second.run(gradients))

        return play

    # ---- inputs and outputs ----

    def _taker(self, row: int, made: Action) -> Callable[[], Tensor]:
        """Takes what ``made`` names off the shelf or, where it was received, off the communicator."""
        received = self._received_at.get(made)
        if received is None:
            shelf = self._shelf
            return lambda: shelf.pop(made)
        coming, start, held, stamp = self._coming, self._start, self._held, self._stamp

        def take() -> Tensor:
            pending, asked = coming.pop(made), held[row]
            tensor = pending.wait()
            start[row] = held[row] = stamp()  # an action starts when it holds its inputs; before is bubble
            self._note_arrival(row, received, pending, asked)
            return tensor

        return take

    def _with_skips(self, row: int, take: Callable[[], Any], skips: list[Action]) -> Callable[[], Inputs]:
        """Takes what the neighbour made, then what skipped stages."""
        if not skips:
            return lambda: (take(), ())
        takers = [self._taker(row, made) for made in skips]
        return lambda: (take(), tuple(taker() for taker in takers))

    def _gradient_taker(self, row: int, stage: int, mb: int) -> Callable[[], Inputs]:
        take = (lambda: None) if stage == self._last else self._taker(row, backward(stage + 1, mb))
        gives = self._stages[stage].skip_targets
        return self._with_skips(row, take, [backward(later, mb)._replace(other=stage) for later in gives])

    def _putter(self, stage: int, mb: int) -> Callable[[Tensor | None, Saved], None]:
        """Puts the gradients of inputs on the shelf; that of tokens is none and wanted by nobody."""
        made, shelf = backward(stage, mb), self._shelf
        takes = [made._replace(other=earlier) for earlier in self._stages[stage].skip_sources]

        def put(gradient: Tensor | None, kept: Saved) -> None:
            if gradient is not None:
                shelf[made] = gradient
            for name, skip in zip(takes, kept.skips, strict=True):
                assert skip.grad is not None, "a skip has a gradient"
                shelf[name] = skip.grad

        return put

    # ---- the end of a step ----

    def _step(self, row: int) -> None:
        reductions = self._update.collect()
        self._start[row] = self._held[row] = self._stamp()
        for stage, reduction in reductions.items():
            self._note_arrival(row, self._row_of[Action(Op.REDUCE_GRAD, stage)], reduction, self._asked[row])
        self._update.apply()
        for local in self._stages.values():
            local.forget()

    def _note_arrival(self, row: int, of: int, pending: PendingTensor, asked: Stamp) -> None:
        """``row`` has just got what row ``of`` was for, and has ``asked`` for it once it had what it asked for before."""
        self._end[of] = pending.arrival or self._held[row]
        self._start[of] = pending.departure or self._start[of]
        self._asked[of], self._held[of] = asked, self._held[row]

    def _measured(self) -> Measured:
        start, end, asked, held = map(self._clock.nanoseconds, (self._start, self._end, self._asked, self._held))
        return Measured(start, end, held - asked, self._losses)


def _carried(message: Action) -> tuple[Action, int]:
    """What a SEND or RECV carries, by the action that made it and, where it skips stages, the stage that takes
    it; and that stage."""
    onward, source, target, mb = message_key(message)
    return Action(Op.F if onward else Op.B, source, mb, 0, target if message.other >= 0 else -1), target
