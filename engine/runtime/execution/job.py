"""Job of a run's processes, read from the run folder and checked once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.unsupported import dry_run_problems, run_problems
from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.program.program import Program
from meshwave.engine.program.program_file import ProgramFile
from meshwave.engine.run_files import read_document
from meshwave.engine.runs.checkpoints import Checkpoints
from meshwave.engine.runs.dry_run import BLOCKS_MESSAGES, Rehearsal
from meshwave.engine.runs.initial_weights import initial_weights
from meshwave.engine.runs.options import HANG_TIMEOUT_S, PLAIN, Options
from meshwave.engine.runs.training_data import stored_data
from meshwave.engine.runs.training_windows import DEFAULT_TEXT
from meshwave.engine.runtime.communication.process_layout import MeshShape, ProcessLayout


@dataclass(frozen=True)
class RunNote:
    """Note for the user about how a run is executed, with its numbers by name."""

    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """Job of a run: a design, its program, and the text to train on."""

    design: Design
    program: Program
    layers: tuple[int, ...]  # [stages]
    text: Path = DEFAULT_TEXT
    rehearsal: Rehearsal | None = None  # of a dry run
    emulates_links: bool = False
    checkpoints: Checkpoints | None = None
    hang_timeout_s: float = HANG_TIMEOUT_S
    initial_weights: tuple[Path, ...] = ()
    """Files of the checkpoint that training starts from; empty: weights are drawn."""

    def __post_init__(self) -> None:
        _check_supported(self.design, self.program, BLOCKS_MESSAGES if self.rehearsal else None)

    @property
    def layout(self) -> ProcessLayout:
        """Layout of the processes of the run."""
        shapes = (MeshShape(mesh.dp, mesh.tp, mesh.cp) for mesh in self.design.meshes)
        return ProcessLayout(self.program, tuple(shapes))

    def check_process_count(self, started: int) -> None:
        """Check that the design has a device for each started process, and a process for each device.

        Raises:
            Refusal: the numbers differ.
        """
        if started != self.layout.processes:
            params = {"processes": started, "devices": self.layout.processes, "meshes": self.program.ranks}
            raise Refusal("started_process_count", params)

    @property
    def sequences(self) -> int:
        """Number of sequences per step, which is the global batch size."""
        return self.design.sequences_per_step


def read_job(folder: Path) -> Job:
    """Read ``design.json``, ``program.json`` and, if they exist, ``options.json`` and the data.

    Raises:
        InputError: a document is invalid, or requires a feature that this version does not support.
        RunFolderError: a document is damaged.
    """
    design = parse_design((folder / "design.json").read_bytes())
    written = read_document(folder / "program.json", ProgramFile)
    if written is None:
        raise Refusal("program_missing", {"folder": str(folder)})
    text = stored_data(folder)
    options = read_document(folder / "options.json", Options) or PLAIN
    if options.rehearse is None and design.training.data is not None and text is None:
        raise Refusal("text_not_copied", {"text": design.training.data})
    return Job(
        design,
        written.program(),
        tuple(written.layers),
        text or DEFAULT_TEXT,
        options.rehearse,
        options.hosts is not None,
        options.checkpoints,
        options.hang_timeout_s,
        initial_weights(folder),
    )


def _check_supported(design: Design, program: Program, codes: Collection[str] | None) -> None:
    """Check that this version can run a design; if ``codes`` is given, only problems with these codes count."""
    if len(design.meshes) != program.ranks:
        raise Refusal("program_of_other_design", {"ranks": program.ranks, "meshes": len(design.meshes)})
    found = [problem for problem in run_problems(design) if codes is None or problem.code in codes]
    if found := [*found, *([] if codes is None else dry_run_problems(design))]:
        raise DesignError(found)
