"""Small designs, functions that launch runs and wait for them, and checks of what a run leaves behind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwave.engine.document import Design, parse_design
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Run
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.options import PLAIN, Options
from meshwave.engine.runs.process_identity import Handle

HERE = Path(__file__).parent
PATIENCE_S = 30.0


def draw(name: str = "train", *, pp: int = 4, dp: int = 1, steps: int = 3, **changes: Any) -> Design:
    """Return a design of ``pp`` meshes; ``name`` tells the test worker what to do."""
    link = {"latency_s": 1e-5, "bandwidth": 1e9}
    device = {"name": "core", "peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10, "efficiency": 0.5}
    cluster = {"nodes": 1, "devices_per_node": pp * dp, "device": device, "intra_node": link, "inter_node": link}
    meshes = [{"name": f"M{r}", "devices": [*range(r * dp, r * dp + dp)], "axes": {"dp": dp}} for r in range(pp)]
    document = {
        "format": "meshwave/1",
        "name": name,
        "cluster": cluster,
        "model": {"kind": "gpt", "layers": pp, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 256},
        "meshes": meshes,
        "pipeline": {"schedule": "1f1b", "microbatches": 4},
        "training": {"steps": steps, "lr": 0.01},
    }
    return parse_design({**document, **changes})


def submit(launcher: LocalLauncher, design: Design, options: Options = PLAIN, **how: Any) -> Run:
    """Launch a design; ``options`` are the options of the run, and other arguments are passed to the launcher."""
    return launcher.submit(specify_run(predict(design), options), **how)


def wait_until(condition: Callable[[], Any], what: str = "it") -> Any:
    """Wait for a condition; fail if it does not become true in time."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen in {PATIENCE_S:.0f} s"
        time.sleep(0.005)
    return found


def processes(run: Run) -> list[Handle]:
    """Return the processes of a run once they exist."""
    wait_until(lambda: run.started_s, "the start of its processes")
    return [Handle(*process) for process in run.entry.handle["processes"]]


def have_all_ended(run: Run) -> bool:
    return not any(handle.is_alive() for handle in processes(run))


def logged_events(run: Run, event: str, process: int = 0) -> list[dict[str, Any]]:
    """Return the events with this name that a process has logged."""
    path = run.folder / f"events-{process}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if row["event"] == event]
