"""Recovery from killed processes: random runs on a launch target, each with one process killed at a random moment.

The result of each run is a line of a file, so that a measurement can be continued later.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshwave.engine.bench.measuring import run_to_end
from meshwave.engine.bench.target_runs import (
    LOOK_S,
    TIMEOUT_S,
    Say,
    count_processes,
    find_processes,
    two_node_design,
    wait_until,
)
from meshwave.engine.document import Design
from meshwave.engine.files import write_all
from meshwave.engine.predict.prediction import predict
from meshwave.engine.run_files import Count, RunFile, valid_rows
from meshwave.engine.runs import Launcher, Options, Run, State
from meshwave.engine.runs.attempts import read_attempts
from meshwave.engine.runs.checkpoints import Checkpoints
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.launchers._host import Host, LocalHost
from meshwave.engine.runs.process_identity import recorded_processes

STEPS = 300
MOST_RESTARTS = 10
LARGEST_DELAY_S = 0.2
"""Maximum time, in seconds, between a step and the kill after it."""
ENDING_S = 5.0
"""Maximum time, in seconds, from the end of a run until all its processes have ended."""
SCHEDULES: tuple[Mapping[str, Any], ...] = (
    {"schedule": "gpipe"},
    {"schedule": "1f1b"},
    {"schedule": "zb-h1"},
    {"schedule": "interleaved-1f1b", "chunks": 2},
)


class KilledRun(RunFile):
    """Result of a run of which one process was killed."""

    target: str
    number: Count
    schedule: str
    after_steps: Count
    """Number of completed steps at the kill."""
    killed: str
    """Command line of the killed process; empty if the run had already ended."""
    restarts: Count
    lost: str
    """Reason why the run did not succeed; empty if it succeeded."""
    is_wrong: bool
    """True if the losses differ from those of an undisturbed run."""
    left: Count
    """Number of processes that outlived the run."""


def read_killed_runs(file: Path | None, target: str) -> list[KilledRun]:
    """Return the runs of a target that are listed in a file; a truncated line is skipped."""
    if file is None:
        return []
    with suppress(FileNotFoundError):
        rows = valid_rows(file.read_text("utf-8").splitlines(), KilledRun)
        return [found for found in (KilledRun(**row) for row in rows) if found.target == target]
    return []


def kill_figures(
    launcher: Launcher, target: str, kills: int, earlier: Sequence[KilledRun], file: Path | None, say: Say
) -> dict[str, float]:
    """Kill a process of each random run until there are ``kills`` runs; count lost runs, remaining processes and wrong losses."""
    found, expected = [*earlier], dict[int, list[float]]()
    for number in range(len(earlier), kills):
        chance = random.Random(f"{target} {number}")  # reproducible when continued later
        choice = chance.randrange(len(SCHEDULES))
        if choice not in expected:
            plain = run_to_end(launcher, specify_run(predict(_make_design(choice))), "undisturbed", TIMEOUT_S)
            expected[choice] = _read_losses(plain)
        made = _kill_and_judge_run(launcher, target, number, choice, expected[choice], chance)
        if file is not None:
            _append_record(file, made)
        found.append(made)
        say(f"run {number + 1} of {kills}: {made.restarts} restarts{f'; lost: {made.lost}' if made.lost else ''}")
    counts = {
        "runs": len(found),
        "killed processes": sum(bool(each.killed) for each in found),
        "restarts": sum(each.restarts for each in found),
        "lost runs": sum(bool(each.lost) for each in found),
        "left processes": sum(each.left for each in found),
        "wrong losses": sum(each.is_wrong for each in found),
    }
    return {f"kills: {name}": float(count) for name, count in counts.items()}


def _make_design(choice: int) -> Design:
    return two_node_design(STEPS, SCHEDULES[choice])


def _read_losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.metrics()]


def _kill_and_judge_run(
    launcher: Launcher, target: str, number: int, choice: int, expected: Sequence[float], chance: random.Random
) -> KilledRun:
    options = Options(checkpoints=Checkpoints(every_steps=chance.choice((1, 5, 20))), restarts=MOST_RESTARTS)
    run = launcher.submit(specify_run(predict(_make_design(choice)), options))
    killed = _kill_random_process(run, launcher, chance)
    state = run.wait(timeout_s=TIMEOUT_S)
    lost = "" if state is State.SUCCEEDED else run.reason or f"not over after {TIMEOUT_S:.0f} s"
    if not state.is_over:
        run.cancel()
    return KilledRun(
        target=target,
        number=number,
        schedule=str(SCHEDULES[choice]["schedule"]),
        after_steps=killed[1],
        killed=killed[0],
        restarts=len(read_attempts(run.folder)),
        lost=lost,
        is_wrong=not lost and _read_losses(run) != expected,
        left=_left_processes(run, launcher),
    )


def _kill_random_process(run: Run, launcher: Launcher, chance: random.Random) -> tuple[str, int]:
    """Kill a random process of a run after a random number of steps; return its command line and the steps."""
    after = chance.randrange(STEPS)

    def has_steps_and_processes() -> bool:
        launcher.poll(run)
        return run.state.is_over or (run.progress.done >= after and bool(find_processes(run, launcher)))

    wait_until(has_steps_and_processes, "step")
    time.sleep(chance.uniform(0, LARGEST_DELAY_S))  # at any moment of a step, of a checkpoint or of the end
    found = [*find_processes(run, launcher), *_warm_process(run)]
    if not found or run.state.is_over:
        return "", run.progress.done  # the run had already ended
    host, pid = chance.choice(found)
    command = host.run_unchecked(["ps", "-o", "args=", "-p", str(pid)]).output.strip()
    is_killed = host.run_unchecked(["kill", "-KILL", str(pid)]).status == 0
    return (command or f"process {pid}") if is_killed else "", run.progress.done


def _warm_process(run: Run) -> Iterator[tuple[Host, int]]:
    """Yield the warm process of this machine that started the processes of a run."""
    processes = recorded_processes(run.entry)
    if processes is not None and processes.starter is not None and processes.starter.is_alive():
        yield LocalHost(), processes.starter.pid


def _left_processes(run: Run, launcher: Launcher) -> int:
    """Return the number of processes that still exist some seconds after the end of a run."""
    deadline = time.monotonic() + ENDING_S
    while (left := count_processes(run, launcher)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return left


def _append_record(file: Path, made: KilledRun) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        write_all(descriptor, made.model_dump_json().encode() + b"\n")
    finally:
        os.close(descriptor)
