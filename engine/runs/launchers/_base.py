"""What every launcher does, and the folder of launchers."""

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
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.registry import Registry
from meshwave.engine.run_files import reserve, write_reserved
from meshwave.engine.runs.checkpoints import resume_problems
from meshwave.engine.runs.dry_run import ASKED, Lengths, Rehearsal, step_wall_seconds, usual_scale
from meshwave.engine.runs.emulation.hosts import apply_hosts, cap_link_rates, default_hosts, scale_for_links
from meshwave.engine.runs.options import PLAIN, Hosts, Options
from meshwave.engine.runs.outcome import Exit, Verdict, to_json
from meshwave.engine.runs.process_identity import own_handle, processes_of
from meshwave.engine.runs.run import RESULT, Run, read_result
from meshwave.engine.runs.run_database import Entry, Record, State
from meshwave.engine.runs.run_folder import Bundle, RunSpec, process_count, read_bundle, write_bundle
from meshwave.engine.runs.training_texts import text_of


@dataclass(frozen=True)
class Capabilities:
    """What a launcher supports on this machine."""

    refusal: Problem | None = None  # why it cannot launch anything
    most_processes: int = 0
    note: str = ""  # how it starts processes

    @property
    def can_launch(self) -> bool:
        """Whether it can launch runs at all."""
        return self.refusal is None


class Launcher(ABC):
    """Starts the processes of a run somewhere and knows how they fare.

    The run folder is all that passes between a launcher and the processes it starts; the record
    is all that passes between launchers of different processes of the user's.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    trains: ClassVar[bool] = True  # whether it can do more than rehearse; if so, the page offers it
    runs_at_once: ClassVar[int] = 1
    target_options: ClassVar[type[Part] | None] = None  # of its launch targets; None: it needs no target

    def __init__(self, record: Record) -> None:
        self.record = record

    @abstractmethod
    def probe(self) -> Capabilities:
        """What can be launched here; quick, and imports nothing heavy."""

    @abstractmethod
    def launch(self, bundle: Bundle) -> None:
        """Start the processes of a run that is STARTING, and see it through its states.

        Raises:
            RunError: they cannot be started.
        """

    @abstractmethod
    def cancel(self, run: Run) -> None:
        """End a run, also one that another process launched. One that is over stays as it is."""

    @abstractmethod
    def poll(self, run: Run) -> None:
        """Look at a run that should be under way and write down what became of it."""

    def check_requirements(self, design: Design, drawn: Design, options: Options) -> None:  # noqa: B027  most can all
        """See that this machine has what ``options`` ask for besides the design, which was launched as ``drawn``.

        Raises:
            InputError: it cannot be.
            RunError: it cannot be had here.
        """

    @abstractmethod
    def handle(self) -> Mapping[str, Any]:
        """What :meth:`poll` needs to find a run that this launcher starts."""

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
        """Prepare, so that the next launch is quick."""

    def close(self) -> None:  # noqa: B027  nor alive
        """End what this launcher keeps alive, runs included."""

    def problems(self, design: Design, memory: PeakMemory | None = None, data: Path | None = None) -> list[Problem]:
        """Why a sound design cannot be run here, at its places; empty where it can.

        ``memory`` is what its devices are predicted to hold, if that is to be asked too; ``data``
        is the text that was given for it.
        """
        return [*_too_many(design, self.probe().most_processes), *run_problems(design), *_text(design, data)]

    def refusals(
        self, design: Design, options: Options, memory: PeakMemory | None = None, data: Path | None = None
    ) -> list[Problem]:
        """The same for a run that differs from plain training: a rehearsal holds no weights and reads no text."""
        if options.rehearse is None:
            return self.problems(design, memory, data)
        torn = [problem for problem in run_problems(design) if problem.code in ASKED]
        return [*_too_many(design, self.probe().most_processes), *torn, *dry_run_problems(design)]

    def submit(self, spec: RunSpec, *, data: Path | None = None, key: str | None = None) -> Run:
        """Launch a run, which is in the record before anything of it exists.

        Args:
            spec: what it is to do; see :func:`specify_run`.
            data: the user's text, where it is not the one that the design names.
            key: names the click, so that a double click is one run.

        Raises:
            InputError: the emulated network of the run is not possible.
            DesignError: such a design cannot be run here, or its text is not there.
            Busy: another run is under way.
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
        data = None if options.rehearse else text_of(design, data)
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
                self.record.move(run, State.CANCELLED, "cancelled before it started")
                raise
            said = str(error) if isinstance(error, MeshwaveError) else f"it could not be launched: {_in_words(error)}"
            self.record.move(run, State.FAILED, said)
            if isinstance(error, OSError):
                raise RunError(said) from error
            raise

    def settle(self, bundle: Bundle, verdict: Verdict, exits: Iterable[Exit] = ()) -> None:
        """Write the result of a run for good, and then enter it in the record.

        Where the record cannot be written, as on a full disk, the result is entered at the next look at the run.
        """
        with suppress(OSError):  # its folder was taken away; the record is still there
            write_reserved(bundle.folder / RESULT, to_json(bundle.run, verdict, bundle.design, exits))
        with suppress(RunError):
            self.enter(bundle.run, verdict.state, verdict.reason)

    def enter(self, run: str, state: State, reason: str) -> None:
        """Enter the end of a run in the record."""
        if state is State.SUCCEEDED:
            self.record.move(run, State.RUNNING)  # which may not have been entered either
        self.record.move(run, state, reason)


