"""The final weights of a run, as a checkpoint of Hugging Face."""

from __future__ import annotations

from pathlib import Path

from meshwave.engine.document.model import LanguageModel
from meshwave.engine.findings import Refusal
from meshwave.engine.hugging_face.saving import save_checkpoint
from meshwave.engine.hugging_face.tensor_files import read_config
from meshwave.engine.runs.checkpoints import WEIGHTS_FILE
from meshwave.engine.runs.initial_weights import initial_weights
from meshwave.engine.runs.run_folder import read_launched_design


def save_final_weights(run_folder: Path, folder: Path) -> list[Path]:
    """Write the final weights of a run, and return the paths of the written files.

    Args:
        run_folder: the folder of the run.
        folder: the folder to write; it is created if it does not exist.

    Raises:
        Refusal: the run has no weights, its model cannot be written, or the folder cannot be used.
    """
    model, weights = read_launched_design(run_folder).model, run_folder / WEIGHTS_FILE
    if not weights.exists():
        raise Refusal("run_without_weights", {"run": run_folder.name})
    if not isinstance(model, LanguageModel):
        raise Refusal("weights_of_kind", {"kind": model.kind})
    return save_checkpoint(model, weights, folder, read_config(initial_weights(run_folder)))
