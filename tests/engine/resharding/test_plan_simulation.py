"""Simulation of plans: messages share NICs, and no message waits for data that it does not need."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwave.engine.program import link_shares
from meshwave.engine.program.link_shares import Share
from meshwave.engine.resharding import (
    Link,
    Links,
    Mesh,
    PlanSimulation,
    Port,
    Tensor,
    Transfer,
    plan_simulation,
    plan_transfer,
    port_shares,
    simulate_plan,
    strategies,
)
from meshwave.engine.runtime.benchmarks.resharding import CASES, CLUSTER
from tests._strategies import examples
from tests.engine.resharding.test_moves import INTER, INTRA, transfers

SECOND_A_BYTE = Link(0.0, 1.0)
FREE = Link()


def transfer_between(
    elements: int, senders: int, receivers: int, strategy: str, links: tuple[Link, Link], **more: int
) -> Transfer:
    """Return a transfer of a vector of bytes, sharded over senders on separate hosts or whole on one, to all receivers."""
    hosts = [*range(senders), *[senders + rank // 2 for rank in range(receivers)]]
    source = Mesh((senders,), tuple(range(senders)), tuple(hosts[:senders]))
    destination = Mesh((receivers,), tuple(range(senders, len(hosts))), tuple(hosts[senders:]))
    lines = Links(*links, dict(enumerate(hosts)), **more)
    return plan_transfer(Tensor((elements,), 1), (source, ("S0",)), (destination, ("R",)), lines, strategy=strategy)


@pytest.mark.parametrize("strategy", strategies)
@settings(max_examples=examples(25))
@given(st.integers(1, 4000), st.integers(1, 6))
def test_a_task_alone_takes_no_longer_than_its_formula(strategy: str, elements: int, receivers: int) -> None:
    found = transfer_between(elements, 1, receivers, strategy, (INTRA, INTER))

    element_s = 1 / INTER.bandwidth  # chunks of whole elements are not all as long as the formula's
    assert found.simulated_s <= found.plan.makespan_s + receivers * element_s
    if strategy == "broadcast":
        assert found.simulated_s == pytest.approx(found.plan.makespan_s, abs=receivers * element_s)


@pytest.mark.slow
@given(transfers())
def test_no_nic_carries_more_than_it_can(found: Transfer) -> None:
    carried: Counter[tuple[str, int]] = Counter()
    for move in found.moves:
        ends = found.links.host[move.source], found.links.host[move.target]
        if ends[0] != ends[1]:
            size = move.elements * found.tensor.item_bytes
            carried += Counter({("tx", ends[0]): size, ("rx", ends[1]): size})

    least = max(carried.values(), default=0) / INTER.bandwidth
    assert found.simulated_s >= least * (1 - 1e-6)
    assert (found.simulated_s > 0) == bool(found.moves)


def test_messages_from_two_hosts_share_a_nic_unless_there_are_two() -> None:
    links = SECOND_A_BYTE, FREE
    assert transfer_between(100, 2, 1, "send-recv", links[::-1]).simulated_s == pytest.approx(100)
    assert transfer_between(100, 2, 1, "send-recv", links[::-1], nics=2).simulated_s == pytest.approx(50)


def test_capacity_that_one_message_cannot_use_is_left_to_the_others() -> None:
    """Three messages to host 2 get a third of its NIC each, so host 0 has two thirds left for host 1."""
    ways = [
        plan_simulation._PortPair((("tx", source), ("rx", target)), 1.0) for source, target in ((0, 1), (0, 2), (3, 2))
    ]
    for message, way in enumerate((*ways, ways[-1])):
        way.join(message, 100.0, 0.0)

    plan_simulation._set_fair_rates(ways, lambda port: 1.0)

    assert [way.rate for way in ways] == pytest.approx([2 / 3, 1 / 3, 1 / 3])


@pytest.mark.parametrize("ordering", ["naive", "load-balance", "ensemble"])
def test_the_example_of_the_paper_is_independent_of_the_order_in_playback(ordering: str) -> None:
    source, destination = (
        Mesh((2, 2), (0, 1, 2, 3), (0, 0, 1, 1)),
        Mesh((3, 2), tuple(range(4, 10)), (2, 2, 3, 3, 4, 4)),
    )
    links = Links(FREE, SECOND_A_BYTE, dict(enumerate((0, 0, 1, 1, 2, 2, 3, 3, 4, 4))))
    found = plan_transfer(
        Tensor((13, 6), 2), (source, ("S0", "R")), (destination, ("S0", "R")), links, ordering=ordering, chunks=64
    )
    assert found.plan.makespan_s == pytest.approx(84 if ordering == "ensemble" else 156, rel=0.02)
    assert found.simulated_s == pytest.approx(84, rel=0.02)


def test_overlapping_meshes_are_served_concurrently() -> None:
    """Eight slices of 2 MB leave one host in the time in which the plan, which occupies both receivers, sends five."""
    case = next(case for case in CASES if case.name.startswith("S01 to R, 2 x 2 to 2 x 2"))
    rates = (Link(2e-4, rate * 0.992) for rate in (CLUSTER.intra_bandwidth, CLUSTER.inter_bandwidth) if rate)
    found = case.plan(Links(*rates, dict(enumerate(CLUSTER.node_by_rank))), "send-recv")

    slices = prod(case.shape) * 4 / 4
    assert found.simulated_s == pytest.approx(8 * slices / (CLUSTER.inter_bandwidth * 0.992), rel=0.01)
    assert found.plan.makespan_s > 1.5 * found.simulated_s


def test_buffered_pieces_are_sent_concurrently() -> None:
    """The ring then starts when all pieces have arrived, as in its formula.

    Larger pieces are sent one by one, and messages of the ring share the receivers' NICs with the later pieces.
    """
    links = Link(0.0, 1e12), Link(0.0, 1e6)
    small, large = (transfer_between(size, 1, 4, "global-allgather", links) for size in (8 * 10**6, 80 * 10**6))
    assert small.simulated_s == pytest.approx(small.plan.makespan_s, rel=1e-3)
    assert 1.1 < large.simulated_s / large.plan.makespan_s < 1.4


def test_a_plan_of_too_many_messages_takes_its_makespan(monkeypatch: pytest.MonkeyPatch) -> None:
    found = transfer_between(1000, 2, 4, "send-recv", (INTRA, INTER))
    monkeypatch.setattr(plan_simulation, "MAX_SIMULATED_MESSAGES", 7)
    assert len(found.moves) == 8 and found.simulated_s == found.plan.makespan_s
    assert plays(found) == PlanSimulation(found.plan.makespan_s, None)


# every message


def plays(found: Transfer) -> PlanSimulation:
    return simulate_plan(found.plan, found.tasks, found.links)


@given(transfers())
def test_every_byte_is_simulated_once_and_the_last_one_ends_the_playback(found: Transfer) -> None:
    told = plays(found)
    sent = told.messages or ()

    assert [each.move for each in sent] == list(found.moves)
    assert max((each.end_s for each in sent), default=0.0) == told.seconds == found.simulated_s
    got: Counter[tuple[int, int]] = Counter()
    for each in sent:
        link = found.links.link_between(each.move.source, each.move.target)
        got[each.move.task, each.move.target] += round(each.bytes)
        assert each.start_s - each.set_out_s == pytest.approx(link.latency_s)
        assert each.end_s - each.start_s >= each.bytes / (link.bandwidth or 1.0) * (1 - 1e-3)
    assert got == {(number, rank): task.bytes for number, task in enumerate(found.tasks) for rank in task.receivers}


@pytest.mark.slow
@given(transfers())
def test_no_port_exceeds_its_capacity_at_any_time(found: Transfer) -> None:
    told = plays(found)
    sent = told.messages or ()
    moments = {moment for each in sent for moment in (each.start_s, each.end_s)}
    carried: defaultdict[int, float] = defaultdict(float)
    for now, then in pairwise(sorted(moments | {moment for rates in told.rates.values() for moment, _ in rates})):
        on: defaultdict[Port, float] = defaultdict(float)
        for number, each in enumerate(sent):
            if each.start_s <= now < each.end_s:
                rate = next(rate for since, rate in reversed(told.rates[each.ports]) if since <= now)
                carried[number] += rate * (then - now)
                for port in each.ports:
                    on[port] += rate
        for port, rate in on.items():
            assert rate <= plan_simulation.port_capacity(port, found.links) * (1 + 1e-9)

    assert [carried[number] for number in range(len(sent))] == pytest.approx([each.bytes for each in sent], rel=1e-3)


def port_shares_of(found: Transfer) -> dict[Port, list[Share]]:
    return port_shares(plays(found), found.links)


def test_a_message_uses_its_share_and_then_the_released_capacity() -> None:
    """Host 0 sends 100 bytes to host 2, host 1 sends 50, which end when each has sent 50."""
    source, destination = Mesh((2,), (0, 1), (0, 1)), Mesh((1,), (2,), (2,))
    links = Links(FREE, SECOND_A_BYTE, {0: 0, 1: 1, 2: 2})
    found = plan_transfer(
        Tensor((3, 50), 1), (source, ("S0", "R")), (destination, ("R", "R")), links, strategy="send-recv"
    )

    assert port_shares_of(found) == {
        ("tx", 0): [Share(0, 0.0, 100.0, 0.0, 0.5), Share(0, 100.0, 150.0, 0.0, 1.0)],
        ("tx", 1): [Share(1, 0.0, 100.0, 0.0, 0.5)],
        ("rx", 2): [Share(1, 0.0, 100.0, 0.5, 1.0), Share(0, 0.0, 100.0, 0.0, 0.5), Share(0, 100.0, 150.0, 0.0, 1.0)],
    }


@given(transfers())
def test_the_bars_of_a_port_do_not_overlap_and_have_the_area_of_their_bytes(found: Transfer) -> None:
    sent = plays(found).messages or ()
    for port, bars in port_shares_of(found).items():
        most = plan_simulation.port_capacity(port, found.links)
        areas: defaultdict[int, float] = defaultdict(float)
        lengths: defaultdict[int, float] = defaultdict(float)
        for bar in bars:
            assert 0 <= bar.low <= bar.high <= 1
            areas[bar.message] += (bar.high - bar.low) * (bar.end_s - bar.start_s) * most
            lengths[bar.message] += bar.end_s - bar.start_s
        for number, each in enumerate(sent):
            if port in each.ports:
                assert lengths[number] == pytest.approx(each.end_s - each.start_s)
                assert areas[number] == pytest.approx(each.bytes, rel=1e-2)  # heights have four digits
        for moment in {bar.start_s for bar in bars}:
            there = sorted((bar.low, bar.high) for bar in bars if bar.start_s <= moment < bar.end_s)
            assert all(below[1] <= above[0] for below, above in pairwise(there))


def test_too_many_bars_are_reduced_without_omitting_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    found = transfer_between(10**9, 3, 4, "broadcast", (INTRA, INTER))
    whole = port_shares_of(found)
    for name in ("MAX_SHARES", "MIN_SHARES_PER_PORT"):
        monkeypatch.setattr(link_shares, name, 60)
    thinned = port_shares_of(found)

    assert sum(map(len, thinned.values())) < sum(map(len, whole.values()))
    for port, bars in whole.items():
        assert {bar.message for bar in bars} == {bar.message for bar in thinned[port]}
        assert max(bar.end_s for bar in bars) == max(bar.end_s for bar in thinned[port])
