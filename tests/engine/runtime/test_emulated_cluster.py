"""A small cluster: its links are as slow as asked for, and nothing of it stays, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwave.engine.errors import InputError, RunError
from meshwave.engine.runs.emulation import network
from meshwave.engine.runtime.calibration.emulated_cluster import LOG, Cluster, _raise_first_error, run
from tests.engine.namespaces import eventually, is_alive, links, namespace, namespaces

ROOT = Path(__file__).resolve().parents[3]
WORKS = "tests.engine.runtime.works"
RATES = 4e7, 1e7
SHAPED = "2 nodes of 2 processes, emulated: 40 MB/s a process, 10 MB/s a node's uplink"


@pytest.fixture(scope="module")
def lacking() -> str | None:
    """Why links cannot be shaped on this machine."""
    return network.missing()


def test_every_process_returns_and_says_something_alone_in_its_network_on_links_of_the_rates_asked_for(
    lacking: str | None,
) -> None:
    """A link is never faster than its rate but for one burst at each end; how much slower the
    machine is at times, a test cannot know. A network of its own, so that nothing listens where
    somebody else could knock."""
    if lacking:  # then it says why, and what else there is
        with pytest.raises(InputError, match="links cannot be shaped here: .*; without rates the processes share"):
            run(f"{WORKS}:sums", Cluster(2, 2, *RATES), {})
    cluster = Cluster(2, 2) if lacking else Cluster(2, 2, *RATES)
    heard: list[str] = []
    size = 1_000_000

    results = run(f"{WORKS}:sums", cluster, {"start": 0.5, "size": size}, heard.append)

    assert [result["sum"] for result in results] == [8.0] * 4
    assert sorted(heard) == [f"process {number}" for number in range(4)]
    assert str(Cluster(1, 3)) == "3 processes over this machine's loopback, not shaped"
    if not lacking:
        taken, bursts = results[0], 3 * network.BURST_BYTES
        assert (size - bursts) / RATES[0] < taken["inside"]
        assert (size - bursts) / RATES[1] < taken["across"]
        assert (2 * size - bursts) / RATES[1] < taken["shared"]
        assert str(cluster) == SHAPED
        found = {result["namespace"] for result in results}
        assert len({*found, namespace()}) == 5
        assert eventually(lambda: not namespaces() & found)


def test_nothing_stays_when_the_owner_is_killed(lacking: str | None, tmp_path: Path) -> None:
    links_before = links()
    owner = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.runtime.cluster_owner", *map(str, () if lacking else RATES)],
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
    assert len(inside) == (0 if lacking else 4)

    owner.kill()
    owner.wait(20)

    assert eventually(lambda: not any(map(is_alive, pids)))
    assert eventually(lambda: not namespaces() & inside)
    assert links() == links_before
    assert eventually(lambda: not list(tmp_path.iterdir()))
    owner.stdout.close()


def test_ctrl_c_ends_every_process() -> None:
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("tests.engine.runtime.says_pid:work", Cluster(1, 1), say=interrupt)

    assert [*map(is_alive, pids)] == [False]


def test_the_first_failure_is_told_and_ends_the_others() -> None:
    """The other would sleep for a minute."""
    with pytest.raises(RunError, match="^process 1 of the cluster failed: the second process will not$"):
        run(f"{WORKS}:fails", Cluster(1, 2))


def test_a_process_that_left_no_error_is_told_by_its_log(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("what went before\nterminate called\n")

    with pytest.raises(RunError, match="^the cluster ended with status 1: terminate called$"):
        _raise_first_error(tmp_path, 1)


def test_work_that_is_not_there_is_told() -> None:
    with pytest.raises(RunError, match="the start of the cluster failed: ModuleNotFoundError"):
        run("meshwave.engine.nowhere:work", Cluster(1, 2))


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((2, 0, None, None), "2 x 0 processes cannot be; use 1 to 64"),
        ((9, 8, None, None), "9 x 8 processes cannot be"),
        ((2, 2, 1e6, None), "two rates"),
        ((2, 2, 1e6, 1e7), "make the one between nodes the slower"),
        ((2, 2, float("nan"), 1e6), "bytes/s \\(supported: 10000 to 1e\\+11\\)"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(sizes: tuple[int, int, float | None, float | None], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Cluster(*sizes)
