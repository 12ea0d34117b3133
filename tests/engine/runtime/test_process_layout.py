"""Tests of the numbering of processes and of the groups that follow from it."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.communication.process_layout import MeshShape, ProcessLayout
from meshwave.engine.schedules import Pipe, schedules
from tests._strategies import Drawn

sizes = st.integers(1, 3), st.integers(1, 4)


def uniform_layout(program: Program, dp: int, tp: int) -> ProcessLayout:
    return ProcessLayout(program, (MeshShape(dp, tp),) * program.ranks)


def program(name: str = "1f1b", ranks: int = 2) -> Program:
    return schedules[name]().program(Pipe(ranks, 4))


@given(*sizes)
def test_lanes_of_a_rank_are_row_major_over_data_and_tensor_parallel_indices(dp: int, tp: int) -> None:
    layout = uniform_layout(program(), dp, tp)

    places = [(layout.rank(p), layout.dp_index(p), layout.tp_index(p)) for p in range(layout.processes)]

    assert places == [(r, d, t) for r in range(2) for d in range(dp) for t in range(tp)]
    assert all(layout.process(layout.rank(p), layout.index_in_rank(p)) == p for p in range(layout.processes))


@given(*sizes)
def test_every_process_is_in_one_tensor_parallel_group_at_its_index(dp: int, tp: int) -> None:
    layout = uniform_layout(program(), dp, tp)
    groups = layout.tp_groups()

    assert sorted(chain.from_iterable(groups)) == list(range(layout.processes))
    for process in range(layout.processes):
        group = layout.tp_group(process)
        assert group in groups
        assert group.index(process) == layout.tp_index(process)
        assert {(layout.rank(p), layout.dp_index(p)) for p in group} == {
            (layout.rank(process), layout.dp_index(process))
        }


@pytest.mark.parametrize("name", ["1f1b", "chimera", "gems"])
@given(*sizes)
def test_each_data_parallel_replica_of_a_rank_holds_each_part_of_a_stage_once(name: str, dp: int, tp: int) -> None:
    layout = uniform_layout(program(name), dp, tp)

    for stage in range(layout.program.stages):
        ranks = layout.program.ranks_of(stage)
        processes = [layout.stage_processes(stage, index) for index in range(tp)]
        assert sorted(chain.from_iterable(processes)) == sorted(
            chain.from_iterable(layout.mesh(rank) for rank in ranks)
        )
        for index, members in enumerate(processes):
            assert len(members) == len(ranks) * dp
            assert {layout.tp_index(process) for process in members} == {index}


@given(st.lists(st.tuples(*sizes), min_size=2, max_size=2))
def test_meshes_may_have_different_shapes(shapes: list[tuple[int, int]]) -> None:
    layout = ProcessLayout(program(), tuple(MeshShape(*shape) for shape in shapes))

    places = [(layout.rank(p), layout.dp_index(p), layout.tp_index(p)) for p in range(layout.processes)]

    assert places == [(r, d, t) for r, (dp, tp) in enumerate(shapes) for d in range(dp) for t in range(tp)]
    assert [layout.mesh(rank) for rank in (0, 1)] == [
        tuple(p for p in range(layout.processes) if layout.rank(p) == rank) for rank in (0, 1)
    ]
    assert sorted(chain.from_iterable(layout.tp_groups())) == list(range(layout.processes))
    assert all(process in layout.tp_group(process) for process in range(layout.processes))


def test_neighbouring_ranks_of_a_pipeline_send_in_both_directions() -> None:
    layout = uniform_layout(lower(Drawn({"schedule": "1f1b", "microbatches": 4}, 3).design()), 1, 1)
    assert layout.message_sizes() == [(0, 1, 1), (1, 0, 1), (1, 2, 1), (2, 1, 1)]


def test_tensor_parallel_processes_share_no_gradients() -> None:
    design = Drawn({"schedule": "1f1b", "microbatches": 4}, 2).design()
    layout = uniform_layout(lower(design), 1, 2)
    assert layout.gradient_groups(layout.stages_with(Op.REDUCE_GRAD)) == []


def test_a_tensor_parallel_group_has_one_data_parallel_index() -> None:
    layout = uniform_layout(program(), 2, 3)
    assert [layout.dp_index(process) for process in layout.mesh(1)] == [0, 0, 0, 1, 1, 1]


def test_meshes_of_the_tensor_parallel_example_are_its_groups() -> None:
    from meshwave.engine.document import load_design
    from meshwave.engine.files import example

    design = parse_design(load_design(example("14-tensor-parallel")).model_dump(mode="json"))
    mesh = design.meshes[0]
    assert uniform_layout(lower(design), mesh.dp, mesh.tp).tp_groups() == [mesh.devices for mesh in design.meshes]


@given(whole=st.integers(1, 400), size=st.integers(1, 9))
def test_parts_of_a_group_cover_the_whole_and_differ_by_at_most_one(whole: int, size: int) -> None:
    parts = [Group(tuple(range(size)), index).own_range(whole) for index in range(size)]

    assert list(chain.from_iterable(parts)) == list(range(whole))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
