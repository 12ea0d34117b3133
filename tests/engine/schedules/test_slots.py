"""Schedules on a clock: no two computations of a rank share a slot, and each tensor is available in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.schedules import Pipe, _base, chimera, hanayo, schedules
from meshwave.engine.schedules._building_blocks import PERIOD, BlockSchedule
from tests.engine.schedules.test_closed_forms import evenly

Slots = Mapping[Op, NDArray[np.int64]]


def slots_and_matrix(name: str, pipe: Pipe, **options: Any) -> tuple[NDArray[np.int64], Slots]:
    """Return the rank and slots of a schedule's computations, each ``[stages, microbatches]``."""
    handed: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (chimera, hanayo):
            patch.setattr(module, "order_by_slot", lambda *all: handed.append(all) or _base.order_by_slot(*all))
        schedules[name](**options).program(pipe)
    ((_, rank, slots),) = handed
    return rank, slots


@given(sizes=evenly, n=st.integers(1, 30))
def test_chimera_with_any_number_of_replicas(sizes: tuple[int, int], n: int) -> None:
    replicas, d = sizes
    rank, slots = slots_and_matrix("chimera", Pipe(d, n), replicas=replicas)

    assert_in_time(slots)
    assert most_in_a_slot((rank, slots[Op.F]), (rank, slots[Op.B])) == 1


@given(sizes=evenly, units=st.integers(1, 3))
def test_chimera_with_two_forwards_in_a_slot(sizes: tuple[int, int], units: int) -> None:
    replicas, d = sizes
    rank, slots = slots_and_matrix(
        "chimera", Pipe(d, units * 2 * d), replicas=replicas, concatenation="forward-doubling"
    )

    assert_in_time(slots)
    first, second = slice(None, None, 2), slice(1, None, 2)
    assert np.array_equal(slots[Op.F][:, first], slots[Op.F][:, second])
    assert np.array_equal(rank[:, first], rank[:, second])
    assert most_in_a_slot((rank[:, first], slots[Op.F][:, first]), (rank, slots[Op.B])) == 1


@given(p=st.integers(1, 6), w=st.integers(1, 3), m=st.integers(1, 20))
def test_hanayo_in_groups(p: int, w: int, m: int) -> None:
    rank, slots = slots_and_matrix("hanayo", Pipe(p, m), waves=w)

    assert_in_time(slots)
    assert most_in_a_slot((rank, slots[Op.F]), (rank, slots[Op.B])) == 1


@given(p=st.integers(1, 64))
@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_blocks(name: str, p: int) -> None:
    """A block takes six distinct slots of the period, and produces every tensor in time."""
    schedule = schedules[name]()
    assert isinstance(schedule, BlockSchedule)
    blocks = [schedule.block_slots(p, rank) for rank in range(p)]

    for block in blocks:
        assert len({slot % PERIOD for slot in (*block, *block.weights())}) == PERIOD
        assert block.weights()[0] > block.input_up and block.weights()[1] > block.input_down
    forward = [*(block.forward_down for block in blocks), *(block.forward_up for block in reversed(blocks))]
    inputs = [*(block.input_down for block in blocks), *(block.input_up for block in reversed(blocks))]
    path = [*forward, *reversed(inputs)]
    assert path == sorted(set(path))


def assert_in_time(slots: Slots) -> None:
    """Check that each computation comes after the one that produces its input."""
    path = np.vstack([slots[Op.F], slots[Op.B][::-1]])
    assert (np.diff(path, axis=0) > 0).all()


def most_in_a_slot(*computed: tuple[NDArray[np.int64], NDArray[np.int64]]) -> int:
    """Return the maximum number of computations in a slot of a rank, given ranks and slots of several kinds."""
    places = np.concatenate([np.stack([rank.ravel(), slot.ravel()], axis=1) for rank, slot in computed])
    return int(np.unique(places, axis=0, return_counts=True)[1].max())
