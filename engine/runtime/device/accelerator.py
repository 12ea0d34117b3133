"""Accelerators of any kind, through ``torch.accelerator`` and ``torch.get_device_module``.

The same code serves CUDA, ROCm (which torch calls ``cuda``), XPU and a simulated accelerator such as ``torch_openreg``.
No other package names a kind of accelerator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.findings import RunRefusal

UNSUITABLE_TYPES = ("mps",)
"""Types of accelerators that lack the collectives, streams or float64 that runs need."""


def accelerator_type() -> str | None:
    """Return torch's name for the available accelerators, such as ``"cuda"``; None if runs compute on the CPU."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None or found.type in UNSUITABLE_TYPES else found.type


def accelerator_count() -> int:
    """Return the number of accelerators that runs can use on this machine."""
    return 0 if accelerator_type() is None else torch.accelerator.device_count()


def accelerator_device(index: int) -> torch.device:
    """Return the accelerator with number ``index`` of this machine.

    Raises:
        RunError: no accelerator is available.
    """
    kind = accelerator_type()
    if kind is None:
        raise RunRefusal("no_accelerator")
    return torch.device(kind, index)


def current_device(kind: str) -> torch.device:
    """Return the current device of a type, such as ``"cpu"`` or ``"cuda"``."""
    return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())


def select_device(device: torch.device) -> None:
    """Make an accelerator the current device of this process."""
    torch.get_device_module(device).set_device(device.index)


def is_accelerator(device: torch.device) -> bool:
    """Return True if work on ``device`` is queued, so that a call returns before its work is done."""
    return device.type != "cpu"


def device_name(device: torch.device) -> str:
    """Return the product name of a device, such as ``NVIDIA H100``, or ``CPU``."""
    if not is_accelerator(device):
        return "CPU"
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if name is None else str(name(device))


def device_properties(device: torch.device) -> Any:
    """Return the properties of an accelerator as torch reports them, such as ``total_memory``; None for a CPU."""
    if not is_accelerator(device):
        return None
    found = getattr(torch.get_device_module(device), "get_device_properties", None)
    return None if found is None else found(device)


def device_backend(device: torch.device) -> str | None:
    """Return the torch.distributed backend that sends tensors from device to device, such as ``"nccl"``.

    None for a CPU, and if the installed torch lacks the backend: messages then pass through host memory.
    """
    if not is_accelerator(device):
        return None
    backend = dist.Backend.default_device_backend_map.get(device.type)
    return backend if backend is not None and dist.is_backend_available(backend) else None


def uses_autocast(x: Tensor) -> bool:
    """Return True if autocast applies to operations on ``x``, a tensor of an accelerator."""
    return is_accelerator(x.device) and torch.is_autocast_enabled(x.device.type)


def synchronize(device: torch.device) -> None:
    """Wait until all queued work of a device is done. Work on a CPU is never queued."""
    if is_accelerator(device):
        torch.accelerator.synchronize(device)


def synchronize_stream(device: torch.device) -> None:
    """Wait until the work queued on the current stream of a device is done."""
    if is_accelerator(device):
        torch.accelerator.current_stream(device).synchronize()


@contextmanager
def use_stream(stream: torch.Stream) -> Iterator[None]:
    """Queue the work of a ``with`` block on ``stream``."""
    outer = torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(outer)


def record_event() -> torch.Event:
    """Record an event with timing enabled on the current stream and return it."""
    event = torch.Event(enable_timing=True)
    event.record()
    return event
