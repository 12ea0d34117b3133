"""Figures of timelines for cases that can be computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.errors import InputError
from meshwave.engine.program.action import Op, parse_action
from meshwave.engine.program.program import Program, parse_program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.program.timeline import Timeline, check_same_program
from tests._strategies import programs, seconds, seeds


def example_timeline(*spans: tuple[int, str, float, float], **columns: Any) -> Timeline:
    """Return a timeline of (rank, action, start, end); a span is caused by the one that ends when it starts, if any."""
    actions = [parse_action(name) for _, name, _, _ in spans]
    ends = [end for *_, end in spans]
    standing = {
        "source": "predicted",
        "digest": "d",
        "meshes": tuple("ABCD"[: max(rank for rank, *_ in spans) + 1]),
        "rank": np.array([rank for rank, *_ in spans], np.int32),
        "peer": np.full(len(spans), -1, np.int32),
        "op": np.array([action.op for action in actions], np.int8),
        "stage": np.array([action.stage for action in actions], np.int32),
        "microbatch": np.array([action.microbatch for action in actions], np.int32),
        "fused": np.array([action.fused for action in actions], np.bool_),
        "start": np.array([start for _, _, start, _ in spans], float),
        "end": np.array(ends, float),
        "cause": np.array([ends.index(start) if start in ends else -1 for _, _, start, _ in spans]),
    }
    return Timeline(**{**standing, **columns})


def simulate_text(text: str, *, forward: float = 1, backward: float = 2, transfer: float = 0, **model: Any) -> Timeline:
    program = parse_program(text)
    cost = {Op.F: forward, Op.B: backward, Op.SEND_F: transfer, Op.SEND_B: transfer}
    return simulate(program, np.array([cost.get(Op(op), 0.0) for op in program.op.tolist()]), **model)


PIPE = """
    0F0 0SEND_F0 0RECV_B0 0B0
    1RECV_F0 1F0 1B0 1SEND_B0
"""


# ---- numbers ----


def test_busy_and_bubble_of_two_ranks_and_one_microbatch() -> None:
    """Each rank computes in 3 of 6 time units."""
    timeline = simulate_text(PIPE)

    assert timeline.makespan == 6
    assert timeline.busy.tolist() == [3, 3]
    assert timeline.bubble_ratio == 0.5


def test_the_span_bubble_excludes_late_starts_and_early_ends() -> None:
    """Rank 0 spans all 6 time units and rank 1 only 3: 3 of 9 are idle."""
    assert simulate_text(PIPE).span_bubble_ratio == pytest.approx(1 - 6 / 9)


def test_transfers_are_not_busy() -> None:
    timeline = simulate_text(PIPE, transfer=1)

    assert timeline.makespan == 8
    assert timeline.busy.tolist() == [3, 3]
    assert timeline.bubble_ratio == 1 - 6 / 16


def test_an_optimizer_step_is_work_and_a_reduction_is_not() -> None:
    timeline = example_timeline((0, "0F0", 0, 1), (0, "0B0", 1, 3), (0, "0REDUCE_GRAD", 3, 5), (0, "STEP", 5, 6))

    assert timeline.busy.tolist() == [4]
    assert timeline.bubble_ratio == pytest.approx(2 / 6)
    assert timeline.span_bubble_ratio == 0, "the measure of pipelines counts stages alone"


def test_communication_is_exposed_only_while_a_transfer_is_in_flight() -> None:
    """Rank 0 is idle from 1 to 7, of which 2 are exposed.

    The 2 time units are the transfer of the gradient; in the 4 before, rank 1 waits and computes. Rank 1 waits from 0
    to 3, of which 2 are the transfer of the activation.
    """
    timeline = simulate_text(PIPE, forward=1, backward=1, transfer=2)

    assert timeline.makespan == 8
    assert timeline.exposed_communication.tolist() == [2, 2]


def test_a_transfer_during_a_computation_is_not_exposed() -> None:
    """Two microbatches: the second activation is transferred during the first computation, except for one of two units."""
    timeline = simulate_text(
        """
        0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
        1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1
        """,
        forward=1,
        backward=1,
        transfer=2,
    )

    assert timeline.exposed_communication.tolist() == [2 + 1, 2]
    assert timeline.mean_exposed_communication == 2.5


def test_a_blocking_sender_is_exposed_to_its_own_transfers() -> None:
    timeline = simulate_text(PIPE, forward=1, backward=1, transfer=2, transfer_model="sender-blocking")

    assert timeline.exposed_communication.tolist() == [2, 2]


def test_a_reduction_is_exposed_if_its_rank_has_no_other_work() -> None:
    """Two stages on one rank: half of the later stage's reduction overlaps the backward of the other."""
    timeline = example_timeline(
        (0, "1B0", 0, 2), (0, "1REDUCE_GRAD", 2, 6), (0, "0B0", 2, 4), (0, "STEP", 6, 7)
    )  # fmt: skip

    assert timeline.exposed_communication.tolist() == [2]


def test_the_critical_path_of_one_microbatch_is_its_forward_and_backward_path() -> None:
    timeline = simulate_text(PIPE, transfer=1)

    path = [str(timeline.action(span)) for span in timeline.critical_path]

    assert path == ["0F0", "0SEND_F0", "1F0", "1B0", "1SEND_B0", "0B0"]


def test_an_empty_timeline_has_zero_times_and_ratios() -> None:
    empty = simulate(parse_program([[], []]), np.zeros(0))

    assert (len(empty), empty.makespan, empty.bubble_ratio, empty.span_bubble_ratio) == (0, 0.0, 0.0, 0.0)
    assert empty.busy.tolist() == empty.exposed_communication.tolist() == [0, 0]
    assert empty.critical_path.tolist() == []


def test_a_measured_timeline_may_begin_after_zero() -> None:
    timeline = example_timeline((0, "0F0", 2, 3), (0, "0B0", 3, 5))

    assert timeline.makespan == 3
    assert timeline.bubble_ratio == 0


@given(program=programs(), seed=seeds, model=st.sampled_from(["latency", "sender-blocking", "link-serial"]))
def test_time_is_work_or_idle_and_exposed_is_a_part_of_idle(program: Program, seed: int, model: Any) -> None:
    timeline = simulate(program, seconds(program, seed), model)
    idle = timeline.makespan - timeline.busy

    assert (idle >= -1e-9).all()
    assert (timeline.exposed_communication <= idle + 1e-9).all()
    assert (timeline.exposed_communication >= 0).all()


@given(program=programs(), seed=seeds)
def test_the_span_bubble_is_a_part_of_the_bubble(program: Program, seed: int) -> None:
    takes = seconds(program, seed)
    takes[~program.is_compute] = 0

    timeline = simulate(program, takes)

    assert -1e-9 <= timeline.span_bubble_ratio <= timeline.bubble_ratio + 1e-9 <= 1


@given(program=programs(), seed=seeds)
def test_nothing_is_exposed_if_transfers_and_reductions_are_free(program: Program, seed: int) -> None:
    takes = seconds(program, seed)
    takes[~program.is_compute] = 0

    assert not simulate(program, takes).exposed_communication.any()


def test_a_run_of_another_program_is_refused() -> None:
    with pytest.raises(InputError) as refused:
        check_same_program("d", "e")

    assert str(refused.value) == (
        "the program of the run (e) differs from that of the open design (d); open the run's own design to compare them"
    )
