"""What a run folder asks of its processes, read once and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engine.design import Design, parse_design
from engine.design.runnable import runnable
from engine.errors import DesignError, InputError
from engine.program.program import Program, from_json
from engine.runtime.data import DEFAULT_TEXT
from engine.runtime.layout import Layout, Shape


@dataclass(frozen=True)
class Job:
    """A design, the program it means, and the text to train on."""

    design: Design
    program: Program
    layers: tuple[int, ...]  # of each stage
    text: Path = DEFAULT_TEXT

    def __post_init__(self) -> None:
        _refuse(self.design, self.program)

    @property
    def layout(self) -> Layout:
        return Layout(self.program, tuple(Shape(mesh.dp, mesh.tp) for mesh in self.design.meshes))

    @property
    def sequences(self) -> int:
        """Of a step: the global batch."""
        return self.design.sequences_per_step


def read_job(folder: Path) -> Job:
    """Read ``design.json``, ``program.json`` and, if there is one, ``data.txt``.

    Raises:
        InputError: a document is wrong, or asks for what this version does not run.
    """
    design = parse_design(json.loads((folder / "design.json").read_text("utf-8")))
    document = json.loads((folder / "program.json").read_text("utf-8"))
    text = folder / "data.txt"
    if design.training.data is not None and not text.is_file():
        raise InputError(f"training.data names {design.training.data}, but the run folder holds no copy of it")
    return Job(
        design,
        from_json(document),
        tuple(document["layers"]),
        text if text.is_file() else DEFAULT_TEXT,
    )


def _refuse(design: Design, program: Program) -> None:
    if len(design.meshes) != program.ranks:
        raise InputError(f"the program has {program.ranks} ranks, but the design {len(design.meshes)} meshes")
    if found := runnable(design):
        raise DesignError(found)
