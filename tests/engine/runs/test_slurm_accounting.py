"""Runs as jobs of a real Slurm whose controller forgets jobs soon after their end, with slurmdbd and MariaDB or without."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from meshwave.engine.files import import_folder
from meshwave.engine.runs import Record, Run, State, reconcile, silence_text
from meshwave.engine.runs.launchers import _host, _jobs
from meshwave.engine.runs.launchers.slurm import SlurmLauncher, SlurmOptions
from tests.engine.runs import slurm_cluster, ssh_server
from tests.engine.runs.jobs import STEPS, losses, two_nodes, wait_patiently
from tests.engine.runs.play import submit

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.slow]


@pytest.mark.nightly
def test_accounting_has_the_end_of_jobs_that_the_controller_has_forgotten(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := slurm_cluster.missing_requirement(accounting=True):
        pytest.skip(why)

    def launch(**options: object) -> Run:
        given = {"interface": slurm_cluster.INTERFACE, **options}
        return submit(SlurmLauncher(record, SlurmOptions(**given), "cluster"), two_nodes())  # type: ignore[arg-type]

    (tmp_path / "slurm").mkdir()
    with slurm_cluster.running(tmp_path / "slurm", accounting=True, forgets=True) as cluster:
        for name, value in cluster.variables.items():
            monkeypatch.setenv(name, value)
        succeeded, failed = launch(), launch(setup=("exit 3",))
        cancelled = launch(directives=("--begin=now+1hour",))
        cluster.command("scancel", record.get(cancelled.id).handle["job"]["id"])
        assert wait_patiently(lambda: "No jobs in the system" in cluster.command("scontrol", "show", "jobs"))

        reconcile(record)

    assert (succeeded.state, succeeded.reason) == (State.SUCCEEDED, "3 of 3 steps")
    ends = [(run.state, run.reason.partition(";")[0]) for run in (failed, cancelled)]
    assert ends == [
        (State.FAILED, "the job script failed"),
        (State.FAILED, "a user or an administrator cancelled the job in Slurm (Slurm state CANCELLED)"),
    ]


@pytest.mark.ssh
@pytest.mark.nightly
def test_server_laptop_and_cluster_agree_again_after_hours_apart(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no process follows them, the runs end and Slurm without accounting forgets their jobs.

    The clock is advanced instead of waiting.
    """
    if why := slurm_cluster.missing_requirement() or ssh_server.missing_requirement():
        pytest.skip(why)
    for part in ("slurm", "sshd", "root"):
        (tmp_path / part).mkdir()
    laptop = Record(tmp_path / "laptop")
    with (
        closing(laptop),
        slurm_cluster.running(tmp_path / "slurm", forgets=True) as cluster,
        ssh_server.running(tmp_path / "sshd", cluster.variables["PATH"]) as server,
    ):

        def launch(where: Record, steps: int, **options: object) -> Run:
            given = {"interface": slurm_cluster.INTERFACE, **options}
            return submit(SlurmLauncher(where, SlurmOptions(**given), "cluster"), two_nodes(steps))  # type: ignore[arg-type]

        remote = {
            "via": "ssh",
            "login": "one",
            "ssh_options": server.options,
            "root": str(tmp_path / "root"),
            "python": sys.executable,
            "setup": (f"export PYTHONPATH={import_folder()}",),
        }
        with monkeypatch.context() as there:
            for name, value in cluster.variables.items():
                there.setenv(name, value)
            own, failed = launch(record, STEPS), launch(record, 3, setup=("exit 3",))
        far = launch(laptop, STEPS, **remote)
        assert wait_patiently(lambda: reconcile(laptop) or far.progress.done > 0), (far.state, far.log())
        monkeypatch.setattr(_host, "CONNECT_TIMEOUT_S", 1)
        with server.stopped():
            reconcile(laptop)
            since = silence_text(far.entry)
            assert since.startswith("no answer since ")
            assert wait_patiently(lambda: "No jobs in the system" in cluster.command("scontrol", "show", "jobs"))
            now = time.time
            monkeypatch.setattr(_jobs.time, "time", lambda: now() + 6 * 3600)
            reconcile(laptop)
            assert (far.state, silence_text(far.entry)) == (State.RUNNING, since)

        reconcile(laptop)
        for name, value in cluster.variables.items():
            monkeypatch.setenv(name, value)
        with closing(Record(record.place)) as restarted:
            reconcile(restarted)

        assert (far.state, far.reason) == (own.state, own.reason) == (State.SUCCEEDED, f"{STEPS} of {STEPS} steps")
        assert losses(far) == losses(own)
        assert silence_text(far.entry) == ""
        assert failed.state is State.LOST
        assert "only 0 of 2 processes reported an exit status" in failed.reason
