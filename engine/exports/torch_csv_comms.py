"""Export of a program as torch's schedule CSV with its messages, which torch's runtime runs unchanged.

The format is ``compute_comms``. torch checks little of it, so the file must be correct by itself:

- A receive is placed where its message is sent in the prediction, not as early as Meshwave's own runtime posts it.
  torch sends and receives over one communicator, which NCCL processes in order: a rank whose receive precedes a send
  that another rank needs first would deadlock. All ranks list their messages in one common order, so that no rank does.
- Every stage has its REDUCE_GRAD, with or without data parallelism: it also divides the gradients by the number of
  microbatches, and torch does not report a missing one.
- UNSHARD and RESHARD gather and release the stages that fully sharded data parallelism shards. A design that does not
  unshard stages gathers the default number of them, as in torch's own lowering; without sharding they have no effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshwave.engine.document.design import DEFAULT_UNSHARDED_STAGES
from meshwave.engine.exports._base import Export, exports
from meshwave.engine.exports.torch_csv import check_equal_meshes, check_exportable, missing_properties
from meshwave.engine.lowering.gathers import upcoming_stages
from meshwave.engine.program.action import Action, Op, format_cells
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Timeline

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction


@exports.register("torch-csv-comms")
class TorchCsvComms(Export):
    """Computations and messages of all ranks, for torch's own runtime."""

    title = "torch CSV with messages"
    note = 'torch, format="compute_comms"'
    suffix = ".comms.csv"
    mime = "text/csv"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        check_equal_meshes(prediction.design, "torch's pipelining")
        limit = prediction.design.unsharded_stages or DEFAULT_UNSHARDED_STAGES
        return ("\n".join(message_schedule_rows(prediction.program, prediction.timeline, limit)) + "\n").encode()

    @staticmethod
    def omissions(prediction: Prediction) -> list[str]:
        return list(missing_properties(prediction.design, prediction.program))


def message_schedule_rows(
    program: Program, timeline: Timeline, unsharded_stages: int = DEFAULT_UNSHARDED_STAGES
) -> list[str]:
    """Return one line of comma-separated actions per rank, without empty cells.

    Args:
        program: the program.
        timeline: timeline of this program; its times determine the places of receives.
        unsharded_stages: number of stages that each rank holds unsharded at once.

    Raises:
        InputError: torch's runtime cannot run the program.
    """
    check_exportable(program)
    orders: list[list[list[Action]]] = [[] for _ in range(program.ranks)]
    for rank, slot in _common_order(program, timeline):
        orders[rank].append(slot)
    return [",".join(_add_updates(order, unsharded_stages)) for order in orders]


def _common_order(program: Program, timeline: Timeline) -> Iterator[tuple[int, list[Action]]]:
    """Yield every slot and both ends of every message with their ranks, in one order for all ranks.

    The order respects dependencies: an action comes after its inputs in time or, at equal times, in the graph.
    """
    span = program.span_of_row
    place = np.zeros(len(program), np.int64)
    place[program.graph.nodes] = np.arange(len(program.graph.nodes))
    slots = np.flatnonzero(program.is_compute & ~program.fused)
    sends, makers = program.send_rows
    time = np.concatenate([timeline.start[span[slots]], timeline.end[span[makers]]])
    after = np.concatenate([2 * place[slots], 2 * place[program.slot[makers]] + 1])
    row = np.concatenate([slots, sends])
    actions = [action for rank in range(program.ranks) for action in program.actions(rank)]
    ranks, peers = program.rank.tolist(), program.peer.tolist()
    doubled = program.next_is_fused.tolist()
    for at in row[np.lexsort((row, after, time))].tolist():
        action = actions[at]
        if action.op <= Op.W:
            yield ranks[at], actions[at : at + 2] if doubled[at] else [action]
        else:
            yield ranks[at], [action]
            yield peers[at], [_matching_receive(action)]


def _matching_receive(send: Action) -> Action:
    """Return the RECV of a SEND."""
    if send.op == Op.SEND_F:
        return Action(Op.RECV_F, send.stage + 1, send.microbatch)
    return Action(Op.RECV_B, send.stage - 1, send.microbatch)


def _add_updates(order: Sequence[list[Action]], unsharded_stages: int) -> Iterator[str]:
    """Yield the cells of a rank, with the actions that gather, reduce and release its stages.

    A reduction follows the sends of its last backward, so that it does not delay them.
    """
    slots = [slot for slot in order if slot[0].op <= Op.W]
    upcoming = iter(upcoming_stages([[action.stage for action in slot] for slot in slots], unsharded_stages))
    left = Counter(stage for slot in slots for stage in _completed_stages(slot))
    gathered: list[int] = []
    complete: list[int] = []
    for slot in order:
        if slot[0].op <= Op.W:
            yield from (f"{stage}REDUCE_GRAD" for stage in complete)
            complete = []
            needed = next(upcoming)
            yield from (f"{stage}RESHARD" for stage in gathered if stage not in needed)
            yield from (f"{stage}UNSHARD" for stage in needed if stage not in gathered)
            gathered = needed
            for stage in _completed_stages(slot):
                left[stage] -= 1
                complete += [stage] if not left[stage] else []
        yield from format_cells(slot)
    yield from (f"{stage}REDUCE_GRAD" for stage in complete)
    yield from (f"{stage}RESHARD" for stage in gathered)


def _completed_stages(slot: Sequence[Action]) -> list[int]:
    """Return the stages whose weight gradients a slot computes."""
    return [action.stage for action in slot if action.op in (Op.B, Op.W)]
