"""Runs as jobs of a real Slurm of two nodes on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from meshwave.engine.document import Design
from meshwave.engine.runs import Record, Run, State
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.launchers.slurm import SlurmLauncher, SlurmOptions
from tests.engine.runs import slurm_cluster
from tests.engine.runs.play import draw, submit

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.slow]
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.Cluster]:
    if why := slurm_cluster.missing():
        pytest.skip(why)
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.variables.items():
            patch.setenv(name, value)
        yield cluster


@pytest.fixture
def slurm(cluster: slurm_cluster.Cluster, record: Record) -> SlurmLauncher:
    return launcher_of(record)


def launcher_of(record: Record, **options: object) -> SlurmLauncher:
    given = {"partition": "main", "interface": slurm_cluster.INTERFACE, "signal_before_s": 20, **options}
    return SlurmLauncher(record, SlurmOptions(**given), "cluster")  # type: ignore[arg-type]


def two_nodes(steps: int = 3) -> Design:
    """A design of two meshes, each on a node of its own."""
    design = draw("two nodes", pp=2, steps=steps)
    return design.model_copy(update={"cluster": design.cluster.model_copy(update={"nodes": 2, "devices_per_node": 1})})


def losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.metrics()]


def is_training(run: Run) -> bool:
    return run.progress.done > 0


def processes_of(run: Run) -> list[int]:
    """The processes of a run that exist, by the run folder on their command lines."""
    found = subprocess.run(
        ["pgrep", "--full", f"torchrun_process.*{run.id}"], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]


def test_a_run_on_two_nodes_has_the_losses_of_a_local_run(slurm: SlurmLauncher, record: Record) -> None:
    run = submit(slurm, two_nodes())

    assert run.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED, run.reason
    assert (run.folder / "job.sh").read_text().count("#SBATCH") > 5
    local = LocalLauncher(record)
    try:
        other = submit(local, two_nodes())  # type: ignore[arg-type]
        assert other.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED
    finally:
        local.close()
    assert losses(run) == pytest.approx(losses(other), rel=1e-6)
    assert run.log()[0].process == 0
    assert {exit["code"] for exit in run.result().exits} == {0}  # type: ignore[union-attr]
