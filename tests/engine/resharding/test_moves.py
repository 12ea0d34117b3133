"""Moves, replayed without processes: every rank of the destination receives its box without superfluous bytes."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.errors import InputError
from meshwave.engine.resharding import (
    Link,
    Links,
    Mesh,
    Tensor,
    Transfer,
    UnitTask,
    orderings,
    plan_traffic,
    plan_transfer,
    strategies,
)

INTRA, INTER = Link(1e-5, 4e10), Link(5e-5, 1.25e9)


@st.composite
def sides(draw: st.DrawFn, dims: int, pool: list[int], hosts: dict[int, int]) -> tuple[Mesh, tuple[str, ...]]:
    """Draw any mesh of one to three axes over some ranks, in any order, and any spec."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda axes: prod(axes) <= len(pool)))
    ranks = tuple(draw(st.permutations(pool))[: prod(shape)])
    entries = [""] * dims
    axes = draw(st.permutations(range(len(shape))))
    for axis in axes[: draw(st.integers(0, len(axes))) if dims else 0]:
        entries[draw(st.integers(0, dims - 1))] += str(axis)
    mesh = Mesh(tuple(shape), ranks, tuple(hosts[rank] for rank in ranks))
    return mesh, tuple(f"S{entry}" if entry else "R" for entry in entries)


@st.composite
def transfers(draw: st.DrawFn) -> Transfer:
    """Draw disjoint, neighbouring or overlapping meshes, and shapes with 0, 1 and primes."""
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 7, 8, 13]), max_size=3)))
    per_host = draw(st.integers(1, 4))
    hosts = {rank: rank // per_host for rank in range(16)}
    first, second = draw(st.sampled_from([(range(8), range(8, 16)), (range(8), range(8)), (range(8), range(4, 12))]))
    ends = [draw(sides(len(shape), list(pool), hosts)) for pool in (first, second)]
    return plan_transfer(
        Tensor(shape, 2),
        *ends,
        Links(INTRA, INTER, hosts),
        strategy=draw(st.sampled_from([*strategies, None])),
        ordering=draw(st.sampled_from(list(orderings))),
        chunks=draw(st.sampled_from([None, 1, 3, 64])),
    )


def replay_moves(planned: Transfer) -> dict[int, np.ndarray]:
    """Return the final contents of each rank of the destination, for a tensor that counts its elements from 0.

    A rank that forwards elements that it does not have yet forwards -1.
    """
    whole = np.arange(prod(planned.tensor.shape)).reshape(planned.tensor.shape)
    held: dict[tuple[int, int], np.ndarray] = {}  # rank and task: the slice, -1 where it is not there
    for number, task in enumerate(planned.tasks):
        owned = whole[tuple(slice(*side) for side in task.box)].reshape(-1)
        held |= {
            (rank, number): owned if rank in task.senders else np.full_like(owned, -1) for rank in participants(task)
        }
    for move in planned.moves:
        part = slice(move.start, move.stop)
        held[move.target, move.task][part] = held[move.source, move.task][part]
    shards = {}
    for rank, box in planned.destination_boxes.items():
        shards[rank] = np.full([stop - start for start, stop in box], -1)
        for number, task in enumerate(planned.tasks):
            if rank in (*task.receivers, *task.keepers):
                window = tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(task.box, box, strict=True))
                shards[rank][window] = held[rank, number].reshape(shards[rank][window].shape)
    return shards


def participants(task: UnitTask) -> tuple[int, ...]:
    return *task.senders, *task.receivers


@pytest.mark.slow
@given(transfers())
def test_every_rank_of_the_destination_gets_its_box(planned: Transfer) -> None:
    whole = np.arange(prod(planned.tensor.shape)).reshape(planned.tensor.shape)
    shards = replay_moves(planned)
    assert shards.keys() == set(planned.destination[0].ranks)
    for rank, box in planned.destination_boxes.items():
        assert np.array_equal(shards[rank], whole[tuple(slice(*side) for side in box)])


@pytest.mark.slow
@given(transfers())
def test_no_rank_is_sent_elements_that_it_holds(planned: Transfer) -> None:
    got: dict[tuple[int, int], int] = Counter()
    for move in planned.moves:
        task = planned.tasks[move.task]
        assert move.elements > 0 and move.source != move.target
        assert move.target in task.receivers and move.source in participants(task)
        got[move.target, move.task] += move.elements
    assert got == {
        (rank, number): task.elements for number, task in enumerate(planned.tasks) for rank in task.receivers
    }


