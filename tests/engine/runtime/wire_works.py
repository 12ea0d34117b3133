"""What processes do in the tests of the wire, by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.program.action import Action
from meshwave.engine.resharding import Link, Links, Mesh, transfer
from meshwave.engine.resharding import Tensor as Shape
from meshwave.engine.runtime.communication import world
from meshwave.engine.runtime.communication._gloo import GlooWire
from meshwave.engine.runtime.communication.wire import Leaving
from meshwave.engine.runtime.execution.trainer import Trainer
from meshwave.engine.runtime.resharding import GlooCarrier, Resharding
from tests.engine.runtime.crew import make_job


class Counted(GlooWire):
    """Counts what it holds."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.most_sent = self.most_passing = 0

    def _sending(self, made: Action, rank: int) -> Callable[[Tensor], Leaving]:
        start = super()._sending(made, rank)

        def send(tensor: Tensor) -> Leaving:
            self.most_sent = max(self.most_sent, len(self._leaving) + 1)
            self.most_passing = max(self.most_passing, len(self._passing))
            return start(tensor)

        return send


def held(document: dict[str, Any]) -> tuple[int, int, int]:
    """The most messages that this process held at once: of those that it sent, and of those that it received by a
    plan; and what it still holds after two steps."""
    world.GlooWire = Counted
    here = world.World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), "gloo", "")
    trainer = Trainer(make_job(document, None), here)
    for number in range(2):
        trainer.step(number)
    wire = trainer._wire
    assert isinstance(wire, Counted)
    return wire.most_sent, wire.most_passing, len(wire._leaving) + len(wire._passing)


def arrivals(_: Any) -> bool:
    """Process 1 of a chain asks for what came when process 2 has had it from there for long: whether it knows."""
    me = dist.get_rank()
    source, destination = Mesh((1,), (0,), (0,)), Mesh((2,), (1, 2), (1, 2))
    links = Links(Link(1e-5, 1e10), Link(3e-5, 1e9), {0: 0, 1: 1, 2: 2})
    planned = transfer(Shape((100_000,), 4), (source, ("R",)), (destination, ("R",)), links, chunks=4)
    moving = Resharding(planned, me, torch.float32, GlooCarrier()).start(torch.ones(100_000) if me == 0 else None)
    if me != 1:
        moving.wait()
    dist.barrier()
    now = time.perf_counter_ns()
    moving.wait()
    return moving.arrived is None if me == 0 else 0 < moving.arrived < now
