"""Launched training: processes of torch are forked from the warm process, and listen on the loopback only."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from meshwave.engine.runs import Hosts, Options, Run, State
from meshwave.engine.runs.emulation.network import missing_requirement
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.recording import read_recording
from tests.engine.runs.play import draw, have_all_ended, processes, submit, wait_until

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes through /proc"),
]


def training(trainer: LocalLauncher) -> Run:
    """A run that continues until the test ends it, at its first step or later."""
    run = submit(trainer, draw(steps=1_000_000))
    wait_until(lambda: run.metrics(), "the first step")
    return run


def test_a_design_trains_the_same_on_emulated_hosts(trainer: LocalLauncher) -> None:
    run = submit(trainer, draw(pp=2, dp=2, steps=3))

    assert run.wait(timeout_s=60) is State.SUCCEEDED, run.reason
    assert len(run.metrics()) == 3
    assert read_recording(run.folder).digest == run.entry.digest
    assert have_all_ended(run)

    if reason := missing_requirement():
        pytest.skip(reason)
    hosts = Hosts(nodes=2, intra_bandwidth=4e7, inter_bandwidth=1e7)
    spread = submit(trainer, draw(pp=2, dp=2, steps=3), options=Options(hosts=hosts))

    assert spread.wait(timeout_s=60) is State.SUCCEEDED, spread.reason
    assert [row["loss"] for row in spread.metrics()] == [row["loss"] for row in run.metrics()]
    assert re.search(
        "gloo over 2 emulated hosts of 2 [+] 2 processes, filled in order; links of 40 MB/s per process and 10 MB/s per NIC; "
        "latency between hosts is at least [0-9.]+ .?s on this machine [(]10 µs in the design[)]",
        spread.notes()[0],
    ), spread.notes()
    assert have_all_ended(spread)


@pytest.mark.nightly
def test_fresh_interpreters_train_as_well(trainer: LocalLauncher) -> None:
    fresh = LocalLauncher(trainer.record, start="spawn")

    run = submit(fresh, draw(pp=2, steps=2))

    assert run.wait(timeout_s=60) is State.SUCCEEDED, run.reason
    fresh.close()


def test_nothing_listens_on_a_public_interface(trainer: LocalLauncher) -> None:
    run = training(trainer)
    assert trainer._warm_process is not None
    pids = [trainer._warm_process.pid, *(process.pid for process in processes(run))]

    listening = {address for pid in pids for address in listening_on(pid)}
    run.cancel()

    assert listening, "gloo listens on the loopback"
    assert {address for address in listening if not is_loopback(address)} == set()
    assert run.wait(timeout_s=60) is State.CANCELLED


def test_the_warm_process_has_one_thread(trainer: LocalLauncher) -> None:
    trainer.warm()
    wait_until(lambda: trainer._warm_process and trainer._warm_process.is_ready, "the import")
    assert trainer._warm_process is not None

    assert len(os.listdir(f"/proc/{trainer._warm_process.pid}/task")) == 1, "a fork has no other threads"


def test_a_rank_that_is_killed_while_it_trains_is_the_reason(trainer: LocalLauncher) -> None:
    run = training(trainer)

    os.kill(processes(run)[2].pid, signal.SIGKILL)

    assert run.wait(timeout_s=60) is State.FAILED
    assert run.reason.startswith("mesh M2, process 2 was terminated by SIGKILL")
    assert have_all_ended(run)


def listening_on(pid: int) -> set[str]:
    """Return the addresses on which sockets of a process listen, in the kernel's hexadecimal notation."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            address, state, inode = fields[1], fields[3], fields[9]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                found.add(address.partition(":")[0])
    return found


def is_loopback(address: str) -> bool:
    """Return whether an address is 127.x.x.x, ::1, or a mapped 127.x.x.x."""
    return (
        address[-2:] == "7F" if len(address) == 8 else address in (f"{'0' * 24}01000000", f"{'0' * 16}FFFF00000100007F")
    )
