"""Initial weights of a training run, read from a checkpoint of safetensors files and sharded for any layout of processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from meshwave.engine.document.model import LanguageModel
from meshwave.engine.hugging_face.quantization import GROUP_SCALES, GROUPS, SCALED_BLOCK, SCALES
from meshwave.engine.hugging_face.tensor_files import find_weights
from meshwave.engine.hugging_face.weights import Source, Weight
from meshwave.engine.runtime.execution.checkpoint import WEIGHTS, State


def load_initial_weights(files: Sequence[Path], model: LanguageModel, state: State) -> None:
    """Set the weights of this process from a checkpoint; other parts of the state keep their values.

    A process reads only the tensors of which it holds a part, one weight at a time.

    Raises:
        InputError: a tensor is missing or has another shape, or a file is damaged.
    """
    weights, stored = find_weights(model, files)
    by_name = {weight.name: weight for weight in weights}
    reader = WeightReader(stored.files)
    for name, part in state.items():
        if name.startswith(WEIGHTS):
            whole = reader.read(by_name[name.removeprefix(WEIGHTS)])
            for offsets, piece in part.pieces():
                piece.copy_(whole[tuple(slice(at, at + size) for at, size in zip(offsets, piece.shape, strict=True))])


class WeightReader:
    """Reads whole weights from the files of a checkpoint."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """Set up a reader of ``files``, the path of each tensor's file by the tensor's name."""
        self._files = files
        self._open: dict[Path, Any] = {}

    def read(self, weight: Weight) -> Tensor:
        """Return a whole weight, assembled from its tensors in the checkpoint."""
        return torch.cat([self._read_source(source, weight.dim) for source in weight.sources], weight.dim)

    def _read_source(self, source: Source, dim: int) -> Tensor:
        tensor = self._read_values(source.name, source.expert)
        tensor = tensor.t() if source.is_transposed else tensor
        if source.order is not None:
            tensor = tensor.index_select(dim, torch.from_numpy(source.order))
        return tensor if source.offset == 0 else tensor.to(torch.float64) + source.offset

    def _read_values(self, name: str, expert: int | None) -> Tensor:
        """Return a tensor, or one expert's part of it, after dequantization."""
        if name + GROUPS in self._files:
            return dequantize_mxfp4(
                self._read_part(name + GROUPS, expert), self._read_part(name + GROUP_SCALES, expert)
            )
        tensor = self._read_part(name, expert)
        return dequantize_fp8(tensor, self._read_part(name + SCALES, None)) if name + SCALES in self._files else tensor

    def _read_part(self, name: str, expert: int | None) -> Tensor:
        path = self._files[name]
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt")
        stored = self._open[path].get_slice(name)
        tensor: Tensor = stored[:] if expert is None else stored[expert]
        return tensor


E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of 4-bit floating-point numbers by their lowest three bits; the highest bit is the sign."""
EXPONENT_BIAS = 127


def dequantize_fp8(tensor: Tensor, scales: Tensor) -> Tensor:
    """Return a matrix in float32, whose blocks are multiplied by ``scales``."""
    for dim, size in enumerate(tensor.shape):
        scales = scales.repeat_interleave(SCALED_BLOCK, dim).narrow(dim, 0, size)
    return tensor.float() * scales.float()


def dequantize_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return a matrix ``[inputs, outputs]`` in float32.

    Args:
        blocks: [outputs, groups, 16] bytes with two numbers each, of which the first is in the lower four bits.
        scales: [outputs, groups] biased exponents, by whose powers of two the groups are multiplied.
    """
    values = torch.tensor([*E2M1_VALUES, *(-each for each in E2M1_VALUES)])
    numbers = torch.stack([blocks & 0xF, blocks >> 4], -1).flatten(-2).int()
    exponents = scales.int() - EXPONENT_BIAS
    return torch.ldexp(values[numbers], exponents.unsqueeze(-1)).flatten(-2).t()
