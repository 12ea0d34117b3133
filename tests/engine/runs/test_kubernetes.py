"""Runs as jobs of Kubernetes, with a replacement for kubectl; manifests are checked against the published API."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwave.engine.document import load_design
from meshwave.engine.files import example, import_folder
from meshwave.engine.findings import Refusal
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Options, Record, Run, State, reconcile
from meshwave.engine.runs.attempts import read_attempts
from meshwave.engine.runs.checkpoints import Checkpoints, complete_checkpoints
from meshwave.engine.runs.launchers._jobs import JobStatus, Phase
from meshwave.engine.runs.launchers._manifests import to_yaml
from meshwave.engine.runs.launchers._torchrun import NodeLayout
from meshwave.engine.runs.launchers.kubernetes import (
    KubernetesLauncher,
    KubernetesOptions,
    job_name,
    kubernetes_job_status,
)
from meshwave.engine.runs.launchers.local import LocalLauncher
from tests.conftest import wait_until
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

HERE = Path(__file__).parent


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the replacement for kubectl on the path; return the file with its calls."""
    folder = tmp_path / "kubectl"
    folder.mkdir()
    script = folder / "kubectl"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE}/kubectl_stand_in.py {folder} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "calls.jsonl"


def launcher_of(record: Record, root: Path, **changes: Any) -> KubernetesLauncher:
    given = {"image": "registry/meshwave:1", "claim": "runs", "root": str(root), "interface": "lo"}
    setup = (f"export PYTHONPATH={import_folder()}",)
    options = KubernetesOptions(**{**given, "python": sys.executable, "setup": setup, **changes})
    return KubernetesLauncher(record, options, "k8s")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["trainjob", "jobset"])
def test_killed_and_evicted_pods_restart_the_run_from_its_checkpoint(
    kind: str, calls: Path, record: Record, trainer: LocalLauncher, tmp_path: Path
) -> None:
    launcher = launcher_of(record, tmp_path / "claim", kind=kind, context="west", namespace="team")
    options = Options(checkpoints=Checkpoints(every_steps=10), restarts=2)
    run = submit(launcher, two_nodes(2 * STEPS), options)  # type: ignore[arg-type]
    assert wait_patiently(lambda: bool(complete_checkpoints(run.folder)))

    kill_worker(run.folder)
    assert wait_patiently(lambda: reconcile(record) or len(read_attempts(run.folder)) == 1)
    assert wait_patiently(lambda: run.progress.done > read_attempts(run.folder)[0].done)
    evict(run)

    assert run.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED, (run.reason, run.log())
    killed, evicted = read_attempts(run.folder)
    assert "was terminated by SIGKILL" in killed.reason
    assert evicted.resumed_from >= evicted.done > killed.resumed_from > 0
    assert run.folder.resolve() == tmp_path / "claim" / run.id
    given = [json.loads(line) for line in calls.read_text().splitlines()]
    assert {tuple(arguments[:2]) for arguments in given} == {("--context=west", "--namespace=team")}
    assert given[0][2:] == ["create", "--filename", f"{tmp_path}/claim/{run.id}/manifest.yaml"]
    assert given[1][2:4] == ["get", f"{kind}s.{'trainer.kubeflow.org' if kind == 'trainjob' else 'jobset.x-k8s.io'}"]
    names = [arguments[4] for arguments in given if arguments[2] == "delete"]
    assert names == [job_name(run.id), job_name(run.id, 1)]
    undisturbed = submit(trainer, two_nodes(2 * STEPS))
    assert undisturbed.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED, undisturbed.reason
    assert losses(run) == losses(undisturbed)


def evict(run: Run) -> None:
    """Send SIGTERM to the pods of a run, as Kubernetes does before it removes them from their nodes."""
    found = processes_of(run)
    for pid in found:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if parent not in found:
            os.kill(pid, signal.SIGTERM)


@pytest.mark.torch
@pytest.mark.slow
def test_a_cancelled_run_leaves_no_process(calls: Path, record: Record, tmp_path: Path) -> None:
    run = submit(launcher_of(record, tmp_path / "claim"), two_nodes(100_000))  # type: ignore[arg-type]
    wait_for_training(run)

    run.cancel()

    assert run.wait(timeout_s=PATIENCE_S) is State.CANCELLED
    assert wait_until(lambda: not processes_of(run))


