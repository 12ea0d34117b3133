"""Runs as cluster jobs: they continue without the process that launched them, and any process can follow them."""

from __future__ import annotations

import json
import shutil
import sys
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import PositiveInt, ValidationError, model_validator

from meshwave.engine.document import Design
from meshwave.engine.errors import RunError
from meshwave.engine.files import import_folder, write_private
from meshwave.engine.findings import Problem, Refusal, RunRefusal
from meshwave.engine.frozen import Part, nullable, text_form, validation_error
from meshwave.engine.messages import render
from meshwave.engine.run_files import first_problem
from meshwave.engine.runs.launchers._base import Capabilities, Launcher, check_place
from meshwave.engine.runs.launchers._host import Host, LocalHost
from meshwave.engine.runs.launchers._job_files import cancel_command, judge_unreported_end, read_exits, read_interrupted
from meshwave.engine.runs.launchers._limits import TargetLimits
from meshwave.engine.runs.launchers._node_counts import NodeCounts
from meshwave.engine.runs.launchers._torchrun import (
    PROCESS_MODULE,
    PROGRAM,
    SCRIPT,
    NodeLayout,
    forked_program,
    interface_variables,
    node_script,
    process_program,
)
from meshwave.engine.runs.options import Options
from meshwave.engine.runs.outcome import Exit, Verdict, cancel_reason, judge
from meshwave.engine.runs.process_identity import own_handle, recorded_owner
from meshwave.engine.runs.run import Run, read_result
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_entry import Entry, State
from meshwave.engine.runs.run_folder import Bundle, process_count, read_bundle
from meshwave.engine.runs.time_limit import write_time_limit

MOST_PROCESSES = 4096

Folder = Annotated[str, text_form(r"^/[\w./+@,=-]*$", "an absolute path of letters, digits and _ . / + @ , = -")]
"""Absolute path without characters that a shell interprets."""
Address = Annotated[str, text_form(r"^[A-Za-z0-9_][\w.@:%+-]*$", "a host name or user@host")]
"""Host for ssh: a name of its configuration, or ``user@host``."""
Line = Annotated[str, text_form(r"^[^\n\r\x00]*$", "one line of text")]


class JobOptions(Part):
    """Options of every target whose runs are jobs."""

    nodes: PositiveInt | None = nullable("any number")
    """Maximum number of nodes of a run."""
    devices_per_node: PositiveInt | None = nullable("any number")
    """Number of GPUs of each node, or of processes if it has none."""
    needs_root: ClassVar[bool] = False
    root: Folder | None = nullable("the runs folder of Meshwave, which all nodes must share")
    """Folder of the run folders; the same path on all nodes."""
    python: Line | None = nullable("the interpreter of Meshwave, or python3 on a host that is reached by ssh")
    """Python interpreter on the nodes. Meshwave and torch must be installed there."""
    setup: tuple[Line, ...] = ()
    """Lines of bash that each node runs first, such as `module load cuda` or `source venv/bin/activate`."""
    interface: Annotated[str, text_form(r"^[\w.,=^-]+$", "the name of an interface, such as ib0")] | None = nullable(
        "chosen by gloo and NCCL"
    )
    """Network interface for messages between nodes."""
    limits: TargetLimits = TargetLimits()
    """Limits on the runs of the target."""

    @model_validator(mode="after")
    def _check_root(self) -> Self:
        if self.root is None and self.needs_root:
            raise validation_error("root", "root_required")
        return self


