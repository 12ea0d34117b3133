"""Recording of spans: written step by step, and read as a timeline even if files are truncated."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwave.engine.errors import RunError
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program, parse_program
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.runs.recording import (
    SPAN,
    STEP,
    ClockOffset,
    Clocks,
    LayerPass,
    MeasuredMemory,
    ProcessClock,
    Recorder,
    StepsRecorder,
    read_clocks,
    read_layer_steps,
    read_memory,
    read_recording,
    write_clocks,
)

US = 1000  # nanoseconds


def two_ranks() -> Program:
    program = parse_program("""
        0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD STEP
        1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD STEP
    """)
    other = np.where((program.op >= Op.SEND_F) & (program.op <= Op.RECV_B), 1 - program.rank, -1)
    return replace(program, peer=other.astype(np.int32))


# Microseconds of each action: start, end, wait.
RANK_0 = [(100, 200, 0), (200, 201, 0), (201, 700, 498), (700, 800, 498), (800, 850, 5), (855, 900, 5)]
RANK_1 = [(90, 250, 160), (250, 400, 160), (400, 600, 0), (600, 602, 0), (602, 860, 258), (860, 950, 258)]


def record(folder: Path, *, steps: int = 1, slow: tuple[int, ...] = ()) -> None:
    """Record ``steps`` steps; those in ``slow`` last ten times as long."""
    program = two_ranks()
    for rank, rows in enumerate((RANK_0, RANK_1)):
        recorder = Recorder(folder, program, ["A", "B"], process=rank, rank=rank)
        for step in range(steps):
            start, end, wait = np.array(rows, np.int64).T * US * (10 if step in slow else 1)
            recorder.write(step, start + step * 10**9, end + step * 10**9, wait)
        recorder.close()


def spans(timeline: Timeline) -> dict[str, tuple[float, float, str]]:
    """Return each span in microseconds, with its cause."""
    names = [f"{timeline.rank[span]}:{timeline.action(span)}" for span in range(len(timeline))]
    names.append("")  # no cause
    return {
        names[span]: (
            round(timeline.start[span] * 1e6),
            round(timeline.end[span] * 1e6),
            names[timeline.cause[span]],
        )
        for span in range(len(timeline))
    }


def test_the_files_of_all_ranks_are_joined_to_one_timeline(tmp_path: Path) -> None:
    record(tmp_path)

    timeline = read_recording(tmp_path).timeline()

    assert spans(timeline) == {
        "0:0F0": (0, 100, ""),
        "0:0SEND_F0": (100, 150, "0:0F0"),  # until the other rank had it in hand
        "0:0B0": (600, 700, "1:1SEND_B0"),  # it stood still for the gradient
        "0:0REDUCE_GRAD": (700, 750, "0:0B0"),
        "0:STEP": (755, 800, "0:0B0"),  # the sum was there at once
        "1:1F0": (150, 300, "0:0SEND_F0"),
        "1:1B0": (300, 500, "1:1F0"),
        "1:1SEND_B0": (500, 600, "1:1B0"),
        "1:1REDUCE_GRAD": (502, 760, "1:1B0"),
        "1:STEP": (760, 850, "1:1REDUCE_GRAD"),
    }
    assert timeline.meshes == ("A", "B")
    assert timeline.digest == two_ranks().digest
    assert timeline.peer[timeline.is_transfer].tolist() == [1, 0]


def test_the_typical_step_is_the_median_without_the_first(tmp_path: Path) -> None:
    record(tmp_path, steps=6, slow=(0, 1, 2))

    recording = read_recording(tmp_path)

    assert recording.steps == (0, 1, 2, 3, 4, 5)
    assert recording.makespans == pytest.approx([8.5e-3] * 3 + [8.5e-4] * 3)
    assert (recording.timed_steps, recording.typical_step, recording.warm_up) == ((3, 4, 5), 4, 3)
    assert recording.timeline(1).end.max() == pytest.approx(8.5e-3)


@pytest.mark.parametrize("kept", [0, 10, 400, 600, 900, 10**6])
def test_a_truncated_recording_shows_its_complete_steps(kept: int, tmp_path: Path) -> None:
    record(tmp_path, steps=4)
    path = tmp_path / "spans-1.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    header = whole.index(b"\n") + 1

    recording = read_recording(tmp_path)

    steps = min(4, max(0, kept - header) // (6 * SPAN.itemsize))
    assert recording.steps == tuple(range(steps))
    if steps:
        assert len(recording.timeline(steps - 1)) == 10
    else:
        with pytest.raises(RunError, match="not all ranks have recorded a training step"):
            recording.timeline()


@pytest.mark.parametrize("damage", [b"\xff\n", b"[]\n", b"{}\n", b'{"format": "meshwave-spans/1"}\n', None])
def test_a_damaged_recording_is_reported(damage: bytes | None, tmp_path: Path) -> None:
    record(tmp_path)
    path = tmp_path / "spans-1.bin"
    path.unlink()
    path.mkdir() if damage is None else path.write_bytes(damage)

    with pytest.raises(RunError, match=r"spans-1\.bin is damaged"):
        read_recording(tmp_path)


def test_a_folder_without_spans_is_an_empty_recording(tmp_path: Path) -> None:
    assert read_recording(tmp_path).steps == ()


def test_a_step_that_was_not_recorded_is_refused(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(RunError, match="step 7 was not recorded"):
        read_recording(tmp_path).timeline(7)


def test_the_steps_of_a_long_run_are_recorded_at_growing_intervals() -> None:
    due = [step for step in range(100_000) if Recorder.is_due(step)]
    assert due[:100] == list(range(100))
    assert len(due) == 100 + 3 * 90


def test_reading_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import meshwave.engine.runs.recording"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[3])


# ---- inside an action ----


def record_inside(folder: Path, took_us: tuple[int, ...]) -> None:
    """Record training steps of one process: a forward, a shared slot, and a backward."""
    program = parse_program("0F0 (0F1;0B0)OVERLAP_F_B 0B1 0REDUCE_GRAD STEP")
    spans, inside = Recorder(folder, program, ["A"], 0, 0), StepsRecorder(folder, 0, ("gate", "experts"))
    for step, took in enumerate(took_us):
        at = np.array([0, took, took, 2 * took, 3 * took, 3 * took], np.int64) * US + step * 10**9
        spans.write(step, at, at + took * US, np.zeros(6, np.int64))
        found = [
            (0, 1, 0, LayerPass.FORWARD, -1, at[0] + 10, at[0] + 20),
            (0, 1, 1, LayerPass.FORWARD, -1, at[1] + 10, at[1] + 20),
            (0, 1, 0, LayerPass.BACKWARD, -1, at[1] + 40, at[1] + 50),
            (0, 1, 1, LayerPass.WEIGHTS, -1, at[3] + 30, at[3] + 40),
            (0, 1, 1, LayerPass.FORWARD, -1, at[3] + 10, at[3] + 20),  # computed again
        ]
        if inside.is_due(step):
            inside.write(step, np.array(found, STEP))
    spans.close()
    inside.close()


def shown(folder: Path, action: Action) -> tuple[int, list[tuple[int, int]]]:
    """Return the step that is shown, and the ops and directions of the steps within the action."""
    found = read_layer_steps(folder, [0], action)
    (rows,) = found.steps
    return found.step, list(zip(rows["op"].tolist(), rows["way"].tolist(), strict=True))


def test_the_steps_within_an_action_are_ordered_by_their_start(tmp_path: Path) -> None:
    record_inside(tmp_path, (900, 300, 100, 200, 400))

    assert shown(tmp_path, Action(Op.F, 0, 0)) == (3, [(0, LayerPass.FORWARD)])  # of 100, 200, 300 and 400 us
    assert shown(tmp_path, Action(Op.B, 0, 1))[1] == [(1, LayerPass.FORWARD), (1, LayerPass.WEIGHTS)]


def test_steps_in_a_shared_slot_are_distinguished_by_direction(tmp_path: Path) -> None:
    record_inside(tmp_path, (100,))

    assert shown(tmp_path, Action(Op.F, 0, 1))[1] == [(1, LayerPass.FORWARD)]
    assert shown(tmp_path, Action(Op.B, 0, 0))[1] == [(0, LayerPass.BACKWARD)]


def test_a_long_run_keeps_the_block_steps_of_some_steps() -> None:
    kept = [step for step in range(2000) if StepsRecorder.is_due(step)]

    assert kept == [*range(10), *range(10, 100, 10), *range(100, 1000, 100), 1000]
    assert all(Recorder.is_due(step) for step in kept)


def test_missing_recordings_are_reported(tmp_path: Path) -> None:
    record_inside(tmp_path, (100, 100))

    with pytest.raises(RunError, match="the recording has no 3F0 on this mesh"):
        read_layer_steps(tmp_path, [0], Action(Op.F, 3, 0))
    spans = tmp_path / "spans-0.bin"
    whole = spans.read_bytes()
    spans.write_bytes(whole[: whole.index(b"\n") + 20])
    with pytest.raises(RunError, match="not all processes of this mesh have recorded a step"):
        read_layer_steps(tmp_path, [0], Action(Op.F, 0, 0))
    spans.write_bytes(whole)
    (tmp_path / "steps-0.bin").write_bytes(b"")
    with pytest.raises(RunError, match="damaged"):
        read_layer_steps(tmp_path, [0], Action(Op.F, 0, 0))
    with pytest.raises(RunError, match="spans-1"):
        read_layer_steps(tmp_path, [0, 1], Action(Op.F, 0, 0))


SKIP = """
    0F0 0SEND_F0 0SEND_F0TO2 0RECV_B0 0RECV_B0FROM2 0B0
    1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0
    2RECV_F0FROM0 2RECV_F0 2F0 2B0 2SEND_B0 2SEND_B0TO0