def test_deleting_a_job_ends_its_run(calls: Path, record: Record, tmp_path: Path) -> None:
    launcher = launcher_of(record, tmp_path / "claim", setup=("exec sleep 60",))
    run = submit(launcher, two_nodes())  # type: ignore[arg-type]
    launcher.end(run.id, record.get(run.id).handle["job"])

    reconcile(record)

    assert run.state is State.FAILED
    assert "was deleted from Kubernetes" in run.reason


def test_nodes_of_different_sizes_are_refused(calls: Path, record: Record, tmp_path: Path) -> None:
    design = draw("three", pp=3)
    uneven = design.model_copy(
        update={"cluster": design.cluster.model_copy(update={"nodes": 2, "devices_per_node": 2})}
    )

    with pytest.raises(Refusal, match="all pods of a Kubernetes job are identical"):
        submit(launcher_of(record, tmp_path / "claim"), uneven)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("conditions", "phase"),
    [
        ([], Phase.WAITING),
        ([{"type": "Suspended", "status": "True", "message": "queued"}], Phase.WAITING),
        ([{"type": "Complete", "status": "True"}], Phase.ENDED),
        ([{"type": "Completed", "status": "True"}], Phase.ENDED),
        ([{"type": "Failed", "status": "True", "reason": "BackoffLimit", "message": "a pod failed"}], Phase.ENDED),
        ([{"type": "Failed", "status": "False"}], Phase.WAITING),
    ],
)
def test_conditions_of_a_job_become_its_status(conditions: list[dict[str, str]], phase: Phase) -> None:
    found: JobStatus = kubernetes_job_status({"conditions": conditions})

    assert found.phase is phase
    assert (found.failure is not None) == any(
        each["type"] == "Failed" and each["status"] == "True" for each in conditions
    )


@pytest.mark.slow
def test_a_job_whose_pods_have_ended_does_not_wait_for_them() -> None:
    starting = {"name": "node", "active": 1, "ready": 0, "succeeded": 0, "failed": 0}
    assert kubernetes_job_status({"jobsStatus": [starting]}).phase is Phase.WAITING
    for key in ("jobsStatus", "replicatedJobsStatus"):
        for end in ("succeeded", "failed"):
            assert kubernetes_job_status({key: [{**starting, "active": 0, end: 1}]}) == JobStatus(Phase.RUNNING)


@pytest.mark.parametrize("kind", ["trainjob", "jobset"])
def test_manifests_are_those_of_the_published_api(kind: str, record: Record, tmp_path: Path) -> None:
    more = {"gpus_per_node": 8, "queue": "team-a", "node_selector": {"gpu": "h100"}, "namespace": "team"}
    launcher = launcher_of(record, tmp_path, kind=kind, **more)
    program = ["--module", "worker", str(tmp_path / "run")]
    scripts = launcher.scripts(NodeLayout.from_design(two_nodes()), "20261123-000000-ab12", program)
    manifest = yaml.safe_load(scripts["manifest.yaml"])

    check(manifest)
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert "persistentVolumeClaim" in json.dumps(manifest)
    assert "nvidia.com/gpu" in json.dumps(manifest)
    assert '"terminationGracePeriodSeconds": 60' in json.dumps(manifest)
    assert "export MESHWAVE_CHECKPOINT_ON_SIGTERM=1" in scripts["node.sh"]


@pytest.mark.slow
def test_the_export_contains_design_and_job() -> None:
    from meshwave.engine.exports.kubernetes import Kubernetes

    text = Kubernetes.to_bytes(predict(load_design(example("02-two-waves")))).decode()
    files, job = yaml.safe_load_all(text)

    check(job)
    assert files["kind"] == "ConfigMap"
    compile(files["data"]["design.py"], "design.py", "exec")
    assert "torch.distributed.run" in files["data"]["node.sh"]


def check(manifest: dict[str, Any]) -> None:
    """Compare a manifest with what the models of the API keep of it; the API would discard unknown keys."""
    from kubeflow_trainer_api import models

    name = {"TrainJob": "TrainerV1alpha1TrainJob", "JobSet": "JobsetV1alpha2JobSet"}[manifest["kind"]]
    assert getattr(models, name).from_dict(manifest).to_dict() == manifest


def test_yaml_is_read_back_as_it_was_written() -> None:
    document = {
        "plain": "word",
        "looks like a number": "1e3",
        "looks like a truth value": ["no", "true", True, None, 5, 1.5],
        "lines": "first\n  second\n\nlast\n",
        "nested": [{"a": [], "b": {}}, ["x", ["y"]], "a: b", "- c", "#", ""],
    }

    assert yaml.safe_load(to_yaml(document)) == document
