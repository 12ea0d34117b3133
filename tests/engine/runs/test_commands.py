"""``meshwave run`` and ``meshwave runs``: their output, the files that they leave, and the exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.cli import launch as commands
from meshwave.engine.cli import main as cli
from meshwave.engine.costs.profile_store import load_stored_profile, store_profile
from meshwave.engine.document import Design, load_design
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Hosts, Options, Record, Run, State, write_bundle
from meshwave.engine.runs import run_comparison as compared
from meshwave.engine.runs.emulation.hosts import host_topology
from meshwave.engine.runs.emulation.network import PAYLOAD
from meshwave.engine.runs.emulation.topology import FILE as NETWORK
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.launchers.threads import ThreadsLauncher
from meshwave.engine.runs.options import PLAIN
from meshwave.engine.runs.recording import Recording, read_recording
from meshwave.engine.units import quantity
from tests.engine.costs.profiles import example_profile
from tests.engine.runs.play import HERE, draw, have_all_ended, logged_events, processes, wait_until
from tests.engine.runs.recorded import record
from tests.warm_processes import shared_warm_processes

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def shares_stand_ins() -> Iterator[None]:
    with shared_warm_processes("stand_in"):
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary home folder, and workers that do not need torch."""
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(commands, "open_target", lambda record, name: stand_in(record))
    return tmp_path


def stand_in(record: Record) -> LocalLauncher:
    return LocalLauncher(record, start="fork", worker="stand_in", path=HERE)


def write(folder: Path, name: str = "train", **changes: Any) -> str:
    path = folder / "design.json"
    path.write_text(draw(name, pp=2, **changes).to_json())
    return str(path)


def newest_run() -> Run:
    record = Record()
    return Run(record, record.entries(1)[0].id)


