"""Records of PyTorch's flight recorder: the latest collectives that a process has enqueued, used to explain an NCCL hang.

NCCL runs asynchronously to the host, so that a process can be at a later action of its program than its GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from meshwave.engine.files import write_private
from meshwave.engine.run_files import Count, RunFile, RunFolderError, read_document

ENTRIES = "500"
"""Default number of collectives that each process keeps."""
VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Environment variables of PyTorch for the number of entries; the second is the older name."""


class Entry(RunFile):
    """A collective that a process has enqueued, as PyTorch records it. Other keys of PyTorch's format are ignored."""

    process_group: list[str]
    """Name and description of its process group."""
    collective_seq_id: Count
    """Sequence number of the collective in its group."""
    profiling_name: str
    """Name such as ``nccl:all_reduce``."""
    is_p2p: bool = False
    state: str
    """``scheduled``, ``started`` or ``completed``."""
    retired: bool = False
    """True if PyTorch has observed its completion."""
    time_created_ns: int

    @property
    def is_pending(self) -> bool:
        """True if the collective has not completed."""
        return not self.retired and self.state != "completed"


class FlightRecord(RunFile):
    """The schema of ``flight-<process>.json``: the JSON of torch's flight recorder."""

    entries: list[Entry] = []


class StuckCollective(NamedTuple):
    """The earliest collective that has not completed."""

    operation: str
    number: int
    group: str
    waiting: list[int]
    """Processes that have started it."""
    behind: list[int]
    """Processes of the group that have not started it."""


def enable_flight_recorder() -> None:
    """Enable PyTorch's recording of collectives; must be called before the first process group is created."""
    if not any(name in os.environ for name in VARIABLES):
        os.environ[VARIABLES[0]] = ENTRIES


def write_flight_record(folder: Path, process: int) -> None:
    """Write the NCCL collectives of this process to the run folder, unless the disk is full or PyTorch has no record."""
    import torch._C._distributed_c10d as c10d

    dump: Any = getattr(c10d, "_dump_nccl_trace_json", None)  # not in every build of torch
    if dump is not None:
        with suppress(OSError, RuntimeError):  # the diagnosis of a hang does without the record
            found = dump(True, False)  # collectives, including completed ones
            write_private(record_file(folder, process), found if isinstance(found, str) else found.decode())


def record_file(folder: Path, process: int) -> Path:
    """Return the path of a process's flight record."""
    return folder / f"flight-{process}.json"


def read_flight_records(folder: Path, processes: int) -> dict[int, FlightRecord]:
    """Return the flight records of a run by process, without missing and damaged ones."""
    records = {}
    for process in range(processes):
        with suppress(RunFolderError):
            if (found := read_document(record_file(folder, process), FlightRecord)) is not None:
                records[process] = found
    return records


def find_stuck_collective(records: Mapping[int, FlightRecord]) -> StuckCollective | None:
    """Return the earliest collective that a process has started and not completed; None if there is none.

    A process belongs to a group if it has recorded a collective of it.
    """
    pending = [(entry.time_created_ns, entry) for entry in _read_collectives(records) if entry.is_pending]
    if not pending:
        return None
    _, first = min(pending, key=lambda each: each[0])
    name, description = (*first.process_group, "")[:2]
    latest = {process: _latest_number(record, first.process_group) for process, record in records.items()}
    number = first.collective_seq_id
    return StuckCollective(
        first.profiling_name.rpartition(":")[2],
        number,
        description if description and description != "undefined" else name,
        [process for process, last in latest.items() if last is not None and last >= number],
        [process for process, last in latest.items() if last is not None and last < number],
    )


def _read_collectives(records: Mapping[int, FlightRecord]) -> Iterator[Entry]:
    return (entry for record in records.values() for entry in record.entries if not entry.is_p2p)


def _latest_number(record: FlightRecord, group: list[str]) -> int | None:
    """Return the sequence number of the latest collective of a group; None if the process has recorded none."""
    numbers = (each.collective_seq_id for each in record.entries if each.process_group == group and not each.is_p2p)
    return max(numbers, default=None)
