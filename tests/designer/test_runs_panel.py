"""The run panel and the launch bar with a real run database and run folders written by the test."""

from __future__ import annotations

import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from meshwave.designer.state.design_session import Session
from meshwave.designer.state.launches import Launches
from meshwave.designer.views import memory, run_data, run_table, runs
from meshwave.designer.views.loss import CurvePlot, draw_plots
from meshwave.designer.views.memory import MemoryBars
from meshwave.designer.views.numbers import Numbers
from meshwave.designer.views.run_data import FollowedRun
from meshwave.designer.views.run_table import RunTable
from meshwave.designer.views.runs import RunsPanel
from meshwave.designer.views.step_curve import SHOWN_VALUES, StepCurve
from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.errors import RunError
from meshwave.engine.files import example
from meshwave.engine.findings import RunRefusal
from meshwave.engine.hugging_face.weights import map_weights
from meshwave.engine.hugging_face.writing import write_config
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Entry, Hosts, Options, Record, Run, State, write_bundle
from meshwave.engine.runs.accuracy import MeshMemory
from meshwave.engine.runs.attempts import append_attempt
from meshwave.engine.runs.checkpoints import WEIGHTS_FILE
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.process_identity import own_handle
from meshwave.engine.runs.recording import Recorder, read_recording
from meshwave.engine.runs.run_comparison import run_outcome
from meshwave.engine.runs.run_folder import RunSpec
from meshwave.engine.runs.training_texts import texts_folder
from meshwave.engine.units import format_time, quantity
from tests.engine.runs.play import wait_until
from tests.engine.runs.recorded import record as record_timeline

pytestmark = pytest.mark.slow  # all tests together take ten seconds


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def record(home: Path) -> Iterator[Record]:
    record = Record(home)
    yield record
    record.close()


@pytest.fixture
def session() -> Session:
    return Session(load_design(example("03-gpt-on-two-cores")))


Show = Callable[..., RunsPanel]


@pytest.fixture
def show(session: Session, record: Record) -> Show:
    return lambda run="": RunsPanel(session, Launches(record), first=run)


Write = Callable[..., str]


@pytest.fixture
def write(record: Record, session: Session) -> Write:
    """Write a run as a launcher and its processes would, and return its ID."""

    def write(
        state: State = State.RUNNING,
        losses: list[float | None] | None = None,
        *,
        design: Design | None = None,
        reason: str = "",
        spans: int = 0,
    ) -> str:
        design = design or session.design
        prediction = predict(design)
        entry, _ = record.submit(
            name=design.name,
            launcher="local",
            handle={"owner": own_handle(), "processes": []},
            digest=prediction.program.digest,
            processes=len(design.meshes),
            steps=len(losses or []) or 20,
            limit=10,
        )
        folder = write_bundle(RunSpec(prediction, design), record.folder(entry.id)).folder
        for following in [State.RUNNING, state] if state.is_over else [State.RUNNING] * (state is State.RUNNING):
            record.change_state(entry.id, following, reason)
        with (folder / "events-0.jsonl").open("w") as file:
            file.write(json.dumps({"time": 0.0, "event": "started", "device": "CPU", "note": "computes here"}) + "\n")
        append(folder, losses or [])
        for rank in range(prediction.program.ranks if spans else 0):
            record_spans(folder, prediction.program, [mesh.name for mesh in design.meshes], rank, spans)
        return entry.id

    return write


def append(folder: Path, losses: list[float | None]) -> None:
    with (folder / "metrics.jsonl").open("a+") as file:
        file.seek(0)
        done = sum(1 for _ in file)
        for step, loss in enumerate(losses, start=done):
            row = {"step": step, "loss": loss, "grad_norm": loss, "seconds": 0.1, "tokens_per_s": 1e3}
            file.write(json.dumps(row) + "\n")


def record_spans(folder: Path, program: Any, meshes: list[str], rank: int, steps: int) -> None:
    """Write consecutive actions of one microsecond each."""
    recorder = Recorder(folder, program, meshes, rank, rank)
    start = np.arange(len(list(program.actions(rank))), dtype=np.int64) * 1000
    for step in range(steps):
        recorder.write(step, start, start + 1000, np.zeros_like(start))
    recorder.close()


def losses_of(panel: RunsPanel) -> list[float | None]:
    return panel.followed.curves[0].losses


def table_of(panel: RunsPanel) -> RunTable:
    return RunTable(panel.followed, panel.launches, panel.resume)


def rows_of(panel: RunsPanel) -> list[dict[str, Any]]:
    return table_of(panel).rows.data  # type: ignore[attr-defined, no-any-return]


def test_losses_on_held_out_data_are_points_of_the_plot(write: Write, show: Show, record: Record) -> None:
    run = write(losses=[3.0, 2.0])
    with (record.folder(run) / "metrics.jsonl").open("a") as file:
        row = {"step": 2, "loss": 1.5, "eval_loss": 1.75, "grad_norm": 1.0, "seconds": 0.1, "tokens_per_s": 1e3}
        file.write(json.dumps(row) + "\n")
    curves = show(run).followed.curves

    assert curves[0].losses == [3.0, 2.0, 1.5] and curves[0].evaluations == [(3, 1.75)]
    plots = [CurvePlot("Loss", "losses"), CurvePlot("Step time", "seconds")]
    draw_plots(plots, curves, "light")
    assert [plot.points.data["x"] for plot in plots] == [[3], []]
    assert plots[0].points.data["y"] == [1.75]


