"""Runs as jobs of a real Slurm of two nodes on this machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from meshwave.engine.bench.target_runs import count_processes, find_processes, processes_on_nodes
from meshwave.engine.cli import main as cli
from meshwave.engine.costs.profile_store import list_profiles
from meshwave.engine.errors import RunError
from meshwave.engine.exports.slurm import Slurm
from meshwave.engine.files import import_folder
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Options, Record, Run, State, reconcile, silence_text
from meshwave.engine.runs.attempts import read_attempts
from meshwave.engine.runs.checkpoints import Checkpoints, complete_checkpoints
from meshwave.engine.runs.launchers import open_run
from meshwave.engine.runs.launchers._torchrun import PROGRAM
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.launchers.slurm import SlurmLauncher, SlurmOptions
from meshwave.engine.runs.target_check import TargetReport, check_target, target_cluster
from tests.conftest import wait_until
from tests.engine.runs import slurm_cluster
from tests.engine.runs.jobs import (
    PATIENCE_S,
    STEPS,
    kill_worker,
    losses,
    processes_of,
    two_nodes,
    wait_for_training,
    wait_patiently,
)
from tests.engine.runs.play import draw, submit

LINK_BITS_PER_S = 1e9
"""Limit of the link between the nodes while it is measured; the links inside a node and the interface are faster."""
pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.Cluster]:
    if why := slurm_cluster.missing_requirement():
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


def test_a_run_is_cancelled_as_soon_as_slurm_answers_and_leaves_no_process(
    slurm: SlurmLauncher, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit(slurm, two_nodes(100_000))  # type: ignore[arg-type]
    wait_for_training(run)
    on_nodes = [*processes_on_nodes(run, slurm)]  # where the launching host does not see the processes
    assert {pid for _, pid in on_nodes} == {pid for _, pid in find_processes(run, slurm)}
    assert {host.name for host, _ in on_nodes} == {"n1", "n2"}
    assert PROGRAM in on_nodes[-1][0].run(["ps", "-o", "args=", "-p", str(on_nodes[-1][1])])
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        reconcile(record)
        assert "scontrol is not installed" in silence_text(run.entry)
        with pytest.raises(RunError, match="scancel is not installed"):
            run.cancel()
    assert run.state in (State.STARTING, State.RUNNING)

    assert run.wait(timeout_s=PATIENCE_S) is State.CANCELLED
    assert run.reason.startswith("cancelled after ")
    assert wait_until(lambda: not processes_of(run))
    assert wait_until(lambda: count_processes(run, slurm) == 0)
    assert complete_checkpoints(run.folder) == []


@pytest.mark.nightly
def test_a_killed_process_is_the_reason(slurm: SlurmLauncher) -> None:
    run = submit(slurm, two_nodes(100_000))  # type: ignore[arg-type]
    wait_for_training(run)
    kill_worker(run.folder)

    assert run.wait(timeout_s=PATIENCE_S) is State.FAILED
    assert "was terminated by SIGKILL (exit -9)" in run.reason
    assert wait_until(lambda: not processes_of(run))


@pytest.fixture(scope="module")
def followed_run(cluster: slurm_cluster.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run in which a process was killed, and which another process followed to its end by the run database alone."""
    options = Options(checkpoints=Checkpoints(every_steps=10), restarts=1)
    with closing(Record(tmp_path_factory.mktemp("followed"))) as record:
        run = submit(launcher_of(record), two_nodes(STEPS), options)  # type: ignore[arg-type]
        assert wait_patiently(lambda: bool(complete_checkpoints(run.folder)))
        kill_worker(run.folder)
        # Nothing of the launcher is left, as after a restart of the server.

        def is_over() -> bool:
            with closing(Record(record.place)) as other:
                reconcile(other)
                return other.get(run.id).state.is_over

        assert wait_patiently(is_over)
        yield run


@pytest.mark.nightly
def test_another_process_follows_a_run_to_its_end(followed_run: Run) -> None:
    assert (followed_run.state, followed_run.reason) == (State.SUCCEEDED, f"{STEPS} of {STEPS} steps")
    assert (followed_run.folder / "job.sh").read_text().count("#SBATCH") > 5
    assert followed_run.log()[0].process == 0
    assert {exit["code"] for exit in followed_run.result().exits} == {0}  # type: ignore[union-attr]


