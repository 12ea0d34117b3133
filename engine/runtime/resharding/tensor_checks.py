"""Checks of the tensors that a process passes to a transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwave.engine.findings import Refusal
from meshwave.engine.resharding import Load, split_spec


def check_shard(who: str, name: str, tensor: Tensor | None, shape: tuple[int, ...] | None, dtype: torch.dtype) -> None:
    """Check that a tensor has the shape and dtype of a shard.

    Args:
        who: the start of the error message: a process and its verb.
        name: the name of the whole tensor, or an empty string.
        tensor: the tensor; None if none is passed.
        shape: the shape of the shard; None if the process has no shard.
        dtype: the dtype of the shard.

    Raises:
        InputError: the shape or dtype differs, the tensor is missing, or the process has no shard but passes a tensor.
    """
    params: dict[str, Any] = {"who": who, "tensor": name}
    if shape is None:
        if tensor is not None and tensor.numel():
            given = {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}
            raise Refusal("unexpected_shard", {**params, **given})
        return
    params |= {"shape": list(shape), "dtype": dtype_name(dtype)}
    if tensor is None:
        if 0 not in shape:
            raise Refusal("missing_shard", params)
    elif tuple(tensor.shape) != shape or tensor.dtype != dtype:
        given = {"given_shape": list(tensor.shape), "given_dtype": dtype_name(tensor.dtype)}
        raise Refusal("wrong_shard", {**params, **given})


def check_no_overlap(locals_: Sequence[Tensor | None], intos: Sequence[Tensor | None]) -> None:
    """Check that no receive buffer shares memory with a tensor that is sent.

    Raises:
        InputError: two tensors share memory.
    """
    spans = [
        (tensor.device, *_address_range(tensor), is_written)
        for tensors, is_written in ((locals_, False), (intos, True))
        for tensor in tensors
        if tensor is not None and tensor.numel()
    ]
    for device in {span[0] for span in spans}:
        reached = {
            False: 0,
            True: 0,
        }  # highest end address so far of tensors that are read and of tensors that are written
        for _, first, last, is_written in sorted(
            (span for span in spans if span[0] == device), key=lambda span: span[1:3]
        ):
            if first < reached[not is_written]:
                raise Refusal("overlapping_shards")
            reached[is_written] = max(reached[is_written], last)


def check_summable(load: Load, dtype: torch.dtype) -> None:
    """Check that the partial sums of a partial tensor can be added in its dtype.

    Raises:
        InputError: the tensor is partial, and its dtype does not support addition.
    """
    is_number = dtype.is_complex or (dtype.itemsize > 1 if dtype.is_floating_point else dtype != torch.bool)
    if split_spec(load.source[1])[1] and not is_number:
        raise Refusal("unsupported_sum_dtype", {"tensor": load.name, "dtype": dtype_name(dtype)})


def _address_range(tensor: Tensor) -> tuple[int, int]:
    """Return the first address of a tensor's memory and the address after its last byte."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its module, such as ``float32``."""
    return str(dtype).removeprefix("torch.")
