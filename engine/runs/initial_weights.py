"""Initial weights of a run from a Hugging Face checkpoint, stored in the run folder."""

from __future__ import annotations

from pathlib import Path

from meshwave.engine import messages
from meshwave.engine.document import Design
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.files import link_or_copy
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.hugging_face.tensor_files import checkpoint_files, find_weights

FOLDER = "initial-weights"


def check_initial_weights(design: Design, path: Path) -> None:
    """Check that a design can start from the weights of a checkpoint.

    Args:
        design: what to run.
        path: a folder, a safetensors file, or the index of several.

    Raises:
        DesignError: tensors are missing or have other shapes, or the weights are of another model.
        Refusal: the files are missing or damaged.
    """
    if not isinstance(design.model, LanguageModel):
        raise DesignError([Problem("model.kind", "initial_weights_of_kind", {"kind": design.model.kind})])
    find_weights(design.model, checkpoint_files(path))


def link_initial_weights(path: Path, run_folder: Path) -> None:
    """Link or copy the files of a checkpoint into the folder of a run, which may then outlive them."""
    folder = run_folder / FOLDER
    folder.mkdir(mode=0o700)
    for file in checkpoint_files(path):
        link_or_copy(file.resolve(), folder / file.name)


def initial_weights(run_folder: Path) -> tuple[Path, ...]:
    """Return the files of the checkpoint that a run starts from; empty if it draws its weights."""
    return tuple(sorted((run_folder / FOLDER).glob("*")))


messages.add_messages(
    initial_weights_of_kind="a model of kind {kind} cannot start from a checkpoint of Hugging Face; draw its weights at random (without --init)",
)
