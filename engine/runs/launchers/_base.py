"""Interface of launchers, the code that they share, and their registry."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from meshwave.engine.costs import PeakMemory
from meshwave.engine.document import Design
from meshwave.engine.document.unsupported import dry_run_problems, run_problems
from meshwave.engine.errors import InputError, MeshwaveError, RunError
from meshwave.engine.files import folder_bytes
from meshwave.engine.findings import DesignError, Problem, RunRefusal
from meshwave.engine.frozen import Part
from meshwave.engine.messages import render
from meshwave.engine.registry import Registry
from meshwave.engine.run_files import is_reserved, reserve_space, write_reserved
from meshwave.engine.runs.attempts import append_attempt, read_attempts, remove_attempt_files
from meshwave.engine.runs.cancellation import cancel_runs_on
from meshwave.engine.runs.checkpoints import resume_problems
from meshwave.engine.runs.dry_run import BLOCKS_MESSAGES
from meshwave.engine.runs.initial_weights import check_initial_weights
from meshwave.engine.runs.launchers._limits import TargetLimits, check_disk, check_processes
from meshwave.engine.runs.launchers._queue import QueueThread
from meshwave.engine.runs.launchers._specification import describe_manner, predict_documents
from meshwave.engine.runs.options import Options
from meshwave.engine.runs.outcome import Exit, Verdict, to_json
from meshwave.engine.runs.process_identity import own_handle, recorded_owner
from meshwave.engine.runs.run import RESULT, Run
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_entry import Entry, Place, State
from meshwave.engine.runs.run_folder import Bundle, RunSpec, process_count, read_bundle, read_options, write_bundle
from meshwave.engine.runs.training_data import check_training_data
from meshwave.engine.runs.training_texts import training_text


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a launcher on this machine."""

    refusal: Problem | None = None  # reason why it cannot launch anything
    most_processes: int = 0
    note: str = ""  # how it starts processes

    @property
    def can_launch(self) -> bool:
        """True if it can launch runs."""
        return self.refusal is None


