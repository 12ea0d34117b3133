"""A design of two nodes for runs that are jobs, and a look at their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

from meshwave.engine.document import Design
from meshwave.engine.runs import Run
from tests.engine.runs.play import draw

STEPS = 150
"""Steps of a run that is long enough to be interrupted while it trains."""
PATIENCE_S = 90.0


def two_nodes(steps: int = 3) -> Design:
    """A design of two meshes, each on a node of its own."""
    design = draw("two nodes", pp=2, steps=steps)
    return design.model_copy(update={"cluster": design.cluster.model_copy(update={"nodes": 2, "devices_per_node": 1})})


def losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.metrics()]


def wait_for_training(run: Run) -> None:
    assert until_long(lambda: run.progress.done > 0), (run.state, run.reason, run.log())


def until_long(found: Callable[[], bool]) -> bool:
    """Wait for what takes as long as the start of processes on a busy machine."""
    end = time.monotonic() + PATIENCE_S
    while not (result := found()) and time.monotonic() < end:
        time.sleep(0.2)
    return result


def kill_worker(run: Run) -> None:
    """Kill one process of a run that trains."""
    command = ["pgrep", "--full", f"processes.worker .*{run.id}"]
    worker = subprocess.run(command, capture_output=True, text=True, check=True)
    os.kill(int(worker.stdout.split()[0]), signal.SIGKILL)


def processes_of(run: Run) -> list[int]:
    """The processes of a run that exist, by the run folder on their command lines."""
    found = subprocess.run(
        ["pgrep", "--full", f"torchrun_process.*{run.id}"], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]
