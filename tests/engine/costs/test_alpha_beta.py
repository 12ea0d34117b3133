"""Links: which one a message takes, who shares it, and what collectives cost by hand."""

import pytest

from meshwave.engine.costs.alpha_beta import (
    Message,
    ring_all_reduce_seconds,
    small_all_reduce_seconds,
    transfer_seconds,
)
from meshwave.engine.document import Cluster, Device, Link

NEAR, FAR = 100e9, 10e9


def cluster(nics: int = 1) -> Cluster:
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
    assert transfer_seconds(cluster(), [Message(0, 3, 1e9)]) == pytest.approx(1e-6 + 1e9 / NEAR)


def test_a_message_between_nodes_takes_the_slow_link() -> None:
    assert transfer_seconds(cluster(), [Message(3, 4, 1e9)]) == pytest.approx(1e-5 + 1e9 / FAR)


def test_no_message_takes_no_time() -> None:
    assert transfer_seconds(cluster(), []) == 0.0


@pytest.mark.parametrize(("nics", "slower"), [(1, 4), (2, 2), (3, 4 / 3), (4, 1), (8, 1)])
def test_messages_that_leave_a_node_together_share_its_nics(nics: int, slower: float) -> None:
    messages = [Message(device, device + 4, 1e9) for device in range(4)]

    assert transfer_seconds(cluster(nics), messages) == pytest.approx(1e-5 + slower * 1e9 / FAR)


def test_messages_inside_a_node_have_a_link_each() -> None:
    messages = [Message(0, 2, 1e9), Message(1, 3, 1e9)]

    assert transfer_seconds(cluster(), messages) == pytest.approx(1e-6 + 1e9 / NEAR)


def test_the_slowest_of_concurrent_messages_determines_the_time() -> None:
    assert transfer_seconds(cluster(), [Message(0, 1, 1e9), Message(4, 8, 1e9)]) == pytest.approx(1e-5 + 1e9 / FAR)


def test_a_ring_transfers_two_n_minus_one_nths_of_the_bytes() -> None:
    """Patarasuk and Yuan: 2(n-1) alpha + 2(n-1)/n size / bandwidth."""
    assert ring_all_reduce_seconds(cluster(), [[0, 1, 2, 3]], 1e9) == pytest.approx(6e-6 + 1.5 * 1e9 / NEAR)


def test_a_ring_of_one_is_free() -> None:
    assert ring_all_reduce_seconds(cluster(), [[0], [1]], 1e9) == 0.0


def test_a_ring_over_nodes_has_the_rate_of_the_slow_link() -> None:
    seconds = ring_all_reduce_seconds(cluster(), [[0, 1, 4, 5]], 1e9)

    assert seconds == pytest.approx(6e-5 + 1.5 * 1e9 / FAR)


@pytest.mark.parametrize(("nics", "slower"), [(1, 4), (2, 2), (4, 1)])
def test_rings_that_leave_a_node_share_its_nics(nics: int, slower: float) -> None:
    groups = [[device, device + 4] for device in range(4)]

    seconds = ring_all_reduce_seconds(cluster(nics), groups, 1e9)

    assert seconds == pytest.approx(2e-5 + slower * 1e9 / FAR)


def test_small_all_reduces_take_a_logarithmic_number_of_steps() -> None:
    assert small_all_reduce_seconds(cluster(), range(16), 0.0) == pytest.approx(4e-5)
    assert small_all_reduce_seconds(cluster(), range(3), 0.0) == pytest.approx(2e-6)
    assert small_all_reduce_seconds(cluster(), [5], 4.0) == 0.0