def test_a_diverged_loss_is_reported_as_not_a_number(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", write(home, "diverge")]) == 0
    out, err = capsys.readouterr()
    assert "loss      5.0000 at the first step, not a number at the last of 3" in out
    assert "step 3 of 3  loss not a number" in err
    assert "note      computes nothing" in out

    assert cli.main(["runs", "show", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["loss"] for row in found["metrics"]] == [5.0, None, None]
    assert found["notes"] == ["computes nothing"]
    assert cli.main(["runs", "show"]) == 0
    assert "not a number" in capsys.readouterr().out


@pytest.mark.parametrize("line", [["show", "--json", "{}"], ["show", "{}", "--json"], ["--json", "show", "{}"]])
def test_options_of_runs_are_accepted_in_any_order(
    home: Path, capsys: pytest.CaptureFixture[str], line: list[str]
) -> None:
    with closing(Record()) as record:
        entry, _ = record.submit(
            name="a run", launcher="local", handle={}, digest="0", processes=1, steps=1, manner="", key=None, limit=1
        )
        record.change_state(entry.id, State.CANCELLED, "cancelled before it started")

    assert cli.main(["runs", *(word.format(entry.id) for word in line)]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == entry.id
    assert cli.main(["runs", "--json"]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["runs"]] == [entry.id]


def test_a_text_next_to_the_design_is_used_unless_another_is_given(home: Path) -> None:
    design = write(home, training={"data": "mine.txt", "steps": 1})
    (home / "mine.txt").write_text("Call me Ishmael.")
    (home / "other.txt").write_text("It was the best of times.")

    assert cli.main(["run", design]) == 0
    assert (newest_run().folder / "data.txt").read_text() == "Call me Ishmael."
    assert cli.main(["run", design, "--data", str(home / "other.txt")]) == 0
    assert (newest_run().folder / "data.txt").read_text() == "It was the best of times."


def test_a_text_in_the_current_folder_is_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    design = write(home, training={"data": "mine.txt", "steps": 1})
    (home / "here").mkdir()
    (home / "here" / "mine.txt").write_text("Call me Ishmael.")
    monkeypatch.chdir(home / "here")

    assert cli.main(["run", design]) == 0


def test_a_text_that_is_missing_ends_with_status_2_and_leaves_no_run(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", write(home, training={"data": "mine.txt"})]) == 2
    assert (
        f"training.data: the text mine.txt does not exist (looked in {home}, {Path.cwd()}, " in capsys.readouterr().err
    )
    assert Record().entries() == []


def test_invalid_rows_of_metrics_are_skipped(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", write(home)]) == 0
    with (newest_run().folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3}\n[]\nsomething else\n')

    assert len(newest_run().metrics()) == 3
    assert cli.main(["runs", "show"]) == 0
    assert "at the last of 3" in capsys.readouterr().out


def slow_recording(folder: Path) -> Recording:
    """Return the recording of a run that took three times as long as predicted."""
    if not any(folder.glob("spans-*.bin")):
        prediction = predict(load_design(folder / "design.json"))
        record(folder, prediction, prediction.costs.seconds, stretched=(3.0, 3.0, 3.0))
    return read_recording(folder)


def test_a_comparison_states_errors_with_one_sign(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared, "read_recording", slow_recording)
    design = write(home, cost={"kind": "roofline"})

    assert cli.main(["run", design]) == 0
    out = capsys.readouterr().out
    assert re.search(r"iteration .* predicted, .* measured, 3 times as long\n", out)
    assert re.search(r"  forward +.* predicted, .* measured, 3 times as long\n", out)
    assert "SEND_F" not in out and "STEP" not in out

    assert cli.main(["runs", "show", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["comparison"]
    assert found["error"] == pytest.approx(2, rel=1e-3)
    assert found["by_kind"]["F"]["error"] == pytest.approx(2, rel=1e-3)
    assert found["by_kind"]["F"]["words"] == "forward"
    assert found["error_is"] == "(measured - predicted) / predicted; positive if the run took longer"
    assert found["no_error_since"] is None
    assert {"iteration", "cause", "by_mesh", "by_link", "by_layer", "memory", "exposed_communication_s"} <= found.keys()


def test_a_run_calibrates_its_design_and_the_history_lists_prediction_errors(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared, "read_recording", slow_recording)
    design = write(home, cost={"kind": "roofline"})
    assert cli.main(["run", design]) == 0
    first = newest_run().id
    assert " +200%  train\n" in said_by(["runs", "list"], capsys)

    assert said_by(["runs", "profile", first], capsys).startswith(f"run-{first}.json: use it in a design with ")
    monkeypatch.undo()
    monkeypatch.setenv("MESHWAVE_HOME", str(home / "home"))
    monkeypatch.setattr(commands, "open_target", lambda record, name: stand_in(record))
    as_measured = load_design(newest_run().folder / "design.json").model_dump(mode="json")
    path = home / "calibrated.json"
    path.write_text(json.dumps({**as_measured, "cost": {"kind": "calibrated", "profile": f"run-{first}.json"}}))
    monkeypatch.setattr(compared, "read_recording", lambda folder: read_recording(Record().folder(first)))
    assert cli.main(["run", str(path)]) == 0

    told = said_by(["runs", "show"], capsys)
    assert re.search(
        r"history   2 runs of this design, latest first: [+−]?[01]\.\d% \(calibrated\), \+200% \(roofline\)", told
    )
    history = json.loads(said_by(["runs", "show", "--json"], capsys))["history"]
    assert [round(each["error"], 2) for each in history] == [pytest.approx(0, abs=0.02), 2.0]
    listed = json.loads(said_by(["runs", "list", "--json"], capsys))["runs"]
    assert [each["error"] for each in listed] == [each["error"] for each in history]

    for name, layers in (("train in 0", as_measured["model"]["layers"]), ("train in 1", 64)):
        model = {**as_measured["model"], "layers": layers}
        path.write_text(json.dumps({**as_measured, "name": name, "model": model}))
        assert cli.main(["run", str(path)]) == 0
    assert "history" not in said_by(["runs", "show"], capsys), "it has the same program and is another design"
    renamed = Record().entries(2)[1].id
    assert "history   3 runs of this design" in said_by(["runs", "show", renamed], capsys)


def enter_finished_run(design: Design, options: Options = PLAIN) -> str:
    """Enter a finished run like a launcher and its processes would; return its ID.

    It took as long as predicted for its links.
    """
    there, prediction = Record(), predict(design)
    spec = specify_run(prediction, options)
    options = spec.options
    entry, _ = there.submit(
        name=design.name, launcher="local", handle={}, digest=prediction.program.digest, processes=4, steps=3,
        manner=options.description, limit=99,
    )  # fmt: skip
    bundle = write_bundle(spec, there.folder(entry.id))
    if options.hosts:
        (bundle.folder / NETWORK).write_text(host_topology(spec.design, design, options).to_json())
    (bundle.folder / "events-0.jsonl").write_text('{"time": 0, "event": "started", "device": "CPU"}\n')
    record(bundle.folder, bundle.prediction, bundle.prediction.costs.seconds)
    for state in (State.RUNNING, State.SUCCEEDED):
        there.change_state(entry.id, state)
    return entry.id


def test_runs_on_given_links_are_predicted_for_them_and_have_a_separate_history(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)

    def options_at_rate(rate: float) -> Options:
        return Options(hosts=Hosts(nodes=2, intra_bandwidth=1e8, inter_bandwidth=rate))

    link = {"latency_s": 1e-5, "bandwidth": 1e8}
    device = draw().cluster.device.model_dump()
    cluster = {"nodes": 2, "devices_per_node": 2, "device": device, "intra_node": link, "inter_node": link}
    drawn = draw(cluster=cluster)
    as_drawn, told, again, slower = (
        enter_finished_run(drawn, *how)
        for how in ([], [options_at_rate(1e5)], [options_at_rate(1e5)], [options_at_rate(5e4)])
    )

    shown = said_by(["runs", "show", told], capsys)
    words = "predicted for hosts linked at 100 kB/s (set by --hosts; the design has 100 MB/s)"
    assert f"\n{words}\n" in shown
    assert re.search(r"\niteration .* predicted, .* measured, as predicted\n", shown)
    assert "because" not in shown
    assert "note      4 processes take turns on 2 cores: computations take longer than predicted\n" in shown
    assert re.search(r"history   2 runs of this design, latest first: [+−]?[01]\.\d%", shown)
    data = json.loads(said_by(["runs", "show", told, "--json"], capsys))
    assert data["comparison"]["predicted_for"] == words
    means = [quantity(sum(each) / len(each), "s") for each in data["comparison"]["exposed_communication_s"].values()]
    assert "\nexposed   {} predicted, {} measured".format(*means) in shown, "as the page tells it"
    assert [each["run"] for each in data["history"]] == [again, told]
    for alone in (as_drawn, slower):
        assert [each["run"] for each in json.loads(said_by(["runs", "show", alone, "--json"], capsys))["history"]] == [
            alone
        ]

    name = said_by(["runs", "profile", told], capsys).partition(":")[0]
    profile = load_stored_profile(name)
    assert profile.rates is not None, "its links are not those of this machine"
    assert profile.rates.inter == pytest.approx(1e5 / PAYLOAD)
    assert profile.machine.run.endswith(", on 2 emulated hosts (100 kB/s between them)")
    assert (profile.machine.cores, profile.machine.device) == (2, "CPU"), (
        "so that it is told where it is used elsewhere"
    )
    assert profile.machine.network.startswith("2 emulated hosts of 2 + 2 processes, as in the design; links of ")

    long = enter_finished_run(drawn.model_copy(update={"name": "n" * 200}))
    assert load_stored_profile(said_by(["runs", "profile", long], capsys).partition(":")[0]).machine.run == "n" * 200


def test_a_run_whose_profile_was_removed_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store_profile(example_profile(), "gone.json")
    assert cli.main(["run", write(home, cost={"kind": "calibrated", "profile": "gone.json"})]) == 0
    path.unlink()

    assert cli.main(["runs", "show"]) == 0
    out, err = capsys.readouterr()
    assert "succeeded: " in out and f"folder    {newest_run().folder}" in out
    assert err.endswith(
        "the run cannot be compared with a prediction: cost.profile: there is no profile called 'gone.json'. Measure "
        "this machine with meshwave calibrate.\n"
    )
    assert json.loads(said_by(["runs", "show", "--json"], capsys))["comparison"] is None


def said_by(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the output of a command; earlier output is discarded."""
    capsys.readouterr()
    assert cli.main(command) == 0
    return capsys.readouterr().out


def test_units_are_not_compared_with_measured_seconds(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared, "read_recording", slow_recording)

    assert cli.main(["run", write(home, cost={"kind": "unit"}), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)["comparison"]
    assert found["error"] is None
    assert {kind["error"] for kind in found["by_kind"].values()} == {None}
    assert found["no_error_since"].startswith("the prediction is in cost units, which cannot be compared")


def test_each_step_is_printed_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", write(home)]) == 0

    step_lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert len(step_lines) == len(set(step_lines))
    assert step_lines[-1].startswith("step 3 of 3")


@pytest.mark.parametrize(
    ("steps", "told"),
    [("0", "--steps: 0 is too few; a run has at least one step"), ("10000001", "should be at most 10,000,000")],
)
def test_more_or_fewer_steps_than_a_run_can_have_are_refused_before_it_starts(
    home: Path, capsys: pytest.CaptureFixture[str], steps: str, told: str
) -> None:
    assert cli.main(["run", write(home), "--steps", steps]) == 2
    assert told in capsys.readouterr().err
    assert Record().entries() == []


COMMAND = """
    import signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    from meshwave.engine.cli import launch, main as cli
    from tests.engine.runs.test_commands import stand_in
    launch.open_target = lambda record, name: stand_in(record)
    sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_cancels_the_run(home: Path, number: signal.Signals, status: int) -> None:
    design = write(home, "sleep")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2])}
    command = [sys.executable, "-c", textwrap.dedent(COMMAND), "run", design]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        run = wait_until(lambda: Record().entries() and newest_run())
        wait_until(lambda: logged_events(run, "step"))
        assert processes(run)

        process.send_signal(number)
        _, err = process.communicate(timeout=30)

    assert process.returncode == status
    assert err.endswith("stopped\n")
    assert (run.state, run.reason) == (State.CANCELLED, "cancelled after 1 of 3 steps")
    assert have_all_ended(run)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_cancels_all_runs_of_a_sweep(home: Path, number: signal.Signals, status: int) -> None:
    design = write(home, "sleep")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2])}
    command = [sys.executable, "-c", textwrap.dedent(COMMAND), "sweep", design, design, design]
    with closing(Record()) as record, subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        wait_until(lambda: len(record.entries()) == 3)
        wait_until(lambda: logged_events(Run(record, record.entries()[-1].id), "step"))

        process.send_signal(number)
        process.communicate(timeout=30)

        assert process.returncode == status
        assert {entry.state for entry in record.entries()} == {State.CANCELLED}


def test_a_sweep_with_a_refused_design_leaves_no_run_in_the_queue(home: Path) -> None:
    design = write(home, "sleep")
    (home / "refused").mkdir()
    refused = write(home / "refused", training={"data": "missing.txt"})

    assert cli.main(["sweep", design, design, refused]) == 2

    with closing(Record()) as record:
        assert [entry.state for entry in record.entries()] == [State.CANCELLED] * 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /dev/full")
def test_a_run_continues_if_its_progress_cannot_be_printed(home: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2])}
    command = [sys.executable, "-c", textwrap.dedent(COMMAND), "run", write(home), "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=full, timeout=30, check=False)

    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["state"], len(found["metrics"])) == ("SUCCEEDED", 3)


