"""Closed forms for makespan, bubble and activations, which the simulator must reproduce.

F and B are the durations of one stage's forward and backward, I and W of the two halves of a split backward, c of one
transfer between ranks that delays no other; P ranks, M microbatches, V chunks per rank, or W waves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.program.action import Op
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.schedules import Pipe, schedules
from tests.engine.schedules.play import activations, makespan, play, program

P, M = st.integers(1, 8), st.integers(1, 12)
COSTS = [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0), (2.0, 1.0), (4.0, 5.0)]
"""F and B."""
costs = st.sampled_from(COSTS)


def transfers(most: float) -> st.SearchStrategy[float]:
    """Draw transfer costs up to ``most`` forwards that are exact in binary."""
    return st.integers(0, int(most * 8)).map(lambda eighths: eighths / 8)


# ---- makespan ----


@given(p=P, m=M, cost=costs, c=transfers(4))
def test_gpipe_fills_and_drains(p: int, m: int, cost: tuple[float, float], c: float) -> None:
    f, b = cost

    assert makespan("gpipe", p, m, f, b, c) == pytest.approx((m + p - 1) * (f + b) + 2 * (p - 1) * c)


@given(p=P, m=M, cost=costs)
def test_1f1b_takes_as_long_as_gpipe_where_transfers_are_free(p: int, m: int, cost: tuple[float, float]) -> None:
    f, b = cost

    assert makespan("1f1b", p, m, f, b) == pytest.approx((m + p - 1) * (f + b))


@given(p=st.integers(2, 6), times=st.integers(1, 3), c=transfers(3))
def test_1f1b_exposes_transfers_in_every_round_of_its_steady_state(p: int, times: int, c: float) -> None:
    m = p * times
    exposed = 4 * p - 6 + 2 * (p - 1) * (times - 1)

    assert makespan("1f1b", p, m, 1, 2, c) == pytest.approx((m + p - 1) * 3 + exposed * c)


@given(p=P, m=M, cost=costs)
def test_eager_1f1b_takes_as_long_as_1f1b_where_transfers_are_free(p: int, m: int, cost: tuple[float, float]) -> None:
    f, b = cost

    assert makespan("eager-1f1b", p, m, f, b) == pytest.approx((m + p - 1) * (f + b))


@given(p=P, times=st.integers(1, 4), c=transfers(1))
def test_eager_1f1b_exposes_one_transfer_per_direction(p: int, times: int, c: float) -> None:
    """If a round trip to the next rank takes no longer than the forwards that run ahead."""
    m = p * times

    assert makespan("eager-1f1b", p, m, 1, 2, c) == pytest.approx((m + p - 1) * 3 + 2 * (p - 1) * c)


def test_eager_1f1b_is_faster_with_slow_transfers() -> None:
    """Example of the paper: P=4, M=16, c = F/2."""
    assert makespan("1f1b", 4, 16, 1, 2, 0.5) == 71
    assert makespan("eager-1f1b", 4, 16, 1, 2, 0.5) == 60


@given(p=P, v=st.integers(1, 4), more=st.integers(0, 9), cost=costs)
def test_breadth_first_divides_the_bubble_as_interleaving_does(
    p: int, v: int, more: int, cost: tuple[float, float]
) -> None:
    f, b = cost
    m = p + more

    assert makespan("looped-bfs", p, m, f, b, chunks=v) == pytest.approx((v * m + p - 1) * (f + b))


@given(p=P, cost=costs, c=transfers(4))
def test_gems_has_the_makespan_of_the_hanayo_paper(p: int, cost: tuple[float, float], c: float) -> None:
    """Figure 2: P^2 T_B + (2P-1) T_F + (P^2-1) T_C, for a backward at least as long as a forward."""
    f, b = sorted(cost)

    assert makespan("gems", p, p, f, b, c) == pytest.approx(p * p * b + (2 * p - 1) * f + (p * p - 1) * c)


@given(p=P, v=st.integers(1, 4), times=st.integers(1, 3), cost=costs)
def test_interleaving_divides_the_bubble_by_the_chunks(p: int, v: int, times: int, cost: tuple[float, float]) -> None:
    f, b = cost
    m = p * times

    assert makespan("interleaved-1f1b", p, m, f, b, chunks=v) == pytest.approx((v * m + p - 1) * (f + b))


@given(p=st.integers(2, 6), v=st.integers(2, 4), c=transfers(1))
def test_interleaving_exposes_a_transfer_for_each_hop_down_and_up(p: int, v: int, c: float) -> None:
    expected = (v * p + p - 1) * 3 + (2 * v * p - 2) * c

    assert makespan("interleaved-1f1b", p, p, 1, 2, c, chunks=v) == pytest.approx(expected)


@given(half=st.integers(1, 5), b=st.sampled_from([1.0, 1.5, 2.0, 3.0]), c=transfers(2))
def test_chimera_with_as_many_microbatches_as_ranks(half: int, b: float, c: float) -> None:
    d = 2 * half
    hops = 3 * d - 5 if d > 2 else 2  # two ranks have nothing to turn round: down and up again

    assert makespan("chimera", d, d, 1, b, c) == pytest.approx(d + (2 * d - 2) * b + hops * c)


@given(half=st.integers(1, 4), units=st.integers(1, 4))
def test_chimera_adds_no_bubble_between_groups_for_equal_forwards_and_backwards(half: int, units: int) -> None:
    d = 2 * half
    n = units * d

    timeline = play(program("chimera", d, n), 1, 1)

    assert timeline.bubble_ratio == pytest.approx((d - 2) / (2 * n + d - 2))


@given(half=st.integers(1, 4), units=st.integers(1, 4), b=st.sampled_from([1.0, 2.0, 3.0]))
def test_chimera_adds_a_bubble_per_group_for_longer_backwards(half: int, units: int, b: float) -> None:
    d = 2 * half
    expected = units * d * (1 + b) + (d - 2) * b + (units - 1) * (d - 2) * (b - 1)

    assert makespan("chimera", d, units * d, 1, b) == pytest.approx(expected)


@given(p=st.integers(2, 8), w=st.integers(1, 3), cost=costs, c=transfers(2))
def test_hanayo_with_as_many_microbatches_as_ranks(p: int, w: int, cost: tuple[float, float], c: float) -> None:
    """The term in c is linear if c is small compared with the stages."""
    f, b = cost
    c = min(c, f)
    expected = 2 * w * p * (f + b) + 2 * (p - 1) * max(f, b) + (4 * w * (p - 1) + 2 * (p - 2)) * c

    assert makespan("hanayo", p, p, f, b, c, waves=w) == pytest.approx(expected)


@given(p=st.integers(2, 6), w=st.integers(1, 3), groups=st.integers(1, 4), b=st.sampled_from([1.0, 2.0, 3.0]))
def test_grouped_hanayo_adds_a_bubble_per_group_for_longer_backwards(p: int, w: int, groups: int, b: float) -> None:
    m = groups * p
    expected = 2 * w * m * (1 + b) + 2 * (p - 1) * b + (groups - 1) * 2 * (p - 1) * (b - 1)

    assert makespan("hanayo", p, m, 1, b, waves=w) == pytest.approx(expected)


@given(p=st.integers(2, 6), w=st.integers(1, 3), more=st.integers(0, 9), cost=costs)
def test_ungrouped_hanayo_has_the_same_bubble_for_any_number_of_microbatches(
    p: int, w: int, more: int, cost: tuple[float, float]
) -> None:
    f, b = cost
    m = p + more
    expected = 2 * w * m * (f + b) + 2 * (p - 1) * max(f, b)

    assert makespan("hanayo", p, m, f, b, waves=w, grouping="ungrouped") == pytest.approx(expected)


# ---- chimera beyond two replicas and one concatenation ----

evenly = st.integers(1, 4).flatmap(
    lambda pairs: st.tuples(st.just(2 * pairs), st.integers(1, 12 // (2 * pairs)).map(lambda each: each * 2 * pairs))
)
"""Strategy for a number of replicas, and a number of ranks that they divide."""


@given(sizes=evenly, units=st.integers(1, 3))
def test_more_replicas_divide_the_bubble_of_chimera(sizes: tuple[int, int], units: int) -> None:
    """D/f - 2 slots of a forward and a backward, with f replicas in each direction."""
    replicas, d = sizes
    n = units * d

    timeline = play(program("chimera", d, n, replicas=replicas), 1, 1)

    assert timeline.makespan == 2 * n + 2 * d / replicas - 2


@given(sizes=evenly, units=st.integers(1, 3))
def test_forward_doubling_adds_no_bubble_for_backwards_of_twice_the_duration(
    sizes: tuple[int, int], units: int
) -> None:
    """Slightly better than slots of two forwards: the output of the first forward is sent at once."""
    replicas, d = sizes
    n = units * 2 * d

    for name in ("forward-doubling", "backward-halving"):
        took = makespan("chimera", d, n, 1, 2, replicas=replicas, concatenation=name)
        assert took == 3 * n + 1.5 * (2 * d / replicas - 2)


def test_concatenations_of_the_example_of_the_paper() -> None:
    """D=4, N=8, B = 2F: direct takes 30; without the bubble between groups it would take 28."""
    assert makespan("chimera", 4, 8, 1, 2) == 30
    assert makespan("chimera", 4, 8, 1, 2, concatenation="forward-doubling") == 27 <= 28


# ---- split backwards ----


@given(p=P, more=st.integers(0, 12), cost=st.sampled_from([(1, 1, 1), (1, 2, 1), (2, 1.5, 1), (3, 2, 1)]))
def test_zb_h1_leaves_a_third_of_the_bubble_of_1f1b(p: int, more: int, cost: tuple[float, float, float]) -> None:
    """(P-1)(F+I-W) of idle time between a rank's first start and its last end."""
    f, i, w = cost
    m = p + more

    timeline = play(program("zb-h1", p, m), f, i + w, 0, w)

    if f == i == w:
        assert timeline.makespan == 3 * m + p - 1
    assert longest_idle(timeline) == pytest.approx((p - 1) * (f + i - w))