class Launcher(ABC):
    """Interface of launchers, which start the processes of runs in one kind of place and follow them.

    A launcher and the processes that it starts share only the run folder. Launchers in different processes of a user
    share only the run database.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    trains: ClassVar[bool] = True  # False for a launcher of dry runs only, which the page does not offer
    runs_survive: ClassVar[bool] = False  # True if its runs continue without the process that launched them
    target_options: ClassVar[type[Part] | None] = None  # options of its launch targets; None if it has none
    needs_target: ClassVar[bool] = False  # False if the launcher itself is a launch target of the same name

    def __init__(self, record: Record) -> None:
        self.record = record
        self._queue = QueueThread(self.start_next)

    @abstractmethod
    def probe(self) -> Capabilities:
        """Return the capabilities of this launcher on this machine. Must be fast, without heavy imports (torch)."""

    @abstractmethod
    def launch(self, bundle: Bundle) -> None:
        """Start the processes of a run in state STARTING, and record its later states.

        Raises:
            RunError: the processes cannot be started.
        """

    @abstractmethod
    def end_run(self, run: Run, why: str) -> None:
        """End a run, even if another process launched it; a finished run is not changed.

        ``why`` becomes part of the reason for the state; it may be empty.
        """

    @abstractmethod
    def poll(self, run: Run) -> None:
        """Check an active run; record its end if it has ended or its launcher is gone."""

    def poll_unless_silent(self, silence: RunRefusal | None, run: Run) -> RunRefusal | None:
        """Check an active run, unless its place did not answer for an earlier run, for the reason ``silence``.

        Returns:
            the reason why the place does not answer, so that it is not asked for other runs; None if it does.
        """
        self.poll(run)
        return None

    def check_requirements(self, design: Design, drawn: Design, options: Options) -> None:  # noqa: B027  most can all
        """Check that the options of a run are possible on this machine; ``drawn`` is the design as launched.

        Raises:
            InputError: the options are not possible for this design.
            RunError: this machine lacks something that the options need.
        """

    @abstractmethod
    def handle(self) -> Mapping[str, Any]:
        """Return the data by which :meth:`poll` finds a run of this launcher again, as a JSON object."""

    @classmethod
    def from_entry(cls, record: Record, entry: Entry) -> Self:
        """Return the launcher of a recorded run.

        Raises:
            InputError: the entry lacks the data of the launcher.
        """
        return cls(record)

    def prepare_folder(self, run: str) -> Path:
        """Return the folder of a new run, which may not exist yet."""
        return self.record.folder(run)

    def warm(self) -> None:  # noqa: B027  most launchers keep nothing warm
        """Prepare the next launch so that it starts sooner; return at once."""

    def close(self) -> None:
        """End all processes of this launcher, including those of its runs. Queued runs stay queued."""
        self._queue.close()

    @property
    def limits(self) -> TargetLimits:
        """Limits on the runs of this place."""
        return TargetLimits()

    def check_limits(self, design: Design) -> None:
        """Check that a run stays within the limits of this place.

        Raises:
            Refusal: it has too many processes, or the run folders are too large.
        """
        target = self.place.target or self.name
        check_processes(self.limits, target, process_count(design))
        if self.limits.megabytes is not None:
            own = (entry for entry in self.record.entries(None) if entry.place == self.place)
            check_disk(self.limits, target, sum(folder_bytes(self.record.folder(entry.id)) for entry in own))

    @property
    def runs_at_once(self) -> int:
        """Maximum number of active runs of this place; further runs are queued."""
        return 1

    def problems(self, design: Design, memory: PeakMemory | None = None, data: Path | None = None) -> list[Problem]:
        """Return the reasons why a valid design cannot be trained here; empty if it can be.

        Args:
            design: the design to train.
            memory: its predicted peak memory, which is compared with the available memory; None skips this check.
            data: the training text, if it is not the one that the design names.
        """
        processes = _process_problems(design, self.probe().most_processes)
        return [*processes, *run_problems(design), *_text_problems(design, data)]

    def refusals(
        self, design: Design, options: Options, memory: PeakMemory | None = None, data: Path | None = None
    ) -> list[Problem]:
        """Return the reasons why a run with these options is not possible here; empty if it is.

        A dry run needs neither memory nor a training text.
        """
        if options.rehearse is None:
            return self.problems(design, memory, data)
        blocking = [problem for problem in run_problems(design) if problem.code in BLOCKS_MESSAGES]
        return [*_process_problems(design, self.probe().most_processes), *blocking, *dry_run_problems(design)]

    def warnings(self, design: Design) -> list[Problem]:
        """Return the warnings to show before a run is launched here."""
        return []

    def cancel(self, run: Run, why: str = "") -> None:
        """End a run, or remove it from the queue."""
        verdict = Verdict(State.CANCELLED, "cancelled_before_start", {"why": why} if why else {})
        if not self.record.cancel_queued(run.id, verdict.reason):
            self.end_run(run, why)
            return
        with suppress(RunError):  # its folder was removed
            self.finish_or_restart(read_bundle(run.folder), verdict)

    def submit(self, spec: RunSpec, *, data: Path | None = None, key: str | None = None, person: str = "") -> Run:
        """Record a run in the run database and launch it, or queue it while too many other runs are active.

        Args:
            spec: the specification of the run; see :func:`specify_run`.
            data: the training text, if it is not the one that the design names.
            key: identifier of the request; a request submitted twice, as by a double click, creates one run.
            person: ID of the workshop learner who launches it; learners take turns in the queue.

        Raises:
            InputError: the emulated network of the run is not possible on this machine.
            DesignError: the design cannot be run here, or its training text does not exist.
            RunError: this machine cannot run it.
        """
        can = self.probe()
        if can.refusal is not None:
            raise RunRefusal(can.refusal.code, can.refusal.params)
        design, options, program = spec.drawn, spec.options, spec.prediction.program
        resumed = resume_problems(design, self.record.folder(options.resume)) if options.resume else []
        if found := resumed + self.refusals(design, options, spec.prediction.memory, data):
            raise DesignError(found)
        if options.initial_weights is not None:
            check_initial_weights(design, Path(options.initial_weights))
        self.check_limits(design)
        self.check_requirements(spec.design, design, options)
        data = None if options.rehearse else training_text(design, data)
        if data is not None:
            check_training_data(design, data)
        if options.rehearse is None:
            spec = predict_documents(spec, data)
        check_place(self.record, self.place)
        entry, is_new = self.record.submit(
            name=design.name,
            launcher=self.name,
            handle=self.handle(),
            digest=program.digest,
            processes=process_count(design),
            steps=design.training.steps,
            manner=describe_manner(spec.design, options),
            is_rehearsal=options.rehearse is not None,
            person=person,
            key=key,
            limit=self.runs_at_once,
        )
        if is_new:
            with self._recorded_failure(entry.id):
                bundle = write_bundle(spec, self.prepare_folder(entry.id), data)
                reserve_space(bundle.folder / RESULT)
                if entry.state is State.STARTING:
                    self.launch(bundle)
            self.watch_queue()
        return Run(self.record, entry.id, self)

    def submit_all(self, specs: Sequence[RunSpec]) -> list[Run]:
        """Launch or queue several runs in order; see :meth:`submit`. If one is refused, the others are cancelled."""
        runs: list[Run] = []
        with cancel_runs_on(BaseException, runs):
            runs.extend(map(self.submit, specs))
        return runs

    @property
    def place(self) -> Place:
        """Place whose queue the runs of this launcher share."""
        return Place(self.name, self.handle().get("target"))

    def watch_queue(self) -> None:
        """Start a thread that launches the queued runs of this place when their turn comes."""
        if self.runs_survive:  # this process may be about to end
            self.start_next()
        if self.record.queued_runs(self.place):
            self._queue.start()

    def start_next(self) -> bool:
        """Start the first queued run of this place if it is its turn; return True while runs are queued.

        A queued run is left to the process that queued it as long as that process is alive.

        Raises:
            MeshwaveError: the run could not be started; the run database has the reason.
            OSError: the run could not be started; the run database has the reason.
        """
        entry = self.record.claim_next(self.place, self.runs_at_once, self._may_claim, self.handle())
        if entry is not None:
            with self._recorded_failure(entry.id):
                folder = self.record.folder(entry.id)
                remove_attempt_files(folder)
                self.launch(read_bundle(folder))
        return bool(self.record.queued_runs(self.place))

    def _may_claim(self, entry: Entry) -> bool:
        owner = recorded_owner(entry)
        if owner is None or not owner.is_alive():
            return True
        return owner == own_handle() and is_reserved(self.record.folder(entry.id) / RESULT)  # its folder is complete

    @contextmanager
    def _recorded_failure(self, run: str) -> Iterator[None]:
        """Record the failure of a launch."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                self.record.change_state(run, State.CANCELLED, render("cancelled_before_start", {}))
                raise
            refusal = error if isinstance(error, MeshwaveError) else _launch_error(error)
            self.record.change_state(run, State.FAILED, str(refusal))
            if isinstance(error, OSError):
                raise refusal from error
            raise

    def finish_or_restart(self, bundle: Bundle, verdict: Verdict, exits: Iterable[Exit] = ()) -> None:
        """Restart a failed run if its options allow it. Otherwise write its result to the run folder and the database.

        If the database cannot be written, as on a full disk, the next :meth:`poll` writes the result.
        """
        if verdict.state in (State.FAILED, State.LOST) and self.restart(bundle.run, verdict.reason, self.handle()):
            self.watch_queue()
            return
        with suppress(OSError):  # the folder was removed
            write_reserved(bundle.folder / RESULT, to_json(bundle.run, verdict, bundle.design, exits))
        with suppress(RunError):
            self.record_end(bundle.run, verdict.state, verdict.reason)

    def restart(self, run: str, reason: str, handle: Mapping[str, Any]) -> bool:
        """Queue a run again so that it continues from its newest checkpoint; return False if it may not restart."""
        folder = self.record.folder(run)
        with suppress(RunError, OSError):  # the folder is damaged or removed, or the disk is full
            if len(read_attempts(folder)) < read_options(folder).restarts:
                append_attempt(folder, reason, time.time(), Run(self.record, run).progress.done)
                return self.record.requeue(run, reason, handle)
        return False

    def record_end(self, run: str, state: State, reason: str) -> None:
        """Record the end of a run in the run database."""
        if state is State.SUCCEEDED:
            self.record.change_state(run, State.RUNNING)  # this may not have been entered either
        self.record.change_state(run, state, reason)


