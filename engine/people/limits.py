"""Limits on the runs and designs of people, of each person and of all together, and results of dry runs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Annotated

from pydantic import Field

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import folder_bytes
from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import Part, nullable
from meshwave.engine.runs import Entry, Record
from meshwave.engine.runs.run_comparison import run_outcome, short_error_text
from meshwave.engine.units import duration

MEGABYTE = 1e6
MACHINE_TARGETS = ("local", "torchrun", "threads")
"""Launch targets of this machine: two for training and dry runs, and one for dry runs of designs with many devices."""


class TotalLimits(Part):
    """Limits on the runs and designs of all people together."""

    processes: Annotated[int, Field(ge=1, le=100_000)] | None = nullable("no limit")
    """Maximum number of processes of queued and active runs."""
    runs: Annotated[int, Field(ge=1, le=10_000)] | None = nullable("no limit")
    """Maximum number of queued or active runs at the same time."""
    megabytes: Annotated[float, Field(ge=0, le=1e9)] | None = nullable("no limit")
    """Disk space in MB (10^6 bytes) of the runs, above which no further run is launched."""
    designs: Annotated[int, Field(ge=0, le=10_000_000)] | None = nullable("no limit")
    """Maximum number of saved designs."""
    designs_megabytes: Annotated[float, Field(ge=0, le=1e9)] | None = nullable("no limit")
    """Disk space in MB of the saved designs with their histories, above which nothing more is saved."""


class Limits(Part):
    """Limits on the runs and designs of each person; the teacher of a workshop and administrators have none."""

    processes: Annotated[int, Field(ge=1, le=64)] = 8
    """Maximum number of processes of a run."""
    runs: Annotated[int, Field(ge=1, le=100)] = 2
    """Maximum number of queued or active runs of a person at the same time."""
    minutes: Annotated[float, Field(gt=0, le=1440)] = 10.0
    """Minutes after its start at which a run is cancelled."""
    megabytes: Annotated[float, Field(ge=0, le=1e6)] = 500.0
    """Disk space in MB (10^6 bytes) of the runs of a person, above which no further run is launched."""
    designs: Annotated[int, Field(ge=0, le=100_000)] = 500
    """Maximum number of saved designs of a person."""
    designs_megabytes: Annotated[float, Field(ge=0, le=1e6)] = 500.0
    """Disk space in MB of the saved designs of a person with their histories, above which nothing more is saved."""
    targets: Annotated[tuple[str, ...], Field(max_length=50)] = ("local", "threads")
    """Launch targets that people may use; by default those of this machine whose runs end with the server. Designers use
    those of this machine only."""
    total: TotalLimits = TotalLimits()
    """Limits on the runs and designs of all people together."""


def check_launch(limits: Limits, record: Record, person: str, processes: int) -> None:
    """Check a launch against the limits of the person and of all people.

    Raises:
        Refusal: the run has too many processes, or the runs are too many or too large.
    """
    unfinished = sum(not entry.state.is_over for entry in record.person_entries(person))
    if processes > limits.processes:
        raise Refusal("launch_processes", {"processes": processes, "most": limits.processes})
    if unfinished >= limits.runs:
        raise Refusal("launch_runs", {"runs": unfinished})
    _check_total(limits.total, record, processes)
    check_disk(limits, record, person)


def check_disk(limits: Limits, record: Record, person: str) -> None:
    """Check the disk space of a person's runs and of all runs, before a run is recorded.

    Raises:
        Refusal: the runs are too large.
    """
    used_bytes = _disk_bytes(record, record.person_entries(person))
    if used_bytes > limits.megabytes * MEGABYTE:
        raise Refusal("launch_disk", {"used_bytes": used_bytes, "most_bytes": limits.megabytes * MEGABYTE})
    if limits.total.megabytes is None:
        return
    used_bytes = _disk_bytes(record, (entry for entry in record.entries(None) if entry.person))
    if used_bytes > limits.total.megabytes * MEGABYTE:
        raise Refusal("launch_total_disk", {"used_bytes": used_bytes, "most_bytes": limits.total.megabytes * MEGABYTE})


def _check_total(limits: TotalLimits, record: Record, processes: int) -> None:
    unfinished = [entry for entry in (*record.active_runs(), *record.queued_runs()) if entry.person]
    busy = sum(entry.processes for entry in unfinished)
    if limits.runs is not None and len(unfinished) >= limits.runs:
        raise Refusal("launch_total_runs", {"runs": len(unfinished)})
    if limits.processes is not None and busy + processes > limits.processes:
        raise Refusal("launch_total_processes", {"processes": processes, "busy": busy, "most": limits.processes})


def overdue_runs(
    limits: Limits, record: Record, now_s: float, unlimited: Container[str] = frozenset()
) -> Iterator[Entry]:
    """Yield the active runs that have exceeded the time limit.

    Args:
        limits: the limits.
        record: the run database.
        now_s: the current time in Unix seconds.
        unlimited: IDs of people without limits, beside the user of the server.
    """
    for entry in record.active_runs():
        is_limited = entry.person and entry.person not in unlimited
        if is_limited and entry.started_s is not None and now_s - entry.started_s > limits.minutes * 60:
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


def _disk_bytes(record: Record, entries: Iterable[Entry]) -> int:
    return sum(folder_bytes(record.folder(entry.id)) for entry in entries)
