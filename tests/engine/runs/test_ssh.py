"""Runs on hosts that a real sshd serves on this machine, and on Slurm behind a login node."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwave.engine.errors import RunError
from meshwave.engine.files import import_folder
from meshwave.engine.findings import Refusal
from meshwave.engine.runs import Options, Record, State, reconcile, silence_text
from meshwave.engine.runs.attempts import read_attempts
from meshwave.engine.runs.checkpoints import Checkpoints, complete_checkpoints
from meshwave.engine.runs.launchers import _host, open_run
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.launchers.slurm import SlurmLauncher, SlurmOptions
from meshwave.engine.runs.launchers.ssh import SshLauncher, SshOptions
from meshwave.engine.runs.options import REHEARSAL
from meshwave.engine.runs.target_check import check_target
from tests.conftest import wait_until
from tests.engine.runs import namespaces, slurm_cluster, ssh_server
from tests.engine.runs.jobs import PATIENCE_S, STEPS, kill_worker, losses, processes_of, two_nodes, wait_patiently
from tests.engine.runs.play import submit

pytestmark = [pytest.mark.ssh, pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssh_server.Server]:
    if why := ssh_server.missing_requirement():
        pytest.skip(why)
    with ssh_server.running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def ssh(server: ssh_server.Server, record: Record, tmp_path: Path) -> SshLauncher:
    return launcher_of(server, record, tmp_path)


def remote_options(server: ssh_server.Server, root: Path) -> dict[str, object]:
    setup = (f"export PYTHONPATH={import_folder()}",)
    return {"root": str(root), "python": sys.executable, "setup": setup, "ssh_options": server.options}


def launcher_of(server: ssh_server.Server, record: Record, tmp_path: Path, **changes: object) -> SshLauncher:
    given = {**remote_options(server, tmp_path / "remote"), "hosts": ("one", "two"), "address": server.address}
    return SshLauncher(record, SshOptions(**{**given, "interface": server.interface, **changes}), "boxes")  # type: ignore[arg-type]


def test_a_run_on_two_hosts_has_the_losses_of_a_local_run(
    ssh: SshLauncher, trainer: LocalLauncher, tmp_path: Path
) -> None:
    run = submit(ssh, two_nodes())  # type: ignore[arg-type]

    assert run.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED, run.reason
    other = submit(trainer, two_nodes())
    assert other.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED
    assert losses(run) == pytest.approx(losses(other), rel=1e-6)
    assert (tmp_path / "remote" / run.id / "spans-1.bin").read_bytes() == (run.folder / "spans-1.bin").read_bytes()
    assert not (run.folder).is_symlink()


@pytest.mark.nightly
def test_the_check_of_hosts_measures_the_link_between_them(
    ssh: SshLauncher, server: ssh_server.Server, record: Record
) -> None:
    if server.network is None:
        pytest.skip(f"the hosts share the loopback: {namespaces.missing_requirement()}")

    with server.network.slow_link(1e9):
        report, _ = check_target(ssh, devices_per_node=2)

    assert [each.node for each in report.processes] == [0, 0, 1, 1]
    assert report.inter_node is not None
    assert report.intra_node is not None
    assert 0.4 < report.inter_node.bandwidth / (1e9 / 8) < 1
    assert report.intra_node.bandwidth > report.inter_node.bandwidth


@pytest.mark.nightly
def test_a_cancelled_run_leaves_no_process(ssh: SshLauncher, record: Record) -> None:
    run = submit(ssh, two_nodes(100_000), REHEARSAL)  # type: ignore[arg-type]
    assert wait_patiently(lambda: reconcile(record) or run.progress.done > 0)

    run.cancel()

    assert run.wait(timeout_s=PATIENCE_S) is State.CANCELLED
    assert wait_until(lambda: not processes_of(run))


@pytest.mark.nightly
def test_a_host_whose_processes_are_killed_ends_the_run(ssh: SshLauncher, record: Record) -> None:
    run = submit(ssh, two_nodes(100_000), REHEARSAL)  # type: ignore[arg-type]
    assert wait_patiently(lambda: reconcile(record) or run.progress.done > 0)
    for node in record.get(run.id).handle["job"]["nodes"][1:]:
        os.killpg(int(node["pid"]), signal.SIGKILL)

    assert run.wait(timeout_s=PATIENCE_S) is State.FAILED
    assert "the processes on two were killed" in run.reason
    assert wait_until(lambda: not processes_of(run))


@pytest.mark.nightly
def test_a_host_that_stops_answering_keeps_its_run_which_is_cancelled_once_it_answers(
    ssh: SshLauncher, server: ssh_server.Server, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit(ssh, two_nodes(100_000), REHEARSAL)  # type: ignore[arg-type]
    assert wait_patiently(lambda: reconcile(record) or run.progress.done > 0)
    monkeypatch.setattr(_host, "CONNECT_TIMEOUT_S", 1)

    with server.stopped():
        reconcile(record)
        silence = silence_text(run.entry)
        assert run.state is State.RUNNING
        assert re.fullmatch(r"no answer since \d\d:\d\d: one cannot be reached by ssh: .*timed out.*", silence), silence
        assert silence in run.notes()
        reconcile(record)
        assert silence_text(run.entry) == silence
        with pytest.raises(RunError, match="the run is cancelled as soon as there is an answer"):
            open_run(record, run.id).cancel("by the administrator")
        assert run.state is State.RUNNING

    assert wait_patiently(lambda: reconcile(record) or run.state.is_over)
    assert (run.state, silence_text(run.entry)) == (State.CANCELLED, "")
    assert re.fullmatch(r"cancelled after \d+ of \d+ steps: by the administrator", run.reason)
    assert wait_until(lambda: not processes_of(run))


@pytest.mark.nightly
def test_a_killed_process_costs_no_accuracy_and_another_run_waits(
    server: ssh_server.Server, record: Record, tmp_path: Path
) -> None:
    launcher = launcher_of(server, record, tmp_path, shared=True)
    options = Options(checkpoints=Checkpoints(every_steps=10), restarts=1)
    run = submit(launcher, two_nodes(STEPS), options)  # type: ignore[arg-type]
    other = submit(launcher, two_nodes(STEPS))  # type: ignore[arg-type]
    reconcile(record)
    assert other.waiting_reason == f"position 1 of 1 in the queue; run {run.id} is active"
    assert wait_patiently(lambda: bool(complete_checkpoints(tmp_path / "remote" / run.id)))
    kill_worker(tmp_path / "remote" / run.id)

    assert run.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED, run.reason
    assert "was terminated by SIGKILL" in read_attempts(run.folder)[0].reason
    assert "resumed after step" in (run.folder / "rank-0.log").read_text()
    assert other.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED, other.reason
    assert losses(run) == losses(other)
    resumed = submit(launcher, two_nodes(STEPS + 10), Options(resume=run.id))  # type: ignore[arg-type]
    assert resumed.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED, resumed.reason
    assert len(losses(resumed)) == 10
    launcher.close()


def test_a_host_that_cannot_be_reached_is_named(server: ssh_server.Server, record: Record, tmp_path: Path) -> None:
    launcher = launcher_of(server, record, tmp_path, hosts=("one", "nowhere.invalid"))

    with pytest.raises(
        RunError, match=r"nowhere\.invalid cannot be reached by ssh: .*resolve.*`ssh nowhere\.invalid true`"
    ):
        submit(launcher, two_nodes())  # type: ignore[arg-type]

    assert record.entries()[0].state is State.FAILED
    assert subprocess.run(["pgrep", "--full", record.entries()[0].id], check=False).returncode == 1


def test_checkpoints_need_a_shared_folder(ssh: SshLauncher) -> None:
    with pytest.raises(Refusal, match="set shared = true"):
        submit(ssh, two_nodes(), Options(checkpoints=Checkpoints()))  # type: ignore[arg-type]


@pytest.mark.slurm
@pytest.mark.nightly
def test_a_run_on_slurm_behind_a_login_node_is_followed_and_cancelled(
    record: Record, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if why := slurm_cluster.missing_requirement() or ssh_server.missing_requirement():
        pytest.skip(why)
    root, folder = tmp_path_factory.mktemp("shared"), tmp_path_factory.mktemp("login")
    with (
        slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as cluster,
        ssh_server.running(folder, cluster.variables["PATH"]) as server,
    ):
        given = {**remote_options(server, root), "via": "ssh", "login": "one", "interface": slurm_cluster.INTERFACE}
        launcher = SlurmLauncher(record, SlurmOptions(**given), "login")  # type: ignore[arg-type]

        run = submit(launcher, two_nodes(100_000), REHEARSAL)  # type: ignore[arg-type]
        assert wait_patiently(lambda: reconcile(record) or run.progress.done > 0), (run.reason, run.log())
        assert (root / run.id / "job.sh").exists()
        run.cancel()
        assert run.wait(timeout_s=PATIENCE_S) is State.CANCELLED
        assert wait_until(lambda: not processes_of(run))
