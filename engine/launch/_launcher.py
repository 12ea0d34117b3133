"""What every launcher does, and the folder of launchers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from engine.cost import Costs, PeakMemory, estimate, peak_memory
from engine.design import Design
from engine.design.runnable import runnable
from engine.errors import DesignError, InputError, MeshwaveError, Problem, RunError
from engine.launch._run import Run
from engine.launch.bundle import Bundle, process_count, write_bundle
from engine.launch.hosts import grown
from engine.launch.options import PLAIN, Options
from engine.launch.record import Record, State
from engine.launch.texts import text_of
from engine.program.program import Program
from engine.registry import Registry
from engine.rehearse import ASKED, Lengths, Rehearsal, usual_scale


@dataclass(frozen=True)
class Capabilities:
    """What a launcher can do here."""

    why_not: str = ""  # a sentence where it can do nothing
    most_processes: int = 0
    note: str = ""  # how it starts processes

    @property
    def can_launch(self) -> bool:
        return not self.why_not


class Launcher(ABC):
    """Starts the processes of a run somewhere and knows how they fare.

    The run folder is all that passes between a launcher and the processes it starts; the record
    is all that passes between launchers of different processes of the user's.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    runs_at_once: ClassVar[int] = 1

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

    @abstractmethod
    def handle(self) -> Mapping[str, Any]:
        """What :meth:`poll` needs to find a run that this launcher starts."""

    def warm(self) -> None:  # noqa: B027  most launchers keep nothing warm
        """Prepare, so that the next launch is quick."""

    def close(self) -> None:  # noqa: B027  nor alive
        """End what this launcher keeps alive, runs included."""

    def problems(self, design: Design, memory: PeakMemory | None = None, data: Path | None = None) -> list[Problem]:
        """Why a sound design cannot be run here, at its places; empty where it can.

        ``memory`` is what its devices are predicted to hold, if that is to be asked too; ``data``
        is the text that was given for it.
        """
        return [*_too_many(design, self.probe().most_processes), *runnable(design), *_text(design, data)]

    def refusals(
        self, design: Design, options: Options, memory: PeakMemory | None = None, data: Path | None = None
    ) -> list[Problem]:
        """The same for a run that differs from plain training: a rehearsal holds no weights and reads no text."""
        if options.rehearse is None:
            return self.problems(design, memory, data)
        torn = [problem for problem in runnable(design) if problem.code in ASKED]
        return [*_too_many(design, self.probe().most_processes), *torn]

    def submit(
        self,
        design: Design,
        program: Program,
        layers: Sequence[int],
        *,
        data: Path | None = None,
        key: str | None = None,
        options: Options = PLAIN,
    ) -> Run:
        """Launch a design. The run is in the record before anything of it exists.

        ``layers`` are those of each stage; ``data`` is the user's text, where it is not the one that
        the design names; ``key`` names the click, so that a double click is one run; ``options`` say how it
        differs from plain training.

        Raises:
            DesignError: such a design cannot be run here, or its text is not there.
            Busy: another run is under way.
            RunError: this machine cannot run it.
        """
        can = self.probe()
        if not can.can_launch:
            raise RunError(can.why_not)
        costs = estimate(design, program)
        if found := self.refusals(design, options, peak_memory(program, costs), data):
            raise DesignError(found)
        options = settled(options, program, costs, process_count(design))
        data = None if options.rehearse else text_of(design, data)
        reconcile(self.record)
        entry, is_new = self.record.submit(
            name=design.name,
            launcher=self.name,
            handle=self.handle(),
            digest=program.digest,
            processes=process_count(design),
            steps=design.training.steps,
            manner=options.words,
            key=key,
            limit=self.runs_at_once,
        )
        if is_new:
            self._start(entry.id, design, program, layers, data, options)
        return Run(self.record, entry.id, self)

    def _start(
        self, run: str, design: Design, program: Program, layers: Sequence[int], data: Path | None, options: Options
    ) -> None:
        try:
            self.launch(write_bundle(design, program, layers, self.record.folder(run), data, options))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                self.record.move(run, State.CANCELLED, "cancelled before it started")
                raise
            said = str(error) if isinstance(error, MeshwaveError) else f"it could not be launched: {error!r}"
            self.record.move(run, State.FAILED, said)
            if isinstance(error, OSError):
                raise RunError(said) from error
            raise


def settled(options: Options, program: Program, costs: Costs, processes: int) -> Options:
    """The same with the scale of a rehearsal, where nobody said one."""
    if options.rehearse is None or options.rehearse.scale is not None:
        return options
    lengths = Lengths.of(program, costs)
    scale = usual_scale(lengths, processes, os.cpu_count() or 1)
    if options.hosts is not None and costs.unit == "s":
        scale = grown(scale, options.hosts, lengths.step)
    return options.model_copy(update={"rehearse": Rehearsal(scale=scale)})


launchers: Registry[type[Launcher]] = Registry("launcher", "engine.launch")


def reconcile(record: Record) -> None:
    """Look at every run that should be under way: those whose launcher is gone are LOST.

    Runs of other processes that live are left to them. Called when an app starts, when runs are
    listed, and before one is launched.
    """
    for entry in record.active():
        with suppress(InputError, RunError):  # of a launcher of another version; or the disk is full
            launchers[entry.launcher](record).poll(Run(record, entry.id))


def _too_many(design: Design, most_processes: int) -> Iterator[Problem]:
    processes = process_count(design)
    if processes > most_processes:
        message = f"the meshes have {processes} devices, and at most {most_processes} processes run here; draw fewer"
        yield Problem("meshes", "too_many_processes", message)


def _text(design: Design, data: Path | None) -> tuple[Problem, ...]:
    try:
        text_of(design, data)
    except DesignError as error:
        return error.problems
    return ()
