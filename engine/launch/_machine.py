"""What this machine has for a run, asked without torch."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path


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
