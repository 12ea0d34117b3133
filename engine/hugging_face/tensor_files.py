"""Safetensors files with the weights of a model: reading their headers, and checking that they fit a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from json import JSONDecodeError, loads
from pathlib import Path
from typing import Any, NamedTuple

from meshwave.engine import messages
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.findings import DesignError, Problem, Refusal
from meshwave.engine.hugging_face.keys import MODEL_TYPES
from meshwave.engine.hugging_face.quantization import MXFP4_TYPE, SCALED_TYPE, join_quantized
from meshwave.engine.hugging_face.weights import Shape, Weight, identical_weights, map_weights
from meshwave.engine.hugging_face.writing import model_differences, representing_configs, write_config

CONFIG, SUFFIX, INDEX_SUFFIX = "config.json", ".safetensors", ".safetensors.index.json"
LARGEST_HEADER_BYTES = 100_000_000
WEIGHT_TYPES = ("F64", "F32", "F16", "BF16", SCALED_TYPE, MXFP4_TYPE)
"""Types of tensors from which weights can be read."""
MOST_PROBLEMS = 20
"""Maximum number of problems of a checkpoint that are shown; a checkpoint of another model has thousands."""


class StoredTensors(NamedTuple):
    """Tensors of a checkpoint; a quantized tensor and its scales are one tensor."""

    shapes: Mapping[str, Shape]
    types: Mapping[str, str]
    """The type of each tensor, as safetensors names it unless it is quantized."""
    files: Mapping[str, Path]
    """File that contains each tensor; a tensor of scales has its own entry."""


def checkpoint_files(path: Path) -> list[Path]:
    """Return the files of a checkpoint; the configuration is last.

    The checkpoint is given as a folder, as one file, or as the index of several files.

    Raises:
        Refusal: there are no files, or the index names a file that does not exist.
    """
    folder = path if path.is_dir() else path.parent
    if path.is_file() and not path.name.endswith((SUFFIX, INDEX_SUFFIX)):
        raise Refusal("not_safetensors", {"file": str(path)})
    found = [path] if path.name.endswith(SUFFIX) and path.is_file() else []
    if not found:
        indices = [path] if path.is_file() else sorted(folder.glob(f"*{INDEX_SUFFIX}"))
        found = _indexed_files(indices[0]) if indices else sorted(folder.glob(f"*{SUFFIX}"))
    missing = [file for file in found if not file.is_file()]
    if missing or not found:
        raise Refusal("no_safetensors", {"path": str(missing[0] if missing else path)})
    return [*found, *(file for file in [folder / CONFIG] if file.is_file())]


def _indexed_files(index: Path) -> list[Path]:
    try:
        names = set(loads(index.read_text())["weight_map"].values())
        return [index.parent / Path(name).name for name in sorted(names)]
    except (OSError, JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        raise Refusal("damaged_index", {"file": str(index)}) from None


def read_tensors(files: Sequence[Path]) -> StoredTensors:
    """Return the tensors in the safetensors files among ``files``.

    Raises:
        Refusal: a file is damaged.
    """
    shapes: dict[str, Shape] = {}
    types: dict[str, str] = {}
    places: dict[str, Path] = {}
    for path in files:
        if path.name.endswith(SUFFIX):
            for name, (shape, dtype) in _read_header(path).items():
                shapes[name], types[name], places[name] = shape, dtype, path
    return StoredTensors(*join_quantized(shapes, types), places)


def _read_header(path: Path) -> dict[str, tuple[Shape, str]]:
    """Return the shape and type of each tensor of a safetensors file.

    The file begins with the length of its header in 8 bytes. The header is JSON with the type, shape and position of
    each tensor.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > LARGEST_HEADER_BYTES:
                raise ValueError(f"its header has {length} bytes")
            header = loads(file.read(length))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            found = {name: (tuple(entry["shape"]), str(entry["dtype"])) for name, entry in tensors.items()}
            last = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
            if path.stat().st_size != 8 + length + last:
                raise ValueError("it is cut short")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Refusal("damaged_safetensors", {"file": str(path), "reason": str(error)}) from None
    return found


def find_weights(model: LanguageModel, files: Sequence[Path]) -> tuple[list[Weight], StoredTensors]:
    """Return the weights of a model with their sources in a checkpoint, and the tensors of the checkpoint.

    Raises:
        DesignError: the checkpoint is of another model, or tensors are missing, have other shapes or are quantized. A
            checkpoint without a configuration is also of another model if it has more tensors.
        Refusal: a file is damaged, or no tensor names are known for the model.
    """
    stored, config = read_tensors(files), read_config(files)
    named = [_find_stored_names(weights, stored) for weights in _naming_schemes(model, config)]
    best = min(
        named, key=lambda weights: (len(_missing_tensors(weights, stored)), len(_surplus_tensors(weights, stored)))
    )
    problems = list(_find_problems(best, stored))
    if config is None:
        problems += [
            Problem("", "surplus_tensor", {"tensor": name, "shape": list(stored.shapes[name])})
            for name in _surplus_tensors(best, stored)
        ]
    if problems:
        if len(named) == 1:
            write_config(model)  # says why the tensors have no other names
        left = len(problems) - MOST_PROBLEMS
        more = [Problem("", "more_tensors", {"count": left})] if left > 0 else []
        raise DesignError(problems[:MOST_PROBLEMS] + more)
    return best, stored


