"""torch's flight recorder identifies the collective in which a run hangs.

Three processes wrote the records on gloo with torch 2.13. Records of NCCL have the same format, but were not available.
Process 1 is in the second all-reduce of all processes, which processes 0 and 2 have not started.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from meshwave.engine.messages import render
from meshwave.engine.runtime.communication.flight_recorder import (
    Entry,
    FlightRecord,
    enable_flight_recorder,
    find_stuck_collective,
    read_flight_records,
)
from meshwave.engine.runtime.processes.hang import HangDiagnosis, ObservedProcess, Position
from tests.engine.runtime.test_hang import LAYOUT

RECORDED = Path(__file__).parent / "flight_records"


def test_the_collective_that_some_processes_have_not_begun_is_found() -> None:
    stuck = find_stuck_collective(read_flight_records(RECORDED, 3))

    assert stuck is not None
    assert (stuck.operation, stuck.number, stuck.group) == ("all_reduce", 2, "default_pg")
    assert (stuck.waiting, stuck.behind) == ([1], [0, 2])


def test_the_reason_of_a_hang_ends_with_the_collective() -> None:
    standing = {number: ObservedProcess(Position(pid=1, host="h", step=2, row=0, stuck_s=60.0)) for number in range(6)}
    diagnosis = HangDiagnosis(
        LAYOUT, ["A", "B", "C"], standing, find_stuck_collective(read_flight_records(RECORDED, 3))
    )

    problem = diagnosis.problem(1)

    assert json.dumps(problem.params)
    assert problem.message.endswith(
        "the flight recorder shows that mesh A, process 0 has not begun all_reduce number 2 of process group default_pg, "
        "in which process 1 waits"
    )


def test_a_collective_that_all_have_begun_and_that_does_not_end_names_them() -> None:
    pending = Entry(
        process_group=["3", "undefined"],
        collective_seq_id=7,
        profiling_name="nccl:all_gather",
        state="started",
        time_created_ns=5,
    )
    other = pending.model_copy(update={"process_group": ["4", ""], "collective_seq_id": 1, "state": "completed"})
    records = {0: FlightRecord(entries=[pending]), 1: FlightRecord(entries=[pending]), 2: FlightRecord(entries=[other])}

    stuck = find_stuck_collective(records)

    assert stuck is not None
    assert (stuck.group, stuck.waiting, stuck.behind) == ("3", [0, 1], [])
    assert "was begun by all of its processes (0 and 1) and does not end" in render(
        "collective_not_ended", stuck._asdict()
    )
    assert find_stuck_collective({2: records[2]}) is None


def test_damaged_and_missing_records_are_left_out(tmp_path: Path) -> None:
    shutil.copy(RECORDED / "flight-1.json", tmp_path)
    (tmp_path / "flight-0.json").write_text('{"entries": [3]}')

    assert [*read_flight_records(tmp_path, 4)] == [1]


def test_the_number_of_entries_that_a_user_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE", raising=False)
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "9")
    enable_flight_recorder()
    assert "TORCH_FR_BUFFER_SIZE" not in os.environ
