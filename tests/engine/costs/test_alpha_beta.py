"""Links: the link of each message, the messages that share it, and costs of collectives calculated by hand."""

import pytest

from meshwave.engine.costs.alpha_beta import (
    Message,
    collective_seconds,
    small_all_reduce_seconds,
    transfer_seconds,
)
from meshwave.engine.costs.hardware import data_sheets
from meshwave.engine.document import Cluster, Device, Link
from meshwave.engine.document.devices import device_kinds

NEAR, FAR = 100e9, 10e9


def example_cluster(nics: int = 1) -> Cluster:
    """Four nodes of four devices; 1 us and 100 GB/s inside, 10 us and 10 GB/s between."""
    return Cluster(
        nodes=4,
        devices_per_node=4,
        nics_per_node=nics,
        device=Device(peak_flops=1e12, memory_bytes=1e9, memory_bandwidth=1e11),
        intra_node=Link(latency_s=1e-6, bandwidth=NEAR),
        inter_node=Link(latency_s=1e-5, bandwidth=FAR),
    )


def test_a_message_inside_a_node_takes_the_fast_link() -> None:
    assert transfer_seconds(example_cluster(), [Message(0, 3, 1e9)]) == pytest.approx(1e-6 + 1e9 / NEAR)


def test_a_message_between_nodes_takes_the_slow_link() -> None:
    assert transfer_seconds(example_cluster(), [Message(3, 4, 1e9)]) == pytest.approx(1e-5 + 1e9 / FAR)


def test_no_message_takes_no_time() -> None:
    assert transfer_seconds(example_cluster(), []) == 0.0


@pytest.mark.parametrize(("nics", "slower"), [(1, 4), (2, 2), (3, 4 / 3), (4, 1), (8, 1)])
def test_messages_that_leave_a_node_together_share_its_nics(nics: int, slower: float) -> None:
    messages = [Message(device, device + 4, 1e9) for device in range(4)]

    assert transfer_seconds(example_cluster(nics), messages) == pytest.approx(1e-5 + slower * 1e9 / FAR)


def test_messages_inside_a_node_have_a_link_each() -> None:
    messages = [Message(0, 2, 1e9), Message(1, 3, 1e9)]

    assert transfer_seconds(example_cluster(), messages) == pytest.approx(1e-6 + 1e9 / NEAR)


def test_the_slowest_of_concurrent_messages_determines_the_time() -> None:
    assert transfer_seconds(example_cluster(), [Message(0, 1, 1e9), Message(4, 8, 1e9)]) == pytest.approx(
        1e-5 + 1e9 / FAR
    )


def test_a_ring_transfers_two_n_minus_one_nths_of_the_bytes() -> None:
    """Patarasuk and Yuan: 2(n-1) alpha + 2(n-1)/n size / bandwidth."""
    assert collective_seconds(example_cluster(), [[0, 1, 2, 3]], 1e9) == pytest.approx(6e-6 + 1.5 * 1e9 / NEAR)


def test_a_ring_of_one_is_free() -> None:
    assert collective_seconds(example_cluster(), [[0], [1]], 1e9) == 0.0


def test_a_ring_over_nodes_has_the_rate_of_the_slow_link() -> None:
    seconds = collective_seconds(example_cluster(), [[0, 1, 4, 5]], 1e9)

    assert seconds == pytest.approx(6e-5 + 1.5 * 1e9 / FAR)


@pytest.mark.parametrize(("nics", "slower"), [(1, 4), (2, 2), (4, 1)])
def test_rings_that_leave_a_node_share_its_nics(nics: int, slower: float) -> None:
    groups = [[device, device + 4] for device in range(4)]

    seconds = collective_seconds(example_cluster(nics), groups, 1e9)

    assert seconds == pytest.approx(2e-5 + slower * 1e9 / FAR)


def cluster_of(name: str, nodes: int, per_node: int) -> Cluster:
    """Nodes of a kind of device, with a NIC for each device."""
    kind = device_kinds()[name]
    return Cluster(
        nodes=nodes,
        devices_per_node=per_node,
        nics_per_node=per_node,
        device=data_sheets()[name].device,
        intra_node=Link(latency_s=0.0, bandwidth=kind.link_bandwidth),
        inter_node=Link(latency_s=0.0, bandwidth=kind.nic_bandwidth),
    )


@pytest.mark.parametrize(
    ("name", "nodes", "per_node", "size", "measured"),
    [
        ("H100-SXM5-80GB", 1, 8, 2**24, 125.2e-6),  # Azure ND H100 v5
        ("H100-SXM5-80GB", 1, 8, 2**30, 4029e-6),
        ("H200-SXM5-141GB", 1, 8, 2**26, 319.0e-6),  # Azure ND H200 v5
        ("GB200-186GB", 1, 72, 2**33, 20299e-6),  # CoreWeave
        ("GB200-186GB", 2, 72, 2**33, 21493e-6),
        ("GB200-186GB", 1, 4, 2**30, 2490e-6),  # Azure ND GB200 v6
        ("A100-SXM4-80GB", 1, 8, 2**30, 8238e-6),  # Azure ND A100 v4
        ("H100-SXM5-80GB", 8, 8, 2**29, 2985e-6),  # CoreWeave
    ],
)
def test_an_all_reduce_takes_about_the_measured_time(
    name: str, nodes: int, per_node: int, size: int, measured: float
) -> None:
    made = cluster_of(name, nodes, per_node)

    assert collective_seconds(made, [range(nodes * per_node)], size) == pytest.approx(measured, rel=0.15)


def test_switches_sum_all_reduces_of_hopper_but_no_gathers() -> None:
    made = cluster_of("H100-SXM5-80GB", 1, 8)
    other = made.model_copy(update={"device": example_cluster().device})

    assert collective_seconds(made, [range(8)], 1e9) < 1.7 * collective_seconds(made, [range(8)], 1e9, rounds=1)
    assert collective_seconds(other, [range(8)], 1e9) == 2 * collective_seconds(other, [range(8)], 1e9, rounds=1)


def test_small_all_reduces_take_a_logarithmic_number_of_steps() -> None:
    assert small_all_reduce_seconds(example_cluster(), range(16), 0.0) == pytest.approx(4e-5)
    assert small_all_reduce_seconds(example_cluster(), range(3), 0.0) == pytest.approx(2e-6)
    assert small_all_reduce_seconds(example_cluster(), [5], 4.0) == 0.0
