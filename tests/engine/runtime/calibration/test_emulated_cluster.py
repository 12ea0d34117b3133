"""A small cluster has the requested bandwidths, and leaves nothing behind however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwave.engine.errors import InputError, RunError
from meshwave.engine.runs.emulation import network
from meshwave.engine.runtime.calibration.emulated_cluster import LOG, ProcessCluster, raise_first_error, run_in_cluster
from tests.engine.namespaces import is_alive, is_true_in_time, links, namespace, namespaces

ROOT = Path(__file__).resolve().parents[4]
FUNCTIONS = "tests.engine.runtime.calibration.cluster_functions"
BANDWIDTHS = 4e7, 1e7
EMULATED = "2 emulated nodes of 2 processes: 40 MB/s per process, 10 MB/s per node uplink"


@pytest.fixture(scope="module")
def missing_emulation() -> str | None:
    """The reason why this machine cannot emulate links; None if it can."""
    return network.missing_requirement()


def test_processes_return_results_from_their_own_namespaces_over_links_of_the_requested_bandwidths(
    missing_emulation: str | None,
) -> None:
    """A link is never faster than its bandwidth except for one burst at each end. Load can make it slower.

    Each process has a network namespace of its own, so that it does not listen on the networks of the machine.
    """
    if missing_emulation:
        with pytest.raises(InputError, match="links cannot be emulated here: .*; omit the bandwidths"):
            run_in_cluster(f"{FUNCTIONS}:measure_messages", ProcessCluster(2, 2, *BANDWIDTHS), {})
    cluster = ProcessCluster(2, 2) if missing_emulation else ProcessCluster(2, 2, *BANDWIDTHS)
    lines: list[str] = []
    size = 1_000_000

    results = run_in_cluster(f"{FUNCTIONS}:measure_messages", cluster, {"start": 0.5, "size": size}, lines.append)

    assert [result["sum"] for result in results] == [8.0] * 4
    assert sorted(lines) == [f"process {number}" for number in range(4)]
    assert str(ProcessCluster(1, 3)) == "3 processes over this machine's loopback, not emulated"
    if not missing_emulation:
        seconds, bursts = results[0], 3 * network.BURST_BYTES
        assert (size - bursts) / BANDWIDTHS[0] < seconds["inside"]
        assert (size - bursts) / BANDWIDTHS[1] < seconds["across"]
        assert (2 * size - bursts) / BANDWIDTHS[1] < seconds["shared"]
        assert str(cluster) == EMULATED
        found = {result["namespace"] for result in results}
        assert len({*found, namespace()}) == 5
        assert is_true_in_time(lambda: not namespaces() & found)


@pytest.mark.nightly
def test_nothing_is_left_when_the_owner_is_killed(missing_emulation: str | None, tmp_path: Path) -> None:
    links_before = links()
    owner = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.engine.runtime.calibration.cluster_owner",
            *map(str, () if missing_emulation else BANDWIDTHS),
        ],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert owner.stdout is not None
    lines = [owner.stdout.readline().split() for _ in range(4)]
    pids = {int(pid) for pid, _ in lines}
    inside = {int(number) for _, number in lines} - {namespace()}
    assert len(inside) == (0 if missing_emulation else 4)

    owner.kill()
    owner.wait(20)

    assert is_true_in_time(lambda: not any(map(is_alive, pids)))
    assert is_true_in_time(lambda: not namespaces() & inside)
    assert links() == links_before
    assert is_true_in_time(lambda: not list(tmp_path.iterdir()))
    owner.stdout.close()


def test_ctrl_c_ends_every_process() -> None:
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_cluster("tests.engine.runtime.calibration.print_pid:wait", ProcessCluster(1, 1), on_line=interrupt)

    assert [*map(is_alive, pids)] == [False]


def test_the_first_failure_is_raised_and_ends_the_other_processes() -> None:
    """The other process would sleep for a minute."""
    with pytest.raises(RunError, match="^process 1 of the cluster failed: process 1 refuses$"):
        run_in_cluster(f"{FUNCTIONS}:fail_in_process_1", ProcessCluster(1, 2))


def test_a_process_without_an_error_file_is_reported_by_its_log(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("an earlier line\nterminate called\n")

    with pytest.raises(RunError, match="^the cluster ended with status 1: terminate called$"):
        raise_first_error(tmp_path, 1)


def test_an_unknown_function_is_reported() -> None:
    with pytest.raises(RunError, match="the start of the cluster failed: ModuleNotFoundError"):
        run_in_cluster("meshwave.engine.nowhere:work", ProcessCluster(1, 2))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, 0, None, None), "unsupported number of processes: 2 x 0 .supported: 1 to 64"),
        ((9, 8, None, None), "unsupported number of processes: 9 x 8"),
        ((2, 2, 1e6, None), "two bandwidths"),
        ((2, 2, 1e6, 1e7), "lower the rate between nodes"),
        ((2, 2, float("nan"), 1e6), "bytes/s \\(supported: 10000 to 1e\\+11\\)"),
    ],
)
def test_an_invalid_cluster_is_rejected(sizes: tuple[int, int, float | None, float | None], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ProcessCluster(*sizes)
