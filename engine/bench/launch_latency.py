"""How long a click takes: to the first step, cold and warm, and from cancel to nothing left."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from meshwave.engine.errors import RunError
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.runs.launchers import Launcher, specify_run
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.process_identity import Handle
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_folder import RunSpec

LOOK_S = 0.001
PATIENCE_S = 120.0


@dataclass(frozen=True)
class LaunchTimes:
    """Seconds on this machine, as a person at the page waits for them."""

    cold_s: float  # from the click to the end of the first step, torch's import included
    warm_s: float  # the same with a warm process
    warm_processes_s: float  # of that, until all processes were there
    cancel_s: float  # from the click to no process left


def launch_times(prediction: Prediction, kind: Callable[[Record], Launcher] = LocalLauncher) -> LaunchTimes:
    """Launch a design twice, into a folder that is removed afterwards.

    It should have steps enough not to be done before it is cancelled.

    Raises:
        RunError: it does not come to its first step.
    """
    spec = specify_run(prediction)
    with _launcher(kind) as launcher:
        cold_s, run = _first_step(launcher, spec)
        _cancel(run)
        warm_s, run = _first_step(launcher, spec)
        started_s = run.started_s or run.created_s
        return LaunchTimes(cold_s, warm_s, started_s - run.created_s, _cancel(run))


@contextmanager
def _launcher(kind: Callable[[Record], Launcher]) -> Iterator[Launcher]:
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Record(Path(folder))) as record,
        closing(kind(record)) as launcher,
    ):
        yield launcher


def _first_step(launcher: Launcher, spec: RunSpec) -> tuple[float, Run]:
    clicked_s = time.time()
    run = launcher.submit(spec)
    for _ in _patiently():
        if run.started_s is not None and (first_s := run.first_step_s) is not None:
            return first_s - clicked_s, run
        if run.state.is_over:
            break
    raise RunError(f"run {run.id} came to no step: {run.reason}")


def _cancel(run: Run) -> float:
    """Seconds until the last process is gone; 0 where the run was over already."""
    handles = [Handle(*process) for process in run.entry.handle["processes"]]
    clicked_s = time.perf_counter()
    run.cancel()
    for _ in _patiently():
        if not any(handle.is_alive() for handle in handles):
            break
    gone_s = time.perf_counter() - clicked_s
    run.wait(timeout_s=PATIENCE_S)
    return gone_s


def _patiently() -> Iterator[None]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        yield
        time.sleep(LOOK_S)
    raise RunError(f"nothing happened for {PATIENCE_S:.0f} seconds")
