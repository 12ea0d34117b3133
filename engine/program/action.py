"""Actions of a rank and their notation: ``2F0``, ``1RECV_F3``, ``STEP``.

The notation is that of torch.distributed.pipelining: stage, kind, microbatch. A reduction of a bucket of gradients
ends with the number of the bucket, as in ``2REDUCE_GRAD0``. A SEND names the stage whose output is sent, a RECV the
stage that receives it. A forward and a backward that overlap share one slot and one cell:
``(0F3;7B1)OVERLAP_F_B``. Messages of tensors that skip stages also name the stage at the other end: ``0SEND_F1TO3`` and
``3RECV_F1FROM0``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from meshwave.engine.findings import Refusal


class Op(IntEnum):
    """Kind of an action. The numbers are stored in programs and timelines, so new kinds must be appended."""

    F = 0  # forward
    B = 1  # full backward
    I = 2  # noqa: E741  backward for the input
    W = 3  # backward for the weights
    SEND_F = 4
    RECV_F = 5
    SEND_B = 6
    RECV_B = 7
    REDUCE_GRAD = 8  # sum a stage's gradients, or a bucket of them, over its data-parallel copies and replicas
    STEP = 9  # clip and update the weights of all stages of a rank
    UNSHARD = 10  # gather a stage's weights from its data-parallel copies
    RESHARD = 11  # free the weights of a stage that other copies own

    @property
    def is_compute(self) -> bool:
        """True for a forward, a full backward, and either half of a backward."""
        return self <= Op.W


SENDS = (Op.SEND_F, Op.SEND_B)
RECEIVES = (Op.RECV_F, Op.RECV_B)
COLLECTIVES = (Op.REDUCE_GRAD, Op.UNSHARD)
"""Collectives over the copies of a stage, which run concurrently with the computations of a rank."""


class Action(NamedTuple):
    """Action of a rank. ``microbatch`` is -1 if it has none, and so is the ``stage`` of STEP.

    A REDUCE_GRAD of a bucket has the number of the bucket as its ``microbatch``; one of a whole stage has -1.

    ``fused`` is 1 for a backward that shares its slot with the preceding forward. ``other`` is the stage at the other
    end of a message that skips stages, or -1 for messages between adjacent stages.
    """

    op: Op
    stage: int = -1
    microbatch: int = -1
    fused: int = 0
    other: int = -1

    def __str__(self) -> str:
        return _cell_text(self.op, self.stage, self.microbatch, self.other)


def _cell_text(op: int, stage: int, microbatch: int, other: int) -> str:
    end = f"{_WORD[Op(op)]}{other}" if other >= 0 else ""
    return f"{stage if stage >= 0 else ''}{NAMES[op]}{microbatch if microbatch >= 0 else ''}{end}"


NAMES = tuple(op.name for op in sorted(Op))
_WORD = {Op.SEND_F: "TO", Op.SEND_B: "TO", Op.RECV_F: "FROM", Op.RECV_B: "FROM"}
"""Word before the stage at the other end of a message."""


def _action_constructor(op: Op) -> Callable[[int, int], Action]:
    number, make = (
        int(op),
        tuple.__new__,
    )  # faster than the named tuple's constructor, for hundreds of thousands of actions

    def action(stage: int, microbatch: int) -> Action:
        return make(Action, (number, stage, microbatch, 0, -1))

    return action


forward = _action_constructor(Op.F)
backward = _action_constructor(Op.B)
input_gradient = _action_constructor(Op.I)
weight_gradient = _action_constructor(Op.W)


def overlap(first: Action, second: Action) -> tuple[Action, Action]:
    """Return a forward and a backward that share a slot and hide each other's messages."""
    return first, second._replace(fused=1)


MessageKey = tuple[bool, int, int, int]
"""Key of a message: True for an activation, source stage, target stage, microbatch."""


def message_key(message: Action) -> MessageKey:
    """Return the key that identifies both the SEND and the RECV of a message."""
    op, stage, mb, _, other = message
    forward, sent = op in (Op.SEND_F, Op.RECV_F), op in SENDS
    end = other if other >= 0 else stage + (1 if forward == sent else -1)
    return forward, *((stage, end) if sent else (end, stage)), mb


LONGEST_CELL = 60  # maximum characters of a cell in a message


def _shorten(text: str) -> str:
    text = text.strip()
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}..."


_NOTATION = re.compile(
    r"(\d{1,6})?(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B|REDUCE_GRAD|STEP|UNSHARD|RESHARD)(\d{1,6})?(?:(TO|FROM)(\d{1,6}))?",
    re.ASCII,
)


def parse_action(text: str) -> Action:
    """Parse an action such as ``2F0``.

    Raises:
        Refusal: the text is not an action.
    """
    match = _NOTATION.fullmatch(text.strip())
    if match:
        stage, name, microbatch, word, other = match.groups()
        op = Op[name]
        wants_stage, wants_microbatch = op != Op.STEP, op < Op.REDUCE_GRAD
        if (
            (stage is not None) == wants_stage
            and ((microbatch is not None) == wants_microbatch or op == Op.REDUCE_GRAD)
            and word in (None, _WORD.get(op))
        ):
            return Action(op, int(stage or -1), int(microbatch or -1), 0, int(other or -1))
    raise Refusal("unknown_action", {"cell": _shorten(text)})


_SLOT = re.compile(r"\((.*);(.*)\)\s*OVERLAP_F_B")


@lru_cache(maxsize=2**19)  # an edit of a long order parses all its cells again, but changes few
def parse_cell(text: str) -> tuple[Action, ...]:
    """Return the actions in one cell of an order: one action, or a forward and a backward that share a slot.

    Raises:
        Refusal: the cell has another form.
    """
    match = _SLOT.fullmatch(text.strip())
    if not match:
        return (parse_action(text),)
    first, second = (parse_action(part) for part in match.groups())
    if first.op != Op.F or second.op not in (Op.B, Op.I):
        raise Refusal("wrong_slot", {"cell": _shorten(text), "first": str(first), "second": str(second)})
    return overlap(first, second)


@lru_cache(maxsize=1024)  # an edit changes the order of one mesh, but parses the orders of all
def parse_cells(cells: tuple[str, ...]) -> tuple[Action, ...]:
    """Return the actions of an order, cell by cell.

    Raises:
        Refusal: a cell is not an action.
    """
    return tuple([action for cell in cells for action in parse_cell(cell)])


def format_cells(actions: Iterable[tuple[int, int, int, int, int]]) -> list[str]:
    """Return the cells of actions, one per slot, in the notation that :func:`parse_cell` reads."""
    cells: list[str] = []
    for op, stage, microbatch, fused, other in actions:
        cell = f"{stage if stage >= 0 else ''}{NAMES[op]}{microbatch if microbatch >= 0 else ''}"
        if fused:
            cells[-1] = f"({cells[-1]};{cell})OVERLAP_F_B"
        else:
            cells.append(cell if other < 0 else _cell_text(op, stage, microbatch, other))
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
    "UNSHARD": "weight gather",
    "RESHARD": "weight release",
}
