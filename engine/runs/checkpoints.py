"""Checkpoints in a run folder, which :mod:`meshwave.engine.runtime.execution.checkpoint` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt

from meshwave.engine.document import Design
from meshwave.engine.files import link_or_copy
from meshwave.engine.findings import Problem, Refusal, RunRefusal
from meshwave.engine.frozen import Part
from meshwave.engine.run_files import RunFile, read_document

FOLDER = "checkpoints"
WEIGHTS_FILE = "weights.safetensors"
MANIFEST = "checkpoint.json"
DAMAGED = ".damaged"
"""Suffix of the folder of a checkpoint that was skipped because it is damaged."""
INTERRUPTED = "interrupted.json"
"""File that a run writes when it was requested to end and has written a checkpoint first."""
FORMAT = "meshwave-checkpoint/1"


class Checkpoints(Part):
    """Options of a run that writes checkpoints."""

    every_steps: PositiveInt | None = None
    """Number of steps between checkpoints; null for a single checkpoint at the end."""
    every_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Seconds between checkpoints."""
    keep: PositiveInt = 2
    """Number of newest checkpoints to keep."""


class Checkpoint(RunFile):
    """Manifest of a checkpoint."""

    format: str = FORMAT
    steps: NonNegativeInt = 0
    """Number of training steps before the checkpoint."""
    model: dict[str, Any]
    optimizer: str
    files: dict[str, str] = {}
    """SHA-256 hash of each file."""

    @classmethod
    def initial_manifest(cls, design: Design) -> Checkpoint:
        """Return the manifest of a run's checkpoints before its first step."""
        return cls(model=design.model.model_dump(mode="json"), optimizer=design.training.optimizer)

    def step_manifest(self, steps: int, files: dict[str, str]) -> Checkpoint:
        """Return the manifest of one checkpoint."""
        return self.model_copy(update={"steps": steps, "files": files})


def step_folder(checkpoints: Path, steps: int) -> Path:
    """Return the folder of the checkpoint after ``steps`` steps; folder names sort by step."""
    return checkpoints / f"step-{steps:09d}"


def trained_steps(checkpoint: Path) -> int:
    """Return the number of training steps before a checkpoint, given its folder."""
    return int(checkpoint.name.removeprefix("step-"))


def complete_checkpoints(run_folder: Path) -> list[Path]:
    """Return the folders of the complete checkpoints of a run, oldest first."""
    return sorted((run_folder / FOLDER).glob("step-*[0-9]"))


def skipped_checkpoints(run_folder: Path) -> list[str]:
    """Return the names of the checkpoints of a run that were skipped because they are damaged."""
    return [folder.stem for folder in sorted((run_folder / FOLDER).glob(f"step-*{DAMAGED}"))]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the manifest of a checkpoint.

    Raises:
        RunError: the folder is not a complete checkpoint.
        RunFolderError: the manifest is damaged.
    """
    found = read_document(folder / MANIFEST, Checkpoint)
    if found is None:
        raise RunRefusal("incomplete_checkpoint", {"name": folder.name, "file": MANIFEST})
    return found


def resume_problems(design: Design, run_folder: Path) -> list[Problem]:
    """Return the reasons why a design cannot start from the newest checkpoint of a run; empty if it can.

    Schedule, meshes, axes, expert placement and precision may differ; model and optimizer may not.

    Raises:
        RunError: the checkpoint is damaged.
    """
    found = complete_checkpoints(run_folder)
    if not found:
        return [Problem("", "checkpoint_missing", {"run": run_folder.name})]
    saved, own = read_checkpoint(found[-1]), Checkpoint.initial_manifest(design)
    differing = [key for key in saved.model.keys() | own.model.keys() if saved.model.get(key) != own.model.get(key)]
    problems = [
        Problem(f"model.{key}", "checkpoint_of_another_model", {"key": key, "run": run_folder.name})
        for key in sorted(differing)
    ]
    if saved.optimizer != own.optimizer:
        params = {"optimizer": saved.optimizer, "run": run_folder.name}
        problems.append(Problem("training.optimizer", "checkpoint_of_another_optimizer", params))
    if design.training.steps <= saved.steps:
        done = {"steps": design.training.steps, "done": saved.steps, "run": run_folder.name}
        problems.append(Problem("training.steps", "checkpoint_is_later", done))
    return problems


def link_checkpoint(source_run: Path, target_run: Path) -> Checkpoint:
    """Link or copy the newest checkpoint of a run into the folder of another run, which starts from it.

    Files are hard-linked if the file system allows it, so that the first run may be deleted; otherwise they are copied.

    Raises:
        InputError: the run has no checkpoint.
    """
    found: Sequence[Path] = complete_checkpoints(source_run)
    if not found:
        raise Refusal("checkpoint_missing", {"run": source_run.name})
    target = target_run / FOLDER / found[-1].name
    unfinished = target.with_suffix(".tmp")
    unfinished.mkdir(mode=0o700, parents=True)
    for path in found[-1].iterdir():
        link_or_copy(path, unfinished / path.name)
    unfinished.rename(target)
    return read_checkpoint(target)
