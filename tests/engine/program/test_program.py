"""Programs are stored as columns, and formatting and parsing are inverse."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from meshwave.engine.errors import InputError
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program, build_program, format_program, parse_program
from meshwave.engine.program.program_file import from_json, to_json
from tests._strategies import compute_programs, examples, programs

SMALL = """
    0F0 0SEND_F0 0RECV_B0 0B0 STEP
    1RECV_F0 1F0 1B0 1SEND_B0 STEP
"""


def parsed_program(orders: list[list[str]], program: Program) -> Program:
    """Return the program as parsed: the text has the stages of skipping messages, but not the number of tensors."""
    return replace(parse_program(orders), skips=program.skips)


@given(program=programs() | programs(slots=True))
def test_formatted_text_parses_to_the_same_value(program: Program) -> None:
    """Peers and the placement, which the text omits, are derived."""
    assert parsed_program(format_program(program), program) == replace(program, clips=False)


@given(program=programs() | programs(slots=True))
def test_a_program_survives_a_json_round_trip(program: Program) -> None:
    document = json.loads(json.dumps(to_json(program)))

    assert from_json(document) == program
    assert parsed_program(document["actions"], program) == replace(program, clips=False)
    assert document["digest"] == program.digest
    computes = [
        [cell for cell in row if "OVERLAP" in cell or cell[-1].isdigit() and "_" not in cell]
        for row in document["actions"]
    ]
    assert computes == document["compute"]


def test_columns_of_a_small_program() -> None:
    program = parse_program(SMALL)

    assert (program.ranks, program.stages, program.microbatches, program.replicas) == (2, 2, 1, 1)
    assert program.placement.tolist() == [[0, 1]]
    assert program.offsets.tolist() == [0, 5, 10]
    assert program.rank.tolist() == [0] * 5 + [1] * 5
    assert program.peer.tolist() == [-1, 1, 1, -1, -1, 0, -1, -1, 0, -1]
    assert program.actions(1)[1] == program.row(6) == Action(Op.F, 1, 0)
    assert [str(program.row(row)) for row in program.spans] == [
        "0F0", "0SEND_F0", "0B0", "STEP", "1F0", "1B0", "1SEND_B0", "STEP"
    ]  # fmt: skip
    assert program.span_of_row.tolist() == [0, 1, -1, 2, 3, -1, 4, 5, 6, 7, -1]


def test_two_routes_through_the_ranks_are_two_replicas() -> None:
    program = parse_program("0F0 1F1 1B1 0B0\n1F0 1B0 0F1 0B1")

    assert program.placement.tolist() == [[0, 1], [1, 0]]
    assert program.replica.tolist() == [0, 1]
    assert program.ranks_of(0) == program.ranks_of(1) == [0, 1]
    assert program.stages_of(0) == [0, 1]


@settings(max_examples=examples(25))
@given(program=compute_programs())
def test_different_orders_have_different_digests(program: Program) -> None:
    same = build_program([program.actions(rank) for rank in range(program.ranks)])
    first, *rest = program.actions(0)
    other = build_program([[*rest, first], *(program.actions(rank) for rank in range(1, program.ranks))])

    assert same == program
    assert hash(same) == hash(program)
    assert (other == program) == (not rest)


def test_the_digest_depends_on_placement_and_skips() -> None:
    program = parse_program(SMALL)
    names = {
        program.digest,
        replace(program, peer=np.full_like(program.peer, 0)).digest,
        replace(program, replica=program.replica + 1).digest,
        replace(program, placement=program.placement[:, ::-1]).digest,
    }

    assert len(names) == 4
    assert all(len(name) == 16 and set(name) <= set("0123456789abcdef") for name in names)


def test_an_empty_program_has_no_stages() -> None:
    program = parse_program([[], []])

    assert (program.ranks, program.stages, program.microbatches, len(program)) == (2, 0, 0, 0)
    assert format_program(program) == [[], []]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"actions": [["0G0"]]}, "'0G0' is not an action; write stage, kind and microbatch"),
        ({"actions": 5}, "the program is damaged: actions: input should be a valid list; launch the design again"),
        ({"placement": [["x"]]}, "the program is damaged: placement.0.0: input should be a valid integer"),
        ({"placement": [[0], [0, 1]]}, "the program is damaged: placement and onward have different"),
        ({"replica": [7]}, "the program is damaged: a microbatch names a replica beyond the 1"),
        ({"actions": [["0F0", "0B0"], ["1F0", "1B0"]]}, "the checksum of the program is "),
        ({"digest": "0123"}, "the checksum of the program is "),
    ],
)
def test_a_damaged_program_is_reported(change: dict[str, object], told: str) -> None:
    document = {**to_json(parse_program(SMALL)), **change}

    with pytest.raises(InputError) as refused:
        from_json(document)

    assert str(refused.value).startswith(told)
    assert f"states {change.get('digest', '')}" in str(refused.value) or "digest" not in change


def test_a_program_without_actions_is_reported() -> None:
    with pytest.raises(InputError, match="the program is damaged: digest: field required"):
        from_json({})


def test_a_bad_cell_is_named() -> None:
    with pytest.raises(InputError, match="'0G0' is not an action"):
        parse_program("0F0 0G0")
