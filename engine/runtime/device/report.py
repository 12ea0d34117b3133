"""Report on torch, its libraries and devices: versions, device names, and properties of CUDA's allocator."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from meshwave.engine.runtime.device.accelerator import (
    accelerator_count,
    accelerator_device,
    device_backend,
    device_name,
)


def torch_properties() -> dict[str, Any]:
    """Return the properties of torch that ``meshwave doctor`` reports.

    ``gloo`` and ``nccl`` are true if the backends are available (``nccl`` is its version if there is a GPU for it);
    ``cuda`` is the CUDA version that torch was built for, or None; ``gpus`` are the names of the accelerators.
    """
    has_backends = dist.is_available()
    devices = [accelerator_device(index) for index in range(accelerator_count())]
    backend = device_backend(devices[0]) if devices and has_backends else None
    return {
        "gloo": has_backends and dist.is_gloo_available(),
        "nccl": _backend_version(backend) if backend else has_backends and dist.is_nccl_available(),
        "cuda": torch.version.cuda,
        "gpus": [device_name(device) for device in devices],
    }


def _backend_version(backend: str) -> str:
    return ".".join(map(str, nccl_version())) if backend == "nccl" else backend


def nccl_version() -> tuple[int, ...]:
    """Return the version of NCCL (RCCL on ROCm) that torch was built with."""
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return version


def device_memory_bytes(device: torch.device) -> int:
    """Return the memory size of an accelerator in bytes."""
    return int(torch.get_device_module(device).get_device_properties(device).total_memory)


def are_segments_expandable() -> bool:
    """Return True if all memory of CUDA's allocator is in segments that grow in place."""
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return all(segment.get("is_expandable") for segment in segments)


if __name__ == "__main__":
    print(json.dumps(torch_properties()))
