"""Jobs of Slurm without Slurm: the script of a job, and its state from the output of replaced commands."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwave.engine.errors import RunError
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Record
from meshwave.engine.runs.cancellation import CANCEL_TIMEOUT_S
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.launchers._jobs import Phase
from meshwave.engine.runs.launchers._torchrun import NodeLayout
from meshwave.engine.runs.launchers.slurm import SlurmLauncher, SlurmOptions
from tests.engine.runs.jobs import two_nodes

UNKNOWN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
"""Answer of the controller about a job that ended some minutes ago."""


@pytest.fixture
def slurm(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmLauncher:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return SlurmLauncher(record, SlurmOptions(), "cluster")


def write_command(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("accounting", "phase", "failure"),
    [
        ("echo COMPLETED", Phase.ENDED, None),
        ("echo FAILED", Phase.ENDED, "ended_by_slurm"),
        ("echo TIMEOUT", Phase.ENDED, "ended_by_slurm"),
        ("echo NODE_FAIL", Phase.ENDED, "ended_by_slurm"),
        ("echo 'CANCELLED by 1000'", Phase.ENDED, "ended_by_slurm"),
        ("echo REQUEUED", Phase.WAITING, None),
        ("echo RUNNING", Phase.RUNNING, None),
        ("true", Phase.ENDED, None),
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", Phase.ENDED, None),
    ],
)
def test_a_job_that_the_controller_has_forgotten_has_its_state_from_accounting(
    slurm: SlurmLauncher, tmp_path: Path, accounting: str, phase: Phase, failure: str | None
) -> None:
    write_command(tmp_path, "scontrol", UNKNOWN)
    write_command(
        tmp_path, "sacct", f'[ "$*" = "--noheader --parsable2 --allocations --jobs 7 --format=State" ] && {accounting}'
    )

    status = slurm.status("run", {"id": "7"})

    assert (status.phase, status.failure.code if status.failure else None) == (phase, failure)


def test_a_job_that_waits_has_its_reason_and_its_position(slurm: SlurmLauncher, tmp_path: Path) -> None:
    write_command(tmp_path, "scontrol", "echo 'JobId=7 JobName=x JobState=PENDING Reason=Priority Partition=main'")
    write_command(tmp_path, "squeue", 'case "$*" in *--partition=main*) printf "5\\n7\\n9\\n";; esac')

    status = slurm.status("run", {"id": "7"})

    assert (status.phase, status.note) == (Phase.WAITING, "Priority; position 2 of 3 in the queue")


def test_runs_of_an_array_end_at_once_if_a_design_is_refused_or_slurm_refuses_the_array(
    slurm: SlurmLauncher, tmp_path: Path
) -> None:
    write_command(tmp_path, "sbatch", "echo 'invalid partition' >&2; exit 1")
    good = two_nodes(2)
    refused = good.model_copy(update={"training": good.training.model_copy(update={"data": "missing.txt"})})

    began_s = time.monotonic()
    with pytest.raises(DesignError):
        slurm.submit_all([specify_run(predict(each)) for each in (good, refused)])
    with pytest.raises(RunError, match="invalid partition"):
        slurm.submit_all([specify_run(predict(good))])

    assert time.monotonic() - began_s < CANCEL_TIMEOUT_S
    states = [(entry.state, entry.reason) for entry in slurm.record.entries()]
    assert sorted(state.name for state, _ in states) == ["CANCELLED", "FAILED"]
    assert any("invalid partition" in (reason or "") for _, reason in states)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        (
            {"container": "nvcr.io#nvidia/pytorch:25.09-py3", "container_mounts": ("/data", "/models:/mnt:ro")},
            [
                "--container-image=nvcr.io#nvidia/pytorch:25.09-py3",
                "--container-mounts=/shared:/shared,/data:/data,/models:/mnt:ro",
                "--container-workdir=/shared/run",
            ],
        ),
        (
            {"container": "torch.sif", "container_runtime": "apptainer", "gpus_per_node": 8},
            ["apptainer", "exec", "--nv", "--bind", "/shared:/shared", "--pwd", "/shared/run", "torch.sif"],
        ),
    ],
)
def test_a_container_is_started_on_each_node_with_the_run_folders_mounted(
    slurm: SlurmLauncher, tmp_path: Path, options: dict[str, object], words: list[str]
) -> None:
    slurm.options = SlurmOptions.model_validate(options)
    write_command(tmp_path, "srun", 'printf "%s\\n" "$@"')

    scripts = slurm.scripts(NodeLayout((2, 2), (0, 1, 2, 3)), "run", ["process.py", "/shared/run"])
    [line] = [line for line in scripts["job.sh"].splitlines() if line.startswith("srun ")]
    started = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout.splitlines()

    assert started == ["--kill-on-bad-exit=1", *words, "bash", "-c", "", "", ""]
    assert (f"exec {sys.executable} " in scripts["node.sh"]) is ("PYTHONPATH" in scripts["node.sh"]) is (not words)