def test_a_run_continues_if_nobody_reads_its_progress(home: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2])}
    command = [sys.executable, "-c", textwrap.dedent(COMMAND), "run", write(home, steps=30)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.stderr.close()
        assert process.wait(timeout=30) == 0

    run = newest_run()
    assert (run.state, run.progress.done) == (State.SUCCEEDED, 30)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--scale", "3"], "add --rehearse"),
        (["--inter-bandwidth", "1e9"], "add --hosts N"),
        (["--rehearse", "--scale", "0"], "--scale: 0.0 should be more than 0\n"),
        (["--rehearse", "--scale", "nan"], "--scale: NaN should be a finite number\n"),
        (["--hosts", "0"], "--hosts: 0 should be at least 1\n"),
        (["--hosts", "2", "--inter-bandwidth", "1e30"], "--inter-bandwidth: 1e+30 should be at most 1e+24\n"),
        (
            ["--rehearse", "--scale", "1e9"],
            "--scale: at a time-dilation factor of 1,000,000,000 a step would take 2.6 days, and the limit is one day; use 380,000,000 or less\n",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_inconsistent_options_end_with_status_2(
    home: Path, capsys: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    assert cli.main(["run", write(home), *given]) == 2
    assert message in capsys.readouterr().err
    assert Record().entries() == []


def test_unset_link_rates_are_those_of_the_design() -> None:
    line = ["run", "x", "--hosts", "2", "--inter-bandwidth", "5e8"]

    how = commands.run_options(draw(), cli.parser().parse_args(line))

    assert how.hosts == Hosts(nodes=2, intra_bandwidth=1e9, inter_bandwidth=5e8)
    assert how.rehearse is None


def test_a_dry_run_is_marked_in_every_output(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "open_target", lambda record, name: ThreadsLauncher(record))
    monkeypatch.setattr(commands, "default_launcher", lambda design, options: "threads")
    design = write(home, cost={"kind": "unit"}, training={"data": "nowhere.txt", "steps": 2})

    assert cli.main(["run", design, "--rehearse", "--scale", "0.001"]) == 0
    out, err = capsys.readouterr()
    foretold, started, *_ = err.splitlines()
    assert re.fullmatch(r"a step should take [0-9.]+ ms, all 2 [0-9.]+ ms", foretold)
    assert started.endswith("2 processes, dry run, time x 0.001")
    assert re.search(r"step 2 of 2  [0-9.]+ units per step", err)
    assert "note      dry run: nothing is computed, each action waits 0.001 s per unit" in out
    assert "loss" not in out

    assert cli.main(["runs", "list"]) == 0
    assert "train (dry run, time x 0.001)" in capsys.readouterr().out
    assert cli.main(["runs", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["manner"], shown["launcher"]) == ("dry run, time x 0.001", "threads")
