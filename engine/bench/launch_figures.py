"""Measurements of launches: first step, cancellation, checkpoints, and recovery from killed processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from meshwave.engine.bench.kills import kill_figures, read_killed_runs
from meshwave.engine.bench.measuring import run_to_end, temporary_launcher
from meshwave.engine.bench.target_runs import (
    LOOK_S,
    TIMEOUT_S,
    Say,
    count_processes,
    find_processes,
    two_node_design,
    wait_until,
)
from meshwave.engine.files import write_private
from meshwave.engine.findings import RunRefusal
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.runs import Launcher, Options, Record, Run
from meshwave.engine.runs.checkpoints import Checkpoints, complete_checkpoints
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.launchers._torchrun import NodeLayout
from meshwave.engine.runs.launchers.slurm import JOB_SCRIPT, SlurmLauncher, job_script
from meshwave.engine.runs.run_folder import RunSpec, write_bundle
from meshwave.engine.runs.targets import open_target

WORKER = "meshwave.engine.runtime.processes.worker"
ENDLESS, SHORT = 100_000, 40
"""Number of steps of runs that are cancelled, and of runs that are measured."""
PROMPT_S = 0.001
"""Interval, in seconds, of checks for the first step and the last process of a run on this machine."""
Figures = dict[str, float]


def measure_launch_times(prediction: Prediction, make: Callable[[Record], Launcher] | None = None) -> Figures:
    """Launch a design twice on this machine, cold and warm, and cancel both runs.

    The design needs enough steps to be still running when it is cancelled.

    Args:
        prediction: the prediction of the design.
        make: creates the launcher; None for the local launcher.

    Raises:
        RunError: a run did not reach its first step.
    """
    spec = specify_run(prediction)
    with temporary_launcher(make) as launcher:
        cold_s, run = _run_first_step(launcher, spec)
        _measure_cancel_seconds(run, launcher, PROMPT_S)
        warm_s, run = _run_first_step(launcher, spec)
        return {
            "cold: call to the first step_s": cold_s,
            "warm: call to the first step_s": warm_s,
            "warm: call to all processes started_s": (run.started_s or run.created_s) - run.created_s,
            "cancel to no process left_s": _measure_cancel_seconds(run, launcher, PROMPT_S),
        }


def _run_first_step(launcher: Launcher, spec: RunSpec) -> tuple[float, Run]:
    """Launch a run, and return the seconds from the call to the end of its first step."""
    called_s = time.time()
    run = launcher.submit(spec)
    wait_until(lambda: (run.started_s and run.first_step_s) or run.state.is_over, "first step", PROMPT_S)
    first_s = run.first_step_s
    if first_s is None:
        raise RunRefusal("no_first_step", {"run": run.id, "reason": run.reason})
    return first_s - called_s, run


def measure_target(name: str, kills: int, say: Say, file: Path | None = None) -> Figures:
    """Measure a launch target; also kill a process of each of ``kills`` random runs at a random moment.

    Args:
        name: the name of the target.
        kills: number of runs whose processes are killed, including those of earlier calls with the same file.
        say: function that prints a line about the progress.
        file: file to which a line is appended for each killed run; runs that it already lists are not repeated.

    Raises:
        RunError: a run without killed processes fails.
    """
    with (
        closing(Record()) as record,
        closing(open_target(record, name)) as launcher,
        _cancel_remaining_runs(record, launcher),
    ):
        earlier = read_killed_runs(file, name)
        figures = {} if earlier else _undisturbed_figures(launcher, say)
        return figures | kill_figures(launcher, name, kills, earlier, file, say) if kills else figures


def _undisturbed_figures(launcher: Launcher, say: Say) -> Figures:
    say("launches and cancellations")
    figures = _launch_figures(launcher, say)
    if isinstance(launcher, SlurmLauncher):
        figures["sbatch of torchrun by hand: to the first step_s"] = _sbatch_first_step_s(launcher)
    say("checkpoints")
    return figures | _checkpoint_figures(launcher)


@contextmanager
def _cancel_remaining_runs(record: Record, launcher: Launcher) -> Iterator[None]:
    """Context manager that cancels runs launched inside it which are still active at its end, as after an error."""
    earlier = {entry.id for entry in record.active_runs()}
    try:
        yield
    finally:
        for entry in record.active_runs():
            if entry.place == launcher.place and entry.id not in earlier:
                launcher.cancel(Run(record, entry.id, launcher))


def _launch_figures(launcher: Launcher, say: Say) -> Figures:
    first_step_s, cancel_s = [], []
    delays_s: list[float] = []
    for _ in range(2):
        called_s = time.time()
        run = launcher.submit(specify_run(predict(two_node_design(ENDLESS))))
        first_step_s.append(_follow_first_steps(run, delays_s) - called_s)
        cancel_s += [_measure_cancel_seconds(run, launcher)] if find_processes(run, launcher) else []
        run.cancel()
    if not cancel_s:
        say("cancellation is not measured: no process of a run is visible")
    return {
        "launch to the first step_s": min(first_step_s),
        **({"cancel to no process left_s": max(cancel_s)} if cancel_s else {}),
        "following latency, median_s": statistics.median(delays_s),
        "following latency, longest_s": max(delays_s),
    }


def _follow_first_steps(run: Run, delays_s: list[float], seconds: float = 4.0) -> float:
    """Follow a run for some seconds; return the time of its first step, and append the delays of later steps.

    A delay is the time in seconds from the end of a step until it was seen.
    """

    def collect_delay(followed: Run) -> None:
        last = next((row for row in followed._last_events() if row["event"] == "step"), None)
        if last is not None:
            delays_s.append(time.time() - last["time"])

    deadline = time.monotonic() + TIMEOUT_S
    while run.first_step_s is None:
        if run.wait(collect_delay, timeout_s=1.0).is_over or time.monotonic() > deadline:
            raise RunRefusal("no_first_step", {"run": run.id, "reason": run.reason})
    delays_s.clear()  # the first call reports steps that had already ended
    run.wait(collect_delay, timeout_s=seconds)
    first_s = run.first_step_s
    assert first_s is not None
    return first_s


def _measure_cancel_seconds(run: Run, launcher: Launcher, look_s: float = LOOK_S) -> float:
    """Cancel a run, and return the seconds until its last process has ended."""
    called_s = time.perf_counter()
    run.cancel()
    wait_until(lambda: not count_processes(run, launcher), "end of the processes", look_s)
    taken_s = time.perf_counter() - called_s
    run.wait(timeout_s=TIMEOUT_S)
    return taken_s


def _sbatch_first_step_s(launcher: SlurmLauncher) -> float:
    """Return the seconds from ``sbatch`` of a script that starts torchrun on each node until the first step."""
    design = two_node_design(SHORT)
    folder = launcher.prepare_folder(f"by-hand-{time.time_ns()}")
    bundle = write_bundle(specify_run(predict(design)), folder)
    layout, remote = NodeLayout.from_design(design), launcher.folder_on_nodes(folder)
    for name, text in launcher.scripts(layout, folder.name, ["--module", WORKER, remote]).items():
        write_private(folder / name, text)
    write_private(folder / JOB_SCRIPT, job_script(launcher.options, layout, "by-hand", remote))
    launcher.push(folder, remote)
    called_s = time.time()
    launcher.host.run(["sbatch", "--wait", "--parsable", f"{remote}/{JOB_SCRIPT}"])
    launcher.pull(bundle.folder, {}, everything=True)
    first_s = Run(launcher.record, bundle.run).first_step_s
    assert first_s is not None
    return first_s - called_s


def _checkpoint_figures(launcher: Launcher) -> Figures:
    options = Options(checkpoints=Checkpoints(every_steps=10))
    run = run_to_end(launcher, specify_run(predict(two_node_design(SHORT)), options), "checkpoints", TIMEOUT_S)
    events = [row for row in run._last_events() if row["event"] == "checkpoint"]
    steps_s = sum(row["seconds"] for row in run.metrics())
    [*_, newest] = complete_checkpoints(run.folder)
    size = sum(path.stat().st_size for path in newest.iterdir())
    called_s = time.time()
    resumed = options.model_copy(update={"resume": run.id})
    other = run_to_end(launcher, specify_run(predict(two_node_design(SHORT + 10)), resumed), "resume", TIMEOUT_S)
    assert other.first_step_s is not None
    return {
        "checkpoint: longest stall_s": max(row["stall_s"] for row in events),
        "checkpoint: share of the step time at one in ten steps": sum(row["stall_s"] for row in events) / steps_s,
        "checkpoint: bytes": float(size),
        "resume to the first step_s": other.first_step_s - called_s,
    }
