"""What this machine is called, and where its processes find Meshwave."""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path


def package_versions() -> dict[str, str]:
    """Return the versions of what the processes of a run must agree on."""
    found = {"Python": platform.python_version()}
    for name in ("meshwave", "torch"):
        with suppress(metadata.PackageNotFoundError):  # a checkout that is not installed
            found[name] = metadata.version(name)
    return found


def processor() -> str:
    """What the cores of this machine call themselves."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@cache
def memory_bytes() -> float:
    """The memory of this machine, or what its control group lets us have of it.

    Not what is free just now: that is more a moment later, when caches make way.
    """
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):  # another system, or no limit
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return float(min(sizes))


@cache
def has_gpu() -> bool:
    """Whether runs may find a GPU: their tensors are then not in the machine's memory."""
    return shutil.which("nvidia-smi") is not None and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
