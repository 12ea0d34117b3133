"""The textbook's formulas for makespan, bubble and activations, which the simulator has to reproduce.

F and B are the times of one stage's forward and backward, c of one transfer between ranks that
disturbs nothing else; P ranks, M microbatches, V chunks a rank, W waves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cost import peak_inflight
from engine.program.action import Op
from engine.schedules import Pipe, schedules
from tests.engine.schedules.play import makespan, play, program

P, M = st.integers(1, 8), st.integers(1, 12)
COSTS = [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0), (2.0, 1.0), (4.0, 5.0)]
"""F and B."""
costs = st.sampled_from(COSTS)
few = settings(max_examples=40)


def transfers(most: float) -> st.SearchStrategy[float]:
    """Costs of a transfer up to ``most`` forwards, exact in binary."""
    return st.integers(0, int(most * 8)).map(lambda eighths: eighths / 8)


# ---- makespan ----


@few
@given(p=P, m=M, cost=costs, c=transfers(4))
def test_gpipe_fills_and_drains(p: int, m: int, cost: tuple[float, float], c: float) -> None:
    f, b = cost

    assert makespan("gpipe", p, m, f, b, c) == pytest.approx((m + p - 1) * (f + b) + 2 * (p - 1) * c)


@few
@given(p=P, m=M, cost=costs)
def test_1f1b_takes_as_long_as_gpipe_where_transfers_are_free(p: int, m: int, cost: tuple[float, float]) -> None:
    f, b = cost

    assert makespan("1f1b", p, m, f, b) == pytest.approx((m + p - 1) * (f + b))


@few
@given(p=st.integers(2, 6), times=st.integers(1, 3), c=transfers(3))
def test_1f1b_exposes_transfers_in_every_round_of_its_steady_state(p: int, times: int, c: float) -> None:
    m = p * times
    exposed = 4 * p - 6 + 2 * (p - 1) * (times - 1)

    assert makespan("1f1b", p, m, 1, 2, c) == pytest.approx((m + p - 1) * 3 + exposed * c)


@few
@given(p=P, v=st.integers(1, 4), times=st.integers(1, 3), cost=costs)
def test_interleaving_divides_the_bubble_by_the_chunks(p: int, v: int, times: int, cost: tuple[float, float]) -> None:
    f, b = cost
    m = p * times

    assert makespan("interleaved-1f1b", p, m, f, b, chunks=v) == pytest.approx((v * m + p - 1) * (f + b))


@few
@given(p=st.integers(2, 6), v=st.integers(2, 4), c=transfers(1))
def test_interleaving_exposes_a_transfer_for_each_hop_down_and_up(p: int, v: int, c: float) -> None:
    expected = (v * p + p - 1) * 3 + (2 * v * p - 2) * c

    assert makespan("interleaved-1f1b", p, p, 1, 2, c, chunks=v) == pytest.approx(expected)


@few
@given(half=st.integers(1, 5), b=st.sampled_from([1.0, 1.5, 2.0, 3.0]), c=transfers(2))
def test_chimera_with_as_many_microbatches_as_ranks(half: int, b: float, c: float) -> None:
    d = 2 * half
    hops = 3 * d - 5 if d > 2 else 2  # two ranks have nothing to turn round: down and up again

    assert makespan("chimera", d, d, 1, b, c) == pytest.approx(d + (2 * d - 2) * b + hops * c)


@few
@given(half=st.integers(1, 4), units=st.integers(1, 4))
def test_chimera_joins_units_without_a_new_bubble_where_forward_and_backward_are_equal(half: int, units: int) -> None:
    d = 2 * half
    n = units * d

    timeline = play(program("chimera", d, n), 1, 1)

    assert timeline.bubble_ratio == pytest.approx((d - 2) / (2 * n + d - 2))


@few
@given(half=st.integers(1, 4), units=st.integers(1, 4), b=st.sampled_from([1.0, 2.0, 3.0]))
def test_chimera_pays_for_each_further_unit_where_the_backward_is_longer(half: int, units: int, b: float) -> None:
    d = 2 * half
    expected = units * d * (1 + b) + (d - 2) * b + (units - 1) * (d - 2) * (b - 1)

    assert makespan("chimera", d, units * d, 1, b) == pytest.approx(expected)


@few
@given(p=st.integers(2, 8), w=st.integers(1, 3), cost=costs, c=transfers(2))
def test_hanayo_with_as_many_microbatches_as_ranks(p: int, w: int, cost: tuple[float, float], c: float) -> None:
    """The term of c is linear where it is small against the stages."""
    f, b = cost
    c = min(c, f)
    expected = 2 * w * p * (f + b) + 2 * (p - 1) * max(f, b) + (4 * w * (p - 1) + 2 * (p - 2)) * c

    assert makespan("hanayo", p, p, f, b, c, waves=w) == pytest.approx(expected)


@few
@given(p=st.integers(2, 6), w=st.integers(1, 3), groups=st.integers(1, 4), b=st.sampled_from([1.0, 2.0, 3.0]))
def test_hanayo_in_groups_adds_a_bubble_a_group_where_the_backward_is_longer(
    p: int, w: int, groups: int, b: float
) -> None:
    m = groups * p
    expected = 2 * w * m * (1 + b) + 2 * (p - 1) * b + (groups - 1) * 2 * (p - 1) * (b - 1)

    assert makespan("hanayo", p, m, 1, b, waves=w) == pytest.approx(expected)


@few
@given(p=st.integers(2, 6), w=st.integers(1, 3), more=st.integers(0, 9), cost=costs)
def test_hanayo_without_groups_keeps_its_bubble_for_any_number_of_microbatches(
    p: int, w: int, more: int, cost: tuple[float, float]
) -> None:
    f, b = cost
    m = p + more
    expected = 2 * w * m * (f + b) + 2 * (p - 1) * max(f, b)

    assert makespan("hanayo", p, m, f, b, waves=w, grouping="ungrouped") == pytest.approx(expected)


# ---- order ----


@few
@given(p=P, w=st.integers(1, 3), grouping=st.sampled_from(["grouped", "ungrouped"]), data=st.data())
def test_hanayo_with_fewer_microbatches_leaves_out_the_missing_ones(
    p: int, w: int, grouping: str, data: st.DataObject
) -> None:
    m = data.draw(st.integers(1, p))
    schedule = schedules["hanayo"](waves=w, grouping="grouped")
    full, fewer = (schedule.program(Pipe(p, count)) for count in (p, m))

    for rank in range(p):
        assert fewer.actions(rank) == [action for action in full.actions(rank) if action.microbatch < m]


@few
@given(p=P, w=st.integers(1, 3))
def test_both_groupings_of_hanayo_are_the_papers_order_for_as_many_microbatches_as_ranks(p: int, w: int) -> None:
    grouped, ungrouped = (
        schedules["hanayo"](waves=w, grouping=grouping).program(Pipe(p, p)) for grouping in ("grouped", "ungrouped")
    )

    assert grouped == ungrouped


def test_interleaving_takes_microbatches_in_groups_as_megatron_does() -> None:
    """Groups of 3 with 5 microbatches and 2 chunks: the last group is short."""
    order = schedules["interleaved-1f1b"](chunks=2, group=3).program(Pipe(2, 5)).actions(0)
    forwards = [action for action in order if action.op == Op.F]
    backwards = [action for action in order if action.op == Op.B]

    assert [action.microbatch for action in forwards] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [action.stage // 2 for action in forwards] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert [action.microbatch for action in backwards] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [action.stage // 2 for action in backwards] == [1, 1, 1, 0, 0, 0, 1, 1, 0, 0]


# ---- memory and messages ----


def activations(name: str, p: int, m: int, **options: Any) -> list[float]:
    """The most activations alive on each rank, in stages."""
    made = schedules[name](**options).program(Pipe(p, m))
    return (peak_inflight(made) * made.stages / p).tolist()


@few
@given(p=P, m=M)
def test_gpipe_keeps_every_microbatch_and_1f1b_those_that_are_under_way(p: int, m: int) -> None:
    assert activations("gpipe", p, m) == [m] * p
    assert activations("1f1b", p, m) == [min(m, p - r) for r in range(p)]


@few
@given(p=P, v=st.integers(1, 4), times=st.integers(1, 3), extra=st.integers(0, 3))
def test_interleaving_keeps_a_group_for_every_further_chunk(p: int, v: int, times: int, extra: int) -> None:
    group = p + extra
    m = times * group
    expected = [min(v * m, (v - 1) * group + 2 * (p - r - 1) + 1) for r in range(p)]

    assert activations("interleaved-1f1b", p, m, chunks=v, group=group) == pytest.approx(expected)


@few
@given(half=st.integers(1, 5), units=st.integers(1, 3))
def test_chimera_keeps_half_on_the_outer_ranks_and_all_in_the_middle(half: int, units: int) -> None:
    d = 2 * half

    assert activations("chimera", d, units * d) == [half + 1 + min(r, d - 1 - r) for r in range(d)]


@few
@given(p=P, w=st.integers(1, 4), groups=st.integers(1, 3))
def test_hanayo_in_groups_keeps_as_much_as_one_group(p: int, w: int, groups: int) -> None:
    expected = [(2 * w - 1) * p + 1 + r for r in range(p)]

    assert activations("hanayo", p, groups * p, waves=w) == pytest.approx(expected)


@few
@given(p=P, w=st.integers(1, 4), more=st.integers(0, 6))
def test_hanayo_without_groups_keeps_all_of_them(p: int, w: int, more: int) -> None:
    m = p + more
    expected = [2 * w * m - p + 1 + r for r in range(p)]

    assert activations("hanayo", p, m, waves=w, grouping="ungrouped") == pytest.approx(expected)


@few
@given(p=st.integers(2, 8), m=M, w=st.integers(1, 3))
def test_turns_of_a_wave_need_no_message_and_laps_of_a_loop_do(p: int, m: int, w: int) -> None:
    times = max(1, m // p) * p

    assert messages("hanayo", p, m, waves=w) == 2 * m * 2 * w * (p - 1)
    assert messages("interleaved-1f1b", p, times, chunks=2 * w) == 2 * times * (2 * w * p - 1)


def messages(name: str, p: int, m: int, **options: Any) -> int:
    return int(np.isin(program(name, p, m, **options).op, [Op.SEND_F, Op.SEND_B]).sum())


@pytest.mark.parametrize(("name", "copies"), [("gpipe", 1), ("1f1b", 1), ("hanayo", 1), ("chimera", 2)])
def test_only_replicas_cost_a_second_copy_of_the_weights(name: str, copies: int) -> None:
    made = schedules[name]().program(Pipe(4, 4))

    assert all(len(made.stages_of(rank)) * made.ranks == copies * made.stages for rank in range(4))