@given(p=P, more=st.integers(0, 12))
def test_zb_h2_is_zero_bubble_only_if_no_rank_waits_for_the_others(p: int, more: int) -> None:
    m = 2 * p - 1 + more

    timeline = play(program("zb-h2", p, m), 1, 2)

    assert longest_idle(timeline) == 0
    assert timeline.makespan == 3 * m + p - 1 == makespan("zb-h1", p, m)


def test_zb_h2_is_faster_than_zb_h1_once_transfers_take_time() -> None:
    assert makespan("zb-h2", 4, 16, 1, 2, 0.5) < makespan("zb-h1", 4, 16, 1, 2, 0.5)


@given(p=P, more=st.integers(0, 12))
def test_zb_v_has_no_idle_time_between_computations(p: int, more: int) -> None:
    m = 2 * p - 1 + more

    timeline = play(program("zb-v", p, m), 1, 2)

    assert longest_idle(timeline) == 0
    assert timeline.makespan == 6 * m + p - 1


def test_zb_v_with_too_few_microbatches_to_fill_it() -> None:
    timeline = play(program("zb-v", 4, 4), 1, 2)

    assert (timeline.makespan, timeline.bubble_ratio) == (30, pytest.approx(0.2))


@given(p=P, v=st.integers(1, 4), times=st.integers(1, 3))
def test_interleaved_zero_bubble_leaves_a_third_of_the_bubble_of_interleaving(p: int, v: int, times: int) -> None:
    m = p * times

    assert makespan("interleaved-zb", p, m, 1, 2, chunks=v) == 3 * v * m + p - 1


