"""Memory of a process: bytes that torch allocates during a block of code, and settings of its allocators."""

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
    """Configure glibc to keep the memory of freed tensors instead of returning it to the kernel.

    Requesting the memory again, zeroed and page by page, takes one to two percent of a step on a CPU. Without glibc the
    call has no effect.
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
    """Configure CUDA's allocator to grow its segments in place, which avoids fragmentation by changing tensor sizes.

    Must be called before the first tensor is allocated. Has no effect if the user has configured the allocator.
    """
    if accelerator_type() == "cuda" and not ALLOCATOR_VARIABLES & set(os.environ):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


# ---- counts ----

COUNTED_STEP = 4
"""Number of the step whose memory is counted: by then all training state exists. A shorter run counts its last step."""
LOG_LEVEL, ERROR_LEVEL = "FLAGS_caffe2_log_level", 2
"""Level of torch's own log. Lower levels warn about memory that was allocated before a count and is freed during it."""
KEEP_SUM = "FLAGS_caffe2_report_cpu_memory_usage"
"""Flag of the CPU allocator: it sums the bytes that any thread allocates and frees, not only profiled threads. It also
logs each allocation, below the level of errors."""


def step_with_memory_count(steps: int) -> int | None:
    """Return the step of a run whose memory is counted; None if that would leave only the first step for timing."""
    return min(steps - 1, COUNTED_STEP) if steps > 2 else None


class MemoryCount:
    """Peak memory of a step: from torch's allocator on an accelerator, from a count of all allocations on a CPU.

    On a CPU, torch's profiler counts every tensor that is allocated and freed, including tensors inside an operation.
    It misses the memory that gloo's own threads free after a message; the sum of torch's allocator includes that
    memory. Counting takes time, so a counted step should not be timed.
    """

    def __init__(self, device: torch.device, resident: Mapping[str, Iterable[Tensor]]) -> None:
        """Prepare a count. ``resident`` contains the tensors that exist before the step, by category."""
        self._device = device
        self._resident = {category: float(_storage_bytes(tensors)) for category, tensors in resident.items()}
        self._before = 0.0
        self._within = 0.0  # peak bytes of the step in addition to the resident tensors
        self._profile: profile | None = None
        self._flags = Flags({LOG_LEVEL: ctypes.c_int(ERROR_LEVEL), KEEP_SUM: ctypes.c_bool(True)})

    @property
    def slows_step(self) -> bool:
        """True if counting slows the step, so that its duration must not be used."""
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
        """Return the counted bytes by category. An accelerator also holds other memory, such as library workspaces."""
        other = {} if self.slows_step else {"other": self._before - sum(self._resident.values())}
        categories = {**self._resident, **other, WITHIN: self._within}
        how = "count of all allocations of torch" if self.slows_step else "statistics of torch's allocator"
        return MeasuredMemory(step=step, peak_bytes=sum(categories.values()), by_category=categories, how=how)


class AllocationCount:
    """Context manager that counts the bytes that its block allocates and does not free; the result is ``bytes``."""

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
            self.bytes = sum(_allocation_changes(self._profile.kineto_results))


def peak_allocated_bytes(device: torch.device) -> int | None:
    """Return the peak of the bytes that tensors of this process occupied on an accelerator; None for a CPU."""
    return torch.accelerator.max_memory_allocated(device) if is_accelerator(device) else None


def _start_profile() -> profile:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences messages about the profiler's start and end
    started = profile(profile_memory=True)
    started.__enter__()  # type: ignore[no-untyped-call]
    return started


def _storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the size in bytes of the storages of tensors; a shared storage counts once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _peak_bytes(ended: profile) -> int:
    """Return the peak of (allocated - freed) bytes since the profile began.

    The allocator's sum includes memory that is freed by threads that the profiler does not observe.
    """
    assert ended.kineto_results is not None, "a profile that has ended"
    try:
        return _peak_of_all_threads(ended.kineto_results)
    except AttributeError:  # this torch records no sums
        return max(accumulate(_allocation_changes(ended.kineto_results), initial=0))


def _peak_of_all_threads(results: Any) -> int:
    events = sorted(_allocation_events(results.experimental_event_tree()), key=lambda event: event.start_time_ns)
    sums = [int(event.extra_fields.total_allocated) for event in events]
    return max(sums, default=0) - (sums[0] - int(events[0].extra_fields.alloc_size) if sums else 0)


def _allocation_changes(results: Any) -> list[int]:
    """Return the bytes ``[events]`` that profiled threads allocate (negative if they free them), in order of time."""
    events = ((int(event.start_ns()), int(event.nbytes())) for event in results.events() if event.name() == "[memory]")
    return [size for _, size in sorted(events)]


def _allocation_events(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        if event.typed[0].name == "Allocation":
            yield event
        yield from _allocation_events(event.children)


class Flags:
    """Flags of torch's core that otherwise can be set only by environment variables or C++ before it starts.

    A flag may depend on earlier ones: if this version of torch lacks a flag, neither it nor any later flag is set.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Store ``values``, ctypes values by flag name, for :meth:`swap`."""
        self._other = dict(values)

    def swap(self) -> None:
        """Exchange the stored values with the current values of the flags."""
        for name, value in self._other.items():
            try:
                flag = type(value).in_dll(_torch_core_library(), name)
            except (OSError, ValueError):
                return
            flag.value, value.value = value.value, flag.value


def _torch_core_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