@pytest.mark.nightly
def test_a_run_that_lost_a_process_has_the_losses_of_a_local_run(followed_run: Run, trainer: LocalLauncher) -> None:
    other = submit(trainer, two_nodes(STEPS))
    assert other.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED

    assert "was terminated by SIGKILL" in read_attempts(followed_run.folder)[0].reason
    assert losses(followed_run) == pytest.approx(losses(other), rel=1e-6)


def test_a_waiting_job_has_a_reason_and_can_be_cancelled(cluster: slurm_cluster.Cluster, record: Record) -> None:
    run = submit(launcher_of(record, directives=("--begin=now+1hour",)), two_nodes())  # type: ignore[arg-type]
    reconcile(record)

    assert (run.state, run.waiting_reason) == (State.STARTING, "BeginTime; position 1 of 1 in the queue")
    open_run(record, run.id).cancel()
    reconcile(record)
    assert (run.state, run.reason) == (State.CANCELLED, "cancelled after 0 of 3 steps")


@pytest.mark.nightly
def test_a_run_at_its_time_limit_continues_from_a_checkpoint(cluster: slurm_cluster.Cluster, record: Record) -> None:
    """Slurm checks time limits every 30 s, so its signal is sent here; what a job does then is the same."""
    run = submit(launcher_of(record), two_nodes(STEPS))  # type: ignore[arg-type]
    wait_for_training(run)
    job = record.get(run.id).handle["job"]["id"]

    cluster.command("scancel", "--signal=TERM", job)  # to the processes of the job, as --signal=TERM@20 does
    assert wait_patiently(lambda: "Reason=BeginTime" in cluster.command("scontrol", "show", "job", job))
    [checkpoint] = complete_checkpoints(run.folder)
    done = int(checkpoint.name.removeprefix("step-"))
    time.sleep(1)  # in the second of the requeue, its credential is revoked
    cluster.command("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm waits two minutes otherwise

    assert run.wait(timeout_s=2 * PATIENCE_S) is State.SUCCEEDED, run.reason
    assert [row["step"] for row in run.metrics()] == list(range(STEPS))
    assert 0 < done < STEPS
    assert f"resumed after step {done}" in (run.folder / "rank-0.log").read_text()


@pytest.mark.nightly
def test_a_run_that_may_not_restart_names_the_command_to_resume_it(
    cluster: slurm_cluster.Cluster, record: Record
) -> None:
    run = submit(launcher_of(record, restarts=0), two_nodes(100_000))  # type: ignore[arg-type]
    wait_for_training(run)

    cluster.command("scancel", "--signal=TERM", record.get(run.id).handle["job"]["id"])

    assert run.wait(timeout_s=PATIENCE_S) is State.FAILED
    assert "it wrote a checkpoint" in run.reason
    assert f"--resume {run.id}" in run.reason


@pytest.mark.nightly
def test_the_check_of_a_target_reports_nodes_and_links_of_different_speed(
    cluster: slurm_cluster.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shared").mkdir()
    file = tmp_path / "targets.toml"
    file.write_text(
        f'[two]\nlauncher = "slurm"\nroot = "{tmp_path}/shared"\ninterface = "mw0"\nnodes = 2\ndevices_per_node = 2\n'
    )
    monkeypatch.setenv("MESHWAVE_TARGETS", str(file))
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))

    with cluster.network.slow_link(LINK_BITS_PER_S):
        status = cli.main(["targets", "check", "two", "--json"])

    found = json.loads(capsys.readouterr().out)
    assert (status, found["problems"]) == (0, [])
    assert found["nodes"]["total"] == 2
    report = found["report"]
    assert [each["node"] for each in report["processes"]] == [0, 0, 1, 1]
    assert all(report["all_seen"])
    for measured in ("bandwidth", "all_reduce_bandwidth"):
        assert 0.4 < report["inter_node"][measured] / (LINK_BITS_PER_S / 8) < 1
    assert report["intra_node"]["bandwidth"] > report["inter_node"]["bandwidth"]
    assert report["intra_node"]["latency_s"] < 1
    assert [*(tmp_path / "shared").iterdir()] == [*(tmp_path / "home/runs").iterdir()] == []
    cluster_section = TargetReport.model_validate_json(json.dumps(report)).cluster()
    assert (cluster_section.nodes, cluster_section.devices_per_node) == (2, 2)
    assert cluster_section.inter_node.bandwidth == pytest.approx(report["inter_node"]["bandwidth"], rel=0.01)


