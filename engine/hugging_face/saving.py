"""Writing of checkpoints for transformers: a folder with safetensors files and a configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine import messages
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.files import write_whole
from meshwave.engine.findings import Refusal
from meshwave.engine.hugging_face.tensor_files import CONFIG, SUFFIX, read_tensors
from meshwave.engine.hugging_face.weights import Source, Weight, copied_weights, map_weights
from meshwave.engine.hugging_face.writing import model_differences, write_config

Array = NDArray[Any]
LONGEST_SEQUENCE = "max_position_embeddings"
MOST_FILE_BYTES = 5_000_000_000
"""Maximum size of a file in bytes; larger models are written to several files with an index."""


def save_checkpoint(
    model: LanguageModel, weights: Path, folder: Path, initial: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write a checkpoint for transformers, and return the paths of its files.

    Args:
        model: the model section of the design.
        weights: the safetensors file of a run, with Meshwave's weight names.
        folder: the folder to write; it is created if it does not exist.
        initial: the configuration of the checkpoint that training started from; its maximum sequence length is kept.

    Raises:
        Refusal: no model type represents the model, the file lacks a weight, or the folder has a checkpoint already or
            cannot be written.
    """
    from safetensors import SafetensorError, safe_open  # only commands that write such files need it

    config, stored = _keep_longest_sequence(model, write_config(model), initial or {}), read_tensors([weights])
    mapped = map_weights(model, config["model_type"])
    missing = [weight.name for weight in mapped if stored.shapes.get(weight.name) != weight.shape]
    if missing:
        raise Refusal("weights_of_run_missing", {"file": str(weights), "names": missing[:5]})
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal("folder_not_made", {"folder": str(folder), "reason": error.strerror}) from None
    if any(folder.glob(f"*{SUFFIX}")):  # transformers would read old files beside new ones
        raise Refusal("folder_has_weights", {"folder": str(folder)})
    try:
        with safe_open(weights, framework="numpy") as file:
            config["dtype"] = str(file.get_tensor(mapped[0].name).dtype)
            copied = copied_weights(model, config["model_type"])
            found = _write_files(_checkpoint_tensors([*mapped, *copied], file), folder)
    except (OSError, SafetensorError) as error:
        raise Refusal("unwritable_file", {"path": str(folder), "reason": str(error)}) from None
    write_whole(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    return [*found, folder / CONFIG]


def _keep_longest_sequence(model: LanguageModel, config: dict[str, Any], initial: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the maximum sequence length of another one if it is longer and changes no output."""
    longest = initial.get(LONGEST_SEQUENCE)
    longer = {**config, LONGEST_SEQUENCE: longest}
    is_longer = isinstance(longest, int) and longest > config[LONGEST_SEQUENCE]
    return longer if is_longer and not model_differences(model, longer) else config


def _checkpoint_tensors(weights: list[Weight], file: Any) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of a checkpoint by name; a tensor of all experts follows the last expert."""
    experts: dict[str, list[Array]] = {}
    for weight in weights:
        whole = file.get_tensor(weight.name)
        for source, span in zip(weight.sources, weight.spans, strict=True):
            part = _to_checkpoint_layout(np.take(whole, span, weight.dim), source, weight.dim)
            if source.expert is None:
                yield source.name, part
                continue
            parts = experts.setdefault(source.name, [])
            parts.append(part)
            if len(parts) == source.shape[0]:
                yield source.name, np.stack(experts.pop(source.name))


def _to_checkpoint_layout(part: Array, source: Source, dim: int) -> Array:
    """Return a part of a weight in the layout of the checkpoint."""
    if source.order is not None:
        part = np.take(part, np.argsort(source.order), dim)
    part = part.T if source.is_transposed else part
    return np.ascontiguousarray(part - source.offset if source.offset else part)


def _write_files(tensors: Iterator[tuple[str, Array]], folder: Path) -> list[Path]:
    """Write tensors to one file, or to several files with an index, and return the paths."""
    from safetensors.numpy import save_file

    files: list[list[str]] = []
    total = 0
    with TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
        for content in _file_contents(tensors):
            save_file(content, Path(unfinished, str(len(files))), metadata={"format": "pt"})
            files.append(list(content))
            total += sum(tensor.nbytes for tensor in content.values())
        names = [f"model-{number:05}-of-{len(files):05}.safetensors" for number in range(1, len(files) + 1)]
        names = names if len(files) > 1 else ["model.safetensors"]
        for number, name in enumerate(names):
            Path(unfinished, str(number)).replace(folder / name)
    written = [folder / name for name in names]
    return written if len(names) == 1 else [*written, _write_index(folder, names, files, total)]


def _file_contents(tensors: Iterator[tuple[str, Array]]) -> Iterator[dict[str, Array]]:
    """Yield the tensors of each file by name; they are freed before those of the next file are read."""
    content: dict[str, Array] = {}
    size = 0
    for name, tensor in tensors:
        if content and size + tensor.nbytes > MOST_FILE_BYTES:
            yield content
            content.clear()
            size = 0
        content[name] = tensor
        size += tensor.nbytes
    yield content


def _write_index(folder: Path, names: list[str], files: list[list[str]], total: int) -> Path:
    places: Mapping[str, str] = {tensor: name for name, tensors in zip(names, files, strict=True) for tensor in tensors}
    index = folder / "model.safetensors.index.json"
    content = {"metadata": {"total_size": total}, "weight_map": places}
    write_whole(index, (json.dumps(content, indent=2) + "\n").encode())
    return index


messages.add_messages(
    folder_has_weights="{folder} has safetensors files already; name another folder",
    weights_of_run_missing="{file} lacks weights of the model, such as {names:list}",
)
