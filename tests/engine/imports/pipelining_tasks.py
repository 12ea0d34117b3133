"""Training with torch's own pipeline schedules under torch.profiler, as torchtitan does."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.profiler import ProfilerActivity, profile

WIDTH = 32


def traced_steps(argument: tuple[str, int, int, bool]) -> Any:
    """Train two steps and return the trace of this process.

    Args:
        argument: class of the schedule, stages of each process, microbatches, and whether the process with the first
            stage also has the last one.
    """
    name, per_rank, microbatches, is_v = argument
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = per_rank * ranks
    numbers = (rank, count - 1 - rank) if is_v else range(rank, count, ranks)
    torch.manual_seed(0)
    stages = [PipelineStage(torch.nn.Linear(WIDTH, WIDTH), number, count, torch.device("cpu")) for number in numbers]
    schedule: Any = getattr(schedules, name)(
        stages if issubclass(getattr(schedules, name), schedules.PipelineScheduleMulti) else stages[0],
        microbatches,
        loss_fn=torch.nn.functional.mse_loss,
    )
    batch = torch.ones(2 * microbatches, WIDTH)
    inputs = (batch,) if 0 in numbers else ()
    target = {"target": batch} if count - 1 in numbers else {}
    schedule.step(*inputs, **target)  # it sets up the stages
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(2):
                schedule.step(*inputs, **target)
        profiler.export_chrome_trace(str(Path(folder) / "trace.json"))
        return json.loads((Path(folder) / "trace.json").read_text())
