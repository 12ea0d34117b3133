"""Base class of launchers on this machine, with checks of its system, memory and cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from meshwave.engine.costs import PeakMemory
from meshwave.engine.document import Design
from meshwave.engine.findings import Problem
from meshwave.engine.machine import has_gpu, total_memory_bytes, usable_cores
from meshwave.engine.runs.launchers._base import Launcher
from meshwave.engine.runs.run_folder import process_count

PROCESSES_PER_CORE = 4
"""Maximum number of processes per core without a warning; with more, waiting for a core dominates the step time."""


class MachineLauncher(Launcher):
    """Launcher whose processes train on this machine."""

    def missing(self) -> Problem | None:
        """Return the reason why this machine cannot train; None if it can."""
        if os.name != "posix":
            return Problem("", "unsupported_system", {})
        return Problem("", "runs_without_torch", {}) if find_spec("torch") is None else None

    def problems(self, design: Design, memory: PeakMemory | None = None, data: Path | None = None) -> list[Problem]:
        found = super().problems(design, memory, data)
        return found if memory is None or has_gpu() else [*found, *_memory_problems(design, memory)]

    def warnings(self, design: Design) -> list[Problem]:
        processes, cores = process_count(design), usable_cores()
        if has_gpu() or processes <= PROCESSES_PER_CORE * cores:
            return []
        return [Problem("", "crowded_cores", {"processes": processes, "cores": cores}, severity="warning")]


def _memory_problems(design: Design, memory: PeakMemory) -> Iterator[Problem]:
    """Check that the processes fit together in the memory of this machine, which has no GPU."""
    available = total_memory_bytes()
    needed = float((memory.total_bytes * [len(mesh.devices) for mesh in design.meshes]).sum())
    if needed > available:
        sizes = {"needed_bytes": needed, "available_bytes": float(available)}
        yield Problem("model", "machine_memory", {"processes": process_count(design), **sizes})