def _launch_error(error: BaseException) -> RunRefusal:
    """Return the error of a launch that failed because of the operating system or of a bug."""
    reason = f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else repr(error)
    return RunRefusal("not_launched", {"reason": reason})


launchers: Registry[type[Launcher]] = Registry("launcher", "meshwave.engine.runs.launchers")


MOST_PROCESSES = 64
"""Maximum number of processes that are started on one machine."""


def default_launcher(design: Design, options: Options) -> str:
    """Return the name of the default launcher of a run.

    Dry runs use threads if torch is missing, or if the design has more devices than processes can be started.
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
    return launchers[entry.launcher].from_entry(record, entry)


def check_place(record: Record, place: Place) -> None:
    """Check the active runs of a place, and start its queued runs if they survive the end of this process.

    A place that does not answer for one run is not asked for the others, which would each wait for the same time.
    """
    silence: RunRefusal | None = None
    for entry in record.active_runs():
        if entry.place == place:
            with suppress(InputError, RunError):  # the launcher is not installed, or the disk is full
                silence = _launcher_of(record, entry).poll_unless_silent(silence, Run(record, entry.id))
    for entry in () if silence else record.queued_runs(place)[:1]:
        with suppress(MeshwaveError, OSError):  # the same, or the run cannot be started
            if launchers[entry.launcher].runs_survive:
                _launcher_of(record, entry).start_next()


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
