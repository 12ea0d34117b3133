"""The waves' answer to zero bubble: Hanayo with a split backward, which is ours. What it gains, and that it never loses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwave.engine.program.action import Op
from meshwave.engine.schedules import Pipe, schedules
from tests.engine.schedules.play import activations, makespan, play, program

P, M, WAVES = st.integers(1, 8), st.integers(1, 20), st.integers(1, 3)
groupings = st.sampled_from(["grouped", "ungrouped"])
few = settings(max_examples=60)


def took(p: int, m: int, *costs: float, **options: Any) -> tuple[float, float]:
    """The makespans of a split and of a whole backward."""
    split, whole = (makespan("hanayo", p, m, *costs, backward=each, **options) for each in ("split", "whole"))
    return split, whole


@few
@given(p=P, w=WAVES, times=st.integers(1, 3), more=st.integers(0, 9), grouping=groupings)
def test_leaves_the_bubble_that_no_order_can_avoid(p: int, w: int, times: int, more: int, grouping: str) -> None:
    """F = I = W: the last rank has to wait for P-1 forwards, and then no rank waits again for longer than that."""
    m = p * times if grouping == "grouped" else p + more

    split, whole = took(p, m, 1, 2, waves=w, grouping=grouping)

    assert split == 6 * w * m + p - 1
    assert whole >= 6 * w * m + 4 * (p - 1)


def test_gains_most_where_there_are_few_waves() -> None:
    """P=8, M=16: the share of the makespan that a split backward saves."""
    saved = {}
    for w in (1, 2, 4):
        split, whole = took(8, 16, 1, 2, waves=w)
        saved[w] = round(100 * (1 - split / whole), 1)

    assert saved == {1: 25.4, 2: 15.0, 4: 8.2}


def test_makes_one_wave_as_good_as_four_with_a_whole_backward() -> None:
    """In shares of a device: a wave's bubble falls to a quarter, as two doublings of the waves would have it."""
    bubbles = {
        (w, backward): play(program("hanayo", 8, 8, waves=w, backward=backward), 1 / w, 2 / w).makespan - 8 * 6
        for w, backward in [(1, "split"), (1, "whole"), (4, "whole")]
    }

    assert bubbles[1, "split"] == bubbles[4, "whole"] == bubbles[1, "whole"] / 4


@few
@given(p=P, w=WAVES, m=M, grouping=groupings, c=st.integers(0, 24).map(lambda eighths: eighths / 8))
@pytest.mark.parametrize(
    ("forward", "backward", "weight"), [(1, 2, 1), (1, 2, 0.75), (1, 2, 0.5), (1, 2.5, 1), (1, 3, 1.5)]
)
def test_never_loses_to_a_whole_backward_that_takes_longer_than_a_forward(
    forward: float, backward: float, weight: float, p: int, w: int, m: int, grouping: str, c: float
) -> None:
    """With any number of microbatches, also where the last group is not full, and any transfers."""
    split, whole = took(p, m, forward, backward, c, weight, waves=w, grouping=grouping)

    assert split <= whole + 1e-9


@pytest.mark.slow
@few
@given(p=P, w=WAVES, m=M, c=st.integers(0, 24).map(lambda eighths: eighths / 8))
def test_never_loses_without_groups_whatever_the_costs(p: int, w: int, m: int, c: float) -> None:
    for backward in (0.5, 1.0, 2.0):
        split, whole = took(p, m, 1, backward, c, waves=w, grouping="ungrouped")
        assert split <= whole + 1e-9


@few
@given(p=P, w=WAVES, m=M)
def test_keeps_as_much_as_the_last_rank_of_the_whole_backward(p: int, w: int, m: int) -> None:
    """P activations of a device's share, 2WP stages, on every rank; ungrouped all of them."""
    grouped = activations("hanayo", p, m, waves=w, backward="split")
    ungrouped = activations("hanayo", p, m, waves=w, backward="split", grouping="ungrouped")

    assert max(grouped) <= 2 * w * min(p, m) + 1e-9
    assert max(ungrouped) <= 2 * w * m + 1e-9
    if m % p == 0:
        assert max(grouped) == pytest.approx(max(activations("hanayo", p, m, waves=w)))


@few
@given(p=P, w=WAVES, m=M, grouping=groupings)
def test_changes_nothing_else(p: int, w: int, m: int, grouping: str) -> None:
    """Without its weight gradients it is the order with a whole backward."""
    split, whole = (
        schedules["hanayo"](waves=w, grouping=grouping, backward=each).program(Pipe(p, m))
        for each in ("split", "whole")
    )

    for rank in range(p):
        order = [action for action in split.actions(rank) if action.op != Op.W]
        assert [action._replace(op=Op.B) if action.op == Op.I else action for action in order] == whole.actions(rank)
