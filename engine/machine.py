"""Properties of this machine: its processor, memory and GPUs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from contextlib import suppress
from functools import cache
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple


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


def gpu_count() -> int:
    """Return the number of NVIDIA GPUs of this machine."""
    if not has_gpu():
        return 0
    done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=10, check=False)
    return len(done.stdout.splitlines()) if done.returncode == 0 else 0


NEAR_PATHS = frozenset({"PIX", "PXB"})
"""Paths between a GPU and a NIC that do not leave their PCIe switches, as nvidia-smi names them."""


class GpuTopology(NamedTuple):
    """Links of the GPUs of this machine."""

    links: str = ""
    """Most common link between two GPUs as nvidia-smi names it, such as ``NV18``; empty if there are no two."""
    nics: int | None = None
    """Number of NICs near a GPU, or of all NICs if none is near; None if nvidia-smi lists none."""


def gpu_topology() -> GpuTopology:
    """Return the links of the GPUs of this machine as nvidia-smi reports them."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "topo", "--matrix"]
        return parse_gpu_topology(
            subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        )
    return GpuTopology()


def parse_gpu_topology(matrix: str) -> GpuTopology:
    """Return the links in a matrix that nvidia-smi has printed; its rows are GPUs, its columns GPUs and NICs."""
    lines = [line.split() for line in re.sub(r"\x1b\[\d*m", "", matrix).splitlines() if line.strip()]
    columns = [*takewhile(lambda word: word != "CPU", lines[0])] if lines else []
    rows = [line[1 : 1 + len(columns)] for line in lines[1:] if line[0] in columns and line[0].startswith("GPU")]
    paths: dict[str, list[str]] = {
        name: [*cells] for name, cells in zip(columns, zip(*rows, strict=False), strict=False)
    }
    links = Counter(path for name in paths if name.startswith("GPU") for path in paths[name] if path != "X")
    nics = [name for name in paths if not name.startswith("GPU")]
    near = [name for name in nics if NEAR_PATHS.intersection(paths[name])]
    return GpuTopology(links.most_common(1)[0][0] if links else "", len(near or nics) or None)
