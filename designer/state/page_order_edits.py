"""Edits of an order that the page requests, applied to the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from meshwave.engine.findings import Refusal
from meshwave.engine.program import order_edits
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.order_repetition import find_repetitions, repeat_blocks
from meshwave.engine.program.program import Program

Message = Mapping[str, Any]


def apply_page_edit(now: Program, edit: Message) -> tuple[Program, str]:
    """Return an order after an edit of the page, and the label of the edit.

    Raises:
        InputError: the edit is invalid for this order.
    """
    try:
        rows = order_edits.find_rows(now, map(_parse_action, edit["blocks"]))
        return _EDITS[str(edit["kind"])](now, rows, edit)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise Refusal("unreadable_edit") from error


def _move(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    before = edit["before"]
    if before is None:
        end = int(now.offsets[now.rank[rows[0]] + 1])
        return order_edits.move_blocks(now, rows, end), f"move {_name_blocks(now, rows)} to the end"
    target = _parse_action(before)
    return order_edits.move_blocks(
        now, rows, int(order_edits.find_rows(now, [target])[0])
    ), f"move {_name_blocks(now, rows)} before {target}"


def _shift(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    by = int(edit["by"])
    places = f"{abs(by)} {'place' if abs(by) == 1 else 'places'} {'later' if by > 0 else 'earlier'}"
    return order_edits.shift_blocks(now, rows, by), f"move {_name_blocks(now, rows)} {places}"


def _repeat(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    return repeat_blocks(now, rows), f"repeat {_name_blocks(now, rows)} for all microbatches"


def _apply_to_repetitions(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    shifts = find_repetitions(now, rows)
    return repeat_blocks(now, rows, shifts), f"apply the move of {_name_blocks(now, rows)} to all repetitions"


def _split_or_join_backwards(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    """Split the selected full backwards; if there are none, join split backwards."""
    if (now.op[rows] == Op.B).any():
        return order_edits.split_backwards(now, rows), f"split {_name_blocks(now, rows)}"
    return order_edits.join_backwards(now, rows), f"join {_name_blocks(now, rows)}"


def _split_or_join_slot(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    """Split the selected shared slots; if there are none, put the blocks into one slot."""
    if now.fused[rows].any():
        return order_edits.split_slots(now, rows), f"split the slot of {_name_blocks(now, rows)}"
    return order_edits.join_slots(now, rows), f"put {_name_blocks(now, rows)} into one slot"


_EDITS: Mapping[str, Callable[[Program, order_edits.Rows, Message], tuple[Program, str]]] = {
    "move": _move, "shift": _shift, "repeat": _repeat, "everywhere": _apply_to_repetitions, "halves": _split_or_join_backwards, "slot": _split_or_join_slot,
}  # fmt: skip


def _name_blocks(now: Program, rows: order_edits.Rows) -> str:
    """Name up to three blocks; for more, return their count."""
    names = [str(now.row(int(row))) for row in rows]
    if len(names) > 3:
        return f"{len(names)} blocks"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _parse_action(name: Iterable[int]) -> Action:
    op, stage, mb = name
    return Action(Op(int(op)), int(stage), int(mb))
