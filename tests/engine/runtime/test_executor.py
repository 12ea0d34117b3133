"""Tests of the measured times of actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from meshwave.engine.program.action import Action, Op  # noqa: E402
from meshwave.engine.program.program import parse_program  # noqa: E402
from meshwave.engine.runtime.communication.communicator import PendingTensor  # noqa: E402
from meshwave.engine.runtime.communication.process_layout import MeshShape, ProcessLayout  # noqa: E402
from meshwave.engine.runtime.device.clock import Clock  # noqa: E402
from meshwave.engine.runtime.device.streams import Streams  # noqa: E402
from meshwave.engine.runtime.execution.data import Microbatch  # noqa: E402
from meshwave.engine.runtime.execution.executor import Executor, Progress  # noqa: E402
from meshwave.engine.runtime.execution.stages import Saved, Tensors  # noqa: E402
from meshwave.engine.runtime.modules.deferred_gradients import DeferredGradient  # noqa: E402

pytestmark = pytest.mark.torch

SKIP = """
    0F0 0SEND_F0 0SEND_F0TO2 0RECV_B0 0RECV_B0FROM2 0B0
    1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0
    2RECV_F0FROM0 2RECV_F0 2F0 2B0 2SEND_B0 2SEND_B0TO0
"""


class ManualClock(Clock):
    """A clock that advances when ``now`` is set."""

    now = 0

    def begin(self) -> None:
        self.now = 0

    def stamp(self) -> int:
        return self.now

    def nanoseconds(self, stamps: Sequence[int]) -> NDArray[np.int64]:
        return np.array(stamps, np.int64)


class SlowTensor(PendingTensor):
    """Tensor that arrives some time after the start of the wait for it."""

    def __init__(self, clock: ManualClock, delay_ns: int) -> None:
        self._clock, self._delay_ns = clock, delay_ns

    def wait(self) -> Tensor:
        self._clock.now += self._delay_ns
        return torch.zeros(())


class SlowMessenger:
    """Messenger that delivers each tensor after its own delay, and ignores sends."""

    def __init__(self, clock: ManualClock, delays_ns: dict[Action, int]) -> None:
        self._clock, self._delays_ns = clock, delays_ns

    def send_function(self, producer: Action, rank: int) -> Callable[[Tensor], None]:
        return lambda tensor: None

    def receive_function(self, producer: Action, rank: int) -> Callable[[], PendingTensor]:
        return lambda: SlowTensor(self._clock, self._delays_ns[producer])

    def flush(self) -> None:
        pass


class Stage:
    """Stage with a skip connection from stage 0 that computes for ten nanoseconds."""

    recomputes, skip_sources, skip_targets = False, (0,), ()

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def forward(self, x: Tensor, targets: Tensor | None, skips: Tensors = ()) -> tuple[Tensor, Saved]:
        self._clock.now += 10
        for skip in skips:
            skip.grad = skip.clone()
        return x, Saved(x, None, None, tuple(skips), ())

    def backward(self, saved: Saved, gradient: Tensor | None, skip_gradients: Tensors = ()) -> Tensor | None:
        self._clock.now += 10
        return saved.skips[0]

    def input_gradient(
        self, saved: Saved, gradient: Tensor | None, skip_gradients: Tensors = ()
    ) -> tuple[Tensor | None, list[DeferredGradient]]:
        raise AssertionError("the program has no I")

    def drop_cast_weights(self) -> None:
        pass


class NoUpdate:
    """Update that does not change the weights."""

    def start_reduction(self, stage: int) -> None:
        pass

    def collect_gradients(self) -> dict[int, PendingTensor]:
        return {}

    def apply(self) -> None:
        pass


def test_the_wait_for_a_second_input_begins_when_the_first_has_arrived() -> None:
    """Otherwise an input that had arrived long before would be reported as the cause of a wait."""
    clock = ManualClock()
    delays_ns = {Action(Op.F, 1, 0): 800, Action(Op.F, 0, 0, 0, 2): 3}
    layout = ProcessLayout(parse_program(SKIP), (MeshShape(1, 1),) * 3)
    executor = Executor(layout, 2, {2: Stage(clock)}, SlowMessenger(clock, delays_ns), NoUpdate(), clock, Streams())

    times = executor.run({0: Microbatch(torch.zeros(()), torch.zeros(()))})

    skip, neighbour, forward, backward, *_ = zip(
        times.start.tolist(), times.end.tolist(), times.wait.tolist(), strict=True
    )
    assert neighbour == (0, 800, 800)
    assert skip == (0, 803, 3)
    assert forward == (803, 813, 803), "it waited for both"
    assert backward == (813, 823, 0)


def test_an_evaluation_runs_forwards_only_and_reports_their_rows_in_the_program() -> None:
    clock, progress = ManualClock(), Progress()
    rows = []

    class WatchedStage(Stage):
        def forward(self, x: Tensor, targets: Tensor | None, skips: Tensors = ()) -> tuple[Tensor, Saved]:
            rows.append(progress.row)
            return super().forward(x, targets, skips)

    layout = ProcessLayout(parse_program(SKIP), (MeshShape(1, 1),) * 3)
    messenger = SlowMessenger(clock, {Action(Op.F, 1, 0): 800, Action(Op.F, 0, 0, 0, 2): 3})
    parts = layout, 2, {2: WatchedStage(clock)}, messenger, NoUpdate(), clock, Streams()
    times = Executor(*parts, forwards_only=True, progress=progress).run(
        {0: Microbatch(torch.zeros(()), torch.zeros(()))}
    )

    assert (rows, progress.row, len(times.losses), clock.now) == ([2], 6, 1, 813)