def _in_words(error: BaseException) -> str:
    return f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else repr(error)


def specify_run(prediction: Prediction, options: Options = PLAIN) -> RunSpec:
    """Return what a run of a design is to do: on the links that it will have, and with nothing left open.

    Raises:
        InputError: the hosts that are asked for are not possible, or a step of the dry run would take too long.
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
    """Return the prediction of the same program for a design that may have other links."""
    return prediction if design == prediction.design else predict(design, prediction.program)


def _scale(prediction: Prediction, hosts: Hosts | None, asked: float | None) -> float:
    """Return how many times slower than modelled time a dry run waits, so that a step can be waited for."""
    lengths = Lengths.of(prediction.program, prediction.costs)
    if asked is not None:
        step_wall_seconds(lengths, asked)
        return asked
    scale = usual_scale(lengths, process_count(prediction.design), os.cpu_count() or 1)
    if hosts is not None and prediction.costs.unit == "s":
        scale = scale_for_links(scale, hosts, lengths.step)
    return scale


def _manner(design: Design, options: Options) -> str:
    """How its run differs from plain training, with links as they are and not as they were asked for."""
    if options.hosts is None:
        return options.words
    return options.model_copy(update={"hosts": default_hosts(design, options.hosts.nodes)}).words


launchers: Registry[type[Launcher]] = Registry("launcher", "meshwave.engine.runs.launchers")


MOST_PROCESSES = 64
"""Processes that are started on one machine."""


def usual_launcher(design: Design, options: Options) -> str:
    """The launcher of a run for which nobody chose one: threads rehearse where there is no torch, or more devices than
    processes can be started."""
    sends = options.rehearse is None or options.hosts is not None
    return "local" if sends or (find_spec("torch") and process_count(design) <= MOST_PROCESSES) else "threads"


def open_run(record: Record, run: str) -> Run:
    """Return a run with the launcher that started it, so that it can be cancelled.

    Raises:
        InputError: there is no such run, or no such launcher here.
    """
    return Run(record, run, _launcher_of(record, record.get(run)))


def _launcher_of(record: Record, entry: Entry) -> Launcher:
    return launchers[entry.launcher].of_entry(record, entry)


def reconcile(record: Record) -> None:
    """Look at every run that should be under way: those whose launcher is gone are LOST.

    Runs of other processes that live are left to them. Called when an app starts, when runs are
    listed, and before one is launched. A new index is filled with the runs of which there are folders.
    """
    if record.is_new:
        enter_folders(record)
    for entry in record.active():
        with suppress(InputError, RunError):  # of a launcher of another version; or the disk is full
            _launcher_of(record, entry).poll(Run(record, entry.id))


def enter_folders(record: Record) -> list[str]:
    """Enter the runs of which there are only folders, as after a damaged index was moved aside; return their ids."""
    known = {entry.id for entry in record.all()}
    entered = []
    for folder in sorted((record.place / "runs").iterdir()):
        if folder.name in known or folder.name.startswith("."):
            continue
        with suppress(MeshwaveError, OSError):  # a folder that holds no run
            record.adopt(entry_of_folder(folder))
            entered.append(folder.name)
    record.is_new = False
    return entered


def entry_of_folder(folder: Path) -> Entry:
    """Return the entry of a run, read from its folder.

    Raises:
        RunFolderError: it is damaged, or no run folder.
    """
    bundle, result, made_s = read_bundle(folder), read_result(folder), (folder / "design.json").stat().st_mtime
    return Entry(
        id=folder.name,
        key=None,
        name=bundle.drawn.name,
        state=State(result.state) if result else State.LOST,
        reason=result.reason if result else "its end was not written down; what it wrote is kept",
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


def _too_many(design: Design, most_processes: int) -> Iterator[Problem]:
    processes = process_count(design)
    if processes > most_processes:
        yield Problem("meshes", "too_many_processes", {"processes": processes, "most": most_processes})


def _text(design: Design, data: Path | None) -> tuple[Problem, ...]:
    try:
        text_of(design, data)
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
        named = processes_of(entry)
        if result := read_result(run.folder):  # written, but it could not be entered
            self.enter(run.id, State(result.state), result.reason)
        elif named is None:
            self.record.move(run.id, State.LOST, "the record does not say which process launched it")
        elif not named.owner.is_alive():
            for process in named.processes:  # the kernel has ended them, where it can
                process.kill()
            reason = f"process {named.owner.pid}, which launched it, ended after {run.progress}; what it wrote is kept"
            self.record.move(run.id, State.LOST, reason)

    def wake(self, run: Run) -> None:
        """Continue those who end a run where they are stopped: they see the wish only then."""
        named = processes_of(run.entry)
        for handle in (named.owner, named.starter) if named else ():
            if handle is not None and handle.is_stopped:
                handle.send(signal.SIGCONT)