@pytest.mark.parametrize(("losses", "has_legend"), [([], [False, True]), ([3.0, 2.0], [True, False])])
def test_the_first_plot_with_several_curves_names_their_runs(
    write: Write, show: Show, losses: list[float], has_legend: list[bool]
) -> None:
    (curves,) = show(write(losses=[3.0, 2.0])).followed.curves
    plots = [CurvePlot("Loss", "losses"), CurvePlot("Step time", "seconds")]

    draw_plots(plots, [curves, curves._replace(name="dry run", losses=losses)], "light")

    assert [plot.figure.above[-1].visible for plot in plots] == has_legend


def test_a_run_of_a_learner_has_the_name_of_the_learner(show: Show, record: Record) -> None:
    for person in ("id-of-ada", "", "removed"):
        record.submit(
            name="waves", launcher="local", handle={}, digest="0", processes=1, steps=1, person=person, limit=9
        )
    panel = show()
    panel.launches.names = lambda: {"id-of-ada": "Ada"}
    assert sorted(row["cells"]["name"].text for row in rows_of(panel)) == ["Ada: waves", "waves", "waves"]


def test_an_empty_record_shows_no_run(show: Show) -> None:
    panel = show()

    assert (panel.run, panel.followed.entries, panel.bar.status) == ({}, [], {})


def test_the_options_of_a_run_are_among_its_notes(show: Show, write: Write, record: Record) -> None:
    run = write(losses=[5.5])
    with (record.folder(run) / "events-0.jsonl").open("a") as file:
        file.write(json.dumps({"time": 0.0, "event": "chosen", "note": "parm-auto: S1: nothing can hide"}) + "\n")

    assert show(run).run["notes"][:2] == ["computes here", "parm-auto: S1: nothing can hide"]


def test_a_live_run_is_found_and_followed(show: Show, write: Write, record: Record) -> None:
    run = write(losses=[5.5, 5.25])
    panel = show(run)
    assert (panel.run["id"], panel.run["state"], losses_of(panel)) == (run, "RUNNING", [5.5, 5.25])
    assert panel.run["notes"][0] == "computes here"
    assert panel.bar.status == {"running": True, "share": 1.0, "words": "step 2 of 2, loss 5.2500"}

    append(record.folder(run), [5.0])
    record.change_state(run, State.SUCCEEDED)
    panel.refresh()

    assert (panel.run["state"], losses_of(panel)[-1]) == ("SUCCEEDED", 5.0)
    assert panel.bar.status["words"] == "done: 3 steps, loss 5.0000"
    assert not panel.bar.status["running"]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.STARTING, "starting ..."),
        (State.RUNNING, "starting ..."),
        (State.FAILED, "failed: mesh A fell over"),
        (State.CANCELLED, "mesh A fell over"),  # a reason that tells itself when it was cancelled
        (State.LOST, "lost: mesh A fell over"),
    ],
)
def test_every_state_has_a_status(state: State, words: str, show: Show, write: Write, record: Record) -> None:
    run = write(State.STARTING)
    panel = show(run)
    if state is not State.STARTING:
        record.change_state(run, State.RUNNING)
    record.change_state(run, state, "mesh A fell over")
    panel.refresh()

    assert panel.bar.status["words"] == words
    assert [entry.state for entry in panel.followed.entries] == [state] == [panel.run["state"]]


@pytest.mark.torch
def test_a_launch_while_a_run_is_active_is_queued_and_can_be_cancelled(
    show: Show, write: Write, record: Record
) -> None:
    active = write(losses=[5.5])
    panel = show()

    panel.bar._on_launch("a click")

    assert panel.bar.launchable["allowed"]
    assert panel.run["state"] == "QUEUED"
    assert panel.bar.status["words"] == f"queued: position 1 of 1 in the queue; run {active} is active"
    panel.bar._on_cancel()
    assert (panel.run["state"], record.get(active).state) == ("CANCELLED", "RUNNING")


def test_the_step_time_is_the_last_one_until_the_run_is_over_and_then_the_median(
    show: Show, write: Write, record: Record
) -> None:
    run = write(losses=[5.5, 5.0, 4.5], spans=3)
    panel = show(run)
    assert panel.run["figures"][2:] == [["100 ms", "last step"], ["1 k", "tokens/s"]]

    record.change_state(run, State.SUCCEEDED)
    panel.refresh()
    panel.refresh()

    name, _, measured, _ = panel.followed.comparison["rows"][0]
    assert name == "iteration"
    assert panel.run["figures"][2] == [measured, "median step"]
    typical_s = read_recording(record.folder(run)).seconds[0]  # its steps are alike
    assert panel.run["figures"][3] == [quantity(0.1 * 1e3 / typical_s, ""), "tokens/s"]
    without = write(losses=[5.5, 5.0], state=State.SUCCEEDED)
    assert show(without).run["figures"][2] == ["100 ms", "last step"], "nothing of it was recorded"