@pytest.mark.slow
@given(transfers())
def test_bytes_between_hosts_are_those_of_the_formulas(planned: Transfer) -> None:
    """``A B n``, ``A n``, ``n`` and those of the rings, without receivers on the sender's own host."""
    links = planned.links
    crossing: dict[int, int] = Counter()
    for move in planned.moves:
        if links.host[move.source] != links.host[move.target]:
            crossing[move.task] += move.elements
    for each in planned.plan.tasks:
        task = planned.tasks[each.task]
        by_host = links.ranks_by_host(task.receivers)
        away = [len(ranks) for host, ranks in by_host.items() if host != links.host[each.sender]]
        expected = {
            "send-recv": sum(away) * task.elements,
            "local-allgather": len(away) * task.elements,
            "broadcast": len(away) * task.elements,
            "hierarchical": len(away) * task.elements,
            "rewrite-allgather": bytes_of_parts(task, links, each.sender),
            "global-allgather": bytes_of_ring(task, by_host, links.host[each.sender]),
        }
        assert crossing[each.task] == expected[planned.plan.strategy]


def bytes_of_parts(task: UnitTask, links: Links, sender: int) -> int:
    """Return the bytes of the slice to the first rank of each ring, or to every receiver without a ring."""
    firsts = [ring[0] for ring in task.rings] or task.receivers
    return task.elements * sum(rank in task.receivers and links.host[rank] != links.host[sender] for rank in firsts)


def bytes_of_ring(task: UnitTask, by_host: dict[int, list[int]], sender: int) -> int:
    """Return the bytes of pieces that leave the sender's host, and over each ring link between hosts all pieces but one."""
    order = [(host, rank) for host, ranks in by_host.items() for rank in ranks]
    size = len(order)
    if not size:
        return 0
    each = -(-task.elements // size)
    parts = [max(0, min(each, task.elements - number * each)) for number in range(size)]
    dealt = sum(part for (host, _), part in zip(order, parts, strict=True) if host != sender)
    edges = [place for place in range(size) if order[place][0] != order[(place + 1) % size][0]]
    return dealt + sum(task.elements - parts[(place + 1) % size] for place in edges)


def test_a_chain_forwards_chunk_by_chunk() -> None:
    source, destination = Mesh((1,), (0,), (0,)), Mesh((2,), (1, 2), (1, 1))
    links = Links(INTRA, INTER, {0: 0, 1: 1, 2: 1})
    planned = plan_transfer(Tensor((5,), 4), (source, ("R",)), (destination, ("R",)), links, chunks=2)
    assert [tuple(move) for move in planned.moves] == [(0, 0, 1, 0, 2), (0, 1, 2, 0, 2), (0, 0, 1, 2, 5), (0, 1, 2, 2, 5)]  # fmt: skip


def test_without_a_strategy_the_shortest_plan_is_chosen() -> None:
    hosts = (1, 1, 2, 2)
    source, destination = Mesh((1,), (0,), (0,)), Mesh((2, 2), (1, 2, 3, 4), hosts)
    links = Links(INTRA, INTER, dict(enumerate((0, *hosts))))

    def plan_with(elements: int, strategy: str | None) -> Transfer:
        return plan_transfer(Tensor((elements,), 4), (source, ("R",)), (destination, ("R",)), links, strategy=strategy)

    for elements in (1, 1 << 20):
        chosen = plan_with(elements, None)
        assert chosen.simulated_s == min(plan_with(elements, name).simulated_s for name in strategies)
    assert chosen.plan.strategy in ("broadcast", "hierarchical")


def test_different_plans_have_different_digests() -> None:
    mesh, other = Mesh((2,), (0, 1), (0, 0)), Mesh((2,), (2, 3), (1, 1))
    links = Links(INTRA, INTER, {0: 0, 1: 0, 2: 1, 3: 1})

    def digest(spec: str = "S0", **options: int) -> bytes:
        return plan_transfer(Tensor((8,), 4), (mesh, (spec,)), (other, ("R",)), links, **options).digest  # type: ignore[arg-type]

    assert digest() == digest()
    assert len({digest(), digest("R"), digest(chunks=2)}) == 3


def test_an_unknown_strategy_is_refused() -> None:
    mesh = Mesh((1,), (0,), (0,))
    with pytest.raises(InputError, match="send-recv"):
        plan_transfer(Tensor((1,), 4), (mesh, ("R",)), (mesh, ("R",)), Links(INTRA, INTER, {0: 0}), strategy="send")


@given(planned=transfers())
def test_the_traffic_of_a_plan_has_the_bytes_of_its_messages(planned: Transfer) -> None:
    found = plan_traffic(planned.plan, planned.tasks, planned.links)

    assert found.numbers == tuple(range(16))
    assert found.bytes.sum() == 2 * sum(move.elements for move in planned.moves)
    for move in planned.moves:
        assert found.bytes[move.source, move.target] >= 2 * move.elements
    crossing = [move for move in planned.moves if planned.links.host[move.source] != planned.links.host[move.target]]
    assert found.bytes_between_nodes == 2 * sum(move.elements for move in crossing)