@pytest.mark.nightly
def test_a_design_takes_the_cluster_of_a_target(
    cluster: slurm_cluster.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "targets.toml").write_text(
        f'[two]\nlauncher = "slurm"\nroot = "{tmp_path}"\ninterface = "mw0"\nnodes = 2\ndevices_per_node = 2\n'
    )
    monkeypatch.setenv("MESHWAVE_TARGETS", str(tmp_path / "targets.toml"))
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))

    with cluster.network.slow_link(LINK_BITS_PER_S):
        drawn, counts, _ = target_cluster("two")

    assert 0.4 < drawn.inter_node.bandwidth / (LINK_BITS_PER_S / 8) < 1
    assert (drawn.nodes, drawn.devices_per_node) == (2, 2)
    assert counts is not None
    assert [name for name, _ in counts.states] == ["n1", "n2"]


@pytest.mark.nightly
def test_a_target_is_calibrated_by_a_job_on_its_nodes(
    cluster: slurm_cluster.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "targets.toml").write_text(
        f'[two]\nlauncher = "slurm"\nroot = "{tmp_path}/shared"\ninterface = "mw0"\nnodes = 2\n'
    )
    monkeypatch.setenv("MESHWAVE_TARGETS", str(tmp_path / "targets.toml"))
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))

    assert cli.main(["calibrate", "--on", "two", "--parts", "links", "--rounds", "1", "--json"]) == 0

    profile = json.loads(capsys.readouterr().out)
    assert {link["pair"] for link in profile["links"]} >= {"same_node", "across_nodes"}
    assert list_profiles() == ["two.json"]
    assert cli.main(["calibrate", "--on", "two", "--shaped", "1e9,1e8"]) == 2


def test_a_check_that_fails_shows_the_error(cluster: slurm_cluster.Cluster, record: Record, tmp_path: Path) -> None:
    launcher = launcher_of(record, setup=("echo 'Error: no such module' >&2; exit 3",))

    with pytest.raises(RunError, match=r"check of cluster failed: .*Error: no such module"):
        check_target(launcher)


def test_a_sweep_of_designs_is_one_job_array(
    cluster: slurm_cluster.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "targets.toml").write_text('[two]\nlauncher = "slurm"\ninterface = "mw0"\n')
    monkeypatch.setenv("MESHWAVE_TARGETS", str(tmp_path / "targets.toml"))
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))
    designs = [tmp_path / f"{steps}.json" for steps in (2, 3)]
    for steps, path in zip((2, 3), designs, strict=True):
        path.write_text(draw("one node", pp=1, steps=steps).to_json())

    assert cli.main(["sweep", *map(str, designs), "--on", "two", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)["runs"]
    assert [len(run["metrics"]) for run in found] == [2, 3]
    with closing(Record()) as record:
        jobs = [record.get(run["run"]).handle["job"]["id"] for run in found]
    array = jobs[0].removesuffix("_0")
    assert jobs == [f"{array}_0", f"{array}_1"]
    assert "#SBATCH --array=0-1" in (Path(found[0]["folder"]) / "array.sh").read_text()


@pytest.mark.nightly
def test_a_preempted_run_keeps_its_state_and_waits(cluster: slurm_cluster.Cluster, record: Record) -> None:
    run = submit(launcher_of(record), two_nodes(100_000))  # type: ignore[arg-type]
    wait_for_training(run)
    reconcile(record)
    job = record.get(run.id).handle["job"]["id"]

    urgent = ("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 600")
    other = cluster.command("sbatch", "--parsable", *urgent).strip()
    try:
        assert wait_patiently(lambda: "JobState=PENDING" in cluster.command("scontrol", "show", "job", job))
        reconcile(record)
        assert run.state is State.RUNNING  # it goes on later
        assert len(complete_checkpoints(run.folder)) == 1
    finally:
        cluster.command("scancel", other)
        open_run(record, run.id).cancel()
    assert run.wait(timeout_s=PATIENCE_S) is State.CANCELLED


@pytest.mark.nightly
def test_an_exported_job_script_trains_the_design(cluster: slurm_cluster.Cluster, tmp_path: Path) -> None:
    script = tmp_path / "design.sbatch"
    text = Slurm.to_bytes(predict(two_nodes())).decode()
    variables = f"export PYTHONPATH={import_folder()} GLOO_SOCKET_IFNAME={slurm_cluster.INTERFACE}"
    environment = f"PATH={Path(sys.executable).parent}:$PATH"
    script.write_text(text.replace("# Load modules", f"{variables} {environment}\n# Load modules"))

    cluster.command("sbatch", "--wait", f"--chdir={tmp_path}", str(script))

    [results] = tmp_path.glob("meshwave-*")
    assert len((results / "metrics.jsonl").read_text().splitlines()) == 3
