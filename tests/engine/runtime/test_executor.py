"""What a rank writes down of its actions: when each held its inputs, and how long it stood still for each of them."""

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
from meshwave.engine.runtime.execution.executor import Executor  # noqa: E402
from meshwave.engine.runtime.execution.stages import Saved, Tensors  # noqa: E402
from meshwave.engine.runtime.modules.deferred_gradients import DeferredGradient  # noqa: E402

pytestmark = pytest.mark.torch

SKIP = """
    0F0 0SEND_F0 0SEND_F0TO2 0RECV_B0 0RECV_B0FROM2 0B0
    1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0
    2RECV_F0FROM0 2RECV_F0 2F0 2B0 2SEND_B0 2SEND_B0TO0
"""


class Hands(Clock):
    """A clock that goes on when it is told to."""

    now = 0

    def begin(self) -> None:
        self.now = 0

    def stamp(self) -> int:
        return self.now

    def nanoseconds(self, stamps: Sequence[int]) -> NDArray[np.int64]:
        return np.array(stamps, np.int64)


class Arrives(PendingTensor):
    """Something that takes a while from when it is asked for."""

    def __init__(self, clock: Hands, took: int) -> None:
        self._clock, self._took = clock, took

    def wait(self) -> Tensor:
        self._clock.now += self._took
        return torch.zeros(())


class Post:
    """Brings what every action made after its own time, and takes whatever is sent."""

    def __init__(self, clock: Hands, took: dict[Action, int]) -> None:
        self._clock, self._took = clock, took

    def sender(self, made: Action, rank: int) -> Callable[[Tensor], None]:
        return lambda tensor: None

    def receiver(self, made: Action, rank: int) -> Callable[[], PendingTensor]:
        return lambda: Arrives(self._clock, self._took[made])

    def flush(self) -> None:
        pass


class Stage:
    """Takes what skips a stage, and computes for ten nanoseconds."""

    recomputed, skip_sources, skip_targets = False, (0,), ()

    def __init__(self, clock: Hands) -> None:
        self._clock = clock

    def forward(self, x: Tensor, targets: Tensor | None, skips: Tensors = ()) -> tuple[Tensor, Saved]:
        self._clock.now += 10
        for skip in skips:
            skip.grad = skip.clone()
        return x, Saved(x, None, None, tuple(skips), ())

    def backward(self, saved: Saved, gradient: Tensor | None, of_given: Tensors = ()) -> Tensor | None:
        self._clock.now += 10
        return saved.skips[0]

    def input_gradient(
        self, saved: Saved, gradient: Tensor | None, of_given: Tensors = ()
    ) -> tuple[Tensor | None, list[DeferredGradient]]:
        raise AssertionError("the program has no I")

    def forget(self) -> None:
        pass


class NoUpdate:
    def reduce(self, stage: int) -> None:
        pass

    def collect(self) -> dict[int, PendingTensor]:
        return {}

    def apply(self) -> None:
        pass


def test_of_two_inputs_the_second_is_asked_for_once_the_first_is_there() -> None:
    """So that one that was there all along is not taken for one that somebody waited for."""
    clock = Hands()
    made = {Action(Op.F, 1, 0): 800, Action(Op.F, 0, 0, 0, 2): 3}
    layout = ProcessLayout(parse_program(SKIP), (MeshShape(1, 1),) * 3)
    executor = Executor(layout, 2, {2: Stage(clock)}, Post(clock, made), NoUpdate(), clock, Streams())

    measured = executor.run({0: (torch.zeros(()), torch.zeros(()))})

    skip, neighbour, forward, backward, *_ = zip(
        measured.start.tolist(), measured.end.tolist(), measured.wait.tolist(), strict=True
    )
    assert neighbour == (0, 800, 800)
    assert skip == (0, 803, 3)
    assert forward == (803, 813, 803), "it stood still for both"
    assert backward == (813, 823, 0)
