"""Boxes and unit tasks: torch's nested sharding rule, and slices that tile the tensor once."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.resharding import Mesh, SpecError, Tensor, rank_boxes, unit_tasks


def grid(shape: tuple[int, ...], first: int = 0) -> Mesh:
    size = int(np.prod(shape))
    return Mesh(shape, tuple(range(first, first + size)), tuple(range(first, first + size)))


@st.composite
def layouts(draw: st.DrawFn, dims: int, first: int = 0) -> tuple[Mesh, tuple[str, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    axes = draw(st.permutations(range(len(shape))))
    entries = [""] * dims
    for axis in axes[: draw(st.integers(0, len(axes)))]:
        entries[draw(st.integers(0, dims - 1))] += str(axis)
    return grid(shape, first), tuple(f"S{entry}" if entry else "R" for entry in entries)


def test_cuts_are_nested_not_flat() -> None:
    owned = rank_boxes(grid((2, 3)), ("S01",), (9,))
    assert [stop - start for ((start, stop),) in owned] == [2, 2, 1, 2, 2, 0]
    assert [stop - start for ((start, stop),) in rank_boxes(grid((4,)), ("S0",), (5,))] == [2, 2, 1, 0]
    assert rank_boxes(grid((2, 3)), ("S10",), (12,)) != rank_boxes(grid((2, 3)), ("S01",), (12,))


@given(st.data())
def test_distinct_boxes_tile_the_tensor_once(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    mesh, spec = data.draw(layouts(len(shape)))
    count = np.zeros(shape, int)
    for box in set(rank_boxes(mesh, spec, shape)):
        count[tuple(slice(*side) for side in box)] += 1
    assert (count == 1).all()


@pytest.mark.slow
@given(st.data())
def test_unit_tasks_tile_the_tensor_and_name_all_owners_and_receivers(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    source, source_spec = data.draw(layouts(len(shape)))
    destination, spec = data.draw(layouts(len(shape), data.draw(st.sampled_from([0, 100]))))
    owned = dict(zip(source.ranks, rank_boxes(source, source_spec, shape), strict=True))
    needed = dict(zip(destination.ranks, rank_boxes(destination, spec, shape), strict=True))
    count = np.zeros(shape, int)

    for task in unit_tasks(Tensor(shape, 2), source, source_spec, destination, spec):
        window = tuple(slice(*side) for side in task.box)
        count[window] += 1
        assert task.elements == count[window].size and task.bytes == 2 * task.elements
        assert set(task.senders) == {rank for rank, box in owned.items() if box_covers(box, task.box)}
        takers = {rank for rank, box in needed.items() if box_covers(box, task.box)}
        assert set(task.receivers) == takers - set(task.senders)
        assert set(task.keepers) == takers & set(task.senders)
    assert (count == 1).all()


def box_covers(outer: tuple[tuple[int, int], ...], inner: tuple[tuple[int, int], ...]) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


@pytest.mark.parametrize(("p", "q"), list(product(range(1, 7), repeat=2)))
def test_an_even_dim_gives_p_plus_q_minus_gcd_tasks(p: int, q: int) -> None:
    tasks = unit_tasks(Tensor((p * q * 2,), 1), grid((p,)), ("S0",), grid((q,), 100), ("S0",))
    assert len(tasks) == p + q - np.gcd(p, q)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (("S2", "R"), "unknown_axis"),
        (("S0", "S0"), "reused_axis"),
        (("S00", "R"), "repeated_axis"),
        (("X", "R"), "invalid_sharding"),
        (("R",), "spec_length"),
    ],
)
def test_an_invalid_spec_is_refused(spec: tuple[str, ...], code: str) -> None:
    with pytest.raises(SpecError) as refused:
        rank_boxes(grid((2, 2)), spec, (4, 4))

    assert refused.value.problem.code == code


@pytest.mark.torch
@given(st.data())
def test_boxes_are_those_of_torch(data: st.DataObject) -> None:
    """For layouts that plain placements can express: axes of a dim in ascending order."""
    torch = pytest.importorskip("torch")
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=2)))
    mesh, spec = data.draw(layouts(len(shape)))
    spec = tuple(entry[0] + "".join(sorted(entry[1:])) for entry in spec)
    for place, box in enumerate(rank_boxes(mesh, spec, shape)):
        at = np.unravel_index(place, mesh.shape)
        part = torch.arange(int(np.prod(shape))).view(shape)
        whole = part
        for axis, size in enumerate(mesh.shape):
            for dim, entry in enumerate(spec):
                if str(axis) in entry[1:]:
                    chunks = list(torch.chunk(part, size, dim))
                    chunks += [part.narrow(dim, 0, 0)] * (size - len(chunks))
                    part = chunks[at[axis]]
        assert torch.equal(whole[tuple(slice(*side) for side in box)], part)
