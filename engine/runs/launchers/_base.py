"""The interface of launchers, the code they share, and their registry."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from meshwave.engine.costs import PeakMemory
from meshwave.engine.document import Design
from meshwave.engine.document.unsupported import dry_run_problems, run_problems
from meshwave.engine.errors import InputError, MeshwaveError, RunError
from meshwave.engine.findings import DesignError, Problem, RunRefusal
from meshwave.engine.frozen import Part
from meshwave.engine.messages import render
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.registry import Registry
from meshwave.engine.run_files import reserve, write_reserved
from meshwave.engine.runs.checkpoints import resume_problems
from meshwave.engine.runs.dry_run import BLOCKS_MESSAGES, Rehearsal, action_durations, default_scale, step_wall_seconds
from meshwave.engine.runs.emulation.hosts import apply_hosts, cap_link_rates, default_hosts, scale_for_links
from meshwave.engine.runs.options import PLAIN, Hosts, Options
from meshwave.engine.runs.outcome import Exit, Verdict, to_json
from meshwave.engine.runs.process_identity import own_handle, recorded_processes
from meshwave.engine.runs.run import RESULT, Run, read_result
from meshwave.engine.runs.run_database import Entry, Record, State
from meshwave.engine.runs.run_folder import Bundle, RunSpec, process_count, read_bundle, write_bundle
from meshwave.engine.runs.training_texts import training_text


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a launcher on this machine."""

    refusal: Problem | None = None  # why it cannot launch anything
    most_processes: int = 0
    note: str = ""  # how it starts processes

    @property
    def can_launch(self) -> bool:
        """True if it can launch runs at all."""
        return self.refusal is None


