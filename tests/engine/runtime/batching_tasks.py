"""Tasks of processes in the tests of batches."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from meshwave.engine.runtime.communication import world
from meshwave.engine.runtime.execution.trainer import Trainer
from tests.engine.runtime.crew import make_job


def issued_batch_sizes(document: dict[str, Any]) -> list[int]:
    """Run a step, check that nothing of it is left, and return the number of operations of each batch, ascending."""
    sizes: list[int] = []
    issue = dist.batch_isend_irecv

    def count(operations: list[dist.P2POp]) -> Any:
        sizes.append(len(operations))
        return issue(operations)

    dist.batch_isend_irecv = count
    try:
        here = world.World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), "gloo", "")
        trainer = Trainer(make_job(document, None), here)
        trainer.step(0)
        assert not trainer._communicator._sending and not trainer._communicator._batches._open
    finally:
        dist.batch_isend_irecv = issue
    return sorted(sizes)
