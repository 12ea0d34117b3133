"""Runs as jobs of a real Slurm with slurmdbd and MariaDB, whose controller forgets jobs soon after their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwave.engine.runs import Record, Run, State, reconcile
from meshwave.engine.runs.launchers.slurm import SlurmLauncher, SlurmOptions
from tests.engine.runs import slurm_cluster
from tests.engine.runs.jobs import two_nodes, until_long
from tests.engine.runs.play import submit

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.slow]


def test_accounting_says_how_jobs_ended_that_the_controller_has_forgotten(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := slurm_cluster.missing(accounting=True):
        pytest.skip(why)

    def launch(**options: object) -> Run:
        given = {"interface": slurm_cluster.INTERFACE, **options}
        return submit(SlurmLauncher(record, SlurmOptions(**given), "cluster"), two_nodes())  # type: ignore[arg-type]

    (tmp_path / "slurm").mkdir()
    with slurm_cluster.running(tmp_path / "slurm", accounting=True) as cluster:
        for name, value in cluster.variables.items():
            monkeypatch.setenv(name, value)
        succeeded, failed = launch(), launch(setup=("exit 3",))
        cancelled = launch(directives=("--begin=now+1hour",))
        cluster.command("scancel", record.get(cancelled.id).handle["job"]["id"])
        assert until_long(lambda: "No jobs in the system" in cluster.command("scontrol", "show", "jobs"))

        reconcile(record)

    assert (succeeded.state, succeeded.reason) == (State.SUCCEEDED, "3 of 3 steps")
    ends = [(run.state, run.reason.partition(";")[0]) for run in (failed, cancelled)]
    assert ends == [
        (State.FAILED, "its script failed"),
        (State.FAILED, "a user or an administrator cancelled the job in Slurm (Slurm state CANCELLED)"),
    ]
