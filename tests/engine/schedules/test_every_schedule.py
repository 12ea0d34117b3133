"""Properties of every schedule with any options, also of schedules that are added to the folder."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwave.engine.findings import DesignError
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.acknowledgements import find_messages
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.program.verification import verify
from meshwave.engine.schedules import Pipe, schedules
from tests._findings import check_fixes, find_problems
from tests._strategies import Drawn, document, examples, option, pipelines
from tests.engine.program.walk import left_over, other_end
from tests.engine.schedules.play import makespan, program

every_schedule = pytest.mark.parametrize("name", schedules)
automatic = [name for name in schedules if name != "custom"]
few = settings(max_examples=examples(6), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
drawn = settings(max_examples=examples(15), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


@every_schedule
@drawn
@given(data=st.data())
def test_every_microbatch_passes_every_stage_forward_and_backward_once(name: str, data: st.DataObject) -> None:
    pipeline = data.draw(pipelines(name))

    lowered = lower(pipeline.design())

    computed = [action for rank in range(lowered.ranks) for action in lowered.actions(rank) if action.op.is_compute]
    places = [(stage, mb) for stage in range(lowered.stages) for mb in range(pipeline.microbatches)]
    forwards, whole, inputs, weights = (
        sorted((action.stage, action.microbatch) for action in computed if action.op == op)
        for op in (Op.F, Op.B, Op.I, Op.W)
    )
    assert forwards == places
    assert sorted(whole + inputs) == places
    assert weights == inputs


@every_schedule
@drawn
@given(data=st.data(), dp=st.integers(1, 3))
def test_programs_are_valid_with_any_data_parallelism(name: str, data: st.DataObject, dp: int) -> None:
    pipeline = data.draw(pipelines(name))

    lowered = lower(pipeline.design(dp))

    assert verify(lowered) == []
    assert not any(left_over(lowered))


@pytest.mark.slow
@every_schedule
@drawn
@given(data=st.data())
def test_messages_match_by_order_as_in_nccl(name: str, data: st.DataObject) -> None:
    lowered = lower(data.draw(pipelines(name)).design())

    sent, received = channels(lowered, Op.SEND_F, Op.SEND_B), channels(lowered, Op.RECV_F, Op.RECV_B)

    assert sent.keys() == received.keys()
    for pair, sends in sent.items():
        assert received[pair] == [other_end(send) for send in sends]


@every_schedule
@few
@given(data=st.data(), dp=st.integers(1, 2))
def test_batched_messages_do_not_deadlock(name: str, data: st.DataObject, dp: int) -> None:
    """Both ranks of a batch issue it in the same order of batches, between the same computations."""
    pipeline = data.draw(pipelines(name))
    plain, lowered = lower(pipeline.design(dp)), lower(pipeline.design(dp, transfer={"batched": True}))

    assert verify(lowered) == []
    assert computations(lowered) == computations(plain)
    assert not any(stuck_in_batches(lowered))


@every_schedule
@few
@given(data=st.data(), takes=st.tuples(st.floats(0.1, 3), st.floats(0.1, 3), st.floats(0, 3)))
def test_batches_are_never_faster_than_transfers_alone(
    name: str, data: st.DataObject, takes: tuple[float, float, float]
) -> None:
    lowered = lower(data.draw(pipelines(name)).design(transfer={"batched": True}))
    ops = (Op.F, Op.B, Op.SEND_F)
    cost = dict(zip(ops, takes, strict=True)) | {Op.I: takes[1] / 2, Op.W: takes[1] / 2, Op.SEND_B: takes[2]}
    seconds = np.array([cost.get(Op(op), 0.0) for op in lowered.op.tolist()])

    assert (simulate(lowered, seconds, "batched").end >= simulate(lowered, seconds).end).all()


@pytest.mark.slow
@every_schedule
@drawn
@given(data=st.data())
def test_programs_are_deterministic(name: str, data: st.DataObject) -> None:
    pipeline = data.draw(pipelines(name))

    assert lower(pipeline.design()).digest == lower(pipeline.design()).digest


@pytest.mark.parametrize("name", automatic)
@drawn
@given(data=st.data(), ranks=st.integers(1, 6), microbatches=st.integers(1, 9))
def test_pipelines_are_ordered_or_refused_with_working_fixes(
    name: str, data: st.DataObject, ranks: int, microbatches: int
) -> None:
    member = schedules[name]
    options = {field: data.draw(option(info.annotation)) for field, info in member.model_fields.items()}
    pipeline = Drawn({"schedule": name, "microbatches": microbatches, **options}, ranks)

    refusal = member(**options).refusal(Pipe(ranks, microbatches))

    if refusal is None:
        assert verify(lower(pipeline.design())) == []
        return
    document = pipeline.document()
    (problem,) = find_problems(document)
    assert (problem.where, problem.code) == (f"pipeline.{refusal.where}", refusal.code)
    assert problem.fixes or ranks == 1, "a cluster of one device has no room for a second mesh"
    check_fixes(document, [problem])


@pytest.mark.parametrize("name", automatic)
def test_every_schedule_has_a_help_text(name: str) -> None:
    assert schedules[name].title
    assert schedules[name].help().endswith(".")


@pytest.mark.parametrize("name", automatic)
@pytest.mark.parametrize("microbatches", [4, 8])
def test_one_rank_has_no_bubble(name: str, microbatches: int) -> None:
    """Bidirectional schedules need two ranks, and then have no bubble either."""
    ranks = 1 if schedules[name]().refusal(Pipe(1, microbatches)) is None else 2

    assert makespan(name, ranks, microbatches, 1.0, 1.0) == 2 * microbatches * program(name, ranks, 4).stages / ranks


def test_an_option_of_another_schedule_is_refused() -> None:
    wrong = document({"schedule": "gpipe", "microbatches": 4, "waves": 2}, 2)

    with pytest.raises(DesignError, match="'waves' is an option of hanayo, not of gpipe; remove it"):
        Drawn(wrong["pipeline"], 2).design()


def computations(program: Program) -> list[list[Action]]:
    return [[action for action in program.actions(rank) if action.op.is_compute] for rank in range(program.ranks)]


def stuck_in_batches(program: Program) -> list[list[int]]:
    """Return the remaining rows of each rank if computations wait for batches.

    A rank waits before a computation until each of its batches was issued on both ranks, and until all inputs of the
    computation were sent.
    """
    send, _, taker = find_messages(program)
    taken: dict[int, set[int]] = defaultdict(set)  # by slot the SENDs of what it takes
    for row, slot in zip(send.tolist(), program.slot[taker].tolist(), strict=True):
        taken[slot].add(row)
    left = [list(range(program.rows(rank).start, program.rows(rank).stop)) for rank in range(program.ranks)]
    waited: list[set[int]] = [set() for _ in left]  # the batches that a rank issued since its last computation
    issued: dict[int, set[int]] = defaultdict(set)  # by batch the ranks that issued it
    sent: set[int] = set()

    def can_compute(rank: int, row: int) -> bool:
        return taken[row] <= sent and all(len(issued[batch]) == 2 for batch in waited[rank])

    moved = True
    while moved:
        moved = False
        for rank, rows in enumerate(left):
            while rows and (not program.is_compute[rows[0]] or can_compute(rank, rows[0])):
                row = rows.pop(0)
                moved = True
                if program.is_compute[row]:
                    waited[rank].clear()
                if program.is_send[row]:
                    sent.add(row)
                if (batch := int(program.batch[row])) >= 0:
                    waited[rank].add(batch)
                    issued[batch].add(rank)
    return left


def channels(program: Program, *ops: Op) -> dict[tuple[int, int], list[Action]]:
    """Return the sends, or the receives, of each (sender, receiver) in order."""
    found: dict[tuple[int, int], list[Action]] = defaultdict(list)
    sends = Op.SEND_F in ops
    for row in range(len(program)):
        if program.op[row] in ops:
            here, there = int(program.rank[row]), int(program.peer[row])
            found[(here, there) if sends else (there, here)].append(program.row(row))
    return found