class Launcher(ABC):
    """Starts the processes of a run in one kind of place, and follows them.

    A launcher and the processes it starts share only the run folder. Launchers in different processes of a user
    share only the record of runs.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    trains: ClassVar[bool] = True  # False for a launcher of dry runs only, which the page does not offer
    runs_at_once: ClassVar[int] = 1
    target_options: ClassVar[type[Part] | None] = None  # of its launch targets; None: it needs no target

    def __init__(self, record: Record) -> None:
        self.record = record

    @abstractmethod
    def probe(self) -> Capabilities:
        """Return what can be launched here. Must be quick, and import nothing heavy such as torch."""

    @abstractmethod
    def launch(self, bundle: Bundle) -> None:
        """Start the processes of a run in state STARTING, and record its later states.

        Raises:
            RunError: the processes cannot be started.
        """

    @abstractmethod
    def cancel(self, run: Run) -> None:
        """End a run, also one that another process launched. A finished run stays as it is."""

    @abstractmethod
    def poll(self, run: Run) -> None:
        """Check an active run, and record its end if it is over or its launcher is gone."""

    def check_requirements(self, design: Design, drawn: Design, options: Options) -> None:  # noqa: B027  most can all
        """Check that the options of a run are possible on this machine; ``drawn`` is the design as launched.

        Raises:
            InputError: the options are not possible for this design.
            RunError: this machine lacks something that they need.
        """

    @abstractmethod
    def handle(self) -> Mapping[str, Any]:
        """Return what :meth:`poll` needs to find a run of this launcher again, as a JSON object."""

    @classmethod
    def of_entry(cls, record: Record, entry: Entry) -> Self:
        """Return the launcher of a run of the record.

        Raises:
            InputError: the entry does not say how the run was launched.
        """
        return cls(record)

    def prepare_folder(self, run: str) -> Path:
        """Return the folder of a new run, which may not exist yet."""
        return self.record.folder(run)

    def warm(self) -> None:  # noqa: B027  most launchers keep nothing warm
        """Prepare the next launch, so that it is quick. Returns at once."""

    def close(self) -> None:  # noqa: B027  nor alive
        """End all processes of this launcher, also those of its runs."""

    def problems(self, design: Design, memory: PeakMemory | None = None, data: Path | None = None) -> list[Problem]:
        """Return why a valid design cannot be trained here; empty if it can.

        Args:
            design: the design to train.
            memory: its predicted peak memory, to check whether it fits; None skips this check.
            data: the training text, if it is not the one that the design names.
        """
        processes = _process_problems(design, self.probe().most_processes)
        return [*processes, *run_problems(design), *_text_problems(design, data)]

    def refusals(
        self, design: Design, options: Options, memory: PeakMemory | None = None, data: Path | None = None
    ) -> list[Problem]:
        """Return why a run with options is not possible here; a dry run needs neither memory nor a text."""
        if options.rehearse is None:
            return self.problems(design, memory, data)
        blocking = [problem for problem in run_problems(design) if problem.code in BLOCKS_MESSAGES]
        return [*_process_problems(design, self.probe().most_processes), *blocking, *dry_run_problems(design)]

    def submit(self, spec: RunSpec, *, data: Path | None = None, key: str | None = None) -> Run:
        """Enter a run in the record, and launch it.

        Args:
            spec: the specification of the run; see :func:`specify_run`.
            data: the training text, if it is not the one that the design names.
            key: identifies the request: submitted twice, as by a double click, it is one run.

        Raises:
            InputError: the emulated network of the run is not possible.
            DesignError: the design cannot be run here, or its text does not exist.
            Busy: another run is active.
            RunError: this machine cannot run it.
        """
        can = self.probe()
        if can.refusal is not None:
            raise RunRefusal(can.refusal.code, can.refusal.params)
        design, options, program = spec.drawn, spec.options, spec.prediction.program
        resumed = resume_problems(design, self.record.folder(options.resume)) if options.resume else []
        if found := resumed + self.refusals(design, options, spec.prediction.memory, data):
            raise DesignError(found)
        self.check_requirements(spec.design, design, options)
        data = None if options.rehearse else training_text(design, data)
        reconcile(self.record)
        entry, is_new = self.record.submit(
            name=design.name,
            launcher=self.name,
            handle=self.handle(),
            digest=program.digest,
            processes=process_count(design),
            steps=design.training.steps,
            manner=_manner(spec.design, options),
            key=key,
            limit=self.runs_at_once,
        )
        if is_new:
            self._start(entry.id, spec, data)
        return Run(self.record, entry.id, self)

    def _start(self, run: str, spec: RunSpec, data: Path | None) -> None:
        try:
            bundle = write_bundle(spec, self.prepare_folder(run), data)
            reserve(bundle.folder / RESULT)
            self.launch(bundle)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                self.record.move(run, State.CANCELLED, render("cancelled_before_start", {}))
                raise
            refusal = error if isinstance(error, MeshwaveError) else _launch_error(error)
            self.record.move(run, State.FAILED, str(refusal))
            if isinstance(error, OSError):
                raise refusal from error
            raise

    def settle(self, bundle: Bundle, verdict: Verdict, exits: Iterable[Exit] = ()) -> None:
        """Write the result of a run to its folder, and then to the record.

        If the record cannot be written, as on a full disk, the next :meth:`poll` enters the result.
        """
        with suppress(OSError):  # the folder was removed
            write_reserved(bundle.folder / RESULT, to_json(bundle.run, verdict, bundle.design, exits))
        with suppress(RunError):
            self.enter(bundle.run, verdict.state, verdict.reason)

    def enter(self, run: str, state: State, reason: str) -> None:
        """Enter the end of a run in the record."""
        if state is State.SUCCEEDED:
            self.record.move(run, State.RUNNING)  # this may not have been entered either
        self.record.move(run, state, reason)


def _launch_error(error: BaseException) -> RunRefusal:
    """Return the error of a launch that failed for a reason of the system or of the code."""
    reason = f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else repr(error)
    return RunRefusal("not_launched", {"reason": reason})


def specify_run(prediction: Prediction, options: Options = PLAIN) -> RunSpec:
    """Return the specification of a run, with its links and the scale of a dry run decided.

    Raises:
        InputError: the requested hosts are not possible, or a step of the dry run would take too long.
    """
    drawn, hosts, dry_run = prediction.design, options.hosts, options.rehearse
    if hosts is not None:
        prediction = _predict_on(apply_hosts(drawn, prediction.costs.layers, hosts), prediction)
    if dry_run is not None:
        dry_run = Rehearsal(scale=_scale(prediction, hosts, dry_run.scale))
        options = options.model_copy(update={"rehearse": dry_run})
    if hosts is not None:
        prediction = _predict_on(cap_link_rates(prediction.design, dry_run), prediction)
    return RunSpec(prediction, drawn, options)


def _predict_on(design: Design, prediction: Prediction) -> Prediction:
    """Predict the program of an existing prediction again, with the links of another design."""
    return prediction if design == prediction.design else predict(design, prediction.program)


def _scale(prediction: Prediction, hosts: Hosts | None, asked: float | None) -> float:
    """Return the time-dilation factor of a dry run: the requested one, or the default for this machine."""
    durations = action_durations(prediction.program, prediction.costs)
    if asked is not None:
        step_wall_seconds(durations, asked)
        return asked
    scale = default_scale(durations, process_count(prediction.design), os.cpu_count() or 1)
    if hosts is not None and prediction.costs.unit == "s":
        scale = scale_for_links(scale, hosts, durations.step)
    return scale


def _manner(design: Design, options: Options) -> str:
    """Return how a run differs from plain training, with the links it has rather than the requested ones."""
    if options.hosts is None:
        return options.words
    return options.model_copy(update={"hosts": default_hosts(design, options.hosts.nodes)}).words


launchers: Registry[type[Launcher]] = Registry("launcher", "meshwave.engine.runs.launchers")


MOST_PROCESSES = 64
"""The most processes that are started on one machine."""


def usual_launcher(design: Design, options: Options) -> str:
    """Return the name of the launcher of a run for which the user chose none.

    Dry runs use threads if torch is missing, or the design has more devices than processes can be started.
    """
    needs_processes = options.rehearse is None or options.hosts is not None
    can_start = find_spec("torch") and process_count(design) <= MOST_PROCESSES
    return "local" if needs_processes or can_start else "threads"


def open_run(record: Record, run: str) -> Run:
    """Return a run with its launcher, so that it can be cancelled.

    Raises:
        InputError: the run does not exist, or its launcher is not installed.
    """
    return Run(record, run, _launcher_of(record, record.get(run)))


def _launcher_of(record: Record, entry: Entry) -> Launcher:
    return launchers[entry.launcher].of_entry(record, entry)


def reconcile(record: Record) -> None:
    """Check every active run: a run whose launcher is gone becomes LOST.

    Runs that another live process launched are left to it. Called when an app starts, when runs are listed, and
    before a run is launched. A new index is filled from the run folders.
    """
    if record.is_new:
        enter_folders(record)
    for entry in record.active():
        with suppress(InputError, RunError):  # the launcher is not installed, or the disk is full
            _launcher_of(record, entry).poll(Run(record, entry.id))


def enter_folders(record: Record) -> list[str]:
    """Enter the runs of all folders that the index lacks, as after it was moved aside; return their ids."""
    known = {entry.id for entry in record.all()}
    entered = []
    for folder in sorted((record.place / "runs").iterdir()):
        if folder.name in known or folder.name.startswith("."):
            continue
        with suppress(MeshwaveError, OSError):  # not a run folder
            record.adopt(entry_of_folder(folder))
            entered.append(folder.name)
    record.is_new = False
    return entered


def entry_of_folder(folder: Path) -> Entry:
    """Return the entry of a run, read from its folder.

    Raises:
        RunFolderError: the folder is damaged, or not a run folder.
    """
    bundle, result, made_s = read_bundle(folder), read_result(folder), (folder / "design.json").stat().st_mtime
    return Entry(
        id=folder.name,
        key=None,
        name=bundle.drawn.name,
        state=State(result.state) if result else State.LOST,
        reason=result.reason if result else render("end_not_recorded", {}),
        launcher="local",
        handle={},
        digest=bundle.program.digest,
        processes=bundle.processes,
        steps=bundle.design.training.steps,
        created_s=made_s,
        started_s=None,
        finished_s=None,
        manner=_manner(bundle.design, bundle.options),
    )


def _process_problems(design: Design, most_processes: int) -> Iterator[Problem]:
    processes = process_count(design)
    if processes > most_processes:
        yield Problem("meshes", "too_many_processes", {"processes": processes, "most": most_processes})


def _text_problems(design: Design, data: Path | None) -> tuple[Problem, ...]:
    try:
        training_text(design, data)
    except DesignError as error:
        return error.problems
    return ()


class OwningLauncher(Launcher):
    """Finds its runs by the process that launched them."""

    def handle(self) -> Mapping[str, Any]:
        return {"owner": own_handle()}

    def poll(self, run: Run) -> None:
        entry = self.record.get(run.id)
        if entry.state.is_over:
            return
        processes = recorded_processes(entry)
        if result := read_result(run.folder):  # written, but it could not be entered
            self.enter(run.id, State(result.state), result.reason)
        elif processes is None:
            self.record.move(run.id, State.LOST, render("launcher_unknown", {}))
        elif not processes.owner.is_alive():
            for process in processes.processes:  # already ended where the kernel ends them with their parent
                process.kill()
            params = {"pid": processes.owner.pid, **run.progress._asdict()}
            self.record.move(run.id, State.LOST, render("launcher_ended", params))

    def wake(self, run: Run) -> None:
        """Continue stopped processes that have to notice a request to cancel the run."""
        processes = recorded_processes(run.entry)
        for handle in (processes.owner, processes.starter) if processes else ():
            if handle is not None and handle.is_stopped:
                handle.send(signal.SIGCONT)
