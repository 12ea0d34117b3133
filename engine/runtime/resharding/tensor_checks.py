"""What is wrong with the tensors that a process gives, in words."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshwave.engine.errors import InputError
from meshwave.engine.resharding import Load, split_spec


def check_shard(who: str, name: str, tensor: Tensor | None, shape: tuple[int, ...] | None, dtype: torch.dtype) -> None:
    """Compare a tensor with the shard that it should be; ``name`` is that of the whole tensor, where it has one.

    Raises:
        InputError: it is of another shape or dtype, is missing, or is given where there is no shard.
    """
    of = f" of {name}" if name else ""
    if shape is None:
        if tensor is not None and tensor.numel():
            whole = name or "the tensor"
            raise InputError(f"{who} no part of {whole}, and was given one of {_described(tensor)}")
    elif tensor is None:
        if 0 not in shape:
            raise InputError(f"{who} a shard of {_sizes(shape)} {dtype_name(dtype)}{of}, and was given none")
    elif tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise InputError(
            f"{who} a shard of {_sizes(shape)} {dtype_name(dtype)}{of}, and was given {_described(tensor)}"
        )


def check_apart(locals_: Sequence[Tensor | None], intos: Sequence[Tensor | None]) -> None:
    """
    Raises:
        InputError: what comes would overwrite what is yet to go.
    """
    spans = [
        (tensor.device, *_memory(tensor), is_written)
        for tensors, is_written in ((locals_, False), (intos, True))
        for tensor in tensors
        if tensor is not None and tensor.numel()
    ]
    for device in {span[0] for span in spans}:
        reached = {False: 0, True: 0}  # up to where shards that are sent, or received, have come
        for _, first, last, is_written in sorted(
            (span for span in spans if span[0] == device), key=lambda span: span[1:3]
        ):
            if first < reached[not is_written]:
                raise InputError(
                    "the shard that is sent and the one that is received share memory; give a tensor of its own"
                )
            reached[is_written] = max(reached[is_written], last)


def check_sum(load: Load, dtype: torch.dtype) -> None:
    """
    Raises:
        InputError: the tensor is partial, and its dtype knows no sum.
    """
    is_number = dtype.is_complex or (dtype.itemsize > 1 if dtype.is_floating_point else dtype != torch.bool)
    if split_spec(load.source[1])[1] and not is_number:
        name = f" of {load.name}" if load.name else ""
        raise InputError(f"addends{name} of {dtype_name(dtype)} cannot be summed; convert the tensor first")


def _memory(tensor: Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _described(tensor: Tensor) -> str:
    return f"{_sizes(tensor.shape)} {dtype_name(tensor.dtype)}"


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one element"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
