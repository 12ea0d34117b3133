"""What a run folder asks of its processes, read once and checked."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.unsupported import rehearsable, runnable
from meshwave.engine.errors import DesignError, InputError
from meshwave.engine.program.program import Program, from_json
from meshwave.engine.runs.dry_run import ASKED, Rehearsal
from meshwave.engine.runtime.communication.layout import Layout, Shape
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

    def __post_init__(self) -> None:
        _refuse(self.design, self.program, ASKED if self.rehearsal else None)

    @property
    def layout(self) -> Layout:
        return Layout(self.program, tuple(Shape(mesh.dp, mesh.tp) for mesh in self.design.meshes))

    @property
    def sequences(self) -> int:
        """Of a step: the global batch."""
        return self.design.sequences_per_step


def read_job(folder: Path) -> Job:
    """Read ``design.json``, ``program.json`` and, if they are there, ``options.json`` and ``data.txt``.

    Raises:
        InputError: a document is wrong, or asks for what this version does not run.
    """
    design = parse_design(json.loads((folder / "design.json").read_text("utf-8")))
    document = json.loads((folder / "program.json").read_text("utf-8"))
    text = folder / "data.txt"
    rehearsal, shaped = _options(folder)
    if rehearsal is None and design.training.data is not None and not text.is_file():
        raise InputError(f"training.data names {design.training.data}, but the run folder holds no copy of it")
    return Job(
        design,
        from_json(document),
        tuple(document["layers"]),
        text if text.is_file() else DEFAULT_TEXT,
        rehearsal,
        shaped,
    )


def _options(folder: Path) -> tuple[Rehearsal | None, bool]:
    """Whether it is a rehearsal, and whether its links are emulated; plain runs say nothing of either."""
    path = folder / "options.json"
    if not path.exists():
        return None, False
    try:
        document = json.loads(path.read_bytes())
        asked = document["rehearse"]
        return Rehearsal.model_validate(asked) if asked else None, document["hosts"] is not None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}") from None


def _refuse(design: Design, program: Program, asked: Collection[str] | None) -> None:
    """``asked`` are the codes of problems that matter; by default all do."""
    if len(design.meshes) != program.ranks:
        raise InputError(f"the program has {program.ranks} ranks, but the design {len(design.meshes)} meshes")
    found = [problem for problem in runnable(design) if asked is None or problem.code in asked]
    if found := [*found, *([] if asked is None else rehearsable(design))]:
        raise DesignError(found)
