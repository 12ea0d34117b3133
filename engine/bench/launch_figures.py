"""Measurements of a launch target: first step, cancellation, checkpoints, and recovery from killed processes.

The processes of a run must be visible on the host that launches it (this machine, hosts by ssh, or a cluster on one
machine). They are found by the run folder on their command lines.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from meshwave.engine.bench.measuring import run_to_end
from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.files import example, write_private
from meshwave.engine.findings import RunRefusal
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Launcher, Options, Record, Run, State
from meshwave.engine.runs.attempts import read_attempts
from meshwave.engine.runs.checkpoints import Checkpoints, complete_checkpoints
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.launchers._host import Host, LocalHost
from meshwave.engine.runs.launchers._jobs import JobLauncher
from meshwave.engine.runs.launchers._torchrun import NodeLayout
from meshwave.engine.runs.launchers.slurm import JOB_SCRIPT, SlurmLauncher, job_script
from meshwave.engine.runs.process_identity import Handle, recorded_processes
from meshwave.engine.runs.run_folder import write_bundle
from meshwave.engine.runs.targets import open_target

WORKER = "meshwave.engine.runtime.processes.worker"
TIMEOUT_S = 180.0
LOOK_S = 0.02
ENDLESS, SHORT, KILLED_STEPS = 100_000, 40, 60
"""Number of steps of runs that are cancelled, of runs that are measured, and of runs whose processes are killed."""
MOST_RESTARTS = 10
SCHEDULES: tuple[Mapping[str, Any], ...] = (
    {"schedule": "gpipe"},
    {"schedule": "1f1b"},
    {"schedule": "zb-h1"},
    {"schedule": "interleaved-1f1b", "chunks": 2},
)
"""Schedules of the runs whose processes are killed."""
Say = Callable[[str], None]
Figures = dict[str, float]


def two_nodes(steps: int, pipeline: Mapping[str, Any] | None = None, seed: int = 0) -> Design:
    """Return a small design of two meshes, each on one device of a different node."""
    document = load_design(example("03-gpt-on-two-cores")).model_dump(mode="json")
    document["cluster"] |= {"nodes": 2, "devices_per_node": 1}
    document["model"] |= {"layers": 4, "hidden": 32, "sequence": 32}
    document["meshes"] = [{**mesh, "devices": [number]} for number, mesh in enumerate(document["meshes"][:2])]
    document["pipeline"] = {"microbatches": 4, **(pipeline or {"schedule": "1f1b"})}
    document["training"] |= {"steps": steps, "seed": seed}
    return parse_design(document)


def measure_target(name: str, kills: int, say: Say, seed: int = 0) -> Figures:
    """Measure a launch target; also kill a process of each of ``kills`` random runs at a random moment.

    Raises:
        RunError: a run without killed processes fails.
    """
    with (
        closing(Record()) as record,
        closing(open_target(record, name)) as launcher,
        _cancelled_at_the_end(record, launcher),
    ):
        say("launches and cancellations")
        figures = _launch_figures(launcher)
        if isinstance(launcher, SlurmLauncher):
            figures["sbatch of torchrun by hand: to the first step_s"] = _first_step_by_hand_s(launcher)
        say("checkpoints")
        figures |= _checkpoint_figures(launcher)
        return figures | _kill_figures(launcher, kills, random.Random(seed), say)


@contextmanager
def _cancelled_at_the_end(record: Record, launcher: Launcher) -> Iterator[None]:
    """Context manager that cancels runs launched inside it which are still active at its end, as after an error."""
    earlier = {entry.id for entry in record.active()}
    try:
        yield
    finally:
        for entry in record.active():
            if entry.place == launcher.place and entry.id not in earlier:
                launcher.cancel(Run(record, entry.id, launcher))


def _launch_figures(launcher: Launcher) -> Figures:
    first_step_s, cancel_s = [], []
    delays_s: list[float] = []
    for _ in range(2):
        called_s = time.time()
        run = launcher.submit(specify_run(predict(two_nodes(ENDLESS))))
        first_step_s.append(_follow_first_steps(run, delays_s) - called_s)
        cancel_s.append(_cancel(run, launcher))
    return {
        "launch to the first step_s": min(first_step_s),
        "cancel to no process left_s": max(cancel_s),
        "following latency, median_s": statistics.median(delays_s),
        "following latency, longest_s": max(delays_s),
    }


def _follow_first_steps(run: Run, delays_s: list[float], seconds: float = 4.0) -> float:
    """Follow a run for some seconds; return the time of its first step, and append the delays of later steps.

    A delay is the time in seconds from the end of a step until it was seen.
    """

    def see(followed: Run) -> None:
        last = next((row for row in followed._last_events() if row["event"] == "step"), None)
        if last is not None:
            delays_s.append(time.time() - last["time"])

    deadline = time.monotonic() + TIMEOUT_S
    while run.first_step_s is None:
        if run.wait(see, timeout_s=1.0).is_over or time.monotonic() > deadline:
            raise RunRefusal("no_first_step", {"run": run.id, "reason": run.reason})
    delays_s.clear()  # the first call reports steps that had already ended
    run.wait(see, timeout_s=seconds)
    first_s = run.first_step_s
    assert first_s is not None
    return first_s


def _cancel(run: Run, launcher: Launcher) -> float:
    called_s = time.perf_counter()
    run.cancel()
    _wait_until(lambda: not _processes(run, launcher), "end of the processes")
    taken_s = time.perf_counter() - called_s
    run.wait(timeout_s=TIMEOUT_S)
    return taken_s


def _first_step_by_hand_s(launcher: SlurmLauncher) -> float:
    """Return the seconds from ``sbatch`` of a script that starts torchrun on each node until the first step."""
    design = two_nodes(SHORT)
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
    run = run_to_end(launcher, specify_run(predict(two_nodes(SHORT)), options), "checkpoints", TIMEOUT_S)
    events = [row for row in run._last_events() if row["event"] == "checkpoint"]
    steps_s = sum(row["seconds"] for row in run.metrics())
    [*_, newest] = complete_checkpoints(run.folder)
    size = sum(path.stat().st_size for path in newest.iterdir())
    called_s = time.time()
    resumed = options.model_copy(update={"resume": run.id})
    other = run_to_end(launcher, specify_run(predict(two_nodes(SHORT + 10)), resumed), "resume", TIMEOUT_S)
    assert other.first_step_s is not None
    return {
        "checkpoint: longest stall_s": max(row["stall_s"] for row in events),
        "checkpoint: share of the step time at one in ten steps": sum(row["stall_s"] for row in events) / steps_s,
        "checkpoint: bytes": float(size),
        "resume to the first step_s": other.first_step_s - called_s,
    }


def _kill_figures(launcher: Launcher, kills: int, chance: random.Random, say: Say) -> Figures:
    """Kill a process of each random run at a random moment; count lost runs, remaining processes and wrong results."""
    found = {"runs": 0, "killed processes": 0, "restarts": 0, "lost runs": 0, "left processes": 0, "wrong losses": 0}
    expected: dict[int, list[float]] = {}
    for number in range(kills):
        choice = chance.randrange(len(SCHEDULES))
        design = two_nodes(KILLED_STEPS, SCHEDULES[choice])
        if choice not in expected:
            plain = run_to_end(launcher, specify_run(predict(design)), "undisturbed", TIMEOUT_S)
            expected[choice] = [row["loss"] for row in plain.metrics()]
        options = Options(checkpoints=Checkpoints(every_steps=chance.choice((1, 5, 20))), restarts=MOST_RESTARTS)
        run = launcher.submit(specify_run(predict(design), options))
        found["runs"] += 1
        found["killed processes"] += _kill_one(run, launcher, chance)
        if run.wait(timeout_s=TIMEOUT_S) is not State.SUCCEEDED:
            found["lost runs"] += 1
            say(f"run {run.id} was lost: {run.reason}")
        elif [row["loss"] for row in run.metrics()] != expected[choice]:
            found["wrong losses"] += 1
            say(f"run {run.id} has other losses")
        found["restarts"] += len(read_attempts(run.folder))
        time.sleep(LOOK_S)
        found["left processes"] += len(_processes(run, launcher))
        say(f"run {number + 1} of {kills}: {found['restarts']} restarts, {found['lost runs']} lost")
    return {f"kills: {name}": float(count) for name, count in found.items()}


def _kill_one(run: Run, launcher: Launcher, chance: random.Random) -> int:
    """Kill a random process of a run after a random number of steps; return the number of killed processes."""
    after = chance.randrange(KILLED_STEPS)
    _wait_until(lambda: launcher.poll(run) or run.state.is_over or run.progress.done >= after, "step")
    found = _processes(run, launcher)
    if not found:
        return 0  # the run had already ended
    host, pid = chance.choice(found)
    return int(host.attempt(["kill", "-KILL", str(pid)]).status == 0)


def _processes(run: Run, launcher: Launcher) -> list[tuple[Host, int]]:
    """Return the existing processes of a run, with the host of each."""
    if isinstance(launcher, JobLauncher):
        return [*_workers(run, launcher)]
    processes = recorded_processes(run.entry)
    handles: list[Handle] = processes.processes if processes else []
    return [(LocalHost(), handle.pid) for handle in handles if handle.is_alive()]


def _workers(run: Run, launcher: JobLauncher) -> Iterator[tuple[Host, int]]:
    pattern = f"[w]orker .*{run.id}"  # a pattern that does not match the search command itself
    for pid in launcher.host.attempt(["pgrep", "--full", pattern]).output.split():
        yield launcher.host, int(pid)


def _wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RunRefusal("nothing_in_time", {"what": what, "seconds": TIMEOUT_S})
        time.sleep(LOOK_S)