class Phase(Enum):
    """Phase of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class JobStatus:
    """State of a job as its scheduler reports it."""

    phase: Phase
    note: str = ""
    """Reason why the job waits."""
    failure: Problem | None = None
    """Reason why the scheduler ended the job."""
    is_consequence: bool = False
    """True if the job failed because of a process, whose own report says more."""


class JobLauncher(Launcher):
    """Launcher that submits each run as a job. Any process that can open the run database can poll the job."""

    target_options: ClassVar[type[Part]] = JobOptions
    most_runs: ClassVar[int] = 1000
    """Runs of a target that can be active at the same time, unless the target allows fewer."""
    runs_survive: ClassVar = True
    needs_target: ClassVar = True

    def __init__(self, record: Record, options: Part | None = None, target: str = "") -> None:
        """Create the launcher of a ``target``; without options it cannot launch runs."""
        super().__init__(record)
        self.options: Any = options
        self.target = target

    # ---- parts of a member ----

    @property
    def host(self) -> Host:
        """Host that runs the commands of the scheduler."""
        return LocalHost()

    @property
    def clients(self) -> tuple[str, ...]:
        """Commands that must exist on this machine."""
        return ()

    @abstractmethod
    def start(self, run: str, layout: NodeLayout, folder: str) -> Mapping[str, Any]:
        """Start the job of a run, whose folder is ``folder`` on the nodes, and return the identifiers of the job."""

    @abstractmethod
    def status(self, run: str, job: Mapping[str, Any]) -> JobStatus:
        """Return the status of a job from its scheduler.

        Raises:
            RunRefusal: the scheduler does not answer.
        """

    @abstractmethod
    def end(self, run: str, job: Mapping[str, Any]) -> None:
        """End a job unless it has ended."""

    def push(self, folder: Path, remote: str) -> None:
        """Copy a run folder to the nodes."""
        self.host.push(folder, remote)

    def pull(self, folder: Path, job: Mapping[str, Any], *, everything: bool = False) -> None:
        """Copy back the files that processes have written."""
        self.host.pull(self.folder_on_nodes(folder), folder, everything=everything)

    @property
    def max_nodes(self) -> int:
        """Maximum number of nodes of a run."""
        return self.options.nodes or MOST_PROCESSES

    @property
    def default_devices_per_node(self) -> int:
        """Default number of devices of a node in a target check."""
        return self.options.devices_per_node or getattr(self.options, "gpus_per_node", None) or 1

    def layout(self, design: Design) -> NodeLayout:
        """Return the processes of a design on each node."""
        return NodeLayout.from_design(design)

    def count_nodes(self) -> NodeCounts | None:
        """Return the number of nodes that the target has, and how many of them are free; None if unknown.

        Raises:
            RunRefusal: the scheduler does not answer.
        """
        return NodeCounts(self.options.nodes) if self.options.nodes else None

    def remove(self, folder: Path) -> None:
        """Remove the folder of a target check, or of a deleted run, from nodes that do not share it with this machine."""
        if not isinstance(self.host, LocalHost):
            self.host.run(["rm", "-rf", "--", self.folder_on_nodes(folder)])

    @property
    def limits(self) -> TargetLimits:
        return self.options.limits if self.options else TargetLimits()

    @property
    def runs_at_once(self) -> int:
        return min(self.most_runs, self.limits.runs or self.most_runs)

    # ---- the launcher ----

    @classmethod
    def from_entry(cls, record: Record, entry: Entry) -> Self:
        try:
            options = cls.target_options.model_validate_json(json.dumps(entry.handle.get("options")))
        except ValidationError as error:
            raise Refusal("unknown_job", {"run": entry.id, "reason": first_problem(error)}) from None
        return cls(record, options, str(entry.handle.get("target", "")))

    def probe(self) -> Capabilities:
        if self.options is None:
            return Capabilities(Problem("", "target_required", {"launcher": self.name}))
        for command in self.clients:
            if shutil.which(command) is None:
                return Capabilities(Problem("", "command_missing", {"command": command}))
        sizes = self.options.nodes, self.options.devices_per_node
        most = sizes[0] * sizes[1] if all(sizes) else MOST_PROCESSES
        return Capabilities(most_processes=most, note=f"jobs of target {self.target}")

    def handle(self) -> Mapping[str, Any]:
        options = self.options.model_dump(mode="json") if self.options else None
        return {"target": self.target, "options": options, "owner": own_handle()}

    def check_requirements(self, design: Design, drawn: Design, options: Options) -> None:
        if options.hosts is not None:
            raise Refusal("hosts_on_target", {"target": self.target})
        layout = self.layout(design)
        params = {"target": self.target, "nodes": layout.nodes, "devices": max(layout.processes)}
        if layout.nodes > self.max_nodes:
            raise Refusal("too_many_nodes", {**params, "most": self.max_nodes})
        if self.options.devices_per_node is not None and max(layout.processes) > self.options.devices_per_node:
            raise Refusal("too_many_devices_per_node", {**params, "most": self.options.devices_per_node})

    def prepare_folder(self, run: str) -> Path:
        """Create the run folder under the root of the target, if nodes share the root with this machine."""
        folder = self.record.folder(run)
        if self.options.root is not None and isinstance(self.host, LocalHost):
            shared = Path(self.options.root) / run
            shared.mkdir(mode=0o700, parents=True)
            folder.symlink_to(shared)
        return folder

    def folder_on_nodes(self, folder: Path) -> str:
        """Return the path of a run folder on the nodes."""
        return f"{self.options.root.rstrip('/')}/{folder.name}" if self.options.root else str(folder)

    def launch(self, bundle: Bundle) -> None:
        job = self.start_program(self.layout(bundle.design), bundle.folder, PROCESS_MODULE)
        self.record_job(bundle, job)

    def record_job(self, bundle: Bundle, job: Mapping[str, Any]) -> None:
        """Record the identifiers of the job of a run; end the job if the run was cancelled before that."""
        self.record.set_handle(bundle.run, {**self.handle(), "job": job})
        if (bundle.folder / "cancel").exists():
            self._end_job(bundle.run, bundle.folder, job)

    def start_program(self, layout: NodeLayout, folder: Path, module: str) -> Mapping[str, Any]:
        """Start a module on nodes with a folder as its argument; return the identifiers of the job."""
        return self.start(folder.name, layout, self.push_program(layout, folder, module))

    def push_program(self, layout: NodeLayout, folder: Path, module: str) -> str:
        """Copy a folder, with the scripts that start a module, to the nodes; return its path there."""
        remote = self.folder_on_nodes(folder)
        if self.limits.minutes is not None:
            write_time_limit(folder, self.limits.minutes, self.target)
        scripts = self.scripts(layout, folder.name, forked_program(remote))
        for name, text in {**scripts, PROGRAM: process_program(module)}.items():
            write_private(folder / name, text)
        self.push(folder, remote)
        return remote

    def scripts(self, layout: NodeLayout, run: str, program: Sequence[str]) -> dict[str, str]:
        """Return the scripts of a run by file name; the last argument of the program is the run folder."""
        return {SCRIPT: self.node_script(layout, program)}

    def node_script(self, layout: NodeLayout, program: Sequence[str], **changes: Any) -> str:
        """Return the script that starts the processes of one node."""
        variables = interface_variables(self.options.interface) | changes.pop("variables", {})
        if self.uses_own_python:
            variables = {"PYTHONPATH": str(import_folder()), **variables}
        how = {"python": self.python, "setup": self.options.setup, "variables": variables, **changes}
        return node_script(layout, program, **how)

    @property
    def uses_own_python(self) -> bool:
        """True if the nodes run the interpreter and the installation of this process."""
        return isinstance(self.host, LocalHost) and self.options.python is None

    @property
    def python(self) -> str:
        """Python interpreter on the nodes."""
        return sys.executable if self.uses_own_python else self.options.python or "python3"

    def end_run(self, run: Run, why: str) -> None:
        entry = run.entry
        if entry.state.is_over:
            return
        with suppress(OSError):  # a job without its folder ends as well
            write_private(run.folder / "cancel", why)
        job = self.record.get(run.id).handle.get("job")  # read after the file was written; see record_job()
        if job is not None:
            try:
                self._end_job(run.id, run.folder, job)
            except RunRefusal as error:  # poll() tries again
                raise RunRefusal("cancel_pending", {"why": str(error)}) from None

    def _end_job(self, run: str, folder: Path, job: Mapping[str, Any]) -> None:
        try:
            self.mark_cancelled(self.folder_on_nodes(folder), cancel_reason(folder))
        finally:  # a host may not respond, and others can be ended
            self.end(run, job)

    def mark_cancelled(self, folder: str, why: str) -> None:
        """Mark a run as cancelled, so that its processes end without writing a checkpoint."""
        if not isinstance(self.host, LocalHost):
            self.host.run(cancel_command(folder, why))

    def poll(self, run: Run) -> None:
        self.poll_unless_silent(None, run)

    def poll_unless_silent(self, silence: RunRefusal | None, run: Run) -> RunRefusal | None:
        entry = self.record.get(run.id)
        if entry.state is State.QUEUED:
            check_place(self.record, self.place)  # perhaps no process follows the active run
            self.watch_queue()
        if entry.state.is_over or entry.state is State.QUEUED:
            return silence
        if result := read_result(run.folder):
            self.record_end(run.id, State(result.state), result.reason)
            return silence
        job = entry.handle.get("job")
        if job is None:
            self._check_owner(entry)
            return silence
        began_s = time.time()
        try:
            if silence is not None:
                raise silence
            status = self.status(run.id, job)
        except RunRefusal as error:
            self._note_silence(entry, began_s, error)
            return error
        try:
            self._update_files(run, job, status)
        except RunRefusal as error:  # other runs may have a folder that can be copied
            self._note_silence(entry, began_s, error)
            return None
        self._update_handle(run.id, no_answer=None, waiting=status.note or None)
        if status.phase is Phase.RUNNING:
            self.record.change_state(run.id, State.RUNNING)
        if status.phase is Phase.ENDED:
            self._finish_run(run, status)
        return None

    def _note_silence(self, entry: Entry, began_s: float, error: RunRefusal) -> None:
        """Record that the target does not answer for a run: the time since when, and the reason."""
        known = entry.handle.get("no_answer") or {"since_s": began_s}
        self._update_handle(entry.id, no_answer={**known, "why": str(error)})

    def _update_files(self, run: Run, job: Mapping[str, Any], status: JobStatus) -> None:
        """Copy the files of a job; end a cancelled job that did not answer before."""
        self.pull(run.folder, job, everything=status.phase is Phase.ENDED)
        if status.phase is not Phase.ENDED and (run.folder / "cancel").exists():
            self._end_job(run.id, run.folder, job)

    def _update_handle(self, run: str, **changes: Any) -> None:
        """Change values of the handle of a run; None removes a value."""
        known = self.record.get(run).handle
        updated = {key: value for key, value in {**known, **changes}.items() if value is not None or key not in changes}
        if updated != known:
            self.record.set_handle(run, updated)

    def _check_owner(self, entry: Entry) -> None:
        """End a run without a job if the process that was about to submit the job has ended."""
        owner = recorded_owner(entry)
        if owner is None or not owner.is_alive():
            self.record.change_state(entry.id, State.LOST, render("job_not_submitted", {}))

    def _finish_run(self, run: Run, status: JobStatus) -> None:
        try:
            bundle = read_bundle(run.folder)
        except RunError as error:  # the folder was removed or is damaged
            self.record.change_state(run.id, State.LOST, str(error))
            return
        exits = read_exits(run.folder, process_count(bundle.design))
        self.finish_or_restart(bundle, self._verdict(run, bundle, exits, status), exits)

    def _verdict(self, run: Run, bundle: Bundle, exits: Sequence[Exit], status: JobStatus) -> Verdict:
        progress = run.progress
        was_cancelled = (run.folder / "cancel").exists()
        bad = [exit for exit in exits if exit.code != 0]  # processes of a lost node have no report
        has_succeeded = len(exits) == bundle.processes and all(exit.code == 0 for exit in exits)
        if not has_succeeded and not was_cancelled:
            interrupted = read_interrupted(run.folder)
            if interrupted is not None:
                params = {"run": run.id, "steps": interrupted.steps, "total": bundle.design.training.steps}
                return Verdict(State.FAILED, "interrupted", params)
            if status.failure is not None and not (status.is_consequence and bad):
                return Verdict(
                    State.FAILED, "ended_by_scheduler", {"why": status.failure.message, **progress._asdict()}
                )
            if not bad:
                return judge_unreported_end(run.folder, len(exits), bundle.processes)
        return judge(
            run.folder, bundle.design, exits if has_succeeded else bad, was_cancelled=was_cancelled, progress=progress
        )
