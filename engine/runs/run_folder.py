"""Run folder: the executed design, its program, the options and the training text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.document import Design, load_design
from meshwave.engine.errors import InputError
from meshwave.engine.files import write_private
from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.program import Program
from meshwave.engine.program.program_file import ProgramFile, to_json
from meshwave.engine.run_files import RunFolderError, damaged_file, read_document
from meshwave.engine.runs.checkpoints import link_checkpoint
from meshwave.engine.runs.initial_weights import link_initial_weights
from meshwave.engine.runs.options import PLAIN, Options
from meshwave.engine.runs.training_data import store_data

DRAWN = "drawn.json"
"""The design as launched, if it differs from the executed one in design.json."""


@dataclass(frozen=True)
class Bundle:
    """Content of a run folder: all input of the worker processes. The name of the folder is the id of the run."""

    folder: Path
    design: Design
    """The executed design, with the links that the run uses."""
    drawn: Design
    """The design as launched; it differs from the executed design if the run uses other hosts or links."""
    program: Program
    layers: tuple[int, ...]  # of each stage
    options: Options = PLAIN

    @property
    def run(self) -> str:
        """ID of the run."""
        return self.folder.name

    @property
    def processes(self) -> int:
        """Number of processes."""
        return process_count(self.design)

    @cached_property
    def prediction(self) -> Prediction:
        """Prediction of the program on the links that the run uses, for comparison with the run.

        Raises:
            InputError: the calibration profile of the design no longer exists.
        """
        return predict(fix_layers(self.design, self.layers), self.program)


def fix_layers(design: Design, layers: Sequence[int]) -> Design:
    """Return a design with explicit layers per stage, so that later changes of costs do not affect the stages."""
    if layers_per_stage(design) == tuple(layers):
        return design
    return design.model_copy(update={"pipeline": design.pipeline.model_copy(update={"stages": tuple(layers)})})


def process_count(design: Design) -> int:
    """Return the number of processes, one for each device of a mesh."""
    return sum(len(mesh.devices) for mesh in design.meshes)


def rank_and_mesh(design: Design, process: int) -> tuple[int, str]:
    """Return the rank and mesh name of a process; processes are numbered mesh by mesh."""
    last = 0
    for rank, mesh in enumerate(design.meshes):
        last += len(mesh.devices)
        if process < last:
            return rank, mesh.name
    raise ValueError(f"there is no process {process}; the design has {last} processes, numbered from 0")


@dataclass(frozen=True)
class RunSpec:
    """Complete specification of a run: its prediction, the design as launched and the options."""

    prediction: Prediction
    """Prediction of the executed design, with the links that the run uses."""
    drawn: Design
    """The design as launched; it differs from the executed design if the run uses other hosts or links."""
    options: Options = PLAIN

    @property
    def design(self) -> Design:
        """The executed design."""
        return self.prediction.design


def write_bundle(spec: RunSpec, folder: Path, data: Path | None = None) -> Bundle:
    """Write a run folder that only its owner can read.

    Args:
        spec: the specification of the run.
        folder: the folder to write.
        data: the training text; None for the text that comes with Meshwave, or for a dry run.

    Raises:
        InputError: the design names a text and ``data`` is not a readable file, or the run to resume has no
            checkpoint.
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
        link_checkpoint(folder.with_name(options.resume), folder)
    if options.initial_weights is not None:
        link_initial_weights(Path(options.initial_weights), folder)
    if data is not None:
        _store_data(design, data, folder)
    elif design.training.data is not None and options.rehearse is None:
        raise Refusal("text_of_design_missing", {"name": design.training.data})
    bundle = Bundle(folder, design, drawn, program, tuple(layers), options)
    vars(bundle)["prediction"] = spec.prediction  # already computed
    return bundle


def read_bundle(folder: Path) -> Bundle:
    """Read a run folder.

    Raises:
        RunFolderError: a file is missing or damaged, or the program does not belong to the design.
    """
    design, path = read_design(folder), folder / "program.json"
    written = read_document(path, ProgramFile)
    if written is None:
        raise _missing_file_error(path)
    try:
        program = written.program()
        _check_program(design, program, written.layers)
    except InputError as error:
        raise damaged_file(path, str(error)) from None
    return Bundle(folder, design, read_launched_design(folder), program, tuple(written.layers), read_options(folder))


def _check_program(design: Design, program: Program, layers: Sequence[int]) -> None:
    """Check that a program fits a design.

    Raises:
        InputError: the program belongs to another design, or its stages cannot have these layers.
    """
    shape = program.ranks, program.stages, program.microbatches
    if shape != (len(design.meshes), design.stages, design.pipeline.microbatches):
        raise Refusal("program_of_another_design")
    if len(layers) != design.stages or min(layers) < 1 or sum(layers) != design.model.layers:
        params = {"stages": design.stages, "layers": list(layers), "total": design.model.layers}
        raise Refusal("impossible_stage_layers", params)


def read_design(folder: Path) -> Design:
    """Return the executed design of a run folder.

    Raises:
        RunFolderError: the design is missing or damaged.
    """
    return _read_design_file(folder / "design.json")


def read_launched_design(folder: Path) -> Design:
    """Return the design of a run folder as launched.

    Raises:
        RunFolderError: the design is missing or damaged.
    """
    path = folder / DRAWN
    return _read_design_file(path) if path.exists() else read_design(folder)


def read_options(folder: Path) -> Options:
    """Return the options of a run.

    Raises:
        RunFolderError: the options are damaged, or are of another version.
    """
    return read_document(folder / "options.json", Options) or PLAIN


def _read_design_file(path: Path) -> Design:
    try:
        return load_design(path)
    except DesignError as error:
        raise damaged_file(path, str(error.problems[0])) from None
    except InputError as error:
        raise (damaged_file(path, str(error)) if path.exists() else _missing_file_error(path)) from None


def _missing_file_error(path: Path) -> RunFolderError:
    return RunFolderError("not_a_run_folder", {"folder": str(path.parent), "file": path.name})


def _store_data(design: Design, source: Path, folder: Path) -> None:
    try:
        source = source.expanduser()
        if not (source.resolve(strict=True).is_file() or source.is_dir()):
            raise Refusal("text_not_a_file", {"file": str(source)})
        store_data(design, source, folder)
    except OSError as error:
        raise Refusal("unreadable_text", {"file": str(source), "reason": error.strerror}) from None
