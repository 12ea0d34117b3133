"""A dry run in threads is recorded like other runs, without torch and without processes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from meshwave.engine.document import Design
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Hosts, Options, Record, Run, State
from meshwave.engine.runs.dry_run import Rehearsal
from meshwave.engine.runs.launchers import _base, default_launcher, specify_run, threads
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.launchers.threads import ThreadsLauncher
from meshwave.engine.runs.options import REHEARSAL
from meshwave.engine.runs.recording import read_recording
from tests.engine.program.matching import match_spans
from tests.engine.runs.play import PATIENCE_S, draw, wait_until

QUICK = Options(rehearse=Rehearsal(scale=0.001))


@pytest.fixture
def rehearser(record: Record) -> Iterator[ThreadsLauncher]:
    launcher = ThreadsLauncher(record)
    yield launcher
    launcher.close()


def submit(launcher: ThreadsLauncher, design: Design, options: Options = QUICK) -> Run:
    return launcher.submit(specify_run(predict(design), options))


def test_a_run_in_threads_records_every_action(rehearser: ThreadsLauncher) -> None:
    design = draw(dp=2, cost={"kind": "unit", "transfer": 0.5}, training={"data": "not-there.txt", "steps": 2})
    prediction = predict(design)

    run = submit(rehearser, design)

    assert run.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED
    assert (run.entry.manner, run.entry.is_rehearsal) == ("dry run, time x 0.001", True)
    recording = read_recording(run.folder)
    timeline = recording.timeline()
    matched, _ = match_spans(prediction.timeline, timeline)
    assert (timeline.source, recording.scale, recording.steps) == ("rehearsed", 0.001, (0, 1))
    assert len(matched) == len(prediction.timeline), "every action was run"
    assert timeline.makespan >= 0.85 * prediction.timeline.makespan
    assert [row["unit"] for row in run.metrics()] == ["units", "units"]
    assert "loss" not in run.metrics()[0]
    assert run.progress == (2, 2)
    assert any("each action waits 0.001 s per unit" in note for note in run.notes())
    result = run.result()
    assert result is not None
    assert (result.state, result.exits) == ("SUCCEEDED", ())


def test_a_run_in_threads_is_cancelled_by_a_file(rehearser: ThreadsLauncher, record: Record) -> None:
    run = submit(rehearser, draw(cost={"kind": "unit"}), Options(rehearse=Rehearsal(scale=100.0)))

    ThreadsLauncher(record).cancel(Run(record, run.id))

    assert run.wait(timeout_s=PATIENCE_S) is State.CANCELLED
    assert run.reason == "cancelled after 0 of 3 steps"


def test_a_run_in_threads_ends_with_its_launcher(rehearser: ThreadsLauncher) -> None:
    run = submit(rehearser, draw(cost={"kind": "unit"}), Options(rehearse=Rehearsal(scale=100.0)))

    rehearser.close()

    wait_until(lambda: run.state.is_over)
    assert run.reason == "cancelled after 0 of 3 steps: Meshwave was closed"


def test_threads_do_not_support_batched_transfers(rehearser: ThreadsLauncher) -> None:
    with pytest.raises(DesignError, match="a dry run cannot simulate batched transfers; set transfer.batched to false"):
        submit(rehearser, draw(transfer={"batched": True}))


def test_threads_train_nothing_and_send_over_no_links(rehearser: ThreadsLauncher) -> None:
    design = draw()
    hosts = Options(rehearse=Rehearsal(scale=1.0), hosts=Hosts(nodes=2, intra_bandwidth=1e9, inter_bandwidth=1e9))

    with pytest.raises(DesignError, match="the launcher 'threads' supports dry runs only"):
        rehearser.submit(specify_run(predict(design)))
    with pytest.raises(DesignError, match="emulated hosts need processes"):
        submit(rehearser, design, hosts)


def test_threads_are_chosen_without_torch_or_for_too_many_devices(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = draw(pp=4, dp=32)

    assert default_launcher(draw(), REHEARSAL) == "local"
    assert default_launcher(many, REHEARSAL) == "threads"
    assert ThreadsLauncher(record).refusals(many, REHEARSAL) == []
    assert "at most 64 processes" in str(LocalLauncher(record).refusals(many, REHEARSAL)[0])
    monkeypatch.setattr(_base, "find_spec", lambda name: None)
    assert default_launcher(draw(), REHEARSAL) == "threads"


def test_an_error_in_a_thread_is_recorded(rehearser: ThreadsLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(threads, "run_step_in_threads", fail)
    run = submit(rehearser, draw())

    assert run.wait(timeout_s=PATIENCE_S) is State.FAILED
    assert "of all things" in run.reason
    assert json.loads((run.folder / "result.json").read_text())["state"] == "FAILED"