def test_a_loss_that_is_not_a_number_is_reported_and_not_drawn(show: Show, write: Write) -> None:
    panel = show(write(losses=[5.5, 9.0, None, None]))

    assert losses_of(panel) == [5.5, 9.0, None, None]
    assert panel.run["figures"][0] == ["not a number", "loss"]
    assert panel.bar.status["words"] == "step 4 of 4, loss not a number"
    assert panel.run["notes"][0].startswith("the loss has been NaN since step 3: use a smaller training.lr")


def test_a_long_run_is_reduced_to_few_points(show: Show, write: Write) -> None:
    losses: list[float | None] = [5 - step / 10_000 for step in range(30_000)]
    losses[12_345] = 99.0
    panel = show(write(losses=losses))
    assert 0 < panel.run["done"] < 30_000, "a look reads a part of a long file"
    while panel.run["done"] < 30_000:
        before = panel.run["done"]
        panel.refresh()
        assert panel.run["done"] > before

    assert SHOWN_VALUES / 2 <= len(losses_of(panel)) <= SHOWN_VALUES
    assert (losses_of(panel)[0], losses_of(panel)[-1]) == (losses[0], losses[-1])
    assert 99.0 in losses_of(panel)


def test_a_completed_run_is_read_to_its_end(show: Show, write: Write) -> None:
    panel = show(write(State.SUCCEEDED, [5.0] * 30_000))

    while panel.run["done"] < 30_000:
        before = panel.run["done"]
        panel.refresh()
        assert panel.run["done"] > before


@pytest.mark.parametrize("damage", ['{"step": 1, "seconds": 1}', '{"step": "a"}', "[" * 9999, '{"loss": "x"}', "\0"])
def test_an_invalid_line_of_metrics_is_skipped(show: Show, write: Write, record: Record, damage: str) -> None:
    run = write(losses=[5.0])
    with (record.folder(run) / "metrics.jsonl").open("a") as file:
        file.write(f"{damage}\n")
    append(record.folder(run), [4.0])

    panel = show(run)

    assert losses_of(panel) == [5.0, 4.0]
    assert panel.bar.status["words"].startswith("step 2 of ")


def test_a_curve_keeps_the_ends_the_extremes_and_missing_losses() -> None:
    def drawn_values(values: list[float | None], most: int) -> list[float | None]:
        curve = StepCurve(most)
        for value in values:
            curve.add(value)
        return curve.values()

    assert drawn_values([3.0, None, 1.0], 600) == [3.0, None, 1.0]
    assert drawn_values([1.0, 2.0, 9.0, 0.0, None, None, None, None, 3.0, 4.0, 4.0, 5.0], 8) == [
        1.0,
        0.0,
        None,
        None,
        3.0,
        5.0,
    ]
    assert len(drawn_values([float(step % 7) for step in range(10_000)], 600)) <= 600


def test_showing_an_earlier_run_keeps_the_cancel_button(show: Show, write: Write, record: Record) -> None:
    earlier, live = write(State.SUCCEEDED, [5.0, 4.0]), write(losses=[6.0])
    panel = show(live)
    assert panel.run["id"] == live

    panel.followed.open(earlier)
    panel.refresh()

    assert (panel.run["id"], losses_of(panel)) == (earlier, [5.0, 4.0])
    assert panel.bar.status["running"]
    assert "loss 6.0000" in panel.bar.status["words"]

    panel.bar._handle_msg({"type": "cancel"})

    assert (record.folder(live) / "cancel").exists()
    assert not (record.folder(earlier) / "cancel").exists()


def test_a_run_started_elsewhere_is_shown_in_the_bar(show: Show, write: Write) -> None:
    earlier = write(State.SUCCEEDED, [5.0, 4.0])
    panel = show()
    panel.followed.open(earlier)
    assert panel.bar.status["words"] == "done: 2 steps, loss 4.0000"

    write(losses=[6.0])
    panel.refresh()

    assert panel.bar.status["running"]
    assert len(panel.followed.entries) == 2
    assert panel.run["id"] == earlier, "what is being read stays"
    assert panel.bar.status["words"] == f"{panel.followed.entries[0].name}: step 1 of 1, loss 6.0000"


def test_a_run_of_another_process_is_listed_and_can_be_shown(
    show: Show, write: Write, session: Session, record: Record
) -> None:
    run = write(losses=[6.0, 5.0], spans=3)
    shown: list[str] = []
    panel = RunsPanel(session, Launches(record), on_show=shown.append)

    assert (panel.run, session.measured) == ({}, None), "of the same design, but nobody asked for it"
    assert panel.bar.status["words"] == f"{session.design.name}: step 2 of 2, loss 5.0000"
    [row] = rows_of(panel)
    assert [row["cells"][key].text for key in ("steps", "loss")] == ["2 of 2", "5.0000"]

    panel.followed.open(run)
    assert session.measured is not None
    assert shown == [run]
    assert panel.bar.status["words"] == "step 2 of 2, loss 5.0000"

    record.change_state(run, State.CANCELLED, "cancelled after 2 of 2 steps")
    panel.refresh()
    assert panel.bar.status["words"] == "cancelled after 2 of 2 steps"


