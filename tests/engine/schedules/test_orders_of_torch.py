"""Orders compared with those of the schedule classes of torch.distributed.pipelining."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwave.engine.program.program import format_program
from meshwave.engine.schedules import Pipe, schedules
from tests._strategies import examples

pytestmark = pytest.mark.torch

few = settings(max_examples=examples(15))
P, V, M = st.integers(1, 5), st.integers(1, 3), st.integers(1, 12)


def torch_orders(name: str, ranks: int, chunks: int, microbatches: int) -> list[list[str]]:
    """Return torch's order of computations for every rank; the stages have no model and do not run."""
    from torch.distributed.pipelining import schedules as torch_schedules

    made = {"group_rank": 0, "group_size": ranks, "num_stages": ranks * chunks, "submod": None, "has_backward": True}
    stages: list[Any] = [
        SimpleNamespace(**made, stage_index=chunk * ranks, is_first=chunk == 0, is_last=chunk == chunks - 1)
        for chunk in range(chunks)
    ]
    schedule = getattr(torch_schedules, name)(stages, microbatches)
    orders = (schedule.pipeline_order[rank] for rank in range(ranks))
    return [[str(action) for action in order if action is not None] for order in orders]


def meshwave_orders(name: str, ranks: int, microbatches: int, **options: Any) -> list[list[str]]:
    schedule, pipe = schedules[name](**options), Pipe(ranks, microbatches)
    assert schedule.refusal(pipe) is None
    return format_program(schedule.program(pipe))


@few
@given(p=P, v=V, m=M)
def test_looped_bfs(p: int, v: int, m: int) -> None:
    assert meshwave_orders("looped-bfs", p, m, chunks=v) == torch_orders("ScheduleLoopedBFS", p, v, m)


@few
@given(p=P, v=V, times=st.integers(1, 3))
def test_interleaved_1f1b_with_a_multiple_of_the_ranks(p: int, v: int, times: int) -> None:
    """Otherwise torch forms its own rounds, and Meshwave follows Megatron."""
    assert meshwave_orders("interleaved-1f1b", p, times * p, chunks=v) == torch_orders(
        "ScheduleInterleaved1F1B", p, v, times * p
    )


@few
@given(p=P, v=V, m=M)
def test_interleaved_zero_bubble(p: int, v: int, m: int) -> None:
    """Pipelines that torch refuses are refused."""
    if schedules["interleaved-zb"](chunks=v).refusal(Pipe(p, m)):
        with pytest.raises(ValueError, match="multiple of the number of rounds"):
            torch_orders("ScheduleInterleavedZeroBubble", p, v, m)
    else:
        assert meshwave_orders("interleaved-zb", p, m, chunks=v) == torch_orders(
            "ScheduleInterleavedZeroBubble", p, v, m
        )


@few
@given(p=P, m=M)
def test_zb_v(p: int, m: int) -> None:
    assert meshwave_orders("zb-v", p, m) == torch_orders("ScheduleZBVZeroBubble", p, 2, m)


@few
@given(p=P, more=st.integers(0, 6))
def test_dualpipe_v(p: int, more: int) -> None:
    assert meshwave_orders("dualpipe-v", p, 2 * p + more) == torch_orders("ScheduleDualPipeV", p, 2, 2 * p + more)
    with pytest.raises(ValueError, match="at least as many microbatches as stages"):
        torch_orders("ScheduleDualPipeV", p, 2, 2 * p - 1)
