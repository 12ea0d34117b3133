"""Export as torch's schedule CSV, read by torch's own parser and lowered by torch's own runtime."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwave.engine.errors import InputError
from meshwave.engine.exports.torch_csv import schedule_rows
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program, format_program, parse_program
from tests._strategies import Drawn

pytestmark = pytest.mark.torch

DRAWN = [
    Drawn({"schedule": "gpipe", "microbatches": 4}, 3),
    Drawn({"schedule": "1f1b", "microbatches": 6}, 3),
    Drawn({"schedule": "interleaved-1f1b", "microbatches": 4, "chunks": 2}, 2),
    Drawn({"schedule": "hanayo", "microbatches": 2, "waves": 1}, 2),
    Drawn({"schedule": "hanayo", "microbatches": 6, "waves": 2}, 3),
    Drawn({"schedule": "hanayo", "microbatches": 5, "waves": 1, "grouping": "ungrouped"}, 2),
    Drawn({"schedule": "custom", "microbatches": 1, "actions": [["0F0", "0I0", "0W0"], ["1F0", "1I0", "1W0"]]}, 2),
    Drawn({"schedule": "dualpipe-v", "microbatches": 8}, 2),
]
each = pytest.mark.parametrize("drawn", DRAWN, ids=lambda drawn: f"{drawn.pipeline['schedule']} on {drawn.ranks}")


def load_with_torch(program: Program, folder: Path) -> Any:
    """Return torch's runtime after it has read the file, in the same way as torchtitan; its stages do not run."""
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    path = folder / "schedule.csv"
    path.write_text("\n".join(schedule_rows(program)) + "\n")
    stage = SimpleNamespace(group_rank=0, group_size=program.ranks, num_stages=program.stages, submod=None)
    runtime = _PipelineScheduleRuntime([stage], program.microbatches)
    runtime._load_csv(str(path))
    return runtime


@each
def test_torch_reads_the_same_actions_on_the_same_ranks(drawn: Drawn, tmp_path: Path) -> None:
    program = lower(drawn.design())

    runtime = load_with_torch(program, tmp_path)

    read = [[str(action) for action in runtime.pipeline_order[rank]] for rank in range(program.ranks)]
    assert read == format_program(program, compute_only=True)
    ranks = [runtime.stage_index_to_group_rank[stage] for stage in range(program.stages)]
    assert ranks == program.placement[0].tolist()


@each
def test_torch_adds_the_same_messages_without_a_deadlock(drawn: Drawn, tmp_path: Path) -> None:
    """torch's own lowering raises an exception if a schedule cannot make progress."""
    program = lower(drawn.design())

    runtime = load_with_torch(program, tmp_path)

    for rank, order in runtime.pipeline_order_with_comms.items():
        theirs = sorted(str(action) for action in order if "SEND" in str(action) or "RECV" in str(action))
        ours = sorted(str(action) for action in program.actions(rank) if Op.SEND_F <= action.op <= Op.RECV_B)
        assert theirs == ours


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(2, 4, 2), (4, 4, 2), (4, 8, 3), (3, 6, 2)])
def test_interleaved_is_the_order_of_torch(ranks: int, microbatches: int, chunks: int) -> None:
    """Only for whole groups of as many microbatches as ranks, for which both follow Megatron."""
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    drawn = Drawn({"schedule": "interleaved-1f1b", "microbatches": microbatches, "chunks": chunks}, ranks)

    theirs = get_schedule_ops("Interleaved1F1B", ranks, microbatches, chunks)

    assert [[str(action) for action in rank if action is not None] for rank in theirs] == [
        row.split(",") for row in schedule_rows(lower(drawn.design()))
    ]


def test_replicas_are_refused_with_a_message() -> None:
    """In torch, a stage belongs to one rank."""
    program = lower(Drawn({"schedule": "chimera", "microbatches": 4}, 4).design())

    with pytest.raises(InputError) as refused:
        schedule_rows(program)

    assert str(refused.value) == (
        "torch's schedule CSV supports one rank per stage, and this design has 2 replicas of every stage; choose a schedule "
        "without replicas (one wave of hanayo instead of Chimera, or dualpipe-v instead of dualpipe) to export it"
    )


def test_a_last_stage_with_reordered_forwards_is_refused_with_a_message() -> None:
    """torch numbers its losses by the order of the forwards, and would use the loss of another microbatch."""
    program = parse_program("0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1F2 1F1 1B2 1B1 1B0")

    with pytest.raises(InputError) as refused:
        schedule_rows(program)

    assert str(refused.value).startswith(
        "torch numbers losses in the order in which the last stage runs its forwards, and rank 1 runs 1F2 before 1F1"
    )


def test_other_stages_and_backwards_may_run_in_any_order() -> None:
    program = parse_program("0F1 0F0 0B1 0B0\n1F0 1F1 1B1 1B0")

    assert schedule_rows(program) == ["0F1,0F0,0B1,0B0", "1F0,1F1,1B1,1B0"]


def test_a_shared_slot_is_one_cell() -> None:
    program = parse_program([["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]])

    assert schedule_rows(program)[1] == "1F0,(1F1;1B0)OVERLAP_F_B,1B1"


def test_only_computations_are_written() -> None:
    program = parse_program("0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD STEP\n1RECV_F0 1F0 1B0 1SEND_B0 STEP")

    assert schedule_rows(program) == ["0F0,0B0", "1F0,1B0"]
