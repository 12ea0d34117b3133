"""Export as torch's CSV with messages. torch checks little of it, so all of it is checked here."""

from __future__ import annotations

import re
from collections import deque

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwave.engine.document.design import DEFAULT_UNSHARDED_STAGES
from meshwave.engine.errors import InputError
from meshwave.engine.exports.torch_csv_comms import message_schedule_rows
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op, parse_cell
from meshwave.engine.program.program import Program, format_program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.schedules import schedules
from tests._strategies import Drawn, pipelines, seconds, seeds

WITHOUT_MICROBATCH = re.compile(r"(\d+)(UNSHARD|RESHARD|REDUCE_GRAD)")
MESSAGES = (Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B)

any_program = st.sampled_from(list(schedules)).flatmap(lambda name: pipelines(name, 4, 6))


def written_cells(program: Program, seed: int = 0) -> list[list[str]]:
    """Return the cells of each rank, ordered by a timeline with costs drawn from ``seed``."""
    try:
        lines = message_schedule_rows(program, simulate(program, seconds(program, seed)))
    except InputError:
        assume(False)
        raise
    return [line.split(",") for line in lines]


def test_1f1b_on_two_ranks() -> None:
    prediction = predict(Drawn({"schedule": "1f1b", "microbatches": 2}, 2).design())

    assert message_schedule_rows(prediction.program, prediction.timeline) == [
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD",
        "1RECV_F0,1UNSHARD,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD",
    ]


@pytest.mark.slow
@given(drawn=any_program, seed=seeds)
def test_the_file_is_the_program_with_its_messages(drawn: Drawn, seed: int) -> None:
    program = lower(drawn.design())

    orders = written_cells(program, seed)

    for rank, cells in enumerate(orders):
        assert all(cells)
        actions = [action for cell in cells if not WITHOUT_MICROBATCH.fullmatch(cell) for action in parse_cell(cell)]
        assert [a for a in actions if a.op <= Op.W] == [a for a in program.actions(rank) if a.op <= Op.W]
        ours = sorted(action for action in program.actions(rank) if action.op in MESSAGES)
        assert sorted(action for action in actions if action.op in MESSAGES) == ours


@pytest.mark.slow
@given(drawn=any_program, seed=seeds)
def test_no_rank_deadlocks_if_every_action_blocks(drawn: Drawn, seed: int) -> None:
    """Strictest behaviour of NCCL: actions are sequential, and a message blocks both ends until both have started."""
    program = lower(drawn.design())
    left = [deque(parse(cell) for cell in cells) for cells in written_cells(program, seed)]
    peers = {
        str(program.row(row)): int(program.peer[row])
        for row in range(len(program))
        if program.op[row] in (Op.SEND_F, Op.SEND_B)
    }

    moved = True
    while moved:
        moved = False
        for queue in left:
            while queue and queue[0][0] == "compute":
                queue.popleft()
                moved = True
            if queue and queue[0][0] == "send":
                other = left[peers[queue[0][1]]]
                if other and other[0] == ("recv", queue[0][1]):
                    queue.popleft()
                    other.popleft()
                    moved = True

    assert not any(left)


def parse(cell: str) -> tuple[str, str]:
    """Return the kind of a cell's action, and for messages the name of their SEND."""
    if WITHOUT_MICROBATCH.fullmatch(cell):
        return "compute", cell
    action = parse_cell(cell)[0]
    if action.op in (Op.SEND_F, Op.SEND_B):
        return "send", str(action)
    if action.op == Op.RECV_F:
        return "recv", str(action._replace(op=Op.SEND_F, stage=action.stage - 1))
    if action.op == Op.RECV_B:
        return "recv", str(action._replace(op=Op.SEND_B, stage=action.stage + 1))
    return "compute", cell


@given(drawn=any_program)
def test_each_stage_is_gathered_when_it_computes_and_reduced_once_when_it_is_complete(drawn: Drawn) -> None:
    """Without REDUCE_GRAD torch silently leaves gradients undivided."""
    program = lower(drawn.design())

    for rank, cells in enumerate(written_cells(program)):
        gathered: set[int] = set()
        reduced: list[int] = []
        for cell in cells:
            if match := WITHOUT_MICROBATCH.fullmatch(cell):
                stage, what = int(match[1]), match[2]
                if what == "UNSHARD":
                    assert stage not in gathered
                    gathered.add(stage)
                elif what == "RESHARD":
                    gathered.remove(stage)
                else:
                    assert stage in gathered
                    reduced.append(stage)
                assert len(gathered) <= DEFAULT_UNSHARDED_STAGES
                continue
            computed = {action.stage for action in parse_cell(cell) if action.op <= Op.W}
            assert computed <= gathered
            assert not computed & set(reduced)
        assert not gathered
        assert sorted(reduced) == program.stages_of(rank)


def test_programs_that_torch_would_run_incorrectly_are_refused() -> None:
    prediction = predict(Drawn({"schedule": "chimera", "microbatches": 4}, 4).design())

    with pytest.raises(InputError, match="has 2 replicas of every stage"):
        message_schedule_rows(prediction.program, prediction.timeline)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["1f1b", "hanayo", "zb-v", "dualpipe-v"])
def test_torch_prints_the_same_actions(name: str) -> None:
    from torch.distributed.pipelining.schedules import _Action

    prediction = predict(Drawn({"schedule": name, "microbatches": 8}, 2).design())
    lines = message_schedule_rows(prediction.program, prediction.timeline)

    assert [",".join(str(_Action.from_str(cell)) for cell in line.split(",")) for line in lines] == lines
    compute = [[cell for cell in line.split(",") if _Action.from_str(cell).is_compute_op] for line in lines]
    assert compute == format_program(prediction.program, compute_only=True)
