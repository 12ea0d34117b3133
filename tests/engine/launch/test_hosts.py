"""Emulated hosts: who sits where, links as drawn, and nothing of them stays, whatever is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import network as networks
from engine.errors import InputError, RunError
from engine.launch import Hosts, Options, Record, Run, State
from engine.launch.hosts import CARRIED, grown, network
from engine.launch.local import LocalLauncher
from engine.network import PAYLOAD, read_topology
from engine.rehearse import Rehearsal
from tests.engine.launch.play import HERE, all_gone, draw, processes, said, submit, until
from tests.engine.namespaces import eventually, is_alive, links, namespace, namespaces

ROOT = HERE.parents[2]
LINK = {"latency_s": 1e-5, "bandwidth": 1e9}
DEVICE = {"name": "core", "peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10, "efficiency": 0.5}


def nodes(count: int, devices: int, **more: object) -> dict[str, object]:
    return {
        "nodes": count,
        "devices_per_node": devices,
        "device": DEVICE,
        "intra_node": LINK,
        "inter_node": LINK,
        **more,
    }


def on(nodes: int, *, scale: float | None = None, **rates: float) -> Options:
    """Emulated hosts, and a rehearsal if there is a scale."""
    hosts = Hosts(nodes=nodes, **{"intra_bandwidth": 4e7, "inter_bandwidth": 1e7, **rates})
    return Options(hosts=hosts, rehearse=None if scale is None else Rehearsal(scale=scale))


# ---- what is asked for ----


def test_drawn_nodes_are_hosts_and_others_are_filled_in_order() -> None:
    drawn = draw(pp=3, cluster=nodes(4, 2))
    meshes = [{"name": name, "devices": [device], "axes": {}} for name, device in (("A", 5), ("B", 0), ("C", 4))]
    scattered = draw(pp=3, cluster=nodes(3, 2), meshes=meshes)

    assert network(drawn, on(4)).node_of == (0, 0, 1)
    assert network(drawn, on(2)).node_of == (0, 0, 1)
    assert network(draw(pp=4), on(2)).node_of == (0, 0, 1, 1)
    as_drawn = network(scattered, on(3, intra_bandwidth=1e8))
    assert as_drawn.node_of == (1, 0, 1)
    assert [as_drawn.address(process) for process in range(3)] == ["10.78.1.1", "10.78.0.1", "10.78.1.2"]
    assert (
        as_drawn.note == "2 emulated hosts of 1 + 2 processes, as drawn; links of 100 MB/s a process and 10 MB/s a NIC"
    )


def test_links_slow_down_as_time_is_stretched_and_no_faster_than_a_machine_carries_them() -> None:
    design = draw(pp=4, cluster=nodes(1, 4, nics_per_node=2))
    fast = on(2, scale=40, intra_bandwidth=3e11, inter_bandwidth=2e10)

    found = network(design, fast)

    assert (found.intra * PAYLOAD, found.inter * PAYLOAD) == pytest.approx((CARRIED, 5e8))
    assert (found.nics, found.latency_s) == (2, 40 * 1e-5)
    assert found.note == (
        "2 emulated hosts of 2 + 2 processes, filled in order; links of 500 MB/s a process (7.5 GB/s is more than can be "
        "emulated here) and 500 MB/s a NIC, 40 times slower as time is stretched"
    )
    assert fast.hosts is not None
    assert grown(40, fast.hosts, step_s=0.001) == 600, "then all links are as drawn"
    assert grown(40, fast.hosts, step_s=0.02) == 100, "more would be a long wait"
    assert grown(400, fast.hosts, step_s=0.02) == 400
    in_units = draw(pp=4, cost={"kind": "unit"})
    assert network(in_units, on(2, scale=40)).inter * PAYLOAD == pytest.approx(1e7), "a unit is no second"
    assert network(in_units, on(2, scale=40)).note.endswith(
        "not slowed as time is: costs in units say nothing of bytes a second"
    )


def test_hosts_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="--hosts 5: the design has 4 processes; use 1 to 4 hosts"):
        network(draw(), on(5))
    with pytest.raises(
        InputError, match="link of 1,000 bytes/s cannot be waited for; make it 10000 or more, or stretch"
    ):
        network(draw(), on(2, scale=1e4))


def test_a_network_is_read_back_from_its_folder(tmp_path: Path) -> None:
    topology = network(draw(), on(2))
    assert read_topology(tmp_path) is None

    (tmp_path / networks.FILE).write_text(topology.to_json())
    assert read_topology(tmp_path) == topology

    for text in ("[]", "{}", '{"format": "meshwave-network/1", "node_of": [0], "intra": 1}', '{"format": "x/2"}'):
        (tmp_path / networks.FILE).write_text(text)
        with pytest.raises(InputError, match="network.json is"):
            read_topology(tmp_path)


def test_what_a_machine_lacks_is_told_before_there_is_a_run(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "LINUX", False)
    assert "a thing of Linux" in str(networks.missing())
    monkeypatch.setattr(networks, "LINUX", True)
    assert "this user may not make network namespaces (Operation not permitted); run as root" in networks.in_words(
        PermissionError(1, "Operation not permitted")
    )
    monkeypatch.setattr(networks, "_tool", lambda name: None)

    with pytest.raises(RunError, match="hosts cannot be emulated here: the command ip is not here; install iproute2"):
        submit(launcher, draw(), options=on(2))

    assert launcher.record.all() == []


# ---- real processes ----


@pytest.fixture(scope="module")
def can_shape() -> None:
    if reason := networks.missing():
        pytest.skip(reason)


@pytest.fixture
def left_as_found(can_shape: None) -> Iterator[set[int]]:
    """Holds the namespaces that a test saw; at its end nothing of them is left, and no link is new."""
    links_before, seen = links(), set[int]()
    yield seen
    assert seen, "the test saw some"
    assert eventually(lambda: not namespaces() & seen)
    assert links() == links_before


def inside(run: Run, seen: set[int]) -> list[int]:
    """The namespace of each process of a run that is at its first step."""
    until(lambda: all(said(run, "step", process) for process in range(4)))
    found = [os.stat(f"/proc/{process.pid}/ns/net").st_ino for process in processes(run)]
    assert len({*found, namespace()}) == 5, "each process is alone in its network"
    seen.update(found)
    return found


@pytest.mark.parametrize("what", ["a rank", "the warm process", "nothing"])
def test_whatever_is_killed_nothing_stays(launcher: LocalLauncher, left_as_found: set[int], what: str) -> None:
    run = submit(launcher, draw("sleep"), options=on(2))
    inside(run, left_as_found)
    zygote = launcher._zygote
    assert zygote is not None

    if what == "nothing":
        run.cancel()
    else:
        os.kill(zygote.pid if what == "the warm process" else processes(run)[1].pid, signal.SIGKILL)

    ends = {"a rank": State.FAILED, "the warm process": State.LOST, "nothing": State.CANCELLED}
    assert run.wait(timeout_s=30) is ends[what]
    assert eventually(lambda: all_gone(run))


def test_killing_the_app_leaves_nothing(left_as_found: set[int], tmp_path: Path) -> None:
    design = tmp_path / "design.json"
    design.write_text(draw("sleep").to_json())
    owner = subprocess.Popen(
        [
            sys.executable,
            str(HERE / "owner.py"),
            str(tmp_path / "home"),
            str(design),
            on(2).model_dump_json(),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
    )
    assert owner.stdout is not None
    with owner:
        run = Run(Record(tmp_path / "home"), owner.stdout.readline().strip())
        inside(run, left_as_found)

        owner.kill()

    assert eventually(lambda: all_gone(run))


def test_a_network_that_is_not_made_ends_the_run_and_is_the_reason(
    record: Record, can_shape: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command, told = tmp_path / "ip", tmp_path / "told"
    command.write_text(f"#!/bin/sh\necho $PPID $$ > {told}.part; mv {told}.part {told}; sleep 600\n")
    command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("engine.launch.local.ready", lambda: None)
    launcher = LocalLauncher(record, start="fork", worker="stand_in", path=HERE)

    def started() -> tuple[Run, int, int]:
        told.unlink(missing_ok=True)
        run = submit(launcher, draw("sleep"), options=on(2))
        builder, its_command = map(int, until(lambda: told.exists() and told.read_text()).split())
        return run, builder, its_command

    run, builder, its_command = started()
    run.cancel()
    assert run.wait(timeout_s=30) is State.CANCELLED
    assert eventually(lambda: not is_alive(builder) and not is_alive(its_command))

    run, builder, its_command = started()
    os.kill(builder, signal.SIGKILL)
    assert run.wait(timeout_s=30) is State.FAILED
    assert run.reason == "the network could not be made: the process that makes it was ended"
    assert eventually(lambda: not is_alive(its_command))

    command.write_text("#!/bin/sh\necho no such thing >&2; exit 2\n")
    run = submit(launcher, draw("sleep"), options=on(2))
    assert run.wait(timeout_s=30) is State.FAILED
    assert run.reason == "the network could not be made: ip failed: no such thing"
    launcher.close()


def test_what_goes_across_has_a_link_of_its_own_as_fast_as_one_nic(can_shape: None) -> None:
    """And there is no way out of the network."""
    look = (
        "import subprocess; from engine.network import Topology, make\n"
        "def told(*command): return subprocess.run(command, capture_output=True, text=True, check=True).stdout\n"
        "network = make(Topology((0, 0, 1), intra=4e6, inter=1e6, nics=2, apart=True))\n"
        "assert 'tbf' not in told('tc', 'qdisc')\n"
        "network.enter(2); print(told('tc', 'qdisc'), told('ip', 'route'))"
    )

    shown = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert re.search(r"tbf .* dev e0 .*rate 32Mbit", shown), shown
    assert re.search(r"tbf .* dev e1 .*rate 8Mbit", shown), shown
    assert re.findall(r"10[.]78\S+ dev e\d|default", shown) == ["10.78.0.0/16 dev e1", "10.78.1.0/24 dev e0"]
