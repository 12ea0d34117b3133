"""Processes are counted rank by rank, copy by copy, cut by cut; who shares what follows from it."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.program import Program
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.communication.layout import Layout, Shape
from meshwave.engine.schedules import Pipe, schedules
from tests._strategies import Drawn

sizes = st.integers(1, 3), st.integers(1, 4)


def alike(program: Program, copies: int, cuts: int) -> Layout:
    return Layout(program, (Shape(copies, cuts),) * program.ranks)


def program(name: str = "1f1b", ranks: int = 2) -> Program:
    return schedules[name]().program(Pipe(ranks, 4))


@given(*sizes)
def test_the_lanes_of_a_rank_are_row_major_over_copies_and_cuts(copies: int, cuts: int) -> None:
    layout = alike(program(), copies, cuts)

    places = [(layout.rank(p), layout.copy(p), layout.cut(p)) for p in range(layout.processes)]

    assert places == [(r, d, t) for r in range(2) for d in range(copies) for t in range(cuts)]
    assert all(layout.process(layout.rank(p), layout.lane(p)) == p for p in range(layout.processes))


@given(*sizes)
def test_every_process_is_in_one_group_of_cuts_and_stands_there_at_its_own(copies: int, cuts: int) -> None:
    layout = alike(program(), copies, cuts)
    groups = layout.cut_groups()

    assert sorted(chain.from_iterable(groups)) == list(range(layout.processes))
    for process in range(layout.processes):
        group = layout.cut_group(process)
        assert group in groups
        assert group.index(process) == layout.cut(process)
        assert {(layout.rank(p), layout.copy(p)) for p in group} == {(layout.rank(process), layout.copy(process))}


@pytest.mark.parametrize("name", ["1f1b", "chimera", "gems"])
@given(*sizes)
def test_a_cut_of_a_stage_is_held_once_a_copy_on_every_rank_that_has_the_stage(
    name: str, copies: int, cuts: int
) -> None:
    layout = alike(program(name), copies, cuts)

    for stage in range(layout.program.stages):
        ranks = layout.program.ranks_of(stage)
        held = [layout.holders(stage, cut) for cut in range(cuts)]
        assert sorted(chain.from_iterable(held)) == sorted(chain.from_iterable(layout.mesh(rank) for rank in ranks))
        for cut, members in enumerate(held):
            assert len(members) == len(ranks) * copies
            assert {layout.cut(process) for process in members} == {cut}


@given(st.lists(st.tuples(*sizes), min_size=2, max_size=2))
def test_meshes_may_differ(shapes: list[tuple[int, int]]) -> None:
    layout = Layout(program(), tuple(Shape(*shape) for shape in shapes))

    places = [(layout.rank(p), layout.copy(p), layout.cut(p)) for p in range(layout.processes)]

    assert places == [(r, d, t) for r, (copies, cuts) in enumerate(shapes) for d in range(copies) for t in range(cuts)]
    assert [layout.mesh(rank) for rank in (0, 1)] == [
        tuple(p for p in range(layout.processes) if layout.rank(p) == rank) for rank in (0, 1)
    ]
    assert sorted(chain.from_iterable(layout.cut_groups())) == list(range(layout.processes))
    assert all(process in layout.cut_group(process) for process in range(layout.processes))


def test_neighbours_of_a_pipeline_send_both_ways() -> None:
    layout = alike(lower(Drawn({"schedule": "1f1b", "microbatches": 4}, 3).design()), 1, 1)
    assert layout.boundaries() == [(0, 1), (1, 0), (1, 2), (2, 1)]


def test_cuts_alone_share_no_gradient() -> None:
    design = Drawn({"schedule": "1f1b", "microbatches": 4}, 2).design()
    assert alike(lower(design), 1, 2).sharing() == []


def test_the_cuts_of_one_copy_draw_the_same_data() -> None:
    layout = alike(program(), 2, 3)
    assert [layout.copy(process) for process in layout.mesh(1)] == [0, 0, 0, 1, 1, 1]


def test_the_meshes_of_the_example_are_the_groups() -> None:
    from meshwave.engine.document import load_design
    from meshwave.engine.files import example

    design = parse_design(load_design(example("14-tensor-parallel")).model_dump(mode="json"))
    mesh = design.meshes[0]
    assert alike(lower(design), mesh.dp, mesh.tp).cut_groups() == [mesh.devices for mesh in design.meshes]


@given(whole=st.integers(1, 400), size=st.integers(1, 9))
def test_shares_of_a_whole_follow_each_other_and_differ_by_one_at_most(whole: int, size: int) -> None:
    parts = [Group(tuple(range(size)), index).part(whole) for index in range(size)]

    assert list(chain.from_iterable(parts)) == list(range(whole))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
