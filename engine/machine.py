"""What this machine is called, and where its processes find Meshwave."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path


def processor() -> str:
    """What the cores of this machine call themselves."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def import_path(*folders: Path, given: Mapping[str, str] = os.environ) -> str:
    """``PYTHONPATH`` of a process of ours: Meshwave, then ``folders``, then what ``given`` has, from any folder."""
    others = [Path(each).absolute() for each in given.get("PYTHONPATH", "").split(os.pathsep) if each]
    return os.pathsep.join(map(str, [Path(__file__).parents[1], *folders, *others]))