@given(p=P, more=st.integers(0, 9))
def test_dualpipe_v_has_the_published_bubble(p: int, more: int) -> None:
    """(PP/2 - 1)(F&B + B - 3W), with PP = 2P stages in one direction.

    This is two slots if F = I = W and a shared slot takes as long as its halves.
    """
    m = 2 * p + more

    assert makespan("dualpipe-v", p, m, 1, 2) == 6 * m + (p - 1) * 2


@given(half=st.integers(1, 4), more=st.integers(0, 6))
def test_dualpipe_has_the_same_bubble_on_twice_the_ranks(half: int, more: int) -> None:
    p, m = 2 * half, 2 * (2 * half + more)

    assert makespan("dualpipe", p, m, 1, 2) == 3 * m + (half - 1) * 2
    assert makespan("dualpipe", p, m, 1, 2) == makespan("dualpipe-v", half, m // 2, 1, 2)


def test_dualpipe_in_the_examples_of_the_paper() -> None:
    assert makespan("dualpipe-v", 4, 10, 1, 2) == 6 * 10 + 6
    assert makespan("dualpipe", 8, 20, 1, 2) == 66


@given(p=st.integers(1, 16), more=st.integers(0, 12))
def test_v_half_and_v_min_have_the_published_bubbles(p: int, more: int) -> None:
    """Relative to the bubble of 1F1B, 6(P-1) slots: a half (plus up to P/4 slots) and two thirds."""
    m = p + more

    half, least = (makespan(name, p, m, 1, 2) - 6 * m for name in ("v-half", "v-min"))

    assert half <= 3 * (p - 1) + p / 4
    assert p == 1 or abs(least - 4 * (p - 1)) == 1


def test_transfers_slow_v_min_per_microbatch_but_not_v_half() -> None:
    """V-Half leaves a slot between the ranks for half of the transfers."""
    half, least = ([makespan(name, 4, m, 1, 2, 0.5) - 6 * m for m in (8, 80)] for name in ("v-half", "v-min"))

    assert half[0] == half[1]
    assert least[0] < least[1]


def longest_idle(timeline: Timeline) -> float:
    """Return the longest idle time of a rank between its first start and its last end."""
    compute = timeline.is_compute
    idle = []
    for rank in range(timeline.ranks):
        mine = compute & (timeline.rank == rank)
        start, end = timeline.start[mine], timeline.end[mine]
        idle.append(float(end.max() - start.min() - (end - start).sum()))
    return max(idle)


# ---- order ----


@given(p=P, w=st.integers(1, 3), grouping=st.sampled_from(["grouped", "ungrouped"]), data=st.data())
def test_hanayo_with_fewer_microbatches_omits_the_missing_ones(
    p: int, w: int, grouping: str, data: st.DataObject
) -> None:
    m = data.draw(st.integers(1, p))
    schedule = schedules["hanayo"](waves=w, grouping="grouped")
    full, fewer = (schedule.program(Pipe(p, count)) for count in (p, m))

    for rank in range(p):
        assert fewer.actions(rank) == [action for action in full.actions(rank) if action.microbatch < m]


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


@given(p=P, m=M)
def test_gpipe_keeps_every_microbatch_and_1f1b_those_in_flight(p: int, m: int) -> None:
    assert activations("gpipe", p, m) == [m] * p
    assert activations("1f1b", p, m) == [min(m, p - r) for r in range(p)]


@given(p=P, m=M)
def test_eager_1f1b_keeps_nearly_twice_as_many(p: int, m: int) -> None:
    assert activations("eager-1f1b", p, m) == [min(m, 2 * (p - r) - 1) for r in range(p)]


@given(p=P, m=M, v=st.integers(1, 4))
def test_breadth_first_keeps_everything_and_gems_one(p: int, m: int, v: int) -> None:
    assert activations("looped-bfs", p, m, chunks=v) == pytest.approx([v * m] * p)
    assert activations("gems", p, m) == [1] * p


@given(p=P, more=st.integers(0, 9))
def test_split_backwards_keep_equal_activations_on_every_rank(p: int, more: int) -> None:
    m = 2 * p - 1 + more

    assert activations("zb-h1", p, m) == [p] * p
    assert activations("zb-h2", p, m) == [2 * p - 1] * p
    assert activations("zb-v", p, m) == [2 * p] * p


@given(p=P, v=st.integers(1, 4), times=st.integers(1, 3))
def test_interleaved_zero_bubble_keeps_a_group_of_every_chunk(p: int, v: int, times: int) -> None:
    assert activations("interleaved-zb", p, p * times, chunks=v) == pytest.approx([v * p] * p)


@given(half=st.integers(2, 4), more=st.integers(0, 6))
def test_dualpipe_keeps_one_more_than_there_are_stages_in_a_direction(half: int, more: int) -> None:
    assert activations("dualpipe-v", half, 2 * half + more) == [2 * half + 1] * half
    assert activations("dualpipe", 2 * half, 4 * half + 2 * more) == [2 * half + 1] * 2 * half


@given(p=st.integers(1, 24), m=st.integers(1, 60))
def test_building_blocks_bound_the_activations_of_a_rank(p: int, m: int) -> None:
    """About P and 2P/3 chunks, which are a half and a third of the activations of 1F1B."""
    for name, most in (("v-half", 2 * (p // 2 + 1)), ("v-min", 2 * ((p + 4) // 3))):
        kept = max(activations(name, p, m))
        assert kept <= min(most, 2 * m)
        assert kept == most or m < p


@given(sizes=evenly, units=st.integers(1, 3))
def test_forward_doubling_keeps_about_twice_the_activations(sizes: tuple[int, int], units: int) -> None:
    """No rank keeps more than two microbatches per rank."""
    replicas, d = sizes
    share = d // replicas

    direct = activations("chimera", d, units * d, replicas=replicas)
    doubled = activations("chimera", d, units * 2 * d, replicas=replicas, concatenation="forward-doubling")

    places = [min(r % (2 * share), 2 * share - 1 - r % (2 * share)) for r in range(d)]
    assert direct == [d - share + 1 + place for place in places]
    assert doubled == [2 * d - share + 1 + place for place in places]


@given(p=P, v=st.integers(1, 4), times=st.integers(1, 3), extra=st.integers(0, 3))
def test_interleaving_keeps_a_group_per_additional_chunk(p: int, v: int, times: int, extra: int) -> None:
    group = p + extra
    m = times * group
    expected = [min(v * m, (v - 1) * group + 2 * (p - r - 1) + 1) for r in range(p)]

    assert activations("interleaved-1f1b", p, m, chunks=v, group=group) == pytest.approx(expected)


@given(half=st.integers(1, 5), units=st.integers(1, 3))
def test_chimera_keeps_half_on_the_outer_ranks_and_all_in_the_middle(half: int, units: int) -> None:
    d = 2 * half

    assert activations("chimera", d, units * d) == [half + 1 + min(r, d - 1 - r) for r in range(d)]


@given(p=P, w=st.integers(1, 4), groups=st.integers(1, 3))
def test_grouped_hanayo_keeps_the_activations_of_one_group(p: int, w: int, groups: int) -> None:
    expected = [(2 * w - 1) * p + 1 + r for r in range(p)]

    assert activations("hanayo", p, groups * p, waves=w) == pytest.approx(expected)


@given(p=P, w=st.integers(1, 4), more=st.integers(0, 6))
def test_ungrouped_hanayo_keeps_all_activations(p: int, w: int, more: int) -> None:
    m = p + more
    expected = [2 * w * m - p + 1 + r for r in range(p)]

    assert activations("hanayo", p, m, waves=w, grouping="ungrouped") == pytest.approx(expected)


@given(p=st.integers(2, 8), m=M, w=st.integers(1, 3))
def test_turning_points_of_a_wave_need_no_message_but_laps_of_a_loop_do(p: int, m: int, w: int) -> None:
    times = max(1, m // p) * p

    assert messages("hanayo", p, m, waves=w) == 2 * m * 2 * w * (p - 1)
    assert messages("interleaved-1f1b", p, times, chunks=2 * w) == 2 * times * (2 * w * p - 1)


def messages(name: str, p: int, m: int, **options: Any) -> int:
    return int(np.isin(program(name, p, m, **options).op, [Op.SEND_F, Op.SEND_B]).sum())


@pytest.mark.parametrize("name", [name for name in schedules if name != "custom"])
def test_only_replicas_need_a_second_copy_of_the_weights(name: str) -> None:
    copies = 2 if name in ("chimera", "dualpipe", "gems") else 1

    made = schedules[name]().program(Pipe(4, 8))

    assert all(len(made.stages_of(rank)) * made.ranks == copies * made.stages for rank in range(4))


@given(sizes=evenly)
def test_every_replica_of_chimera_is_a_copy_on_every_rank(sizes: tuple[int, int]) -> None:
    replicas, d = sizes
    made = schedules["chimera"](replicas=replicas).program(Pipe(d, d))

    assert all(len(made.stages_of(rank)) == replicas for rank in range(d))
    assert all(len(made.ranks_of(stage)) == replicas for stage in range(d))
