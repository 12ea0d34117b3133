"""Latency of launches: cold and warm from the call to the first step, and from cancellation to the last exit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meshwave.engine.bench.measuring import temporary_launcher
from meshwave.engine.findings import RunRefusal
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.runs.launchers import Launcher, specify_run
from meshwave.engine.runs.process_identity import Handle
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_folder import RunSpec

POLL_S = 0.001
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class LaunchTimes:
    """Durations of a launch on this machine in seconds."""

    cold_s: float  # from the call to the end of the first step, including the import of torch
    warm_s: float  # the same with a warm process
    warm_processes_s: float  # part of warm_s, until all processes have started
    cancel_s: float  # from the cancellation to the exit of the last process


def measure_launch_times(prediction: Prediction, make: Callable[[Record], Launcher] | None = None) -> LaunchTimes:
    """Launch a design twice, and cancel both runs.

    The design needs so many steps that it does not end before.

    Args:
        prediction: the prediction of the design.
        make: creates the launcher; None for the local launcher.

    Raises:
        RunError: a run did not reach its first step.
    """
    spec = specify_run(prediction)
    with temporary_launcher(make) as launcher:
        cold_s, run = _run_first_step(launcher, spec)
        _cancel(run)
        warm_s, run = _run_first_step(launcher, spec)
        started_s = run.started_s or run.created_s
        return LaunchTimes(cold_s, warm_s, started_s - run.created_s, _cancel(run))


def _run_first_step(launcher: Launcher, spec: RunSpec) -> tuple[float, Run]:
    called_s = time.time()
    run = launcher.submit(spec)
    for _ in _poll():
        if run.started_s is not None and (first_s := run.first_step_s) is not None:
            return first_s - called_s, run
        if run.state.is_over:
            break
    raise RunRefusal("no_first_step", {"run": run.id, "reason": run.reason})


def _cancel(run: Run) -> float:
    """Cancel a run and return the seconds until its last process has ended; 0 if the run had already ended."""
    handles = [Handle(*process) for process in run.entry.handle["processes"]]
    called_s = time.perf_counter()
    run.cancel()
    for _ in _poll():
        if not any(handle.is_alive() for handle in handles):
            break
    ended_s = time.perf_counter() - called_s
    run.wait(timeout_s=TIMEOUT_S)
    return ended_s


def _poll() -> Iterator[None]:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        yield
        time.sleep(POLL_S)
    raise RunRefusal("nothing_in_time", {"what": "result", "seconds": TIMEOUT_S})
