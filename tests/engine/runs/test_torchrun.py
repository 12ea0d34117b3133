"""Runs that torchrun starts on this machine, compared with runs of the warm process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from meshwave.engine.findings import Refusal
from meshwave.engine.runs import Options, Record, State, reconcile
from meshwave.engine.runs.attempts import read_attempts
from meshwave.engine.runs.checkpoints import Checkpoints, complete_checkpoints
from meshwave.engine.runs.emulation.hosts import default_hosts
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.launchers.torchrun import TorchrunLauncher
from meshwave.engine.runs.options import REHEARSAL
from meshwave.engine.runs.targets import open_target
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
from tests.engine.runs.play import submit

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture
def torchrun(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchrunLauncher]:
    (tmp_path / "targets.toml").write_text("[torchrun.limits]\nprocesses = 4\n")
    monkeypatch.setenv("MESHWAVE_TARGETS", str(tmp_path / "targets.toml"))
    with closing(open_target(record, "torchrun")) as launcher:
        if refusal := launcher.probe().refusal:
            pytest.skip(refusal.message)
        assert isinstance(launcher, TorchrunLauncher)
        yield launcher


@pytest.mark.nightly
def test_a_run_that_loses_a_process_and_its_launcher_ends_with_the_losses_of_the_warm_process(
    torchrun: TorchrunLauncher, record: Record, trainer: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    options = Options(checkpoints=Checkpoints(every_steps=10), restarts=1)
    run = submit(torchrun, two_nodes(STEPS), options)  # type: ignore[arg-type]
    assert wait_patiently(lambda: bool(complete_checkpoints(run.folder)))
    torchrun.close()  # as at the end of the server
    kill_worker(run.folder)

    def is_over() -> bool:
        with closing(Record(record.place)) as other:
            reconcile(other)
            return other.get(run.id).state.is_over

    assert wait_patiently(is_over)
    assert (run.state, run.reason) == (State.SUCCEEDED, f"{STEPS} of {STEPS} steps")
    assert "was terminated by SIGKILL" in read_attempts(run.folder)[0].reason
    other = submit(trainer, two_nodes(STEPS))
    assert other.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED
    assert losses(run) == pytest.approx(losses(other), rel=1e-6)
    assert not list(tmp_path.glob("torchelastic_*"))


def test_a_run_is_cancelled_and_leaves_no_process_while_another_waits(
    torchrun: TorchrunLauncher, record: Record
) -> None:
    run, other = (submit(torchrun, two_nodes(100_000), REHEARSAL) for _ in range(2))  # type: ignore[arg-type]
    wait_for_training(run)

    assert other.waiting_reason == f"position 1 of 1 in the queue; run {run.id} is active"
    other.cancel()
    run.cancel()

    assert run.wait(timeout_s=PATIENCE_S) is State.CANCELLED
    assert other.state is State.CANCELLED
    assert wait_until(lambda: not processes_of(run))


def test_limits_hold_and_emulated_hosts_are_refused(torchrun: TorchrunLauncher) -> None:
    design = two_nodes()
    with pytest.raises(Refusal, match="launch on local instead of torchrun"):
        torchrun.check_requirements(design, design, Options(hosts=default_hosts(design)))
    assert torchrun.limits.processes == 4
    assert len(torchrun.layout(design).processes) == 1