"""
SKIPPED = [
    [(0, 100, 0), (100, 101, 0), (101, 102, 0), (102, 950, 800), (102, 900, 0), (950, 1000, 800)],
    [(0, 150, 150), (150, 250, 150), (250, 251, 0), (251, 800, 500), (800, 900, 500), (900, 901, 0)],
    [(0, 400, 100), (0, 300, 300), (400, 500, 400), (500, 600, 0), (600, 601, 0), (601, 602, 0)],
]
"""Message order with skip connections: a skipped tensor arrives later than the tensor of the stage between, and its
gradient earlier.
"""


def test_skipping_tensors_are_timed_as_separate_messages(tmp_path: Path) -> None:
    program = parse_program(SKIP)
    for rank, rows in enumerate(SKIPPED):
        recorder = Recorder(tmp_path, program, ["A", "B", "C"], process=rank, rank=rank)
        recorder.write(0, *(np.array(rows, np.int64).T * US))
        recorder.close()

    timeline = read_recording(tmp_path).timeline()

    found = spans(timeline)
    assert found["0:0SEND_F0TO2"] == (101, 400, "0:0F0")
    assert found["0:0SEND_F0"] == (100, 150, "0:0F0")
    assert found["2:2SEND_B0TO0"] == (601, 900, "2:2B0")
    assert found["2:2F0"] == (400, 500, "0:0SEND_F0TO2"), "it stood still for the later one"
    assert found["0:0B0"] == (950, 1000, "1:1SEND_B0")
    assert timeline.other[timeline.is_transfer].tolist() == [-1, 2, -1, -1, -1, 0]


def test_a_message_that_arrived_long_ago_delays_no_action(tmp_path: Path) -> None:
    """A busy machine needs a moment to deliver even an available message."""
    program, ms = parse_program(SKIP), 1000
    there = [(0, 102 * ms, 60), (0, 102 * ms - 60, 99 * ms), (102 * ms, 103 * ms, 99 * ms)]  # the skip sent at 101 us
    passes_by = [*SKIPPED[1][:2], (102 * ms - 80, 102 * ms, 0), *SKIPPED[1][3:]]
    for rank, rows in enumerate((SKIPPED[0], passes_by, [*there, *SKIPPED[2][3:]])):
        recorder = Recorder(tmp_path, program, ["A", "B", "C"], process=rank, rank=rank)
        recorder.write(0, *(np.array(rows, np.int64).T * US))
        recorder.close()

    timeline = read_recording(tmp_path).timeline()

    assert spans(timeline)["0:0SEND_F0TO2"][1] == 102 * ms, "it is in hand when its receiver turns to it"
    assert spans(timeline)["2:2F0"][2] == "1:1SEND_F0"


# ---- clocks and memory ----


def test_clock_drift_is_corrected_and_one_host_is_unchanged(tmp_path: Path) -> None:
    seen = (ClockOffset(1_000_000, 1000, 40), ClockOffset(3_000_000, 3000, 60))
    write_clocks(tmp_path, Clocks((ProcessClock(), ProcessClock(False, seen), ProcessClock(True, seen))))

    clocks = read_clocks(tmp_path)

    times = np.array([0, 1_000_000, 2_000_000, 9_000_000])
    assert (times - clocks[1].convert(times)).tolist() == [1000, 1000, 2000, 3000]
    assert (clocks[1].uncertainty_ns, clocks.uncertainty_s) == (30, 30e-9)
    assert clocks[2].convert(times).tolist() == clocks[7].convert(times).tolist() == times.tolist()
    assert clocks.note == "the clocks of 1 of 3 processes, up to 3 µs apart, were aligned to within 30 ns"
    assert Clocks((clocks[0], clocks[2])).note.startswith("all processes share one clock (measured offset at most 3 µs")


def test_times_of_ranks_with_different_clocks_are_aligned(tmp_path: Path) -> None:
    record(tmp_path)
    together = read_recording(tmp_path).timeline()
    write_clocks(tmp_path, Clocks((ProcessClock(), ProcessClock(False, (ClockOffset(0, 10_000_000, 2),) * 2))))

    apart = read_recording(tmp_path).timeline()

    of_other = together.rank == 1
    shift = 10e-3 * of_other
    compute = together.is_compute
    expected = (together.start - shift)[compute]
    assert (apart.start - apart.start.min())[compute] == pytest.approx(expected - expected.min(), abs=1e-9)


def test_memory_is_read_and_damaged_files_are_reported(tmp_path: Path) -> None:
    found = MeasuredMemory(step=4, peak_bytes=3e6, by_category={"weights": 1e6, "within the step": 2e6}, how="counted")
    found.write(tmp_path, 11)

    assert read_memory(tmp_path) == {11: found}
    (tmp_path / "memory-11.json").write_text("[]")
    (tmp_path / "clocks.json").write_text('{"format": "meshwave-clocks/1"}')
    for read in (read_memory, read_clocks):
        with pytest.raises(RunError, match="is damaged"):
            read(tmp_path)


def test_a_computation_is_caused_by_the_gather_that_it_waited_for(tmp_path: Path) -> None:
    program = parse_program("0UNSHARD 0F0 0F1 0B0 0B1 0RESHARD STEP")
    rows = [(0, 300, 290), (300, 400, 290), (400, 500, 0), (500, 600, 0), (600, 700, 0), (700, 701, 0), (701, 800, 0)]
    recorder = Recorder(tmp_path, program, ["A"], process=0, rank=0)
    recorder.write(0, *(np.array(rows, np.int64).T * US))
    recorder.close()

    timeline = read_recording(tmp_path).timeline(0)

    names = [str(timeline.action(span)) for span in range(len(timeline))]
    causes = [names[cause] if cause >= 0 else "" for cause in timeline.cause.tolist()]
    assert dict(zip(names, causes, strict=True)) == {
        "0UNSHARD": "", "0F0": "0UNSHARD", "0F1": "0F0", "0B0": "0F1", "0B1": "0B0", "0RESHARD": "0B1", "STEP": "0B1",
    }  # fmt: skip
