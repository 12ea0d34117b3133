"""A design on two nodes for runs that are jobs of a cluster, and functions that find their processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from meshwave.engine.document import Design
from meshwave.engine.runs import Run
from meshwave.engine.runs.launchers._torchrun import PROGRAM
from tests.engine.runs.play import draw

STEPS = 80
"""Number of steps of a run that is long enough to be interrupted during training."""
PATIENCE_S = 90.0


def two_nodes(steps: int = 3) -> Design:
    """Return a design with two meshes, each on its own node."""
    design = draw("two nodes", pp=2, steps=steps)
    return design.model_copy(update={"cluster": design.cluster.model_copy(update={"nodes": 2, "devices_per_node": 1})})


def losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.metrics()]


def wait_for_training(run: Run) -> None:
    assert wait_patiently(lambda: run.progress.done > 0), (run.state, run.reason, run.log())


def wait_patiently(found: Callable[[], bool]) -> bool:
    """Wait for a condition for as long as starting processes takes on a busy machine."""
    end = time.monotonic() + PATIENCE_S
    while not (result := found()) and time.monotonic() < end:
        time.sleep(0.2)
    return result


def kill_worker(folder: Path) -> None:
    """Kill one process of a training run whose processes write to a folder."""
    events = map(json.loads, (folder / "events-0.jsonl").read_text().splitlines())
    os.kill([event["pid"] for event in events if event["event"] == "started"][-1], signal.SIGKILL)


def processes_of(run: Run) -> list[int]:
    """Return the existing processes of a run, found by the run folder on their command lines."""
    found = subprocess.run(["pgrep", "--full", f"{run.id}/{PROGRAM}"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]
