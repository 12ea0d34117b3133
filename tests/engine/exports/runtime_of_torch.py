"""Warm process in which torch's own runtime executes schedule files, for tests.

``python runtime_of_torch.py`` reads pickled tasks (see :func:`answer`) on standard input and answers each with the
largest relative difference between a gradient and that of a single process, or with the error. Ranks are forked, since
importing torch takes seconds.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, SAMPLES = 6, 2  # of a microbatch


def build(stage: int) -> nn.Module:
    """Return the same stage in every process."""
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).double()


def batch(microbatches: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1000)
    shape = (microbatches * SAMPLES, WIDTH)
    return torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)


def reference(stages: int, microbatches: int) -> list[Tensor]:
    """Return the gradients of the mean loss over all microbatches, computed in one process without a pipeline."""
    model = nn.Sequential(*map(build, range(stages)))
    inputs, targets = batch(microbatches)
    losses = [
        nn.functional.mse_loss(model(x), y)
        for x, y in zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)
    ]
    torch.stack(losses).mean().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def run_rank(
    rank: int, path: str, form: str, holders: list[int], microbatches: int, sharded: bool, folder: str
) -> float:
    """Run one step of one rank in torch's runtime, in the way of its documentation."""
    torch.set_num_threads(1)
    ranks, stages = max(holders) + 1, len(holders)
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    mine = {stage: build(stage) for stage, holder in enumerate(holders) if holder == rank}
    if sharded:  # over itself alone: torch then insists on every UNSHARD, and that it comes in time
        alone = init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("pp", "dp"))["dp"]
        for module in mine.values():
            fully_shard(module, mesh=alone, reshard_after_forward=False)
    parts = [PipelineStage(module, stage, stages, torch.device("cpu")) for stage, module in mine.items()]
    runtime = _PipelineScheduleRuntime(parts, microbatches, loss_fn=nn.functional.mse_loss)
    runtime._load_csv(path, format=form)
    inputs, targets = batch(microbatches)
    first, last = holders[0] == rank, holders[-1] == rank
    runtime.step(*([inputs] if first else []), target=targets if last else None, losses=[] if last else None)
    dist.barrier()
    expected = reference(stages, microbatches)
    each = len(expected) // stages
    found = [parameter.grad for module in mine.values() for parameter in module.parameters()]
    found = [gradient.full_tensor() if sharded else gradient for gradient in found]
    wanted = [gradient for stage in mine for gradient in expected[stage * each : (stage + 1) * each]]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True))


def answer(path: str, form: str, holders: list[int], microbatches: int, sharded: bool) -> list[float | str]:
    """Return the outcome of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        ranks, children = max(holders) + 1, []
        for rank in range(ranks):
            child = os.fork()
            if not child:
                try:
                    outcome: float | str = run_rank(rank, path, form, holders, microbatches, sharded, folder)
                except BaseException:
                    outcome = traceback.format_exc()
                Path(folder, f"{rank}.out").write_bytes(pickle.dumps(outcome))
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        found = [Path(folder, f"{rank}.out") for rank in range(ranks)]
        return [pickle.loads(path.read_bytes()) if path.exists() else "died" for path in found]


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what torch prints is no answer
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(answer(*task), answers)
        answers.flush()


if __name__ == "__main__":
    main()
