"""Tasks of the processes in ``test_checkpoint.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.runs.checkpoints import Checkpoint
from meshwave.engine.runtime.communication.world import World
from meshwave.engine.runtime.execution.checkpoint import Checkpointer
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.runtime.execution.trainer import Trainer


def train(argument: dict[str, Any]) -> dict[str, Any]:
    """Train a design from the newest checkpoint of a folder up to a step, and write a checkpoint of each step in ``saved``."""
    design, folder = parse_design(argument["document"]), Path(argument["folder"])
    job = Job(design, lower(design), layers_per_stage(design))
    trainer = Trainer(job, World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), "gloo", ""))
    first = trainer.resume(folder).steps
    about = Checkpoint.initial_manifest(job.design)
    checkpointer = Checkpointer(folder / "checkpoints", about, trainer.state, argument.get("keep", 2))
    losses = []
    for number in range(first, argument["until"]):
        losses.append(trainer.step(number).loss)
        if design.rebalances_after(number):
            trainer.rebalance()
        if number + 1 in argument["saved"]:
            checkpointer.save(number + 1)
    checkpointer.close()
    return {
        "first": first,
        "losses": losses,
        "parameters": {name: p.numpy() for name, p in trainer.parameters().items()},
    }