def _naming_schemes(model: LanguageModel, config: dict[str, Any] | None) -> Iterator[list[Weight]]:
    """Yield the weights with their sources under each naming scheme that a checkpoint with ``config`` may use."""
    yield identical_weights(model)
    if config is None:
        yield from (map_weights(model, each["model_type"]) for each in representing_configs(model))
        return
    differing = model_differences(model, config)
    if differing:
        raise DesignError(
            [
                Problem(f"model.{key}", "weights_of_another_model", {"own": str(own), "stored": str(other)})
                for key, (own, other) in differing.items()
            ]
        )
    yield map_weights(model, config["model_type"])


def read_config(files: Sequence[Path]) -> dict[str, Any] | None:
    """Return the configuration among the files of a checkpoint.

    None if there is none or its model type is unknown, so that only the tensors decide.
    """
    path = next((path for path in files if path.name == CONFIG), None)
    try:
        config = loads(path.read_text()) if path is not None else None
    except (OSError, ValueError):
        return None
    text = config.get("text_config") if isinstance(config, dict) else None
    found = text if isinstance(text, dict) else config
    is_known = isinstance(found, dict) and found.get("model_type") in MODEL_TYPES
    return found if is_known else None


def _find_stored_names(weights: list[Weight], stored: StoredTensors) -> list[Weight]:
    """Return the weights with the tensor names of a checkpoint.

    In a checkpoint without the head, a prefix is missing; norms of older ones have a gamma and a beta.
    """

    def rename(name: str) -> str:
        older = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
        return next((each for each in (name, name.partition(".")[2], older) if each in stored.shapes), name)

    return [
        weight._replace(sources=tuple(source._replace(name=rename(source.name)) for source in weight.sources))
        for weight in weights
    ]


def _missing_tensors(weights: list[Weight], stored: StoredTensors) -> list[str]:
    return [source.name for weight in weights for source in weight.sources if source.name not in stored.shapes]


def _surplus_tensors(weights: list[Weight], stored: StoredTensors) -> list[str]:
    """Return the names of tensors that are not part of the model, except constants that older versions stored."""
    used = {source.name for weight in weights for source in weight.sources}
    return sorted(name for name in stored.shapes.keys() - used if not _is_constant(name, stored.shapes[name]))


def _is_constant(name: str, shape: Shape) -> bool:
    """Return True if a tensor holds rotary frequencies, numbers of positions, a causal mask, or a copy of a weight."""
    is_mask = name.endswith((".attn.bias", ".attention.bias")) and shape[:2] == (1, 1)
    is_copy = name.endswith((".shared_head.head.weight", ".embed_tokens.weight"))  # multi-token prediction
    return is_mask or is_copy or name.endswith((".inv_freq", ".position_ids", ".masked_bias"))


def _find_problems(weights: list[Weight], stored: StoredTensors) -> Iterator[Problem]:
    for name, shape in {source.name: source.shape for weight in weights for source in weight.sources}.items():
        if name not in stored.shapes:
            yield Problem("", "missing_tensor", {"tensor": name, "shape": list(shape)})
        elif stored.shapes[name] != shape:
            params = {"tensor": name, "shape": list(stored.shapes[name]), "expected": list(shape)}
            yield Problem("", "misshapen_tensor", params)
        elif stored.types[name] not in WEIGHT_TYPES:
            yield Problem(
                "", "quantized_tensor", {"tensor": name, "type": stored.types[name], "known": list(WEIGHT_TYPES)}
            )


messages.add_messages(
    not_safetensors="{file} is neither a safetensors file nor an index of such files; pass one of these or their folder",
    no_safetensors="{path} does not exist or has no safetensors file; pass the folder of a checkpoint",
    damaged_index="{file} is damaged: it has no weight_map; download it again",
    damaged_safetensors="{file} is damaged: {reason}",
    weights_of_another_model="the weights are of a model with {stored} instead of {own}; import the config.json of the checkpoint",
    missing_tensor="tensor {tensor} is missing; its shape should be {shape}",
    misshapen_tensor="tensor {tensor} has shape {shape} instead of {expected}",
    quantized_tensor="tensor {tensor} has the type {type}, which is quantized (supported: {known:list}); dequantize the checkpoint",
    surplus_tensor=(
        "tensor {tensor} with shape {shape} is not part of the model; import the config.json of the checkpoint, or put it "
        "beside the tensors"
    ),
    more_tensors="{count} more tensors are missing, have other shapes, are quantized or are not part of the model",
)
