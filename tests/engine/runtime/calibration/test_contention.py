"""Contention measured by real processes, on this machine's loopback and on the links of emulated nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.cli import main as cli
from meshwave.engine.cli.calibrate import to_text
from meshwave.engine.costs.contention import Contention, link_sharing
from meshwave.engine.costs.profile import Profile, load_profile, parse_profile
from meshwave.engine.errors import InputError
from meshwave.engine.runs.emulation import network
from meshwave.engine.runtime.calibration import CalibrationOptions, CalibrationProgress, calibrate_machine
from meshwave.engine.runtime.calibration.contention_timing import (
    contention_cases,
    contention_from_times,
    measure_contention,
    message_bytes,
    ring_bytes,
    smallest_cluster,
)
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster

pytestmark = pytest.mark.usefixtures("forked_clusters")

INTRA, INTER = 80e6, 20e6
SIZE = 1 << 20
EMULATED = ProcessCluster(2, 2, INTRA, INTER)
can_emulate = pytest.mark.skipif("network.missing_requirement() is not None", reason="links cannot be emulated here")


# ---- cases and ratios ----


@given(nodes=st.integers(1, 3), each=st.integers(1, 8))
def test_the_two_pairs_share_a_nic_or_are_distinct_processes_of_one_node(nodes: int, each: int) -> None:
    cluster = smallest_cluster(ProcessCluster(nodes, each))
    found = contention_cases(cluster)

    assert ("same_node" in found, "across_nodes" in found) == (each > 1, nodes > 1)
    for kind, cases in found.items():
        pairs = cases.get("two_pairs", cases["alone"]).messages
        ends = [rank for pair in pairs for rank in pair]
        assert len(set(ends)) == len(ends) and max(ends) < cluster.ranks
        nodes_of_pairs = {tuple(cluster.node_by_rank[rank] for rank in pair) for pair in pairs}
        assert nodes_of_pairs == ({(0, 0)} if kind == "same_node" else {(0, 1)})
        assert set(cases["alone"].messages[0]) <= set(cases["collective"].ring)


@given(size=st.integers(1, 1 << 22), ranks=st.integers(2, 16))
def test_a_ring_sends_the_bytes_of_a_message_over_each_link(size: int, ranks: int) -> None:
    buffer = ring_bytes(size, ranks)

    assert buffer % (4 * ranks) == 0
    assert 2 * (ranks - 1) / ranks * buffer == pytest.approx(size, abs=8 * ranks + 1)


@given(rate=st.floats(1e4, 1e9))
def test_message_sizes_are_whole_items_between_1_and_16_mib(rate: float) -> None:
    size = message_bytes(ProcessCluster(2, 1, rate, rate))

    assert 1 << 20 <= size <= 1 << 24
    assert size % 4 == 0


def test_each_repetition_is_compared_with_its_own_message_alone() -> None:
    times = {  # the second repetition is twice as slow throughout
        "alone": [[1.0], [2.0]],
        "two_pairs": [[1.9, 2.0], [4.0, 3.0]],
        "duplex": [[1.25, 1.0], [2.0, 2.5]],
        "same_pair": [[1.0, 2.0], [4.0, 2.0]],
        "collective": [[1.5], [3.0]],
        "collective_beside": [[1.2, 3.0], [2.4, 6.0]],
    }
    found = contention_from_times("across_nodes", 1 << 20, 4, times)

    assert found.shared_rate is not None and found.shared_rate.samples == (1.0, 1.0)
    assert found.duplex_rate is not None and found.duplex_rate.samples == (0.8, 0.8)
    assert found.pair_order is not None
    assert (found.pair_order.order, found.pair_order.samples) == ("sequential", ((1.0, 2.0), (2.0, 4.0)))
    beside = found.collective_beside_transfer
    assert beside is not None
    assert beside.collective_slowdown.samples == (2.0, 2.0)
    assert beside.transfer_slowdown.samples == pytest.approx((1.2, 1.2))
    assert (found.alone_s, found.alone_samples_s) == (1.5, (1.0, 2.0))


def test_one_process_is_rejected_before_anything_is_started() -> None:
    with pytest.raises(InputError, match="contention cannot be measured with 1 process; use 2 ranks or more"):
        measure_contention(ProcessCluster(1, 1), 1)


# ---- real processes ----


@pytest.fixture(scope="module")
def emulated_profile() -> tuple[Profile, list[CalibrationProgress]]:
    progress: list[CalibrationProgress] = []
    options = CalibrationOptions(EMULATED, [(2, 2)], ("contention",), rounds=3, message_bytes=SIZE)
    return calibrate_machine(options, progress.append), progress


def find_contention(profile: Profile, kind: str) -> Contention:
    return next(each for each in profile.contention if each.pair == kind)


@can_emulate
@pytest.mark.nightly
def test_two_messages_over_one_nic_share_its_rate(emulated_profile: tuple[Profile, list[CalibrationProgress]]) -> None:
    found = find_contention(emulated_profile[0], "across_nodes")

    assert found.message_bytes / found.alone_s < 1.05 * INTER * SIZE / (SIZE - 4 * network.BURST_BYTES)
    assert found.shared_rate is not None and 0.8 <= found.shared_rate.median <= 1.25
    assert len(found.shared_rate.samples) == len(found.alone_samples_s) == 3
    assert 1.0 <= link_sharing(emulated_profile[0].contention).across_nodes_capacity <= 1.25


@can_emulate
def test_links_are_full_duplex(emulated_profile: tuple[Profile, list[CalibrationProgress]]) -> None:
    """The links of emulated nodes have a token bucket for each direction."""
    found = find_contention(emulated_profile[0], "across_nodes")

    assert found.duplex_rate is not None and 0.65 <= found.duplex_rate.median <= 1.25


@can_emulate
@pytest.mark.parametrize("kind", ["same_node", "across_nodes"])
def test_messages_of_one_pair_are_sequential(
    emulated_profile: tuple[Profile, list[CalibrationProgress]], kind: str
) -> None:
    """Gloo has one connection for each pair of processes."""
    pair = find_contention(emulated_profile[0], kind).pair_order

    assert pair is not None and pair.order == "sequential"
    assert pair.second_s == pytest.approx(2 * pair.first_s, rel=0.4)


@can_emulate
def test_an_all_reduce_and_a_message_slow_each_other_down(
    emulated_profile: tuple[Profile, list[CalibrationProgress]],
) -> None:
    """Together they send twice the bytes of either over one NIC."""
    found = find_contention(emulated_profile[0], "across_nodes").collective_beside_transfer

    assert found is not None and found.ranks == 4
    slowdowns = [found.collective_slowdown.median, found.transfer_slowdown.median]
    assert max(slowdowns) > 1.3
    assert sum(slowdowns) > 2.2  # 2 without contention; other load during a reference makes its ratio too small


@can_emulate
def test_two_processes_of_a_node_are_too_few_for_two_pairs(
    emulated_profile: tuple[Profile, list[CalibrationProgress]],
) -> None:
    profile, progress = emulated_profile

    assert find_contention(profile, "same_node").shared_rate is None
    assert parse_profile(profile.to_json()) == profile
    text = to_text(profile).splitlines()
    assert "a message between nodes (median of 3 repetitions)" in text
    assert any(line.endswith("not measured: too few processes") for line in text)
    shares = [each.share for each in progress]
    assert shares == sorted(shares) and shares[-1] == 1
    assert any(each.message == "contention, round 3 of 3" for each in progress)


def test_four_processes_of_this_machine_measure_two_pairs(tmp_path: object) -> None:
    path = f"{tmp_path}/profile.json"

    assert cli.main(["calibrate", "--parts", "contention", "--ranks", "4", "--rounds", "1", "--out", path]) == 0

    (found,) = load_profile(path).contention
    assert (found.pair, found.message_bytes) == ("same_node", 1 << 24)
    assert found.shared_rate is not None and found.shared_rate.median > 0
    assert found.collective_beside_transfer is not None and found.collective_beside_transfer.ranks == 4
