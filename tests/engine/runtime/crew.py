"""A warm process that forks the processes of one training after another, for tests.

``python crew.py``: reads pickled trainings on standard input, answers each on standard output
with a list of what its processes came to. Importing torch takes seconds, forking milliseconds.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import engine.runtime.models.bert
import engine.runtime.models.gpt  # noqa: F401
from engine.cost import layers_per_stage
from engine.design import parse_design
from engine.lowering import lower
from engine.program.program import parse_program
from engine.runtime.job import Job
from engine.runtime.layout import with_peers
from engine.runtime.trainer import Trainer
from engine.runtime.world import join

SECONDS = 60  # a training that takes longer is stuck


def make_job(document: dict[str, Any], orders: str | None) -> Job:
    """The job of a design, or of a program written out by hand."""
    design = parse_design(document)
    return Job(design, with_peers(parse_program(orders)) if orders else lower(design), layers_per_stage(design))


def _train(document: dict[str, Any], orders: str | None, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    job = make_job(document, orders)
    world = join(folder)
    seen: dict[str, Any] = {}
    trainer = Trainer(job, world, watch=lambda named: seen.update({n: g.clone().numpy() for n, g in named.items()}))
    steps = [trainer.step(number) for number in range(job.design.training.steps)]
    outcome = {
        "losses": [step.loss for step in steps],
        "grad_norms": [step.grad_norm for step in steps],
        "gradients": seen,
        "parameters": {name: p.numpy() for name, p in trainer.parameters().items()},
    }
    dist.destroy_process_group()
    return outcome


def _child(process: int, size: int, document: dict[str, Any], orders: str | None, folder: Path) -> None:
    os.environ.update(RANK=str(process), WORLD_SIZE=str(size), LOCAL_RANK=str(process))
    try:
        outcome: Any = _train(document, orders, folder)
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}", traceback.format_exc()
    (folder / f"{process}.tmp").write_bytes(pickle.dumps(outcome))
    (folder / f"{process}.tmp").rename(folder / f"{process}.out")


def play(document: dict[str, Any], orders: str | None = None) -> list[Any]:
    """Train in as many processes as the design draws devices; what each came to, by process."""
    size = sum(len(mesh["devices"]) for mesh in document["meshes"])
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for process in range(size):
            child = os.fork()
            if not child:
                try:
                    _child(process, size, document, orders, Path(folder))
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        found = [Path(folder) / f"{process}.out" for process in range(size)]
        return [pickle.loads(path.read_bytes()) if path.exists() else "died" for path in found]


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what torch prints is no answer
    while True:
        try:
            document, orders = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(play(document, orders), answers)
        answers.flush()


if __name__ == "__main__":
    main()
