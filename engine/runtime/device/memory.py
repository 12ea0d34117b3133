"""Memory of a process: bytes that torch allocates during a block of code, and settings of the allocators."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from meshwave.engine.runs.recording import WITHIN, MeasuredMemory
from meshwave.engine.runtime.device.accelerator import accelerator_type, is_accelerator, synchronize

# ---- settings of the allocators ----

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # from glibc's malloc.h
TRIM_BYTES, TOP_PAD_BYTES, MMAP_BYTES = 2**31 - 1, 2**26, 2**25
ALLOCATOR_VARIABLES = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}


def keep_freed_memory() -> None:
    """Tell glibc not to return the memory of freed tensors to the kernel.

    Fetching it again, zeroed and page by page, takes one to two percent of a step on a CPU. Does nothing where there is
    no glibc.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in (
            (M_TRIM_THRESHOLD, TRIM_BYTES),
            (M_TOP_PAD, TOP_PAD_BYTES),
            (M_MMAP_THRESHOLD, MMAP_BYTES),
        ):
            mallopt(option, value)


def use_expandable_segments() -> None:
    """Let CUDA's allocator grow its segments in place, so that tensors of changing sizes leave no holes.

    To be called before the first tensor. Does nothing where the user has configured the allocator.
    """
    if accelerator_type() == "cuda" and not ALLOCATOR_VARIABLES & set(os.environ):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


# ---- counts ----

COUNTED_STEP = 4
"""The step whose memory is counted: by then all state exists. A shorter run counts its last step."""
LOG_LEVEL, ERROR_LEVEL = "FLAGS_caffe2_log_level", 2
"""Level of torch's own log. Lower levels warn of memory that was allocated before a count and is freed during it."""
KEEP_SUM = "FLAGS_caffe2_report_cpu_memory_usage"
"""Flag of the CPU allocator: it keeps the sum of the bytes that any thread allocates and frees, not only profiled threads.
It also logs each of them, below the level of errors."""


def counted_step(steps: int) -> int | None:
    """Return the step of a run whose memory is counted; None if only the first step would be left for timing."""
    return min(steps - 1, COUNTED_STEP) if steps > 2 else None


class MemoryCount:
    """Peak memory of a step: from torch's allocator on an accelerator, from a count of all allocations on a CPU.

    On a CPU, torch's profiler sees each tensor that is allocated and freed, those inside an operation too. It does not
    see what gloo's own threads free once a message is gone; the sum of torch's allocator includes that. Counting takes
    time, so that a counted step is not to be timed.
    """

    def __init__(self, device: torch.device, resident: Mapping[str, Iterable[Tensor]]) -> None:
        """``resident`` holds the tensors that exist before the step, by category."""
        self._device = device
        self._resident = {category: float(_storage_bytes(tensors)) for category, tensors in resident.items()}
        self._before = 0.0
        self._within = 0.0  # the most that the step held besides
        self._profile: profile | None = None
        self._flags = Flags({LOG_LEVEL: ctypes.c_int(ERROR_LEVEL), KEEP_SUM: ctypes.c_bool(True)})

    @property
    def slows_step(self) -> bool:
        """True if counting takes time, so that the step is not to be timed."""
        return not is_accelerator(self._device)

    def __enter__(self) -> MemoryCount:
        if self.slows_step:
            self._flags.swap()
            self._profile = _start_profile()
        else:
            synchronize(self._device)
            torch.accelerator.reset_peak_memory_stats(self._device)
            self._before = float(torch.accelerator.memory_allocated(self._device))
        return self

    def __exit__(self, *error: object) -> None:
        if self._profile is not None:
            self._profile.__exit__(*error)  # type: ignore[no-untyped-call]
            self._flags.swap()
            self._within = float(_peak_bytes(self._profile))
            self._profile = None
        else:
            synchronize(self._device)
            self._within = torch.accelerator.max_memory_allocated(self._device) - self._before

    def result(self, step: int) -> MeasuredMemory:
        """Return the count by category. An accelerator also holds other memory, such as workspaces of libraries."""
        other = {} if self.slows_step else {"other": self._before - sum(self._resident.values())}
        categories = {**self._resident, **other, WITHIN: self._within}
        how = "count of all allocations of torch" if self.slows_step else "statistics of torch's allocator"
        return MeasuredMemory(step, sum(categories.values()), categories, how)


class AllocationCount:
    """Bytes that a block of code allocates and does not free, as ``bytes`` after the block."""

    bytes = 0

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._profile: profile | None = None
        self._before = 0

    def __enter__(self) -> AllocationCount:
        if is_accelerator(self._device):
            self._before = torch.accelerator.memory_allocated(self._device)
        else:
            self._profile = _start_profile()
        return self

    def __exit__(self, *error: object) -> None:
        if self._profile is None:
            self.bytes = torch.accelerator.memory_allocated(self._device) - self._before
        else:
            self._profile.__exit__(*error)  # type: ignore[no-untyped-call]
            self.bytes = sum(_changes(self._profile.kineto_results))


def peak_allocated_bytes(device: torch.device) -> int | None:
    """Return the most bytes that tensors of this process occupied on an accelerator at once; None for a CPU."""
    return torch.accelerator.max_memory_allocated(device) if is_accelerator(device) else None


def _start_profile() -> profile:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences messages about the profiler's start and end
    started = profile(profile_memory=True)
    started.__enter__()  # type: ignore[no-untyped-call]
    return started


def _storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of the storages of tensors; a shared storage counts once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _peak_bytes(ended: profile) -> int:
    """Return the peak of (allocated - freed) bytes since the profile began.

    The allocator's sum includes what is freed by threads that the profiler does not see.
    """
    assert ended.kineto_results is not None, "a profile that has ended"
    try:
        return _peak_of_all_threads(ended.kineto_results)
    except AttributeError:  # this torch records no sums
        return max(accumulate(_changes(ended.kineto_results), initial=0))


def _peak_of_all_threads(results: Any) -> int:
    events = sorted(_allocations(results.experimental_event_tree()), key=lambda event: event.start_time_ns)
    sums = [int(event.extra_fields.total_allocated) for event in events]
    return max(sums, default=0) - (sums[0] - int(events[0].extra_fields.alloc_size) if sums else 0)


def _changes(results: Any) -> list[int]:
    """Return the bytes ``[events]`` that profiled threads allocate, negative where they free, in order of time."""
    events = ((int(event.start_ns()), int(event.nbytes())) for event in results.events() if event.name() == "[memory]")
    return [size for _, size in sorted(events)]


def _allocations(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        if event.typed[0].name == "Allocation":
            yield event
        yield from _allocations(event.children)


class Flags:
    """Flags of torch's core that otherwise only its environment or C++ sets before it starts.

    A flag may need those before it: from the first one that this torch lacks, none is set.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        """``values`` are ctypes values by the name of their flag."""
        self._other = dict(values)

    def swap(self) -> None:
        """Exchange the values of the flags and the values held here."""
        for name, value in self._other.items():
            try:
                flag = type(value).in_dll(_core(), name)
            except (OSError, ValueError):
                return
            flag.value, value.value = value.value, flag.value


def _core() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
