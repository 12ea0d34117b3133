"""The run folder as it is handed over: the design as it is run, the program it means, and the user's text."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.document import Design, load_design
from meshwave.engine.errors import InputError
from meshwave.engine.files import write_private
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.program import Program, ProgramFile, to_json
from meshwave.engine.run_files import RunFolderError, damaged, read_document
from meshwave.engine.runs.checkpoints import bring_checkpoint
from meshwave.engine.runs.options import PLAIN, Options

LARGEST_COPY_BYTES = 64_000_000
"""A text up to this size is copied, so that editing it during a run does no harm; a larger one is
linked where the file system can, because a click should not wait for a disk."""
DRAWN = "drawn.json"
"""In the folder of a run whose design.json is not what was drawn."""


@dataclass(frozen=True)
class Bundle:
    """Everything a worker needs to know, in one folder; the folder's name is the run's."""

    folder: Path
    design: Design
    """As it is run: on the links that the run has."""
    drawn: Design
    """As it was launched. It is another one where the run was told of other hosts and links, or these cannot be had."""
    program: Program
    layers: tuple[int, ...]  # of each stage
    options: Options = PLAIN

    @property
    def run(self) -> str:
        return self.folder.name

    @property
    def processes(self) -> int:
        return process_count(self.design)

    @cached_property
    def prediction(self) -> Prediction:
        """What its run is held against: this program, on the links that the run has.

        Raises:
            InputError: the profile that it is priced by is gone.
        """
        return predict(holding(self.design, self.layers), self.program)


def holding(design: Design, layers: Sequence[int]) -> Design:
    """A design whose stages have so many layers, whatever they would have by its costs as they are now."""
    if layers_per_stage(design) == tuple(layers):
        return design
    return design.model_copy(update={"pipeline": design.pipeline.model_copy(update={"stages": tuple(layers)})})


def process_count(design: Design) -> int:
    """Return the number of processes, one for each device of a mesh."""
    return sum(len(mesh.devices) for mesh in design.meshes)


def mesh_of(design: Design, process: int) -> tuple[int, str]:
    """Return rank and mesh name of a process; processes are numbered mesh by mesh."""
    last = 0
    for rank, mesh in enumerate(design.meshes):
        last += len(mesh.devices)
        if process < last:
            return rank, mesh.name
    raise ValueError(f"the design has {last} processes, so none is number {process}")


@dataclass(frozen=True)
class RunSpec:
    """What a run is to do, with nothing left open."""

    prediction: Prediction
    """Of the design as it is run: on the links that the run has."""
    drawn: Design
    """The design as it was launched. The links of a run differ from those that are drawn where it was told of other
    hosts and links, or these cannot be had."""
    options: Options = PLAIN

    @property
    def design(self) -> Design:
        """The design as it is run."""
        return self.prediction.design


def write_bundle(spec: RunSpec, folder: Path, data: Path | None = None) -> Bundle:
    """Write a run folder that only its owner can read. A dry run needs no text.

    Raises:
        InputError: the design trains on a text of the user's and ``data`` is no readable file, or the run to resume
            has no checkpoint.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    design, drawn, options = spec.design, spec.drawn, spec.options
    program, layers = spec.prediction.program, spec.prediction.costs.layers
    write_private(folder / "design.json", design.to_json())
    if drawn != design:
        write_private(folder / DRAWN, drawn.to_json())
    write_private(folder / "program.json", json.dumps({**to_json(program), "layers": list(layers)}) + "\n")
    if not options.is_plain:
        write_private(folder / "options.json", options.model_dump_json(indent=2) + "\n")
    if options.resume is not None:
        bring_checkpoint(folder.with_name(options.resume), folder)
    if data is not None:
        _bring(data, folder / "data.txt")
    elif design.training.data is not None and options.rehearse is None:
        raise InputError(f"training.data names {design.training.data}; say where that file is, or set it to null")
    bundle = Bundle(folder, design, drawn, program, tuple(layers), options)
    vars(bundle)["prediction"] = spec.prediction  # computed already
    return bundle


def read_bundle(folder: Path) -> Bundle:
    """Read a run folder back.

    Raises:
        RunFolderError: a file is missing or damaged, or the program is not one of the design.
    """
    design, path = read_design(folder), folder / "program.json"
    written = read_document(path, ProgramFile)
    if written is None:
        raise _missing(path)
    try:
        program = written.program()
        _check_program(design, program, written.layers)
    except InputError as error:
        raise damaged(path, str(error)) from None
    return Bundle(folder, design, read_drawn(folder), program, tuple(written.layers), read_options(folder))


def _check_program(design: Design, program: Program, layers: Sequence[int]) -> None:
    """Check that a program fits a design.

    Raises:
        InputError: it belongs to another design, or its stages cannot have these layers.
    """
    its = program.ranks, program.stages, program.microbatches
    if its != (len(design.meshes), design.stages, design.pipeline.microbatches):
        raise InputError("it is the program of another design than that of design.json")
    if len(layers) != design.stages or min(layers) < 1 or sum(layers) != design.model.layers:
        raise InputError(f"{design.stages} stages cannot have the layers {list(layers)} of {design.model.layers}")


def read_design(folder: Path) -> Design:
    """The design of a run folder as it is run.

    Raises:
        RunFolderError: it is missing or damaged.
    """
    return _read(folder / "design.json")


def read_drawn(folder: Path) -> Design:
    """Return the design of a run folder as it was launched."""
    path = folder / DRAWN
    return _read(path) if path.exists() else read_design(folder)


def read_options(folder: Path) -> Options:
    """Return the options of a run.

    Raises:
        RunFolderError: they are damaged, or of another version.
    """
    return read_document(folder / "options.json", Options) or PLAIN


def _read(path: Path) -> Design:
    try:
        return load_design(path)
    except DesignError as error:
        raise damaged(path, str(error.problems[0])) from None
    except InputError as error:
        raise (damaged(path, str(error)) if path.exists() else _missing(path)) from None


def _missing(path: Path) -> RunFolderError:
    return RunFolderError(
        f"{path.parent} is no run folder: it has no {path.name}; name another run, or launch the design again"
    )


def _bring(source: Path, target: Path) -> None:
    try:
        source = source.expanduser().resolve(strict=True)
        if not source.is_file():
            raise InputError(f"{source} is no file; training.data takes a text")
        if source.stat().st_size > LARGEST_COPY_BYTES and _linked(source, target):
            return
        with (
            source.open("rb") as text,
            open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy,
        ):
            shutil.copyfileobj(text, copy, 1 << 20)
    except OSError as error:
        raise InputError(f"cannot take the text {source}: {error.strerror}") from None


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        return False
    return True
