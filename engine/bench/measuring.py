"""Helper functions of benchmarks: median times, and runs in temporary folders."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from meshwave.engine.findings import RunRefusal
from meshwave.engine.runs import Launcher, Record, State
from meshwave.engine.runs.launchers import launchers
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_folder import RunSpec


def median_s(action: Callable[[], Any], repeats: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the median duration of a call in seconds."""
    taken = []
    for _ in range(repeats):
        began = clock()
        action()
        taken.append(clock() - began)
    return statistics.median(taken)


@contextmanager
def temporary_launcher(make: Callable[[Record], Launcher] | None = None) -> Iterator[Launcher]:
    """Yield a launcher on this machine, by default the local one, with a temporary run database."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Record(Path(folder))) as record,
        closing((make or launchers["local"])(record)) as launcher,
    ):
        yield launcher


def run_to_end(launcher: Launcher, spec: RunSpec, name: str, timeout_s: float) -> Run:
    """Launch a run and wait until it has succeeded.

    Raises:
        RunError: the run failed, or exceeded the time limit.
    """
    run = launcher.submit(spec)
    if run.wait(timeout_s=timeout_s) is not State.SUCCEEDED:
        reason = run.reason or f"not finished after {timeout_s:.0f} s"
        run.cancel()
        raise RunRefusal("benchmark_run_failed", {"name": name, "reason": reason})
    return run
