"""Conditions under which the pipeline hides its transfers (arXiv:2211.05322), and the resulting step time.

Every stage takes ``f`` for a forward and ``b = bi + bw`` for a backward. Each boundary takes ``c`` for a microbatch in
each direction, one transfer at a time. ``w`` is the number of microbatches in flight on a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import lcm
from typing import Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwave.engine.costs import peak_inflight
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program.action import Action, Op, forward, input_gradient, weight_gradient
from meshwave.engine.program.program import Program, build_program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.schedules import Pipe, schedules
from tests._strategies import examples

few = settings(max_examples=examples(20))
P = st.integers(2, 5)
quarters = st.integers(1, 16).map(lambda number: number / 4)
shares = st.integers(1, 7).map(lambda eighths: eighths / 8)


class Stage(NamedTuple):
    f: float
    bi: float
    bw: float

    @property
    def b(self) -> float:
        return self.bi + self.bw

    @property
    def round(self) -> float:
        """Time of one microbatch on a stage."""
        return self.f + self.b


stages = st.builds(Stage, quarters, quarters, quarters)


def one_forward_one_backward(p: int, m: int) -> Program:
    return schedules["1f1b"]().program(Pipe(p, m))


def eager_1f1b(p: int, m: int) -> Program:
    return schedules["eager-1f1b"]().program(Pipe(p, m))


def eager_delayed(p: int, m: int) -> Program:
    return schedules["eager-1f1b"](backward="split").program(Pipe(p, m))


def delayed_1f1b(p: int, m: int) -> Program:
    """Return 1F1B whose weight gradients are computed while the input gradients are sent."""

    def order(rank: int) -> Iterator[Action]:
        ahead = min(m, p - rank)
        for mb in range(ahead):
            yield forward(rank, mb)
        for mb in range(m):
            yield input_gradient(rank, mb)
            yield weight_gradient(rank, mb)
            if mb + ahead < m:
                yield forward(rank, mb + ahead)

    return build_program([list(order(rank)) for rank in range(p)], [list(range(p))], [0] * m)


Order = Callable[[int, int], Program]
WHOLE: dict[str, tuple[Order, Callable[[int, int], int]]] = {
    "1f1b": (one_forward_one_backward, lambda p, i: p - i),
    "eager": (eager_1f1b, lambda p, i: 2 * (p - i) - 1),
}
SPLIT: dict[str, tuple[Order, Callable[[int, int], int]]] = {
    "1f1b": (delayed_1f1b, lambda p, i: p - i),
    "eager": (eager_delayed, lambda p, i: 2 * (p - i) - 1),
}


def makespan_of(
    program: Program, stage: Stage, c: float, links: Literal["latency", "link-serial"] = "link-serial"
) -> float:
    cost = np.zeros(len(Op))
    cost[[Op.F, Op.B, Op.I, Op.W]] = stage.f, stage.b, stage.bi, stage.bw
    cost[[Op.SEND_F, Op.SEND_B]] = c
    with_transfers = add_transfers(program)
    return simulate(with_transfers, cost[with_transfers.op], links).makespan


def period(p: int, made: Order, in_flight: Callable[[int, int], int], stage: Stage, c: float) -> float:
    """Return the seconds per microbatch in the steady state."""
    turns = lcm(*(in_flight(p, rank) for rank in range(p)))
    settled = 4 * turns + 8 * p
    return (makespan_of(made(p, settled + turns), stage, c) - makespan_of(made(p, settled), stage, c)) / turns


def closed_period(p: int, in_flight: Callable[[int, int], int], stage: Stage, c: float, *, split: bool) -> float:
    """Return ``max(f+b, c, [(P-i)(f+b) + 2c(P-1-i)] / w_i)``; delayed weight gradients count once, not ``P-i`` times."""
    chain = [
        (p - i) * (stage.f + stage.bi) + stage.bw if split else (p - i) * stage.round
        for i in range(p)
    ]  # fmt: skip
    loops = [(chain[i] + 2 * c * (p - 1 - i)) / in_flight(p, i) for i in range(p)]
    return max(stage.round, c, *loops)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
@few
@given(p=st.integers(2, 4), stage=stages, c=quarters)
def test_the_pace_is_the_closed_form(name: str, p: int, stage: Stage, c: float) -> None:
    made, in_flight = WHOLE[name]

    assert period(p, made, in_flight, stage, c) == pytest.approx(closed_period(p, in_flight, stage, c, split=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLIT)
@few
@given(p=st.integers(2, 4), stage=stages, c=quarters)
def test_the_pace_with_delayed_weight_gradients_is_the_closed_form(name: str, p: int, stage: Stage, c: float) -> None:
    made, in_flight = SPLIT[name]

    assert period(p, made, in_flight, stage, c) == pytest.approx(closed_period(p, in_flight, stage, c, split=True))


LIMITS: dict[str, tuple[Order, Callable[[int, int], int], Callable[[Stage], float]]] = {
    "1f1b, delayed": (*SPLIT["1f1b"], lambda stage: stage.bw / 2),
    "eager": (*WHOLE["eager"], lambda stage: stage.round / 2),
    "eager, delayed": (*SPLIT["eager"], lambda stage: (stage.round + stage.bw) / 2),
}
"""Longest transfer time that does not change the steady state."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
@few
@given(p=st.integers(2, 3), stage=stages, share=shares)
def test_transfers_hide_up_to_the_limit_and_not_beyond(name: str, p: int, stage: Stage, share: float) -> None:
    made, in_flight, limit = LIMITS[name]

    assert period(p, made, in_flight, stage, share * limit(stage)) == pytest.approx(stage.round)
    assert period(p, made, in_flight, stage, limit(stage)) == pytest.approx(stage.round)
    assert period(p, made, in_flight, stage, (1 + share) * limit(stage)) > stage.round * (1 + 1e-9)


