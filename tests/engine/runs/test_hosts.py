"""Emulated hosts: their processes, their link rates, and that nothing remains of them even if processes are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.costs.profile_store import store_profile
from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import InputError, RunError
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import predict
from meshwave.engine.run_files import RunFolderError
from meshwave.engine.runs import Bundle, Hosts, Options, Record, Run, State, read_bundle, write_bundle
from meshwave.engine.runs.dry_run import Rehearsal
from meshwave.engine.runs.emulation import hosts
from meshwave.engine.runs.emulation import network as networks
from meshwave.engine.runs.emulation.hosts import (
    FASTEST_LINK,
    matches_links,
    prediction_links,
    read_executed_bundle,
    read_links,
    scale_for_links,
)
from meshwave.engine.runs.emulation.network import PAYLOAD
from meshwave.engine.runs.emulation.topology import FILE as NETWORK_FILE
from meshwave.engine.runs.emulation.topology import Topology, read_topology
from meshwave.engine.runs.launchers import open_run, specify_run
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.run_folder import RunSpec
from tests.engine.costs.profiles import example_profile
from tests.engine.namespaces import is_alive, is_true_in_time, links, namespace, namespaces
from tests.engine.runs.play import HERE, draw, have_all_ended, logged_events, processes, submit, wait_until

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


def options_on(nodes: int, *, scale: float | None = None, **rates: float) -> Options:
    """Return options with emulated hosts, and a dry run if there is a scale."""
    hosts = Hosts(nodes=nodes, **{"intra_bandwidth": 4e7, "inter_bandwidth": 1e7, **rates})
    return Options(hosts=hosts, rehearse=None if scale is None else Rehearsal(scale=scale))


def write_bundle_of(folder: Path, design: Design, options: Options) -> Bundle:
    """Write the run folder that a launcher would create."""
    return write_bundle(specify_run(predict(design), options), folder)


def network(design: Design, options: Options) -> Topology:
    spec = specify_run(predict(design), options)
    return hosts.host_topology(spec.design, design, spec.options)


# ---- what is asked for ----


def test_nodes_of_the_design_become_hosts_and_other_hosts_are_filled_in_order() -> None:
    drawn = draw(pp=3, cluster=nodes(4, 2))
    meshes = [{"name": name, "devices": [device], "axes": {}} for name, device in (("A", 5), ("B", 0), ("C", 4))]
    scattered = draw(pp=3, cluster=nodes(3, 2), meshes=meshes)

    assert network(drawn, options_on(4)).node_of == (0, 0, 1)
    assert network(drawn, options_on(2)).node_of == (0, 0, 1)
    assert network(draw(pp=4), options_on(2)).node_of == (0, 0, 1, 1)
    as_drawn = network(scattered, options_on(3, intra_bandwidth=1e8))
    assert as_drawn.node_of == (1, 0, 1)
    assert [as_drawn.address(process) for process in range(3)] == ["10.78.1.1", "10.78.0.1", "10.78.1.2"]
    assert (
        as_drawn.note
        == "2 emulated hosts of 1 + 2 processes, as in the design; links of 100 MB/s per process and 10 MB/s per NIC"
    )


def test_links_slow_down_with_time_dilation_and_are_no_faster_than_the_machine() -> None:
    design = draw(pp=4, cluster=nodes(1, 4, nics_per_node=2))
    fast = options_on(2, scale=40, intra_bandwidth=3e11, inter_bandwidth=2e10)

    found = network(design, fast)

    assert (found.intra * PAYLOAD, found.inter * PAYLOAD) == pytest.approx((FASTEST_LINK, 5e8))
    assert (found.nics, found.latency_s) == (2, 40 * 1e-5)
    assert found.note == (
        "2 emulated hosts of 2 + 2 processes, filled in order; links of 500 MB/s per process (limited: 7.5 GB/s cannot be "
        "emulated here) and 500 MB/s per NIC, slowed down by the time-dilation factor 40"
    )
    assert fast.hosts is not None
    assert scale_for_links(40, fast.hosts, step_s=0.001) == 600, "then all links are as drawn"
    assert scale_for_links(40, fast.hosts, step_s=0.02) == 100, "more would be a long wait"
    assert scale_for_links(400, fast.hosts, step_s=0.02) == 400
    in_units = draw(pp=4, cost={"kind": "unit"})
    assert network(in_units, options_on(2, scale=40)).inter * PAYLOAD == pytest.approx(1e7), "a unit is no second"
    assert network(in_units, options_on(2, scale=40)).note.endswith(
        "not slowed down: costs in units define no link rates"
    )


def test_impossible_hosts_are_refused() -> None:
    with pytest.raises(InputError, match="--hosts: 5 hosts are too many: the design has 4 processes; use 1 to 4 hosts"):
        network(draw(), options_on(5))
    with pytest.raises(
        InputError, match="link of 1,000 bytes/s is too slow; use 10000 bytes/s or more, or use a time-dilation"
    ):
        network(draw(), options_on(2, scale=1e4))


def test_a_network_is_read_back_from_its_folder(tmp_path: Path) -> None:
    topology = network(draw(), options_on(2))
    assert read_topology(tmp_path) is None

    (tmp_path / NETWORK_FILE).write_text(topology.to_json())
    assert read_topology(tmp_path) == topology

    for text in ("[]", "{}", '{"format": "meshwave-network/1", "node_of": [0], "intra": 1}', '{"format": "x/2"}'):
        (tmp_path / NETWORK_FILE).write_text(text)
        with pytest.raises(RunFolderError, match="network.json is damaged: "):
            read_topology(tmp_path)


def test_missing_requirements_are_reported_before_a_run_is_created(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "LINUX", False)
    assert "network namespaces need Linux" in str(networks.missing_requirement())
    monkeypatch.setattr(networks, "LINUX", True)
    assert (
        "this user cannot create network namespaces (Operation not permitted); run as root"
        in networks.network_error_text(PermissionError(1, "Operation not permitted"))
    )
    monkeypatch.setattr(networks, "_command_path", lambda name: None)

    with pytest.raises(
        RunError, match="hosts cannot be emulated on this machine: the command ip is not installed; install iproute2"
    ):
        submit(launcher, draw(), options=options_on(2))

    assert launcher.record.entries() == []


# ---- what is predicted ----

NEAR, FAR = {**LINK, "bandwidth": 2e8}, {**LINK, "bandwidth": 1e8}
DRAWN = nodes(2, 2, intra_node=NEAR, inter_node=FAR)
SLOW = {"inter_bandwidth": 1e5, "intra_bandwidth": 2e8}


def test_a_run_is_predicted_for_the_links_of_its_options(tmp_path: Path) -> None:
    """The prediction equals that of a design with these links."""
    drawn = draw(pp=4, cluster=DRAWN)
    slow = draw(pp=4, cluster={**DRAWN, "inter_node": {**LINK, "bandwidth": 1e5}, "sends_in_order": True})

    run = write_bundle_of(tmp_path / "run", drawn, options_on(2, **SLOW))

    assert run.prediction.program == predict(drawn).program
    assert run.prediction.timeline.makespan == predict(slow).timeline.makespan > 1.1 * predict(drawn).timeline.makespan
    assert (run.design.cluster, run.drawn) == (slow.cluster, drawn)
    assert prediction_links(run) == ("predicted for hosts linked at 100 kB/s (set by --hosts; the design has 100 MB/s)")
    assert (matches_links(run, drawn), matches_links(run, slow)) == (False, True)
    assert read_executed_bundle(run.folder) == read_bundle(run.folder) == run


def test_a_folder_of_an_earlier_version_is_read_with_the_links_that_its_run_had(tmp_path: Path) -> None:
    """Earlier versions stored the original design and the options of the hosts."""
    drawn, told = (
        draw(pp=3, cluster=nodes(1, 3, intra_node=NEAR)),
        options_on(2, intra_bandwidth=2e8, inter_bandwidth=1e6),
    )
    now = write_bundle_of(tmp_path / "now", drawn, told)

    old = write_bundle(RunSpec(predict(drawn, now.program), drawn, told), tmp_path / "old")

    run = read_executed_bundle(old.folder)
    assert (run.design.cluster, run.design.meshes) == (now.design.cluster, now.design.meshes)
    assert prediction_links(run) == prediction_links(now) != ""
    assert run.prediction.timeline.makespan == now.prediction.timeline.makespan
    assert not matches_links(run, drawn)
    assert read_links(old.folder) == read_links(now.folder) != hosts.message_links(drawn)


def test_unused_links_do_not_change_the_prediction(tmp_path: Path) -> None:
    drawn = draw(pp=1, cluster=nodes(1, 1))

    run = write_bundle_of(tmp_path / "run", drawn, options_on(1, intra_bandwidth=1e6))

    assert run.design != run.drawn
    assert prediction_links(run) == ""


def test_links_emulated_as_drawn_are_predicted_as_drawn(tmp_path: Path) -> None:
    drawn = draw(pp=4, cluster={**DRAWN, "sends_in_order": True})

    run = write_bundle_of(tmp_path / "run", drawn, options_on(2, intra_bandwidth=2e8, inter_bandwidth=1e8))

    assert run.design == run.drawn
    assert not (run.folder / "drawn.json").exists()
    assert (prediction_links(run), matches_links(run, drawn)) == ("", True)
    assert not matches_links(run, draw(pp=4, cluster=nodes(2, 2))), "its links are not those that are drawn since"


def test_processes_on_more_hosts_than_nodes_are_predicted_to_send_between_hosts(tmp_path: Path) -> None:
    drawn = draw(pp=3, cluster=nodes(1, 3, intra_node=NEAR))

    run = write_bundle_of(tmp_path / "run", drawn, options_on(2, intra_bandwidth=2e8, inter_bandwidth=1e6))

    assert [run.design.cluster.node_of(*mesh.devices) for mesh in run.design.meshes] == [0, 0, 1]
    assert hosts.host_topology(run.design, run.drawn, run.options).node_of == (0, 0, 1)
    times = run.prediction.costs.seconds[run.prediction.program.send_rows[0]]
    assert sorted({*times.tolist()}) == pytest.approx([1e-5 + 768 / 2e8, 1e-5 + 768 / 1e6]), "M0 to M1, M1 to M2"
    assert prediction_links(run) == (
        "predicted for 2 hosts (set by --hosts; the design has 1); for hosts linked at 1 MB/s (set by --hosts; "
        "the design has 1 GB/s)"
    )


def test_a_prediction_is_no_faster_than_links_can_be_emulated(tmp_path: Path) -> None:
    """A dry run is an exception, because its time is dilated."""
    drawn = draw(pp=4, cluster=nodes(2, 2, inter_node={**LINK, "bandwidth": 4e9}, sends_in_order=True))
    as_drawn = {"intra_bandwidth": 1e9, "inter_bandwidth": 4e9}

    run = write_bundle_of(tmp_path / "run", drawn, options_on(2, **as_drawn))
    stretched = write_bundle_of(tmp_path / "rehearsal", drawn, options_on(2, scale=8, **as_drawn))

    links = run.design.cluster.intra_node, run.design.cluster.inter_node
    assert [link.bandwidth for link in links] == [FASTEST_LINK, FASTEST_LINK]
    assert prediction_links(run) == (
        "predicted for hosts linked at 500 MB/s (the most that can be emulated here; the design has 4 GB/s); "
        "for processes of a host linked at 500 MB/s (the most that can be emulated here; the design has 1 GB/s)"
    )
    assert stretched.design == drawn


def test_a_dry_run_is_dilated_for_the_links_of_its_options() -> None:
    """The dilation of a long step is smaller, so that the run does not take too long."""
    drawn = draw(pp=4, cluster=DRAWN)
    prediction = predict(drawn)

    def scale(inter: float) -> float:
        asked = Options(hosts=Hosts(nodes=2, intra_bandwidth=2e8, inter_bandwidth=inter), rehearse=Rehearsal())
        options = specify_run(prediction, asked).options
        assert options.rehearse is not None and options.rehearse.scale is not None
        return options.rehearse.scale

    assert scale(1e5) < scale(1e8)


def test_costs_in_units_apply_to_any_links(tmp_path: Path) -> None:
    drawn = draw(pp=4, cluster=DRAWN, cost={"kind": "unit"})

    run = write_bundle_of(tmp_path / "run", drawn, options_on(2, **SLOW))

    assert run.prediction.timeline.makespan == predict(drawn).timeline.makespan
    assert (prediction_links(run), matches_links(run, drawn)) == ("", True)


def test_a_profile_does_not_price_emulated_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))
    store_profile(example_profile(), "known.json")  # 1 GB/s inside a node
    cost = {"kind": "calibrated", "profile": "known.json"}
    drawn = draw(pp=2, cluster=nodes(1, 2, intra_node={**LINK, "bandwidth": 1e6}), cost=cost)

    run = write_bundle_of(tmp_path / "run", drawn, options_on(1, intra_bandwidth=1e6))

    sends = run.prediction.program.send_rows[0]
    by_drawn = draw(pp=2, cluster=nodes(1, 2, intra_node={**LINK, "bandwidth": 1e6}))
    assert run.prediction.costs.seconds[sends] == pytest.approx(predict(by_drawn).costs.seconds[sends])
    computes = run.prediction.program.is_compute
    assert run.prediction.costs.seconds[computes] == pytest.approx(predict(drawn).costs.seconds[computes])
    assert prediction_links(run) == (
        "predicted for processes of a host linked at 1 MB/s (as in the design; replaces the links of known.json)"
    )
    assert not matches_links(run, drawn)
    assert matches_links(run, parse_design({**drawn.model_dump(mode="json"), "cost": {**cost, "links": "drawn"}}))


def test_stages_keep_the_layers_that_they_were_given_for_other_links(tmp_path: Path) -> None:
    """Tensor-parallel layers take longer on slow links, which would change the balance."""
    drawn = draw(pp=2, cluster=nodes(1, 3), model=MODEL, meshes=UNEQUAL)
    slow = options_on(1, intra_bandwidth=1e4, inter_bandwidth=1e9)
    program = lower(drawn)

    run = write_bundle_of(tmp_path / "run", drawn, slow)

    assert run.layers == layers_per_stage(drawn) == layers_per_stage(run.design)
    assert run.design.pipeline.stages == run.layers and drawn.pipeline.stages is None
    assert run.prediction.program == program


MODEL = {"kind": "gpt", "layers": 12, "hidden": 32, "heads": 2, "sequence": 12, "vocab": 256}
UNEQUAL = [
    {"name": "whole", "devices": [0], "axes": {}},
    {"name": "cut", "devices": [1, 2], "axes": {"tp": 2}},
]

# ---- real processes ----


@pytest.fixture(scope="module")
def can_shape() -> None:
    if reason := networks.missing_requirement():
        pytest.skip(reason)


@pytest.fixture
def left_as_found(can_shape: None) -> Iterator[set[int]]:
    """Check at the end that no namespace and no network interface of the test is left."""
    links_before, seen = links(), set[int]()
    yield seen
    assert seen, "the test saw some"
    assert is_true_in_time(lambda: not namespaces() & seen)
    assert links() == links_before


def processes_inside(run: Run, seen: set[int]) -> list[int]:
    """Return the namespace of each process of a run that has reached its first step."""
    wait_until(lambda: all(logged_events(run, "step", process) for process in range(4)))
    found = [os.stat(f"/proc/{process.pid}/ns/net").st_ino for process in processes(run)]
    assert len({*found, namespace()}) == 5, "each process is alone in its network"
    seen.update(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a rank", "the warm process", "nothing"])
def test_no_process_remains_after_any_process_is_killed(
    own_launcher: LocalLauncher, left_as_found: set[int], what: str
) -> None:
    run = submit(own_launcher, draw("sleep"), options=options_on(2))
    processes_inside(run, left_as_found)
    bundle, links = read_bundle(run.folder), read_topology(run.folder)
    assert links == hosts.host_topology(bundle.design, bundle.drawn, bundle.options), (
        "it is predicted for what was shaped"
    )
    assert bundle.design.cluster.inter_node.bandwidth == 1e7 < bundle.drawn.cluster.inter_node.bandwidth
    warm_process = own_launcher._warm_process
    assert warm_process is not None

    if what == "nothing":
        run.cancel()
    else:
        os.kill(warm_process.pid if what == "the warm process" else processes(run)[1].pid, signal.SIGKILL)

    ends = {"a rank": State.FAILED, "the warm process": State.LOST, "nothing": State.CANCELLED}
    assert run.wait(timeout_s=30) is ends[what]
    assert is_true_in_time(lambda: have_all_ended(run))


@pytest.mark.slow
def test_no_process_remains_after_the_designer_is_killed(left_as_found: set[int], tmp_path: Path) -> None:
    design = tmp_path / "design.json"
    design.write_text(draw("sleep").to_json())
    owner = subprocess.Popen(
        [
            sys.executable,
            str(HERE / "owner.py"),
            str(tmp_path / "home"),
            str(design),
            options_on(2).model_dump_json(),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
    )
    assert owner.stdout is not None
    with owner:
        run = open_run(Record(tmp_path / "home"), owner.stdout.readline().strip())
        processes_inside(run, left_as_found)

        owner.kill()

    assert is_true_in_time(lambda: have_all_ended(run))


@pytest.mark.slow
def test_a_network_that_cannot_be_created_ends_the_run_with_the_reason(
    record: Record, can_shape: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command, told = tmp_path / "ip", tmp_path / "told"
    command.write_text(f"#!/bin/sh\necho $PPID $$ > {told}.part; mv {told}.part {told}; sleep 600\n")
    command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("meshwave.engine.runs.launchers.local.check_emulation", lambda: None)
    launcher = LocalLauncher(record, start="fork", worker="stand_in", path=HERE)

    def start_run() -> tuple[Run, int, int]:
        told.unlink(missing_ok=True)
        run = submit(launcher, draw("sleep"), options=options_on(2))
        builder, its_command = map(int, wait_until(lambda: told.exists() and told.read_text()).split())
        return run, builder, its_command

    run, builder, its_command = start_run()
    run.cancel()
    assert run.wait(timeout_s=30) is State.CANCELLED
    assert is_true_in_time(lambda: not is_alive(builder) and not is_alive(its_command))

    run, builder, its_command = start_run()
    os.kill(builder, signal.SIGKILL)
    assert run.wait(timeout_s=30) is State.FAILED
    assert run.reason == "the network could not be created: the process that creates it was terminated"
    assert is_true_in_time(lambda: not is_alive(its_command))

    command.write_text("#!/bin/sh\necho no such thing >&2; exit 2\n")
    run = submit(launcher, draw("sleep"), options=options_on(2))
    assert run.wait(timeout_s=30) is State.FAILED
    assert run.reason == "the network could not be created: ip failed: no such thing"
    launcher.close()


@pytest.mark.slow
def test_messages_between_nodes_have_a_separate_link_as_fast_as_one_nic(can_shape: None) -> None:
    """The emulated network has no other connections."""
    look = (
        "import subprocess; from meshwave.engine.runs.emulation.network import Topology, make_network\n"
        "def told(*command): return subprocess.run(command, capture_output=True, text=True, check=True).stdout\n"
        "network = make_network(Topology(node_of=(0, 0, 1), intra=4e6, inter=1e6, nics=2, apart=True))\n"
        "assert 'tbf' not in told('tc', 'qdisc')\n"
        "network.enter(2); print(told('tc', 'qdisc'), told('ip', 'route'))"
    )

    shown = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert re.search(r"tbf .* dev e0 .*rate 32Mbit", shown), shown
    assert re.search(r"tbf .* dev e1 .*rate 8Mbit", shown), shown
    assert re.findall(r"10[.]78\S+ dev e\d|default", shown) == ["10.78.0.0/16 dev e1", "10.78.1.0/24 dev e0"]
