"""Small runs on a launch target, and their processes.

The processes of a run are found by the run folder on their command lines: on this machine, on the hosts of an ssh target, on
the host that runs the commands of a scheduler, or on the nodes of a Slurm job, where srun looks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.files import example
from meshwave.engine.findings import RunRefusal
from meshwave.engine.runs import Launcher, Run
from meshwave.engine.runs.launchers._host import CommandResult, Host, LocalHost
from meshwave.engine.runs.launchers._jobs import JobLauncher
from meshwave.engine.runs.launchers.slurm import SlurmLauncher
from meshwave.engine.runs.launchers.ssh import SshLauncher
from meshwave.engine.runs.process_identity import Handle, recorded_processes

TIMEOUT_S = 180.0
LOOK_S = 0.02
Say = Callable[[str], None]
"""Function that prints a line about the progress."""


def two_node_design(steps: int, pipeline: Mapping[str, Any] | None = None, seed: int = 0) -> Design:
    """Return a small design of two meshes, each on one device of a different node."""
    document = load_design(example("03-gpt-on-two-cores")).model_dump(mode="json")
    document["cluster"] |= {"nodes": 2, "devices_per_node": 1}
    document["model"] |= {"layers": 4, "hidden": 32, "sequence": 32}
    document["meshes"] = [{**mesh, "devices": [number]} for number, mesh in enumerate(document["meshes"][:2])]
    document["pipeline"] = {"microbatches": 4, **(pipeline or {"schedule": "1f1b"})}
    document["training"] |= {"steps": steps, "seed": seed}
    return parse_design(document)


def find_processes(run: Run, launcher: Launcher) -> list[tuple[Host, int]]:
    """Return the existing processes of a run, including processes that start others, with the host of each."""
    if isinstance(launcher, JobLauncher):
        found = [*_processes_on_hosts(run, launcher)]
        return found or [*processes_on_nodes(run, launcher)] if isinstance(launcher, SlurmLauncher) else found
    processes = recorded_processes(run.entry)
    handles: list[Handle] = processes.processes if processes else []
    return [(LocalHost(), handle.pid) for handle in handles if handle.is_alive()]


def count_processes(run: Run, launcher: Launcher) -> int:
    """Return the number of existing processes of a run, or of nodes on which Slurm still ends them."""
    found = find_processes(run, launcher)
    return len(found or (_job_nodes(run, launcher) if isinstance(launcher, SlurmLauncher) else ()))


def _processes_on_hosts(run: Run, launcher: JobLauncher) -> Iterator[tuple[Host, int]]:
    for host in launcher.hosts if isinstance(launcher, SshLauncher) else (launcher.host,):
        yield from _processes_on(host, run)


def processes_on_nodes(run: Run, launcher: SlurmLauncher) -> Iterator[tuple[Host, int]]:
    """Yield the processes of a run that the nodes of its Slurm job report."""
    for name in _job_nodes(run, launcher):
        yield from _processes_on(SlurmNode(name, run.entry.handle["job"]["id"], launcher.host), run)


def _processes_on(host: Host, run: Run) -> Iterator[tuple[Host, int]]:
    pattern = f"[{run.id[0]}]{run.id[1:]}"  # which does not match the command that searches for it
    for pid in host.run_unchecked(["pgrep", "--full", pattern]).output.split():
        yield host, int(pid)


def _job_nodes(run: Run, launcher: SlurmLauncher) -> list[str]:
    """Return the nodes on which the Slurm job of a run has processes, or may have them while it ends."""
    job = run.entry.handle.get("job")
    if job is None:
        return []
    states = "--states=RUNNING,COMPLETING"
    listed = launcher.host.run_unchecked(
        ["squeue", "--noheader", f"--jobs={job['id']}", states, "--format=%N"]
    ).output.split()
    return launcher.host.run(["scontrol", "show", "hostnames", listed[0]]).split() if listed else []


class SlurmNode(LocalHost):
    """Node of a Slurm job, on which srun runs commands next to the processes of the job."""

    def __init__(self, name: str, job: str, login: Host) -> None:
        self.name, self._login = name, login
        self._srun = ["srun", f"--jobid={job}", "--overlap", "--quiet", "--nodes=1", "--ntasks=1", f"--nodelist={name}"]

    def run_unchecked(self, command: Sequence[str]) -> CommandResult:
        """Run a command on the node and return its result; it fails if the job has ended."""
        return self._login.run_unchecked([*self._srun, *command])


def wait_until(condition: Callable[[], object], what: str, look_s: float = LOOK_S) -> None:
    """Wait until a condition is true, which is checked every ``look_s`` seconds.

    Raises:
        RunRefusal: the time limit was exceeded; ``what`` names the missing event.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RunRefusal("nothing_in_time", {"what": what, "seconds": TIMEOUT_S})
        time.sleep(look_s)
