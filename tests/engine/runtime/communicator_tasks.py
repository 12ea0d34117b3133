"""Tasks of processes in the tests of the communicator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.program.action import Action
from meshwave.engine.resharding import Link, Links, Mesh, plan_transfer
from meshwave.engine.resharding import Tensor as Shape
from meshwave.engine.runtime.communication import world
from meshwave.engine.runtime.communication.communicator import PendingSend
from meshwave.engine.runtime.communication.gloo_communicator import GlooCommunicator
from meshwave.engine.runtime.execution.trainer import Trainer
from meshwave.engine.runtime.resharding import GlooTransport, Resharding
from tests.engine.runtime.crew import make_job


class CountingCommunicator(GlooCommunicator):
    """Records how many messages it holds."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.max_sending = self.max_forwarding = 0

    def _bind_send(self, producer: Action, rank: int) -> Callable[[Tensor], PendingSend]:
        start = super()._bind_send(producer, rank)

        def send(tensor: Tensor) -> PendingSend:
            self.max_sending = max(self.max_sending, len(self._sending) + 1)
            self.max_forwarding = max(self.max_forwarding, len(self._forwarding))
            return start(tensor)

        return send


def count_held_messages(document: dict[str, Any]) -> tuple[int, int, int]:
    """Run two steps, and return the most messages held at once, sent and forwarded ones, and those left afterwards."""
    world.GlooCommunicator = CountingCommunicator
    here = world.World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), "gloo", "")
    trainer = Trainer(make_job(document, None), here)
    for number in range(2):
        trainer.step(number)
    communicator = trainer._communicator
    assert isinstance(communicator, CountingCommunicator)
    left = len(communicator._sending) + len(communicator._forwarding)
    return communicator.max_sending, communicator.max_forwarding, left


def check_arrival(_: Any) -> bool:
    """Return whether process 1 of a chain, which waits late, knows when it received what it forwarded."""
    me = dist.get_rank()
    source, destination = Mesh((1,), (0,), (0,)), Mesh((2,), (1, 2), (1, 2))
    links = Links(Link(1e-5, 1e10), Link(3e-5, 1e9), {0: 0, 1: 1, 2: 2})
    planned = plan_transfer(Shape((100_000,), 4), (source, ("R",)), (destination, ("R",)), links, chunks=4)
    pending = Resharding(planned, me, torch.float32, GlooTransport()).start(torch.ones(100_000) if me == 0 else None)
    if me != 1:
        pending.wait()
    dist.barrier()
    now = time.perf_counter_ns()
    pending.wait()
    return pending.arrival is None if me == 0 else 0 < pending.arrival < now
