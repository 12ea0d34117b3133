"""Memory of a process: what torch allocates in a step, counted; and what is freed, kept for the next one."""

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

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # from glibc's malloc.h
KEPT, STRIDE, LARGEST = 2**31 - 1, 2**26, 2**25  # bytes


def keep_freed_memory() -> None:
    """Tell glibc not to hand tensors' memory back to the kernel at every free: fetching it anew, zeroed and
    page by page, takes one to two percent of a step on a CPU. Does nothing where there is no glibc."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((M_TRIM_THRESHOLD, KEPT), (M_TOP_PAD, STRIDE), (M_MMAP_THRESHOLD, LARGEST)):
            mallopt(option, value)


LOG_LEVEL, ERRORS = "FLAGS_caffe2_log_level", 2
"""The level of torch's own log from which on it tells of errors alone: it would warn of what was there before a count
and goes now, rightly so."""
KEEP_SUM = "FLAGS_caffe2_report_cpu_memory_usage"
"""Whether the allocator keeps the sum of what any thread allocates and frees, not only those that are profiled; it also
logs each, below the level of errors."""


def grow_in_segments() -> None:
    """Let the allocator of a GPU grow its pieces where they are: tensors whose sizes change then leave no holes between
    them. To be called before the first tensor; what a person has set stays."""
    if torch.cuda.is_available() and not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(os.environ):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


COUNTED = 4
"""The step whose memory is counted, or the last one of a shorter run: by then everything is there."""


def counted_step(steps: int) -> int | None:
    """Which step of a run is counted; none where that would leave no other one to be timed but the first."""
    return min(steps - 1, COUNTED) if steps > 2 else None


class MemoryCount:
    """What torch holds at most while a step runs: of a GPU what its allocator says, on a CPU every allocation counted.

    Counting on a CPU is done by torch's profiler, which sees each tensor come and go, those that live only within an
    operation too; of those that gloo's own threads let go, once a message is gone, torch's allocator keeps the sum. It
    takes time, so that a step that is counted is not one to be timed.
    """

    def __init__(self, device: torch.device, held: Mapping[str, Iterable[Tensor]]) -> None:
        """``held`` is what is there before the step, by what it is for."""
        self._device = device
        self._held = {kind: float(_bytes(tensors)) for kind, tensors in held.items()}
        self._before = 0.0
        self._within = 0.0  # the most that the step held besides
        self._profile: profile | None = None
        self._flags = Flags({LOG_LEVEL: ctypes.c_int(ERRORS), KEEP_SUM: ctypes.c_bool(True)})

    @property
    def takes_time(self) -> bool:
        return self._device.type != "cuda"

    def __enter__(self) -> MemoryCount:
        if self.takes_time:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would tell of its start and its end
            self._flags.swap()
            self._profile = profile(profile_memory=True)
            self._profile.__enter__()  # type: ignore[no-untyped-call]
        else:
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = float(torch.cuda.memory_allocated(self._device))
        return self

    def __exit__(self, *error: object) -> None:
        if self._profile is not None:
            self._profile.__exit__(*error)  # type: ignore[no-untyped-call]
            self._flags.swap()
            self._within = float(_most(self._profile))
            self._profile = None
        else:
            torch.cuda.synchronize(self._device)
            self._within = torch.cuda.max_memory_allocated(self._device) - self._before

    def found(self, step: int) -> MeasuredMemory:
        """What was counted; on a GPU also what else it holds, such as the libraries' workspaces."""
        other = {"other": self._before - sum(self._held.values())} if self._device.type == "cuda" else {}
        categories = {**self._held, **other, WITHIN: self._within}
        how = "told by torch's allocator" if self._device.type == "cuda" else "all allocations of torch counted"
        return MeasuredMemory(step, sum(categories.values()), categories, how)


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Of what tensors lie in, each piece of memory once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _most(found: profile) -> int:
    """The highest that the sum of all allocations less what was freed of them came to; what was there before stays out.

    It is the allocator's sum, since the profiler does not see what other threads than those of the step free.
    """
    assert found.kineto_results is not None, "a profile that was ended"
    try:
        return _most_of_all(found.kineto_results)
    except AttributeError:  # this torch tells no sums, but what the threads of the step did
        return _most_of_own(found.kineto_results)


def _most_of_all(found: Any) -> int:
    """By the allocator's sum."""
    events = sorted(_allocations(found.experimental_event_tree()), key=lambda each: each.start_time_ns)
    sums = [int(each.extra_fields.total_allocated) for each in events]
    return max(sums, default=0) - (sums[0] - int(events[0].extra_fields.alloc_size) if sums else 0)


def _most_of_own(found: Any) -> int:
    """By what the threads of the step allocate and free."""
    changes = sorted((int(each.start_ns()), int(each.nbytes())) for each in found.events() if each.name() == "[memory]")
    return max(accumulate((size for _, size in changes), initial=0))


def _allocations(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        if event.typed[0].name == "Allocation":
            yield event
        yield from _allocations(event.children)


class Flags:
    """Flags of torch's core that only its environment or C++ could set before it was there, and what to set them to.

    From the first one on that this torch keeps elsewhere nothing is set: a later one may need those before it.
    """

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        """``wanted``: ctypes values by the flags' names."""
        self._other = dict(wanted)

    def swap(self) -> None:
        """Set what is wanted, and the next time what was there before."""
        for name, value in self._other.items():
            try:
                flag = type(value).in_dll(_core(), name)
            except (OSError, ValueError):
                return
            flag.value, value.value = value.value, flag.value


def _core() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
