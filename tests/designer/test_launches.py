"""Launches and cancellations by people who share a server."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meshwave.designer.state.design_session import Session
from meshwave.designer.state.launches import Launches, PersonLaunches
from meshwave.designer.views.runs import RunsPanel
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.findings import Refusal, RunRefusal
from meshwave.engine.people.limits import Limits, dry_run_result
from meshwave.engine.people.people_file import Role, User
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Entry, Record, State
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.options import REHEARSAL
from meshwave.engine.runs.process_identity import own_handle
from meshwave.engine.runs.run_entry import Place
from tests.conftest import PATIENCE_S, wait_until

ADA, GRACE = User("ada", "Ada", Role.LAUNCHER), User("grace", "Grace", Role.LAUNCHER)
TARGETS = """[cluster]
launcher = "ssh"
hosts = ["node1"]
root = "/work"
"""


@pytest.fixture
def shared_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    (tmp_path / "targets.toml").write_text(TARGETS)
    monkeypatch.setenv("MESHWAVE_TARGETS", str(tmp_path / "targets.toml"))
    record = Record(tmp_path)
    launches = Launches(record)
    yield launches
    launches.close()
    record.close()


def refused_code(call: object, *arguments: object) -> str:
    with pytest.raises(Refusal) as refusal:
        call(*arguments)  # type: ignore[operator]
    return refusal.value.problem.code


def test_learners_launch_on_this_machine_only(shared_launches: Launches) -> None:
    ada = PersonLaunches(shared_launches, ADA, Limits)
    assert "cluster" in [target.name for target in shared_launches.targets()]
    assert [target.name for target in ada.targets()] == ["local"]
    assert refused_code(ada.open, "cluster") == "launch_target"
    assert ada.open("local") is shared_launches.open("local")


def test_a_changed_target_applies_to_the_next_launch_from_an_open_page(
    shared_launches: Launches, tmp_path: Path
) -> None:
    file, first = tmp_path / "targets.toml", shared_launches.open("cluster")
    assert shared_launches.open("cluster") is first

    file.write_text(TARGETS.replace("/work", "/other"))
    assert shared_launches.open("cluster").options.root == "/other"  # type: ignore[attr-defined]

    local = shared_launches.open("local")
    file.write_text(TARGETS.replace("cluster", "renamed"))
    assert refused_code(shared_launches.open, "cluster") == "unknown_target"
    file.write_text("[cluster")
    assert refused_code(shared_launches.open, "cluster") == "targets_unreadable"
    assert shared_launches.open("local") is local


def test_designers_use_targets_of_this_machine_only(shared_launches: Launches) -> None:
    limits = Limits(targets=("local", "threads", "cluster"))
    designer, launcher = (
        PersonLaunches(shared_launches, User("eve", "Eve", role), lambda: limits)
        for role in (Role.DESIGNER, Role.LAUNCHER)
    )
    assert [target.name for target in designer.targets()] == ["local"]
    assert refused_code(designer.open, "cluster") == "launch_target"
    assert {target.name for target in launcher.targets()} == {"local", "cluster"}


@pytest.mark.parametrize(("targets", "place"), [((), "local"), (("cluster",), "cluster")])
def test_the_panel_of_runs_opens_for_people_who_may_not_launch_on_this_machine(
    shared_launches: Launches, targets: tuple[str, ...], place: str
) -> None:
    panel = RunsPanel(
        Session(load_design(example("02-two-waves"))),
        PersonLaunches(shared_launches, ADA, lambda: Limits(targets=targets)),
    )
    assert panel.bar.place == place
    if not targets:
        reasons = [panel.bar.launchable["reason"], panel.bar.rehearsable["reason"]]
        assert all(reason.startswith("this server does not permit launches on") for reason in reasons)


def test_a_target_that_is_no_longer_allowed_is_not_measured(shared_launches: Launches) -> None:
    limits = Limits(targets=("cluster",))
    panel = RunsPanel(
        Session(load_design(example("02-two-waves"))), PersonLaunches(shared_launches, ADA, lambda: limits)
    )
    limits = Limits(targets=("local",))
    panel.bar._handle_msg({"type": "draw"})
    assert panel.bar.notice.startswith("this server does not permit launches on 'cluster'")
    assert panel.bar.drawing == ""


def test_a_learner_launches_within_limits_and_cancels_own_runs(shared_launches: Launches) -> None:
    design = load_design(example("02-two-waves"))
    spec = specify_run(predict(design), REHEARSAL)
    ada, grace = (PersonLaunches(shared_launches, user, lambda: Limits(runs=1)) for user in (ADA, GRACE))
    run = ada.submit(ada.open("threads"), spec, None)
    assert run.entry.person == "ada"
    assert refused_code(ada.submit, ada.open("threads"), spec, None) == "launch_runs"
    assert refused_code(grace.cancel, run.entry) == "other_run"
    ada.cancel(run.entry)
    run.wait(timeout_s=30)
    small = PersonLaunches(shared_launches, ADA, lambda: Limits(processes=1))
    assert refused_code(small.submit, ada.open("threads"), spec, None) == "launch_processes"


@pytest.mark.slow
def test_a_dry_run_has_a_result_once_it_is_over(shared_launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwave.designer.state.launches.default_launcher", lambda *_: "threads")
    ada = PersonLaunches(shared_launches, ADA, Limits)
    run = ada.dry_run(load_design(example("03-gpt-on-two-cores")))
    assert run.entry.is_rehearsal
    assert dry_run_result(shared_launches.record, run.id) == ""
    assert run.wait(timeout_s=60) is State.SUCCEEDED
    assert re.fullmatch(r"[\d.]+ m?s measured \([+−]?[\d.]+%\)", dry_run_result(shared_launches.record, run.id))

    cancelled = ada.dry_run(load_design(example("03-gpt-on-two-cores")))
    ada.cancel(cancelled.entry)
    cancelled.wait(timeout_s=30)
    assert dry_run_result(shared_launches.record, cancelled.id).startswith("no measurement: cancelled")
    assert dry_run_result(shared_launches.record, "gone") == "the dry run was deleted"


def test_a_run_that_takes_too_long_is_cancelled_with_the_reason(
    shared_launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    design = load_design(example("02-two-waves"))
    run = shared_launches.open("threads").submit(specify_run(predict(design), REHEARSAL), person="ada")
    run.wait(timeout_s=0.5)
    monkeypatch.setattr("meshwave.designer.state.launches.overdue_runs", lambda *_: [run.entry])
    shared_launches.cancel_overdue(Limits(minutes=3))
    assert run.wait(timeout_s=30) is State.CANCELLED
    assert run.reason.endswith("it reached the time limit of this server, 3 min")


def test_overdue_runs_are_cancelled_independently_and_each_failure_is_logged_once(
    shared_launches: Launches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One cluster refuses, another does not respond, and the run on a third is cancelled meanwhile."""
    entries = [
        shared_launches.record.submit(name=name, launcher="threads", handle={}, digest="", processes=1, steps=1)[0]
        for name in ("refused", "slow", "quick")
    ]
    responds, is_cancelled = threading.Event(), {name: threading.Event() for name in ("slow", "quick")}

    def cancel(entry: Entry, why: str) -> None:
        if entry.name == "refused":
            raise RunRefusal("read_only_run", {"run": entry.id})
        if entry.name == "slow":
            responds.wait(PATIENCE_S)
        is_cancelled[entry.name].set()

    monkeypatch.setattr(shared_launches, "cancel", cancel)
    monkeypatch.setattr("meshwave.designer.state.launches.overdue_runs", lambda *_: entries)
    for _ in range(3):
        shared_launches.cancel_overdue(Limits())
        assert is_cancelled["quick"].wait(PATIENCE_S)
    assert not is_cancelled["slow"].is_set()
    responds.set()
    assert is_cancelled["slow"].wait(PATIENCE_S)
    assert wait_until(lambda: caplog.messages)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"run {entries[0].id} cannot be cancelled (it reached the time limit")
    assert shared_launches.failures[entries[0].id] in caplog.messages[0]


