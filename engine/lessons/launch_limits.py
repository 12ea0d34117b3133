"""Runs of the learners of a workshop: limits on launches, and results of dry runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import folder_bytes
from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import Part
from meshwave.engine.runs import Entry, Record
from meshwave.engine.runs.run_comparison import run_outcome, short_error_text
from meshwave.engine.units import duration

MEGABYTE = 1e6


class LaunchLimits(Part):
    """Limits on the launches of each learner of a workshop; the teacher has none."""

    processes: Annotated[int, Field(ge=1, le=64)] = 8
    """Maximum number of processes of a run."""
    runs: Annotated[int, Field(ge=1, le=100)] = 2
    """Maximum number of queued or active runs of a learner at the same time."""
    minutes: Annotated[float, Field(gt=0, le=1440)] = 10.0
    """Minutes after its start at which a run is cancelled."""
    megabytes: Annotated[float, Field(ge=0, le=1e6)] = 500.0
    """Disk space in MB (10^6 bytes) of the runs of a learner, above which no further run is launched."""


def check_launch(limits: LaunchLimits, record: Record, person: str, processes: int) -> None:
    """Check a launch of a learner against the limits.

    Raises:
        Refusal: the run has too many processes, or the learner's runs are too many or too large.
    """
    own = record.person_entries(person)
    unfinished = sum(not entry.state.is_over for entry in own)
    if processes > limits.processes:
        raise Refusal("workshop_processes", {"processes": processes, "most": limits.processes})
    if unfinished >= limits.runs:
        raise Refusal("workshop_runs", {"runs": unfinished})
    used_bytes = sum(folder_bytes(record.folder(entry.id)) for entry in own)
    if used_bytes > limits.megabytes * MEGABYTE:
        raise Refusal("workshop_disk", {"used_bytes": used_bytes, "most_bytes": limits.megabytes * MEGABYTE})


def overdue_runs(limits: LaunchLimits, record: Record, now_s: float) -> Iterator[Entry]:
    """Yield the active runs of learners that have exceeded the time limit; ``now_s`` is in Unix seconds."""
    for entry in record.active_runs():
        if entry.person and entry.started_s is not None and now_s - entry.started_s > limits.minutes * 60:
            yield entry


def dry_run_result(record: Record, run: str) -> str:
    """Return the result of a dry run as text, such as ``12.3 ms measured (+1%)``; empty if it has not ended."""
    try:
        entry = record.get(run)
    except MeshwaveError:  # the run was deleted
        return "the dry run was deleted"
    if not entry.state.is_over:
        return ""
    outcome = run_outcome(record, entry)
    if outcome is None:
        return f"no measurement: {entry.reason or entry.state.lower()}"
    error = f" ({short_error_text(outcome.error)})" if outcome.error is not None else ""
    return f"{duration(outcome.measured_s, outcome.unit)} measured{error}"
