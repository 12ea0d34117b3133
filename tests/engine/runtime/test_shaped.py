"""A small cluster: its links are as slow as asked for, and nothing of it stays, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import InputError, RunError
from engine.runtime import shaped
from engine.runtime.shaped import Cluster, run
from tests.engine.runtime.works import RATES, namespace

ROOT = Path(__file__).resolve().parents[3]
WORKS = "tests.engine.runtime.works"
GONE_S = 5.0


@pytest.fixture(scope="module")
def lacking() -> str | None:
    """Why links cannot be shaped on this machine."""
    return shaped.missing()


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + GONE_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_every_process_returns_something_and_may_say_something() -> None:
    heard: list[str] = []

    results = run(f"{WORKS}:sums", Cluster(1, 3), 0.5, heard.append)

    assert [result["sum"] for result in results] == [4.5] * 3
    assert sorted(heard) == ["process 0", "process 1", "process 2"]
    assert results[0]["parameters"] == "3 processes over this machine's loopback, not shaped"


def test_links_have_the_rates_that_were_asked_for(lacking: str | None) -> None:
    """A link is never faster than its rate but for one burst at each end; how much slower the
    machine is at times, a test cannot know."""
    cluster = Cluster(2, 2, *RATES)
    size = 2_000_000
    if lacking:  # then it says why, and what else there is
        with pytest.raises(InputError, match="links cannot be shaped here: .*; without rates the processes share"):
            run(f"{WORKS}:messages", cluster, size)
        return

    taken = run(f"{WORKS}:messages", cluster, size)[0]

    bursts = 3 * shaped.BURST_BYTES
    assert (size - bursts) / RATES[0] < taken["inside"]
    assert (size - bursts) / RATES[1] < taken["across"]
    assert (2 * size - bursts) / RATES[1] < taken["shared"]
    assert str(cluster) == "2 nodes of 2 processes, emulated: 40 MB/s a process, 10 MB/s a node's uplink"


def test_each_process_is_alone_in_its_network(lacking: str | None) -> None:
    """So that nothing of it listens where somebody else could knock."""
    if lacking:
        with pytest.raises(InputError):
            run(f"{WORKS}:sums", Cluster(2, 1, *RATES), 0)
        return

    found = [result["namespace"] for result in run(f"{WORKS}:sums", Cluster(2, 1, *RATES), 0)]

    assert len({*found, namespace()}) == 3
    assert eventually(lambda: not namespaces() & set(found))


@pytest.mark.parametrize("kind", ["shaped", "loopback"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_nothing_stays_when_the_owner_goes(how: signal.Signals, kind: str, lacking: str | None, tmp_path: Path) -> None:
    links_before = links()
    owner = subprocess.Popen(
        [sys.executable, "-m", WORKS, "loopback" if lacking else kind],
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

    owner.send_signal(how)
    owner.wait(GONE_S)

    assert eventually(lambda: not any(map(alive, pids)))
    assert eventually(lambda: not namespaces() & inside)
    assert links() == links_before
    assert eventually(lambda: not list(tmp_path.iterdir()))
    owner.stdout.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def namespaces() -> set[int]:
    """The network namespaces that processes are in."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(path.stat().st_ino)
        except OSError:  # it has just ended, or is somebody else's
            continue
    return found


def links() -> list[str]:
    folder = Path("/sys/class/net")
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_the_first_failure_is_told_and_ends_the_others() -> None:
    began = time.monotonic()

    with pytest.raises(RunError, match="^process 1 of the cluster failed: the second process will not$"):
        run(f"{WORKS}:fails", Cluster(1, 3))

    assert time.monotonic() - began < 30


def test_a_process_that_dies_is_told_too() -> None:
    with pytest.raises(RunError, match="of the cluster failed|ended with status 1"):
        run(f"{WORKS}:fails", Cluster(1, 1), "abort")


def test_work_that_is_not_there_is_told() -> None:
    with pytest.raises(RunError, match="the start of the cluster failed: ModuleNotFoundError"):
        run("engine.nowhere:work", Cluster(1, 2))


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((2, 0, None, None), "2 x 0 processes cannot be; use 1 to 64"),
        ((9, 8, None, None), "9 x 8 processes cannot be"),
        ((2, 2, 1e6, None), "two rates"),
        ((2, 2, 1e6, 1e7), "the one between nodes the smaller"),
        ((2, 2, float("nan"), 1e6), "cannot be; use 1e4 to 1e11"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(sizes: tuple[int, int, float | None, float | None], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Cluster(*sizes)


def test_what_is_missing_is_said_in_words(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shaped, "LINUX", False)
    assert "a thing of Linux" in str(shaped.missing())
    monkeypatch.setattr(shaped, "LINUX", True)

    monkeypatch.setattr(shaped, "_tool", lambda name: None)
    assert shaped.missing() == "the command ip is not here; install iproute2"

    def refuse() -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(shaped, "new_namespace", refuse)
    with pytest.raises(SystemExit) as left:
        shaped._try()
    assert "this user may not make network namespaces (Operation not permitted); run as root" in str(left.value)

    with pytest.raises(InputError, match="links cannot be shaped here: the command ip is not here"):
        run(f"{WORKS}:sums", Cluster(2, 1, *RATES), 0)
