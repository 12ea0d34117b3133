"""A program as torch's schedule CSV with its messages: torch's runtime plays the file as it stands.

The form is ``compute_comms``. torch checks little of it, so that the file has to be right by itself:

- A receive stands where its message is sent on the clock of the prediction, not as early as Meshwave's
  own runtime posts it. torch sends and receives over one communicator, and NCCL plays what one
  communicator is given in order: a rank whose receive waits in front of a send that the other
  needs first would stand still. As all ranks list their messages in one common order, none does.
- Every stage has its REDUCE_GRAD, data parallel or not: it also divides the gradients by the number
  of microbatches, and torch says nothing where it is missing.
- UNSHARD and RESHARD gather and let go of the stages that fully sharded data parallelism cuts, the
  next three kept as torch's own lowering does; without sharding they do nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.exports._base import Export, exports
from meshwave.engine.exports.torch_csv import beside_the_order, one_shape, refuse
from meshwave.engine.program.action import Action, Op, format_cells
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Timeline

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction

GATHERED = 3
"""Stages of a rank that are gathered at once: one for a forward, one for a backward, one on its way."""

Rows = NDArray[np.int64]


@exports.register("torch-csv-comms")
class TorchCsvComms(Export):
    """The computations and messages of all ranks, for torch's own runtime."""

    title = "torch CSV with messages"
    note = 'torch, format="compute_comms"'
    suffix = ".comms.csv"
    mime = "text/csv"

    @staticmethod
    def make(prediction: Prediction) -> bytes:
        one_shape(prediction.design, "torch's pipelining")
        return ("\n".join(rows(prediction.program, prediction.timeline)) + "\n").encode()

    @staticmethod
    def left_out(prediction: Prediction) -> list[str]:
        return list(beside_the_order(prediction.design, prediction.program))


def rows(program: Program, timeline: Timeline) -> list[str]:
    """One line of comma-separated actions a rank, none of them empty.

    Args:
        timeline: of this program; its clock puts the receives in their places.

    Raises:
        InputError: torch's runtime cannot run the program.
    """
    refuse(program)
    orders: list[list[list[Action]]] = [[] for _ in range(program.ranks)]
    for rank, slot in _on_one_clock(program, timeline):
        orders[rank].append(slot)
    return [",".join(_with_updates(order)) for order in orders]


def _on_one_clock(program: Program, timeline: Timeline) -> Iterator[tuple[int, list[Action]]]:
    """Every slot and both ends of every message, each with its rank, in one order that all ranks follow.

    It keeps to what waits for what: whatever needs something else starts when that has ended, or
    stands later in the graph where both happen at one moment.
    """
    span = program.span_of_row
    place = np.zeros(len(program), np.int64)
    place[program.graph.nodes] = np.arange(len(program.graph.nodes))
    slots = np.flatnonzero(program.is_compute & ~program.fused)
    sends, makers = program.senders
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
            yield peers[at], [_received(action)]


def _received(send: Action) -> Action:
    """The other end of a message."""
    if send.op == Op.SEND_F:
        return Action(Op.RECV_F, send.stage + 1, send.microbatch)
    return Action(Op.RECV_B, send.stage - 1, send.microbatch)


def _with_updates(order: Sequence[list[Action]]) -> Iterator[str]:
    """The cells of a rank, with what gathers, reduces and lets go of its stages.

    A reduction follows what its last backward sends, so that nobody waits for it longer.
    """
    slots = [slot for slot in order if slot[0].op <= Op.W]
    upcoming = iter(_upcoming([[action.stage for action in slot] for slot in slots]))
    left = Counter(stage for slot in slots for stage in _completes(slot))
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
            for stage in _completes(slot):
                left[stage] -= 1
                complete += [stage] if not left[stage] else []
        yield from format_cells(slot)
    yield from (f"{stage}REDUCE_GRAD" for stage in complete)
    yield from (f"{stage}RESHARD" for stage in gathered)


def _completes(slot: Sequence[Action]) -> list[int]:
    """The stages of which a slot makes weight gradients."""
    return [action.stage for action in slot if action.op in (Op.B, Op.W)]


def _upcoming(stages: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each slot the stages that it and those after it need, the nearest first, as many as are gathered."""
    found: list[list[int]] = []
    nearest: list[int] = []
    for needed in reversed(stages):
        nearest = list(dict.fromkeys([*needed, *nearest]))
        found.append(nearest[:GATHERED])
    return found[::-1]
