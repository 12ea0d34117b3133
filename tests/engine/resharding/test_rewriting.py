"""Alpa's rewriting of the destination: parts sent to one rank each, and gathered within hosts at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.bench.papers import alpa
from meshwave.engine.bench.papers.resharding import ASSUMED, CASES, FREE, one_to_many_case, plans
from meshwave.engine.resharding import Link, Links, Mesh, Tensor, plan_transfer, rank_boxes, rewrite_destination
from tests.engine.resharding.test_moves import sides

LINKS = Link(1e-5, 4e10), Link(5e-5, 1.25e9)
NAME = "rewrite-allgather"


@given(st.data())
def test_groups_stay_on_a_host_and_gather_the_requested_boxes(data: st.DataObject) -> None:
    """Any mesh of one to three axes with ranks in any order; also uneven and empty shards."""
    per_host = data.draw(st.integers(1, 8))
    hosts = {rank: rank // per_host for rank in range(8)}
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 8, 12]), min_size=1, max_size=3)))
    mesh, spec = data.draw(sides(len(shape), list(range(8)), hosts))
    asked = dict(zip(mesh.ranks, rank_boxes(mesh, spec, shape), strict=True))

    made = rewrite_destination(mesh, spec, shape)

    part = dict(zip(made.mesh.ranks, rank_boxes(made.mesh, made.spec, shape), strict=True))
    assert part.keys() == asked.keys() and (made.parts > 1) == bool(made.groups)
    assert not made.groups or sorted(rank for group in made.groups for rank in group) == sorted(mesh.ranks)
    for group in made.groups:
        assert len(group) == made.parts and len({hosts[rank] for rank in group}) == 1
        (wanted,) = {asked[rank] for rank in group}
        covered = {index for rank in group for index in _indices(part[rank])}
        assert covered == _indices(wanted)


def _indices(box: tuple[tuple[int, int], ...]) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = {()}
    for start, stop in box:
        found = {(*index, n) for index in found for n in range(start, stop)}
    return found


def test_parts_are_sent_once_and_gathered_in_rings() -> None:
    """One device to four devices of one host: a quarter to each, then a ring of three steps."""
    case = one_to_many_case((1, 4), 1 << 22)
    made = plan_transfer(case.tensor, *case.ends, case.links(ASSUMED), strategy=NAME)
    quarter = case.tensor.bytes / 4
    sent, gathered = 4 * LINKS[1].seconds(quarter), 3 * LINKS[0].seconds(quarter)

    assert len(made.tasks) == 4 and all(task.receivers == (1, 2, 3, 4) for task in made.tasks)
    assert made.plan.gather_s == pytest.approx(gathered)
    assert made.plan.makespan_s == pytest.approx(sent + gathered)
    assert [move[1:3] for move in made.moves if move.task == 1] == [(0, 2), (2, 3), (3, 4), (4, 1)]
    # Played, a part goes around while the next one comes.
    assert case.tensor.bytes / 1.25e9 <= made.simulated_s <= made.plan.makespan_s


def test_boxes_that_cannot_be_split_are_sent_to_every_receiver() -> None:
    case = one_to_many_case((2, 2))
    made, plain = (
        plan_transfer(case.tensor, *case.ends, case.links(FREE), strategy=name) for name in (NAME, "send-recv")
    )

    assert made.plan.gather_s == 0 and made.tasks == plain.tasks and made.moves == plain.moves
    assert made.plan.makespan_s == plain.plan.makespan_s


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3, 4, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("model", [FREE, ASSUMED])
def test_with_load_balance_the_plan_takes_the_time_of_alpa(number: int, model: tuple[Link, Link]) -> None:
    """Except for case 2: Alpa chooses devices by bytes, and the ordering chooses hosts."""
    case = CASES[number]
    took = alpa.local_allgather_seconds(case.tensor, *case.ends, case.links(model))
    assert plans(case, model)[NAME, "load-balance"].makespan_s == pytest.approx(took)


def test_no_group_spans_two_hosts() -> None:
    """The mesh axes suggest one host per row, but the ranks of a row are on two hosts."""
    mesh = Mesh((2, 2), (0, 1, 2, 3), (0, 1, 1, 0))
    assert rewrite_destination(mesh, ("S0", "R"), (8, 8)).parts == 1
    assert rewrite_destination(Mesh((2, 2), (0, 1, 2, 3), (0, 0, 1, 1)), ("S0", "R"), (8, 8)).parts == 2


def test_replicating_axes_need_not_be_adjacent() -> None:
    mesh = Mesh((2, 2, 2), tuple(range(8)), (0,) * 8)
    made = rewrite_destination(mesh, ("S1", "R"), (8, 8))
    links = Links(*LINKS, {**dict.fromkeys(range(8), 0), 8: 1})
    planned = plan_transfer(
        Tensor((8, 8), 4), (Mesh((1,), (8,), (1,)), ("R", "R")), (mesh, ("S1", "R")), links, strategy=NAME
    )

    assert made.parts == 4 and made.groups == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert len(planned.tasks) == 8