def test_a_completed_run_is_hidden_when_its_design_is_replaced(
    show: Show, write: Write, session: Session, record: Record
) -> None:
    over, live = write(State.SUCCEEDED, [5.0], spans=3), write(losses=[6.0], spans=3)
    panel = show(live)

    session.replace(load_design(example("01-first-wave")), "open")
    assert panel.run["id"] == live, "it is under way"
    assert session.measured is None

    panel.followed.open(over)
    session.replace(load_design(example("02-two-waves")), "open")
    panel.refresh()
    assert (panel.run, session.measured, table_of(panel).shown) == ({}, None, "")

    session.replace(load_design(example("03-gpt-on-two-cores")), "open")
    panel.refresh()
    assert (panel.run, session.measured) == ({}, None), "nothing is laid over a design unasked"


def test_a_run_whose_launcher_was_killed_leaves_the_bar(
    show: Show, write: Write, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(losses=[6.0])
    record.set_handle(run, {"owner": own_handle()._replace(born="1"), "processes": []})

    panel = show()

    assert record.get(run).state is State.LOST
    assert not panel.bar.status.get("running")


def test_a_measured_timeline_is_overlaid_on_the_same_design(show: Show, write: Write, session: Session) -> None:
    panel = show(write(losses=[5.0], spans=3))

    assert session.measured is not None
    assert (panel.measured["same"], panel.followed.comparison["whose"]) == (True, "")
    assert panel.followed.comparison["rows"][0][0] == "iteration"
    panel._handle_msg({"type": "overlay", "on": False})
    assert session.measured is None
    panel._handle_msg({"type": "overlay", "on": True})
    for path, value in [("training.steps", 7), ("training.lr", 0.5), ("training.seed", 3), ("name", "another name")]:
        session.edit(path, value, path)
        assert session.measured is not None, path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.hidden", 512),
        ("training.micro_batch_size", 7),
        ("training.optimizer", "sgd"),
        ("pipeline.microbatches", 3),
    ],
)
def test_a_run_of_another_model_is_compared_with_its_own_design(
    path: str, value: Any, show: Show, write: Write, session: Session
) -> None:
    """This holds even if the order of actions, and thus the digest of the program, is the same."""
    panel = show(write(losses=[5.0], spans=3))
    rows = panel.followed.comparison["rows"]

    session.edit(path, value, path)

    assert session.measured is None
    assert panel.followed.comparison["whose"] == ", for the design as it was launched"
    assert (panel.measured["same"], panel.measured["overlaid"], panel.followed.comparison["rows"]) == (
        False,
        False,
        rows,
    )
    session.undo()
    assert session.measured is not None


def test_a_run_of_another_design_is_opened_with_its_own_timeline_until_the_design_is_edited(
    show: Show, write: Write, session: Session
) -> None:
    other = load_design(example("01-first-wave"))
    run = write(State.SUCCEEDED, [5.0], design=other, spans=3)
    panel = show()

    panel.followed.open(run)
    own = panel.followed.own
    assert (own.prediction.design, own.measured.source) == (other, "measured")
    assert session.measured is None

    panel.followed.show_open_design()
    assert panel.followed.own is None
    panel.followed.open(run)
    session.edit("training.steps", 7, "steps")
    assert panel.followed.own is None


def test_a_run_on_other_links_is_compared_with_a_prediction_for_them(
    show: Show, write: Write, session: Session, record: Record
) -> None:
    """The comparison uses these links until the design has them."""
    run, prediction = write(State.SUCCEEDED, [5.0], spans=3), session.prediction
    told = Options(hosts=Hosts(nodes=1, intra_bandwidth=1e5, inter_bandwidth=1e6))
    write_bundle(specify_run(prediction, told), record.folder(run))

    panel = show(run)

    assert session.measured is None
    assert (panel.measured["same"], panel.followed.comparison["whose"]) == (
        False,
        ", with the emulated links of the run",
    )
    assert panel.followed.comparison["label"] == (
        "Predicted for processes of a host linked at 100 kB/s (set by --hosts; the design has 3 GB/s)."
    )
    predicted = panel.followed.comparison["rows"][0][1]

    session.edit("cluster.intra_node.bandwidth", 1e5, "as slow as they were")
    panel._handle_msg({"type": "overlay", "on": True})
    assert session.measured is not None
    assert (panel.measured["same"], panel.followed.comparison["label"]) == (True, "")
    assert panel.followed.comparison["rows"][0][1] == predicted


