"""Hanayo with a split backward, an extension by Meshwave: its gains, and that it is never slower."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.program.action import Op
from meshwave.engine.schedules import Pipe, schedules
from tests.engine.schedules.play import activations, makespan, play, program

P, M, WAVES = st.integers(1, 8), st.integers(1, 20), st.integers(1, 3)
groupings = st.sampled_from(["grouped", "ungrouped"])


def makespans_of(p: int, m: int, *costs: float, **options: Any) -> tuple[float, float]:
    """Return the makespans with a split and with a full backward."""
    split, whole = (makespan("hanayo", p, m, *costs, backward=each, **options) for each in ("split", "whole"))
    return split, whole


@given(p=P, w=WAVES, times=st.integers(1, 3), more=st.integers(0, 9), grouping=groupings)
def test_a_split_backward_leaves_only_the_unavoidable_bubble(
    p: int, w: int, times: int, more: int, grouping: str
) -> None:
    """F = I = W: the last rank must wait for P-1 forwards, and no rank waits for longer afterwards."""
    m = p * times if grouping == "grouped" else p + more

    split, whole = makespans_of(p, m, 1, 2, waves=w, grouping=grouping)

    assert split == 6 * w * m + p - 1
    assert whole >= 6 * w * m + 4 * (p - 1)


def test_a_split_backward_saves_most_with_few_waves() -> None:
    """P=8, M=16: the fraction of the makespan that a split backward saves."""
    saved = {}
    for w in (1, 2, 4):
        split, whole = makespans_of(8, 16, 1, 2, waves=w)
        saved[w] = round(100 * (1 - split / whole), 1)

    assert saved == {1: 25.4, 2: 15.0, 4: 8.2}


def test_one_wave_with_a_split_backward_equals_four_with_a_whole_one() -> None:
    """In shares of a device: the bubble of a wave falls to a quarter, as it would by doubling the waves twice."""
    bubbles = {
        (w, backward): play(program("hanayo", 8, 8, waves=w, backward=backward), 1 / w, 2 / w).makespan - 8 * 6
        for w, backward in [(1, "split"), (1, "whole"), (4, "whole")]
    }

    assert bubbles[1, "split"] == bubbles[4, "whole"] == bubbles[1, "whole"] / 4


@pytest.mark.slow
@given(p=P, w=WAVES, m=M, grouping=groupings, c=st.integers(0, 24).map(lambda eighths: eighths / 8))
@pytest.mark.parametrize(
    ("forward", "backward", "weight"), [(1, 2, 1), (1, 2, 0.75), (1, 2, 0.5), (1, 2.5, 1), (1, 3, 1.5)]
)
def test_a_split_backward_is_not_slower_if_backwards_are_longer_than_forwards(
    forward: float, backward: float, weight: float, p: int, w: int, m: int, grouping: str, c: float
) -> None:
    """With any number of microbatches, also if the last group is not full, and with any transfers."""
    split, whole = makespans_of(p, m, forward, backward, c, weight, waves=w, grouping=grouping)

    assert split <= whole + 1e-9


@pytest.mark.slow
@given(p=P, w=WAVES, m=M, c=st.integers(0, 24).map(lambda eighths: eighths / 8))
def test_an_ungrouped_split_backward_is_never_slower(p: int, w: int, m: int, c: float) -> None:
    for backward in (0.5, 1.0, 2.0):
        split, whole = makespans_of(p, m, 1, backward, c, waves=w, grouping="ungrouped")
        assert split <= whole + 1e-9


@given(p=P, w=WAVES, m=M)
def test_a_split_backward_keeps_the_activations_of_the_last_rank(p: int, w: int, m: int) -> None:
    """P activations of a device's share, 2WP stages, on every rank; ungrouped all of them."""
    grouped = activations("hanayo", p, m, waves=w, backward="split")
    ungrouped = activations("hanayo", p, m, waves=w, backward="split", grouping="ungrouped")

    assert max(grouped) <= 2 * w * min(p, m) + 1e-9
    assert max(ungrouped) <= 2 * w * m + 1e-9
    if m % p == 0:
        assert max(grouped) == pytest.approx(max(activations("hanayo", p, m, waves=w)))


@given(p=P, w=WAVES, m=M, grouping=groupings)
def test_without_weight_gradients_the_order_is_that_of_full_backwards(p: int, w: int, m: int, grouping: str) -> None:
    """Removing the weight gradients gives the order with full backwards."""
    split, whole = (
        schedules["hanayo"](waves=w, grouping=grouping, backward=each).program(Pipe(p, m))
        for each in ("split", "whole")
    )

    for rank in range(p):
        order = [action for action in split.actions(rank) if action.op != Op.W]
        assert [action._replace(op=Op.B) if action.op == Op.I else action for action in order] == whole.actions(rank)