class SlowCluster:
    """A cluster that responds when the test allows it."""

    def __init__(self) -> None:
        self.responds = threading.Event()
        self.threads: list[threading.Thread] = []

    def wait(self, *_: object, **__: object) -> None:
        self.threads.append(threading.current_thread())
        assert self.responds.wait(PATIENCE_S)


@pytest.fixture
def cluster() -> Iterator[SlowCluster]:
    made = SlowCluster()
    yield made
    made.responds.set()


def test_the_event_loop_does_not_wait_while_a_cluster_cancels_a_run(
    shared_launches: Launches, cluster: SlowCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = {"owner": own_handle(), "processes": []}
    entry, _ = shared_launches.record.submit(
        name="run", launcher="threads", handle=handle, digest="", processes=1, steps=1
    )
    callbacks: list[Callable[[], None]] = []
    panel = RunsPanel(Session(load_design(example("02-two-waves")), later=callbacks.append), shared_launches)

    def refuse(*_: object) -> None:
        cluster.wait()
        raise RunRefusal("read_only_run", {"run": entry.id})

    monkeypatch.setattr(shared_launches, "cancel", refuse)
    panel.bar._handle_msg({"type": "cancel"})

    assert panel.bar.activity == "Cancelling …"
    assert wait_until(lambda: cluster.threads) != [threading.current_thread()]
    cluster.responds.set()
    assert wait_until(lambda: callbacks)
    callbacks.pop()()
    assert panel.bar.activity == ""
    assert entry.id in panel.bar.notice


def test_the_event_loop_does_not_wait_while_a_cluster_starts_a_run(
    shared_launches: Launches, cluster: SlowCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    callbacks: list[Callable[[], None]] = []
    panel = RunsPanel(Session(load_design(example("02-two-waves")), later=callbacks.append), shared_launches)
    monkeypatch.setattr("meshwave.engine.runs.launchers.ssh.SshLauncher.launch", cluster.wait)
    panel.bar._handle_msg({"type": "choose", "place": "cluster"})

    panel.bar._handle_msg({"type": "launch", "key": "a click"})

    assert panel.bar.activity == "Starting …"
    assert wait_until(lambda: cluster.threads) != [threading.current_thread()]
    assert not callbacks
    cluster.responds.set()
    assert wait_until(lambda: callbacks)
    callbacks.pop()()
    assert panel.run["state"] == "STARTING"
    assert (panel.bar.activity, panel.bar.notice) == ("", "")


def test_a_cluster_that_does_not_respond_delays_neither_pages_nor_other_places(
    shared_launches: Launches, cluster: SlowCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = {"handle": {}, "digest": "", "processes": 1, "steps": 1}
    for launcher in ("ssh", "local"):
        shared_launches.record.submit(name="run", launcher=launcher, **submitted)  # type: ignore[arg-type]
    checked: list[str] = []

    def check(record: Record, place: Place) -> None:
        checked.append(place.launcher)
        if place.launcher == "ssh":
            cluster.wait()

    monkeypatch.setattr("meshwave.engine.runs.launchers._place_checks.check_place", check)
    shared_launches.check_runs(0)
    assert wait_until(lambda: cluster.threads and "local" in checked)
    assert wait_until(lambda: PersonLaunches(shared_launches, ADA, Limits).check_runs(0) or checked.count("local") > 1)

    assert len(cluster.threads) == 1, "one check of a place at a time for all pages"
    assert threading.current_thread() not in cluster.threads
    cluster.responds.set()
    assert wait_until(lambda: shared_launches.check_runs(0) or len(cluster.threads) > 1)


def test_a_launch_asks_no_other_cluster(shared_launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_launches.record.submit(name="run", launcher="ssh", handle={}, digest="", processes=1, steps=1)
    monkeypatch.setattr("meshwave.engine.runs.launchers.ssh.SshLauncher.from_entry", pytest.fail)
    monkeypatch.setattr("meshwave.designer.state.launches.default_launcher", lambda *_: "threads")
    run = shared_launches.dry_run(load_design(example("02-two-waves")))
    run.cancel()
    run.wait(timeout_s=PATIENCE_S)
