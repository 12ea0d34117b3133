"""Links: which one a message takes, who shares it, and what collectives cost by hand."""

import pytest

from engine.cost.alpha_beta import (
    Message,
    boundary_messages,
    ring_all_reduce_seconds,
    small_all_reduce_seconds,
    transfer_seconds,
)
from engine.design import Cluster, Device, Link, Mesh

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


def mesh(first: int, dp: int = 1, tp: int = 1) -> Mesh:
    return Mesh(name=f"m{first}", devices=tuple(range(first, first + dp * tp)), axes={"dp": dp, "tp": tp})


def test_a_message_inside_a_node_takes_the_fast_link() -> None:
    assert transfer_seconds(cluster(), [Message(0, 3, 1e9)]) == pytest.approx(1e-6 + 1e9 / NEAR)


def test_a_message_between_nodes_takes_the_slow_link() -> None:
    assert transfer_seconds(cluster(), [Message(3, 4, 1e9)]) == pytest.approx(1e-5 + 1e9 / FAR)


def test_no_message_takes_no_time() -> None:
    assert transfer_seconds(cluster(), []) == 0.0


@pytest.mark.parametrize(("nics", "slower"), [(1, 4), (2, 2), (3, 4 / 3), (4, 1), (8, 1)])
def test_messages_that_leave_a_node_together_share_its_nics(nics: int, slower: float) -> None:
    messages = boundary_messages(mesh(0, dp=4), mesh(4, dp=4), 4e9)

    assert messages == [Message(device, device + 4, 1e9) for device in range(4)]
    assert transfer_seconds(cluster(nics), messages) == pytest.approx(1e-5 + slower * 1e9 / FAR)


def test_messages_inside_a_node_have_a_link_each() -> None:
    messages = boundary_messages(mesh(0, tp=2), mesh(2, tp=2), 1e9)

    assert messages == [Message(0, 2, 1e9), Message(1, 3, 1e9)]  # each device sends a full copy
    assert transfer_seconds(cluster(), messages) == pytest.approx(1e-6 + 1e9 / NEAR)


def test_the_slowest_pair_of_two_spread_meshes_decides() -> None:
    source = Mesh(name="a", devices=(0, 4), axes={"dp": 2})
    destination = Mesh(name="b", devices=(1, 8), axes={"dp": 2})

    messages = boundary_messages(source, destination, 2e9)

    assert messages == [Message(0, 1, 1e9), Message(4, 8, 1e9)]
    assert transfer_seconds(cluster(), messages) == pytest.approx(1e-5 + 1e9 / FAR)


def test_a_mesh_of_other_shape_gets_its_sequences_from_all_that_hold_them() -> None:
    messages = boundary_messages(mesh(0, dp=2), mesh(4, dp=3), 6e9)

    assert messages == [Message(0, 4, 2e9), Message(0, 5, 1e9), Message(1, 5, 1e9), Message(1, 6, 2e9)]


@pytest.mark.parametrize(("dp", "tp"), [(1, 4), (2, 1), (4, 2), (3, 2)])
@pytest.mark.parametrize("onto", [(1, 1), (2, 2), (3, 1)])
def test_every_receiver_gets_its_whole_share(dp: int, tp: int, onto: tuple[int, int]) -> None:
    destination = mesh(8, *onto)

    messages = boundary_messages(mesh(0, dp, tp), destination, 12.0)

    for device in destination.devices:
        got = sum(message.bytes for message in messages if message.destination == device)
        assert got == pytest.approx(12.0 / destination.dp)


def test_a_ring_moves_twice_n_minus_one_nths() -> None:
    """Patarasuk and Yuan: 2(n-1) alpha + 2(n-1)/n size / bandwidth."""
    assert ring_all_reduce_seconds(cluster(), [[0, 1, 2, 3]], 1e9) == pytest.approx(6e-6 + 1.5 * 1e9 / NEAR)


def test_a_ring_of_one_is_free() -> None:
    assert ring_all_reduce_seconds(cluster(), [[0], [1]], 1e9) == 0.0


def test_a_ring_over_nodes_goes_at_the_pace_of_the_slow_link() -> None:
    seconds = ring_all_reduce_seconds(cluster(), [[0, 1, 4, 5]], 1e9)

    assert seconds == pytest.approx(6e-5 + 1.5 * 1e9 / FAR)


@pytest.mark.parametrize(("nics", "slower"), [(1, 4), (2, 2), (4, 1)])
def test_rings_that_leave_a_node_share_its_nics(nics: int, slower: float) -> None:
    groups = [[device, device + 4] for device in range(4)]

    seconds = ring_all_reduce_seconds(cluster(nics), groups, 1e9)

    assert seconds == pytest.approx(2e-5 + slower * 1e9 / FAR)


def test_a_few_bytes_are_reduced_in_log_steps() -> None:
    assert small_all_reduce_seconds(cluster(), range(16), 0.0) == pytest.approx(4e-5)
    assert small_all_reduce_seconds(cluster(), range(3), 0.0) == pytest.approx(2e-6)
    assert small_all_reduce_seconds(cluster(), [5], 4.0) == 0.0