@few
@given(p=st.integers(2, 4), stage=stages, c=quarters)
def test_1f1b_hides_no_transfer(p: int, stage: Stage, c: float) -> None:
    """Its first rank waits for a round trip of every microbatch."""
    made, in_flight = WHOLE["1f1b"]

    found = period(p, made, in_flight, stage, c)

    assert found >= stage.round + 2 * c * (p - 1) / p - 1e-9
    assert period(p, made, in_flight, stage, 0.0) == pytest.approx(stage.round)


@pytest.mark.parametrize("links", ["latency", "link-serial"])
@few
@given(p=P, m=st.integers(1, 16), stage=stages, share=shares)
def test_hidden_transfers_are_exposed_in_fill_and_drain_only(
    links: Literal["latency", "link-serial"], p: int, m: int, stage: Stage, share: float
) -> None:
    c = share * stage.round / 2

    assert makespan_of(eager_1f1b(p, m), stage, c, links) == pytest.approx((m + p - 1) * stage.round + 2 * (p - 1) * c)


@pytest.mark.parametrize("name", SPLIT)
@few
@given(p=P, m=st.integers(1, 16), stage=stages, share=shares)
def test_delayed_weight_gradients_shorten_the_drain_too(name: str, p: int, m: int, stage: Stage, share: float) -> None:
    made, _, limit = LIMITS[f"{name}, delayed"]
    c = share * limit(stage)

    closed = m * stage.round + (p - 1) * (stage.f + stage.bi) + 2 * (p - 1) * c
    assert makespan_of(made(p, m), stage, c) == pytest.approx(closed)


@few
@given(p=P, m=st.integers(1, 16))
def test_a_rank_keeps_as_many_microbatches_as_it_runs_ahead(p: int, m: int) -> None:
    def peak_held_by_rank(program: Program) -> list[float]:
        return peak_inflight(program).tolist()

    deep = [min(m, 2 * (p - rank) - 1) for rank in range(p)]
    assert peak_held_by_rank(one_forward_one_backward(p, m)) == [min(m, p - rank) for rank in range(p)]
    assert peak_held_by_rank(eager_1f1b(p, m)) == deep
    assert peak_held_by_rank(eager_delayed(p, m)) == deep
    more = [ours - theirs for ours, theirs in zip(deep, peak_held_by_rank(one_forward_one_backward(p, m)), strict=True)]
    assert all(extra <= p - 1 - rank for rank, extra in enumerate(more)) and more[-1] == 0


@few
@given(p=P, m=st.integers(1, 16))
def test_running_ahead_costs_memory_and_no_time(p: int, m: int) -> None:
    """Without transfers, both orders take ``2 (P + M - 1)`` ticks; the order of the last rank is the same."""
    tick = Stage(1, 0.5, 0.5)

    assert (
        makespan_of(eager_1f1b(p, m), tick, 0)
        == makespan_of(one_forward_one_backward(p, m), tick, 0)
        == 2 * (p + m - 1)
    )
    assert eager_1f1b(p, m).actions(p - 1) == one_forward_one_backward(p, m).actions(p - 1)


def test_the_orders_of_three_ranks_are_as_expected() -> None:
    orders = [" ".join(str(action)[1:] for action in eager_1f1b(3, 7).actions(rank)) for rank in range(3)]

    assert orders == [
        "F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 B3 B4 B5 B6",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 B5 B6",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6",
    ]
