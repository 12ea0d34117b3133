"""What a run folder asks of its processes, read once and checked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.unsupported import rehearsable, runnable
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError
from meshwave.engine.program.program import Program, ProgramFile
from meshwave.engine.run_files import RunFile, read_document
from meshwave.engine.runs.checkpoints import Checkpoints
from meshwave.engine.runs.dry_run import ASKED, Rehearsal
from meshwave.engine.runtime.communication.process_layout import MeshShape, ProcessLayout
from meshwave.engine.runtime.execution.data import DEFAULT_TEXT


@dataclass(frozen=True)
class Job:
    """A design, the program it means, and the text to train on."""

    design: Design
    program: Program
    layers: tuple[int, ...]  # of each stage
    text: Path = DEFAULT_TEXT
    rehearsal: Rehearsal | None = None  # wait instead of computing
    shaped: bool = False  # the links are emulated
    checkpoints: Checkpoints | None = None

    def __post_init__(self) -> None:
        _refuse(self.design, self.program, ASKED if self.rehearsal else None)

    @property
    def layout(self) -> ProcessLayout:
        return ProcessLayout(self.program, tuple(MeshShape(mesh.dp, mesh.tp) for mesh in self.design.meshes))

    @property
    def sequences(self) -> int:
        """Of a step: the global batch."""
        return self.design.sequences_per_step


class _Options(RunFile):
    rehearse: Rehearsal | None = None
    checkpoints: Checkpoints | None = None
    hosts: dict[str, object] | None = None


def read_job(folder: Path) -> Job:
    """Read ``design.json``, ``program.json`` and, if they are there, ``options.json`` and ``data.txt``.

    Raises:
        InputError: a document is wrong, or asks for what this version does not run.
        RunFolderError: a document is damaged.
    """
    design = parse_design((folder / "design.json").read_bytes())
    written = read_document(folder / "program.json", ProgramFile)
    if written is None:
        raise InputError(f"{folder} holds no program.json; launch the design again")
    text = folder / "data.txt"
    options = read_document(folder / "options.json", _Options) or _Options()
    if options.rehearse is None and design.training.data is not None and not text.is_file():
        raise InputError(f"training.data names {design.training.data}, but the run folder holds no copy of it")
    return Job(
        design,
        written.program(),
        tuple(written.layers),
        text if text.is_file() else DEFAULT_TEXT,
        options.rehearse,
        options.hosts is not None,
        options.checkpoints,
    )


def _refuse(design: Design, program: Program, asked: Collection[str] | None) -> None:
    """``asked`` are the codes of problems that matter; by default all do."""
    if len(design.meshes) != program.ranks:
        raise InputError(f"the program has {program.ranks} ranks, but the design {len(design.meshes)} meshes")
    found = [problem for problem in runnable(design) if asked is None or problem.code in asked]
    if found := [*found, *([] if asked is None else rehearsable(design))]:
        raise DesignError(found)
