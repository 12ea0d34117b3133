"""One thing a rank does, and the field's notation for it: ``2F0``, ``1RECV_F3``, ``STEP``.

The notation is that of torch.distributed.pipelining: stage, kind, microbatch. A SEND carries
the stage whose output is sent, a RECV the stage that takes it in. A forward and a backward that
overlap share one slot and one cell: ``(0F3;7B1)OVERLAP_F_B``. Between neighbours that says who
stands at the other end; tensors that skip stages on their way name it: ``0SEND_F1TO3`` and
``3RECV_F1FROM0``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from meshwave.engine.errors import InputError


class Op(IntEnum):
    """What an action does. The numbers are stored in programs and timelines: only append."""

    F = 0  # forward
    B = 1  # whole backward
    I = 2  # noqa: E741  backward for the input
    W = 3  # backward for the weights
    SEND_F = 4
    RECV_F = 5
    SEND_B = 6
    RECV_B = 7
    REDUCE_GRAD = 8  # sum a stage's gradients over its data-parallel copies and replicas
    STEP = 9  # clip and update the weights of all stages of a rank

    @property
    def is_compute(self) -> bool:
        return self <= Op.W


SENDS = (Op.SEND_F, Op.SEND_B)
RECEIVES = (Op.RECV_F, Op.RECV_B)


class Action(NamedTuple):
    """An action of a rank; ``microbatch`` is -1 where none is meant, as is ``stage`` of STEP.

    ``fused`` is 1 for a backward that shares its slot with the forward that stands before it.
    ``other`` is the stage at the other end of a message that skips stages, -1 between neighbours.
    """

    op: Op
    stage: int = -1
    microbatch: int = -1
    fused: int = 0
    other: int = -1

    def __str__(self) -> str:
        return _cell(self.op, self.stage, self.microbatch, self.other)


def _cell(op: int, stage: int, microbatch: int, other: int) -> str:
    end = f"{_WORD[Op(op)]}{other}" if other >= 0 else ""
    return f"{stage if stage >= 0 else ''}{NAMES[op]}{microbatch if microbatch >= 0 else ''}{end}"


NAMES = tuple(op.name for op in sorted(Op))
_WORD = {Op.SEND_F: "TO", Op.SEND_B: "TO", Op.RECV_F: "FROM", Op.RECV_B: "FROM"}
"""What stands before the other end of a message."""


def _maker(op: Op) -> Callable[[int, int], Action]:
    number, make = int(op), tuple.__new__  # schedules yield hundreds of thousands: skip the named tuple's own

    def action(stage: int, microbatch: int) -> Action:
        return make(Action, (number, stage, microbatch, 0, -1))

    return action


forward = _maker(Op.F)
backward = _maker(Op.B)
input_gradient = _maker(Op.I)
weight_gradient = _maker(Op.W)


def overlapped(first: Action, second: Action) -> tuple[Action, Action]:
    """A forward and a backward that run in one slot, and hide each other's waits."""
    return first, second._replace(fused=1)


Carried = tuple[bool, int, int, int]
"""Names a message: forward or not, the stages that it comes from and goes to, its microbatch."""


def carried(message: Action) -> Carried:
    """What a SEND sends and the RECV of it receives."""
    op, stage, mb, _, other = message
    forward, sent = op in (Op.SEND_F, Op.RECV_F), op in SENDS
    end = other if other >= 0 else stage + (1 if forward == sent else -1)
    return forward, *((stage, end) if sent else (end, stage)), mb


LONGEST_SHOWN = 60  # letters of a cell in a sentence


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}...")


_NOTATION = re.compile(
    r"(\d{1,6})?(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B|REDUCE_GRAD|STEP)(\d{1,6})?(?:(TO|FROM)(\d{1,6}))?", re.ASCII
)


def parse_action(text: str) -> Action:
    """Read ``2F0``; raise :class:`InputError` that says what a cell may look like."""
    match = _NOTATION.fullmatch(text.strip())
    if match:
        stage, name, microbatch, word, other = match.groups()
        op = Op[name]
        wants_stage, wants_microbatch = op != Op.STEP, op < Op.REDUCE_GRAD
        if (
            (stage is not None) == wants_stage
            and (microbatch is not None) == wants_microbatch
            and word in (None, _WORD.get(op))
        ):
            return Action(op, int(stage or -1), int(microbatch or -1), 0, int(other or -1))
    raise InputError(
        f"{_shown(text)} is no action; write stage, kind and microbatch, such as 0F0 (forward), "
        "0B0 (backward), 0I0 (input gradient) or 0W0 (weight gradient)"
    )


_SLOT = re.compile(r"\((.*);(.*)\)\s*OVERLAP_F_B")


@lru_cache(maxsize=2**19)  # an edit of a long order reads all its cells again, and changes few
def parse_cell(text: str) -> tuple[Action, ...]:
    """Read one cell of an order: an action, or a forward and a backward that share a slot.

    Raises:
        InputError: it is neither; it says what a cell may look like.
    """
    match = _SLOT.fullmatch(text.strip())
    if not match:
        return (parse_action(text),)
    first, second = (parse_action(part) for part in match.groups())
    if first.op != Op.F or second.op not in (Op.B, Op.I):
        raise InputError(f"{_shown(text)} overlaps {first} with {second}; a slot holds a forward, then a backward")
    return overlapped(first, second)


@lru_cache(maxsize=1024)  # an edit changes the order of one mesh, and all are read again
def parse_cells(cells: tuple[str, ...]) -> tuple[Action, ...]:
    """Read an order, cell by cell.

    Raises:
        InputError: one of them is none.
    """
    return tuple([action for cell in cells for action in parse_cell(cell)])


def format_cells(actions: Iterable[tuple[int, int, int, int, int]]) -> list[str]:
    """Cells that :func:`parse_cell` reads, one a slot; of actions, or of their columns row by row."""
    cells: list[str] = []
    for op, stage, microbatch, fused, other in actions:
        cell = f"{stage if stage >= 0 else ''}{NAMES[op]}{microbatch if microbatch >= 0 else ''}"
        if fused:
            cells[-1] = f"({cells[-1]};{cell})OVERLAP_F_B"
        else:
            cells.append(cell if other < 0 else _cell(op, stage, microbatch, other))
    return cells


WORDS: Mapping[str, str] = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "SEND_F": "activation",
    "SEND_B": "gradient",
    "REDUCE_GRAD": "gradient reduction",
    "STEP": "optimizer step",
}
