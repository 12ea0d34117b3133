"""Properties of this machine: its processor, memory and GPUs."""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that must be equal in all processes of a run."""
    found = {"Python": platform.python_version()}
    for name in ("meshwave", "torch"):
        with suppress(metadata.PackageNotFoundError):  # a checkout that is not installed
            found[name] = metadata.version(name)
    return found


def processor_name() -> str:
    """Return the name of the processor of this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@cache
def total_memory_bytes() -> int:
    """Return the total memory of this machine in bytes, or the limit of its control group if that is lower.

    Free memory is not used, because caches are released when memory is needed.
    """
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):  # another system, or no limit
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(sizes)


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def has_gpu() -> bool:
    """Return True if runs may find a GPU, so that their tensors are not in main memory."""
    return shutil.which("nvidia-smi") is not None and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