def test_spans_are_read_only_when_they_have_grown(
    show: Show, write: Write, session: Session, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[Path] = []
    read = run_data.read_recording
    monkeypatch.setattr(run_data, "read_recording", lambda folder: readings.append(folder) or read(folder))
    run = write(losses=[5.0], spans=3)
    panel = show(run)
    assert len(readings) == 1

    panel.followed.shown._spans._next_s = 0.0  # type: ignore[union-attr]
    panel.refresh()
    assert len(readings) == 1, "they have not grown"

    record_spans(record.folder(run), session.prediction.program, [m.name for m in session.design.meshes], 0, 9)
    panel.followed.shown._spans._next_s = float("inf")  # type: ignore[union-attr]
    panel.refresh()
    assert len(readings) == 1, "it is too soon"

    panel.followed.shown._spans._next_s = 0.0  # type: ignore[union-attr]
    panel.refresh()
    assert len(readings) == 2


def test_a_dry_run_is_started_followed_and_marked(
    show: Show, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        runs, "default_launcher", lambda design, options: "threads"
    )  # no torch, and no seconds until it is there
    session.edit(
        "training", {**session.design.training.model_dump(mode="json"), "steps": 1, "data": "not-there.txt"}, "short"
    )
    panel = show()
    assert not panel.bar.launchable["allowed"], "there is no text to train on"
    assert panel.bar.rehearsable == {"allowed": True, "reason": ""}

    panel.bar._handle_msg({"type": "rehearse", "key": "a click"})
    assert panel.bar.notice == ""
    wait_until(lambda: panel.refresh() or panel.run.get("state") == "SUCCEEDED", "its end")
    wait_until(lambda: panel.refresh() or session.measured, "its timeline")

    assert panel.run["manner"].startswith("dry run, time x ")
    assert panel.bar.status["words"] == f"{panel.run['manner']}: done: 1 steps"
    assert rows_of(panel)[0]["cells"]["kind"].text.startswith("dry run, time x ")
    assert panel.run["figures"][0] == ["dry run", "no loss"]
    assert losses_of(panel) == []
    assert session.measured is not None and session.measured.source == "rehearsed"
    assert panel.followed.find_measuring_run(session.prediction) is None, "its layers were not computed"

    cluster = session.design.cluster.model_dump(mode="json")
    cluster["device"]["peak_flops"] *= 2
    session.edit("cluster", cluster, "faster")
    assert session.measured is None, "it waited as long as the slower device was to take"


def test_an_invalid_draft_cannot_be_run_dry(show: Show, session: Session) -> None:
    session.edit("model.layers", 1, "too few layers")
    panel = show()
    assert session.errors

    assert panel.bar.rehearsable["reason"].startswith("Dry run not possible: ")
    panel.bar._handle_msg({"type": "rehearse", "key": "a click"})
    assert "the design has errors" in panel.bar.notice


def test_the_network_of_a_design_is_emulated_on_request(
    show: Show, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = show()
    asked: list[Options] = []

    def submit(spec: RunSpec, **_: Any) -> Any:
        asked.append(spec.options)
        raise RunError("not now")

    monkeypatch.setattr(panel._launcher, "submit", submit)
    monkeypatch.setattr(runs, "default_launcher", lambda design, options: panel._launcher.name)

    cluster = session.design.cluster.model_dump(mode="json")
    session.edit("cluster", {**cluster, "nodes": 1, "devices_per_node": 64}, "one node")
    panel._handle_msg({"type": "hosts", "on": True})
    assert panel.hosts == {}
    panel.bar._handle_msg({"type": "rehearse", "key": "a"})
    session.edit("cluster", {**cluster, "nodes": 2, "devices_per_node": 32}, "two nodes")
    assert panel.hosts["on"] and panel.hosts["words"].endswith("between 2 hosts")
    panel.bar._handle_msg({"type": "rehearse", "key": "b"})
    panel.bar._handle_msg({"type": "launch", "key": "c"})

    assert [options.rehearse is not None for options in asked] == [True, True, False]
    assert [options.hosts and options.hosts.nodes for options in asked] == [None, 2, 2]
    assert panel.bar.notice == "not now"


def test_training_starts_from_a_checkpoint_in_the_folder_of_the_server(
    show: Show, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("checkpoints/gpt2", "checkpoints/llama/snapshots/0", "checkpoints/empty", "elsewhere"):
        (home / folder).mkdir(parents=True)
        if folder != "checkpoints/empty":
            (home / folder / "model.safetensors").touch()
    panel, asked = show(), []
    assert panel.weights == {"names": ["gpt2", "llama/snapshots/0"], "name": ""}

    def submit(spec: RunSpec, **_: Any) -> Any:
        asked.append(spec.options.initial_weights)
        raise RunError("not now")

    monkeypatch.setattr(panel._launcher, "submit", submit)
    for name in ("llama/snapshots/0", "../elsewhere", ""):
        panel._handle_msg({"type": "weights", "name": name})
        panel.bar._handle_msg({"type": "launch", "key": name or "random"})
    chosen = str(home / "checkpoints/llama/snapshots/0")
    assert asked == [chosen, chosen, None]

    panel._handle_msg({"type": "weights", "name": "gpt2"})
    for name in ("gpt2", "llama/snapshots/0"):
        (home / "checkpoints" / name / "model.safetensors").unlink()
    (home / "checkpoints/empty/model.safetensors").touch()
    monkeypatch.setattr(runs, "CHECK_INTERVAL_S", 0.0)
    panel.refresh()
    assert panel.weights == {"names": ["empty", "gpt2"], "name": "gpt2"}  # the chosen one is not replaced silently

    monkeypatch.setenv("MESHWAVE_CHECKPOINTS", f"{home / 'elsewhere'}:{home / 'missing'}")
    assert show().weights["names"] == ["elsewhere"]


def test_the_weights_of_a_run_are_downloaded_for_transformers(
    show: Show, session: Session, record: Record, home: Path
) -> None:
    document = session.design.model_dump(mode="json")
    changes = {"layers": 2, "hidden": 8, "heads": 2, "sequence": 8, "vocab": 16}
    document["model"] |= changes
    document["meshes"], document["cluster"]["devices_per_node"] = document["meshes"][:1], 1
    design = parse_design(document)
    assert isinstance(design.model, LanguageModel)
    entry = record.submit(name="tiny", launcher="local", handle={}, digest="0" * 16, processes=1, steps=1)[0]
    record.change_state(entry.id, State.SUCCEEDED)
    folder = record.folder(entry.id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "design.json").write_text(design.to_json())
    table = table_of(show())
    (row,) = table.rows.data  # type: ignore[attr-defined]
    assert not row["has_weights"]

    mapped = map_weights(design.model, write_config(design.model)["model_type"])
    save_file({each.name: np.zeros(each.shape, np.float32) for each in mapped}, folder / WEIGHTS_FILE)
    sent: list[Any] = []
    table.send = sent.append  # type: ignore[method-assign]
    table._draw()
    assert table.rows.data[0]["has_weights"]  # type: ignore[attr-defined]
    table._handle_msg({"type": "export", "run": entry.id, "to": "weights"})
    (file,) = (message for message in sent if message["type"] == "download")
    name = f"tiny-{entry.id}"
    assert file["name"] == f"{name}.tar"
    with tarfile.open(fileobj=io.BytesIO(file["content"])) as archive:
        assert {f"./{name}/config.json", f"./{name}/model.safetensors"} <= set(archive.getnames())


def test_a_dataset_is_uploaded_and_removed(show: Show, session: Session) -> None:
    panel = show()
    assert panel.text["name"] is None

    panel._handle_msg({"type": "bring_text", "name": "../../Moby: Dick.txt", "text": "Call me Ishmael."})

    assert (panel.text["name"], session.design.training.data) == ("Moby_ Dick.txt", "Moby_ Dick.txt")
    assert (texts_folder() / "Moby_ Dick.txt").read_text() == "Call me Ishmael."
    assert panel.bar.launchable["allowed"]
    assert session.history[0] == "train on Moby_ Dick.txt"

    session.edit("training.tokenizer", "tokenizer.json", "tokenizer")
    panel._handle_msg({"type": "default_text"})
    training = session.design.training
    assert (panel.text["name"], training.data, training.tokenizer) == (None, None, None)
    session.undo()
    assert (session.design.training.data, session.design.training.tokenizer) == ("Moby_ Dick.txt", "tokenizer.json")


def test_an_invalid_dataset_changes_nothing(show: Show, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = show()
    said: list[Any] = []
    monkeypatch.setattr(panel, "_send_msg", said.append)

    panel._handle_msg({"type": "bring_text", "name": "a.txt", "text": ""})
    panel._handle_msg({"type": "bring_text", "name": "a.txt", "text": "x" * 8_000_001})

    assert [message["refused"].rpartition(";")[0] for message in said] == [
        "a.txt is empty",
        "a.txt is 8,000,001 bytes long; the page accepts texts of up to 8,000,000 bytes",
    ]
    assert session.design.training.data is None


def test_a_missing_dataset_is_reported_before_a_run_is_created(
    show: Show, session: Session, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.edit("training.data", "mine.txt", "data")
    panel = show()
    assert panel.bar.launchable["reason"].startswith("training.data: the text mine.txt does not exist (looked in ")

    panel.bar._handle_msg({"type": "launch", "key": "a click"})
    assert "training.data" in panel.bar.notice
    assert record.entries() == []

    texts_folder().mkdir(exist_ok=True)
    (texts_folder() / "mine.txt").write_text("Call me Ishmael.")
    monkeypatch.setattr(runs, "CHECK_INTERVAL_S", 0.0)
    panel.refresh()
    assert panel.bar.launchable["allowed"], "it is found as soon as it is there"


def test_a_design_that_is_too_large_for_this_machine_is_refused_with_the_numbers(
    show: Show, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwave.engine.runs.launchers._machine.has_gpu", lambda: False)
    monkeypatch.setattr("meshwave.engine.runs.launchers._machine.total_memory_bytes", lambda: 16e9)
    panel = show()
    assert panel.bar.launchable["allowed"]

    session.replace(load_design(example("10-bert-on-tacc")), "open")

    assert not panel.bar.launchable["allowed"]
    assert "61.7 GB of memory together, and this machine has 16 GB and no GPU" in panel.bar.launchable["reason"]


def test_a_dataset_with_unknown_tokens_is_refused_at_the_vocabulary(show: Show, session: Session) -> None:
    document = session.design.model_dump(mode="json")
    document["model"]["vocab"] = 255
    session.replace(parse_design(document), "fewer words")

    assert (
        show()
        .bar.launchable["reason"]
        .startswith("model.vocab: a gpt reads text as bytes and needs a vocab of at least 256")
    )


def test_a_run_is_compared_in_its_parts_and_calibrates_the_design_with_one_click(
    show: Show, write: Write, session: Session, record: Record
) -> None:
    slow = np.where(session.prediction.program.is_compute, 3.0, 1.5) * session.prediction.costs.seconds
    runs = [write(State.SUCCEEDED, [5.0, 4.0, 3.0]) for _ in range(2)]
    for each in runs:
        record_timeline(record.folder(each), session.prediction, slow)
    panel = show(runs[0])
    found, design = panel.followed.comparison, session.design
    assert found["rows"][0][0] == "iteration"
    assert [part["title"] for part in found["parts"]] == [
        "Compute time per mesh",
        "Exposed communication per mesh",
        "Transfer time per link",
    ]
    assert found["spread"].startswith("Step time: median ")
    assert found["cause"].endswith(" of the error of the step.")
    assert panel.measured["calibrates"]
    assert [(each["run"], each["shown"], each["share"]) for each in panel.followed.outcomes] == [
        (runs[0], True, 1.0),
        (runs[1], False, 1.0),
    ]

    panel._handle_msg({"type": "use_measured"})

    assert session.design.cost.model_dump()["profile"] == f"run-{runs[0]}.json"
    assert (session.history[0], session.prediction.program) == ("calibrate from a run", predict(design).program)
    assert panel.measured["same"]
    cell = panel.followed.comparison["rows"][0][3]
    assert re.fullmatch(r"[+−]?[01]\.\d%", cell), "the prediction lands on what was measured"
    session.undo()
    assert session.design == design


def test_the_table_has_the_error_once_a_run_that_is_over_was_compared(show: Show, write: Write, record: Record) -> None:
    run = write(losses=[5.5, 5.0], spans=2)
    panel = show(run)
    table = table_of(panel)
    assert table.rows.data[0]["cells"]["error"].text == ""  # type: ignore[attr-defined]

    record.change_state(run, State.SUCCEEDED)
    panel.refresh()
    assert table.rows.data[0]["cells"]["error"].text  # type: ignore[attr-defined]


def test_errors_of_earlier_runs_of_a_design_are_beside_its_prediction(
    session: Session, write: Write, record: Record
) -> None:
    for steps, cost in ((2, {}), (3, {}), (3, {"kind": "unit"})):
        design = parse_design(session.design.model_dump(mode="json") | ({"cost": cost} if cost else {}))
        run = Run(record, write(losses=[5.5], spans=steps, design=design))
        record.change_state(run.id, State.SUCCEEDED)
        run_outcome(record, run.entry)
    panel, numbers = RunsPanel(session, Launches(record)), Numbers(session)
    panel.refresh()

    found = panel.followed.find_errors(session.prediction)
    numbers.show_run_errors(panel.followed.find_errors)

    assert found is not None
    assert found.runs == 2
    assert -1 < found.low <= found.high < 0  # the runs of this test are short
    tile = next(tile for tile in numbers.tiles.data if tile["key"] == "iteration")  # type: ignore[attr-defined]
    assert tile["small"].startswith("earlier runs −")
    assert "2 runs of this design" in tile["help"]
    session.edit("model.hidden", 2 * session.design.model.hidden, "another model")
    assert panel.followed.find_errors(session.prediction) is None


def test_the_table_is_drawn_again_for_changes_only(show: Show, write: Write) -> None:
    write(State.CANCELLED)
    panel = show()
    table = table_of(panel)
    rows_before = table.rows
    panel.refresh()
    assert table.rows is rows_before

    write(State.CANCELLED)
    panel.refresh()
    assert len(table.rows.data) == 2  # type: ignore[attr-defined]


def test_devices_have_bars_of_their_predicted_memory_and_meshes_have_bars_of_their_measured_memory(
    show: Show, session: Session
) -> None:
    panel, capacity = show(), session.prediction.memory.capacity_bytes
    first, *others = [mesh.name for mesh in session.design.meshes]
    found = MeshMemory(first, 0.0, 2 * capacity, {}, {"weights": capacity}, "")
    panel.followed.memory = [found]

    shown = MemoryBars(session, panel.followed)
    bars = shown.bars.data  # type: ignore[attr-defined]
    kinds = [(first, "predicted"), (first, "measured"), *((name, "predicted") for name in others)]
    assert [(bar["mesh"], bar["kind"]) for bar in bars] == kinds
    assert [bar["over"] for bar in bars] == [False, True] + [False] * len(others)
    assert [sum(size for size, _ in bar["parts"].values()) for bar in bars] == [bar["total"] for bar in bars]
    assert set(bars[1]["parts"]) == {"weights", "other"}
    assert [bar["devices"] for bar in bars] == ["0", "", "1", "2", "3"]

    shown.styles = {"visibility": "hidden"}
    panel.followed.memory = []
    session.edit("pipeline.schedule", "gpipe", "another schedule")
    assert shown.bars.data is bars, "a hidden tab is not drawn"  # type: ignore[attr-defined]
    shown.styles = {"visibility": "inherit"}
    bars = shown.bars.data  # type: ignore[attr-defined]
    assert [(bar["mesh"], bar["devices"]) for bar in bars] == [
        (first, "0"),
        (", ".join(others[:2]), "1-2"),
        (others[2], "3"),
    ]


def test_more_groups_of_devices_than_are_drawn_are_counted(
    show: Show, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MOST_GROUPS", 3)

    shown = MemoryBars(session, show().followed)

    assert len(shown.bars.data) == 3  # type: ignore[attr-defined]
    assert shown.hidden_groups == 1


def test_each_failed_attempt_of_a_run_is_a_note_and_the_next_one_is_marked_in_the_curves(
    show: Show, write: Write, record: Record
) -> None:
    run = write(losses=[6.0, 5.0, 4.0])
    followed = FollowedRun(Run(record, run))
    followed.read_new()
    metrics = record.folder(run) / "metrics.jsonl"
    rows = metrics.read_bytes().splitlines(keepends=True)
    for done in (3, 7):
        append_attempt(record.folder(run), f"process {done} was ended by SIGKILL", time.time(), done)
    metrics.write_bytes(rows[0])  # the next attempt begins at the last checkpoint
    followed.read_new()
    metrics.write_bytes(b"".join(rows))
    followed.read_new()

    first, second = show(run).run["notes"][-2:]

    assert first.startswith("attempt 1")
    assert second.startswith("attempt 2")
    assert "process 7 was ended by SIGKILL" in second
    assert (followed.curves.losses, followed.curves.steps) == ([6.0, 5.0, 4.0], 3)
    plot = CurvePlot("Loss", "losses")
    plot.draw([followed.curves._replace(attempts=[1, 2])], "light")
    assert (plot.attempts.data["x"], plot.attempts.data["text"]) == ([1, 2], ["attempt 2", "attempt 3"])
    assert followed.curves.attempts == [1, 1], "there was no checkpoint"


def test_a_run_whose_target_does_not_answer_says_since_when(show: Show, write: Write, record: Record) -> None:
    run = write(losses=[6.0, 5.0])
    since_s = time.time() - 300
    record.set_handle(run, {**record.get(run).handle, "no_answer": {"since_s": since_s, "why": "two: timed out"}})
    panel = show(run)
    since = f"no answer since {format_time(since_s)}"

    assert panel.bar.status["words"] == f"step 2 of 2, loss 5.0000; {since}"
    assert panel.run["notes"][-1] == f"{since}: two: timed out"
    assert rows_of(panel)[0]["cells"]["steps"][0] == f"2 of 2, {since}"


def test_a_run_is_resumed_with_its_design_and_options(
    show: Show, write: Write, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, launched = write(State.SUCCEEDED), []
    table = table_of(show(run))
    monkeypatch.setattr(RunsPanel, "_submit", lambda panel, launcher, spec, *rest: launched.append(spec))
    session.edit("training.steps", 99, "another design")

    table._handle_msg({"type": "resume", "run": run})

    (spec,) = launched
    assert spec.options.resume == run
    assert spec.prediction.design.training.steps != 99


def test_a_run_that_is_deleted_on_the_page_is_removed_from_its_hosts(
    show: Show, write: Write, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, removed = write(State.SUCCEEDED), []

    def remove(record: Record, entry: Entry) -> None:
        removed.append(entry.id)
        raise RunRefusal("run_left_on_hosts", {"run": entry.id, "why": "one does not respond"})

    monkeypatch.setattr(run_table, "remove_from_hosts", remove)
    panel = show(run)

    table_of(panel)._handle_msg({"type": "delete", "run": run})

    assert f"run {run} is deleted here, but its folder may be left on its hosts: one does not" in session.notice
    assert removed == [run]
    assert panel.followed.record.entries() == []


def test_a_read_only_page_launches_and_changes_no_run(show: Show, write: Write, session: Session) -> None:
    run = write(State.SUCCEEDED)
    session.read_only = True
    panel = show(run)
    table = RunTable(panel.followed, panel.launches, panel.resume)
    refusals: list[str] = []
    for widget in (panel, panel.bar, table):
        widget._send_msg = lambda message: refusals.append(str(message["refused"]))  # type: ignore[method-assign]
    for kind in ("launch", "cancel", "draw"):
        panel.bar.notice = ""
        panel.bar._handle_msg({"type": kind})
        assert panel.bar.notice.startswith("this page is read-only")
    assert refusals == ["None"] * 3  # the launch bar shows its own notice
    refusals.clear()
    panel._handle_msg({"type": "bring_text", "name": "a", "text": "b"})
    panel._handle_msg({"type": "use_measured"})
    table._handle_msg({"type": "annotate", "run": run, "tags": "", "note": "a note"})
    table._handle_msg({"type": "delete", "run": run})
    table._handle_msg({"type": "resume", "run": run})
    assert all(each.startswith("this page is read-only") for each in refusals)
    assert [entry.id for entry in panel.followed.record.entries(9)] == [run]
    assert not texts_folder().exists()
