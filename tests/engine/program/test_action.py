"""Parsing and formatting of the notation of torch.distributed.pipelining."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.errors import InputError
from meshwave.engine.program.action import (
    Action,
    Op,
    backward,
    format_cells,
    forward,
    input_gradient,
    overlap,
    parse_action,
    parse_cell,
)

numbers = st.integers(0, 999_999)
alone, next_door = st.just(0), st.just(-1)
ops, messages = (st.sampled_from([op for op in Op if low <= op < Op.REDUCE_GRAD]) for low in (Op.F, Op.SEND_F))
with_microbatch = st.builds(Action, ops, numbers, numbers, alone, next_door)
skipping = st.builds(Action, messages, numbers, numbers, alone, numbers)
buckets = st.just(-1) | numbers
without = st.builds(Action, st.just(Op.REDUCE_GRAD), numbers, buckets, alone, next_door) | st.just(Action(Op.STEP))


@given(action=with_microbatch | skipping | without)
def test_formatted_text_parses_to_the_same_value(action: Action) -> None:
    assert parse_action(str(action)) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("0F0", (Op.F, 0, 0)),
        ("12B345", (Op.B, 12, 345)),
        ("3I1", (Op.I, 3, 1)),
        ("3W1", (Op.W, 3, 1)),
        ("1RECV_F3", (Op.RECV_F, 1, 3)),
        ("1SEND_B3", (Op.SEND_B, 1, 3)),
        ("0SEND_F3TO2", (Op.SEND_F, 0, 3)),
        ("2RECV_F3FROM0", (Op.RECV_F, 2, 3)),
        ("7REDUCE_GRAD", (Op.REDUCE_GRAD, 7, -1)),
        ("7REDUCE_GRAD0", (Op.REDUCE_GRAD, 7, 0)),
        ("STEP", (Op.STEP, -1, -1)),
        ("  2F0\t", (Op.F, 2, 0)),
    ],
)
def test_every_kind_of_action_is_parsed(text: str, action: tuple[int, int, int]) -> None:
    assert parse_action(text)[:3] == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        "F",
        "0F",
        "F0",
        "0f0",
        "-1F0",
        "0F0 0B0",
        "0F0TO1",
        "0SEND_F0FROM2",
        "2RECV_F0TO0",
        "0SEND_F0TO",
        "0F0x",
        "0X0",
        "1STEP",
        "STEP1",
        "0UNSHARD1",
        "٣F0",
        "0F1234567",
    ],
)
def test_a_wrong_cell_is_refused_with_the_notation(text: str) -> None:
    with pytest.raises(
        InputError, match=r"is not an action; write stage, kind and microbatch, such as 0F0 \(forward\)"
    ) as refused:
        parse_action(text)

    assert str(refused.value).startswith(repr(text))


def test_computations_are_distinguished_from_other_actions() -> None:
    assert [op.name for op in Op if op.is_compute] == ["F", "B", "I", "W"]


def test_the_constructors_of_computations_return_actions() -> None:
    assert (forward(2, 3), backward(2, 3)) == (Action(Op.F, 2, 3), Action(Op.B, 2, 3))
    assert str(forward(2, 3)) == "2F3"


@given(first=st.builds(forward, numbers, numbers), second=st.builds(backward, numbers, numbers))
def test_a_forward_and_a_backward_share_a_slot_and_a_cell(first: Action, second: Action) -> None:
    pair = overlap(first, second)

    (cell,) = format_cells(pair)

    assert cell == f"({first};{second})OVERLAP_F_B"
    assert parse_cell(f" {cell} ") == pair
    assert [action.fused for action in pair] == [0, 1]


def test_a_cell_of_one_action_is_that_action() -> None:
    assert parse_cell("3I1") == (input_gradient(3, 1),)
    assert format_cells([forward(0, 0), backward(0, 0)]) == ["0F0", "0B0"]


@pytest.mark.parametrize("text", ["(0B0;0F0)OVERLAP_F_B", "(0F0;1F0)OVERLAP_F_B", "(0F0;0W0)OVERLAP_F_B"])
def test_a_shared_slot_is_a_forward_then_a_backward(text: str) -> None:
    with pytest.raises(InputError, match="a slot holds a forward, then a backward"):
        parse_cell(text)


def test_an_invalid_shared_slot_is_refused_with_the_notation() -> None:
    with pytest.raises(InputError, match="'0X0' is not an action"):
        parse_cell("(0X0;0B0)OVERLAP_F_B")
