"""Limits on the runs of a launch target."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import Part, nullable


class TargetLimits(Part):
    """Limits on the runs of a launch target."""

    processes: PositiveInt | None = nullable("no limit")
    """Largest number of processes of a run; a larger run is refused."""
    runs: PositiveInt | None = nullable("no limit")
    """Runs that are active at the same time; others wait in the queue of Meshwave. This machine runs one at a time."""
    minutes: Annotated[float, Field(gt=0)] | None = nullable("no limit")
    """Time after its start at which a run is cancelled, even if no Meshwave follows it. A restart does not extend it."""
    megabytes: Annotated[float, Field(gt=0)] | None = nullable("no limit")
    """Disk space of the run folders of the target, as this machine sees them, above which a run is refused; 1 MB is 10^6 bytes."""


class MachineOptions(Part):
    """Options of this machine as a launch target."""

    limits: TargetLimits = TargetLimits()
    """Limits on the runs of the target."""


def check_processes(limits: TargetLimits, target: str, processes: int) -> None:
    """Check the number of processes of a run.

    Raises:
        Refusal: it is larger than the target allows.
    """
    if limits.processes is not None and processes > limits.processes:
        params = {"processes": processes, "most": limits.processes, "target": target}
        raise Refusal("target_processes", params)


def check_disk(limits: TargetLimits, target: str, used_bytes: float) -> None:
    """Check the disk space of the run folders of a target.

    Raises:
        Refusal: it is larger than the target allows.
    """
    if limits.megabytes is not None and used_bytes > 1e6 * limits.megabytes:
        params = {"used_bytes": used_bytes, "most_bytes": 1e6 * limits.megabytes, "target": target}
        raise Refusal("target_disk", params)
