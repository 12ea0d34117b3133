"""What a run folder asks of its processes, read once and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engine.design import Design, parse_design
from engine.errors import InputError
from engine.program.program import Program, from_json
from engine.runtime.data import DEFAULT_TEXT
from engine.runtime.layout import Layout


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
        return Layout(self.program, self.design.meshes[0].dp)

    @property
    def sequences(self) -> int:
        """Of a step: the global batch."""
        return self.layout.copies * self.program.microbatches * self.design.training.micro_batch_size


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
    if design.model.moe is not None:
        raise InputError("this version plans mixture-of-experts models but does not run them; set model.moe to null")
    for index, mesh in enumerate(design.meshes):
        if mesh.tp > 1:
            raise InputError(
                f"meshes[{index}].axes: mesh {mesh.name} has tp={mesh.tp}; tensor parallel runs come later, "
                "set tp to 1 to run this design"
            )
    sizes = {mesh.dp for mesh in design.meshes}
    if len(sizes) > 1:
        drawn = ", ".join(f"{mesh.name} has dp={mesh.dp}" for mesh in design.meshes)
        raise InputError(f"meshes of different dp cannot run together yet ({drawn}); give all meshes the same dp")
