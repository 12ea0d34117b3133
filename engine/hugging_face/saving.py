"""Writing of checkpoints for transformers: a folder with safetensors files and a configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine import messages
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.files import write_whole
from meshwave.engine.findings import Refusal
from meshwave.engine.hugging_face.tensor_files import CONFIG, read_tensors
from meshwave.engine.hugging_face.weights import Source, Weight, map_weights
from meshwave.engine.hugging_face.writing import write_config

Array = NDArray[Any]
MOST_FILE_BYTES = 5_000_000_000
"""Maximum size of a file in bytes; larger models are written to several files with an index."""


def save_checkpoint(model: LanguageModel, weights: Path, folder: Path) -> list[Path]:
    """Write a checkpoint for transformers, and return the paths of its files.

    Args:
        model: the model section of the design.
        weights: the safetensors file of a run, with Meshwave's weight names.
        folder: the folder to write; it is created if it does not exist.

    Raises:
        Refusal: no model type represents the model, the file lacks a weight, or the folder cannot be written.
    """
    from safetensors import safe_open  # only commands that write such files need it

    config, stored = write_config(model), read_tensors([weights])
    mapped = map_weights(model, config["model_type"])
    missing = [weight.name for weight in mapped if stored.shapes.get(weight.name) != weight.shape]
    if missing:
        raise Refusal("weights_of_run_missing", {"file": str(weights), "names": missing[:5]})
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal("folder_not_made", {"folder": str(folder), "reason": error.strerror}) from None
    with safe_open(weights, framework="numpy") as file:
        config["dtype"] = str(file.get_tensor(mapped[0].name).dtype)
        found = _write_files(_checkpoint_tensors(mapped, file), folder)
    write_whole(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    return [*found, folder / CONFIG]


def _checkpoint_tensors(weights: list[Weight], file: Any) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of a checkpoint by name; a tensor of all experts follows the last expert."""
    experts: dict[str, list[Array]] = {}
    for weight in weights:
        whole = file.get_tensor(weight.name)
        for source, span in zip(weight.sources, weight.spans, strict=True):
            part = _as_stored(np.take(whole, span, weight.dim), source, weight.dim)
            if source.expert is None:
                yield source.name, part
                continue
            parts = experts.setdefault(source.name, [])
            parts.append(part)
            if len(parts) == source.shape[0]:
                yield source.name, np.stack(experts.pop(source.name))


def _as_stored(part: Array, source: Source, dim: int) -> Array:
    """Return a part of a weight in the layout of the checkpoint."""
    if source.order is not None:
        part = np.take(part, np.argsort(source.order), dim)
    part = part.T if source.is_transposed else part
    return np.ascontiguousarray(part - source.offset if source.offset else part)


def _write_files(tensors: Iterator[tuple[str, Array]], folder: Path) -> list[Path]:
    """Write tensors to one file, or to several files with an index, and return the paths."""
    from safetensors.numpy import save_file

    files: list[list[str]] = []
    held: dict[str, Array] = {}
    size = total = 0

    def flush() -> None:
        files.append(list(held))
        save_file(held, folder / f"part-{len(files)}.tmp", metadata={"format": "pt"})
        held.clear()

    for name, tensor in tensors:
        if held and size + tensor.nbytes > MOST_FILE_BYTES:
            flush()
            size = 0
        held[name] = tensor
        size, total = size + tensor.nbytes, total + tensor.nbytes
    flush()
    if len(files) == 1:
        names = ["model.safetensors"]
    else:
        names = [f"model-{number + 1:05}-of-{len(files):05}.safetensors" for number in range(len(files))]
    for number, name in enumerate(names):
        (folder / f"part-{number + 1}.tmp").replace(folder / name)
    written = [folder / name for name in names]
    return written if len(names) == 1 else [*written, _write_index(folder, names, files, total)]


def _write_index(folder: Path, names: list[str], files: list[list[str]], total: int) -> Path:
    places: Mapping[str, str] = {tensor: name for name, tensors in zip(names, files, strict=True) for tensor in tensors}
    index = folder / "model.safetensors.index.json"
    content = {"metadata": {"total_size": total}, "weight_map": places}
    write_whole(index, (json.dumps(content, indent=2) + "\n").encode())
    return index


messages.add_messages(
    weights_of_run_missing="{file} lacks weights of the model, such as {names:list}",
)
