"""What this machine is called."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """What the cores of this machine call themselves."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
