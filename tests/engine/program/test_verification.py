"""A valid program passes, and every problem of an invalid one is found with its code and actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwave.engine.findings import Problem
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.message_checks import MAX_LISTED
from meshwave.engine.program.program import Program, build_program, parse_program
from meshwave.engine.program.verification import computation_problems, verify
from tests._strategies import compute_programs, examples, programs
from tests.engine.program.walk import inputs, left_over

faults = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
Orders = list[list[Action]]


def orders_of(program: Program) -> Orders:
    return [program.actions(rank) for rank in range(program.ranks)]


def rebuild_program(program: Program, orders: Orders) -> Program:
    """Return a program with the same stages on the same ranks, in another order."""
    return build_program(orders, program.placement.tolist(), program.replica.tolist())


def places(program: Program, *ops: Op) -> list[tuple[int, int]]:
    """Return (rank, index) of every action of some kinds."""
    return [
        (rank, at)
        for rank, order in enumerate(orders_of(program))
        for at, action in enumerate(order)
        if action.op in ops
    ]


COMPUTE = (Op.F, Op.B, Op.I, Op.W)
SENDS, RECVS = (Op.SEND_F, Op.SEND_B), (Op.RECV_F, Op.RECV_B)


@faults
@given(program=programs() | programs(slots=True))
def test_a_valid_program_has_no_problems(program: Program) -> None:
    assert verify(program) == []
    assert not any(left_over(program))


# ---- planted faults: each is found, and its problem names the action ----


@faults
@given(program=programs(), data=st.data())
def test_a_removed_action_is_reported(program: Program, data: st.DataObject) -> None:
    rank, at = data.draw(st.sampled_from(places(program, *COMPUTE, *SENDS, *RECVS)))
    orders = orders_of(program)
    action = orders[rank].pop(at)

    found = verify(rebuild_program(program, orders))

    assert found
    expected = {Op.I: Op.B}.get(action.op, action.op) if is_alone(action, program, orders) else action.op
    assert {str(Action(op, *action[1:])) for op in {expected, action.op}} & named_by(found[0])


def named_by(problem: Problem) -> set[str]:
    """Return the strings among the parameters of a problem."""
    return {value for value in problem.params.values() if isinstance(value, str)}


def is_alone(action: Action, program: Program, orders: Orders) -> bool:
    """Return True if no other part of a backward is left."""
    return all(other[1:] != action[1:] or other.op == Op.F for order in orders for other in order)


@faults
@given(program=programs(), data=st.data())
def test_a_repeated_action_is_reported(program: Program, data: st.DataObject) -> None:
    rank, at = data.draw(st.sampled_from(places(program, *Op)))
    orders = orders_of(program)
    action = orders[rank][at]
    orders[rank].insert(data.draw(st.integers(0, len(orders[rank]))), action)

    found = verify(rebuild_program(program, orders))

    repeated_step = action.op == Op.STEP and found[0].code == "step_count"
    assert repeated_step or any(str(action) in named_by(problem) for problem in found)


@faults
@given(program=programs(), data=st.data())
def test_a_computation_on_a_wrong_rank_is_reported(program: Program, data: st.DataObject) -> None:
    assume(program.ranks > 1)
    rank, at = data.draw(st.sampled_from(places(program, *COMPUTE)))
    other = data.draw(st.sampled_from([there for there in range(program.ranks) if there != rank]))
    orders = orders_of(program)
    action = orders[rank].pop(at)
    orders[other].append(action)

    found = verify(rebuild_program(program, orders))

    place = {"stage": action.stage, "microbatch": action.microbatch}
    assert found[0] == Problem("", "wrong_rank", {"action": str(action), "rank": other, "home": rank, **place})


@faults
@given(program=programs(), data=st.data())
def test_one_end_of_a_message_on_a_wrong_rank_is_reported(program: Program, data: st.DataObject) -> None:
    ends = places(program, *SENDS, *RECVS)
    assume(ends)
    rank, at = data.draw(st.sampled_from(ends))
    other = data.draw(st.sampled_from([there for there in range(program.ranks) if there != rank]))
    orders = orders_of(program)
    action = orders[rank].pop(at)
    orders[other].insert(data.draw(st.integers(0, len(orders[other]))), action)

    found = verify(rebuild_program(program, orders))

    expected = ("message_on_wrong_rank", str(action), other, rank)
    assert expected in [(each.code, *(each.params.get(key) for key in ("action", "rank", "home"))) for each in found]


@faults
@given(program=programs(), data=st.data())
def test_a_message_to_a_wrong_rank_is_reported(program: Program, data: st.DataObject) -> None:
    ends = np.flatnonzero(np.isin(program.op, (*SENDS, *RECVS)))
    assume(len(ends))
    row = int(data.draw(st.sampled_from(ends.tolist())))
    wrong = data.draw(st.sampled_from([peer for peer in range(-1, program.ranks) if peer != program.peer[row]]))
    peers = program.peer.copy()
    peers[row] = wrong

    found = verify(replace(program, peer=peers))

    ranks = {"rank": int(program.rank[row]), "peer": wrong, "expected": int(program.peer[row])}
    assert found == [Problem("", "wrong_peer", {"action": str(program.row(row)), **ranks})]


@faults
@given(program=programs(), data=st.data())
def test_a_send_before_its_tensor_is_produced_is_reported(program: Program, data: st.DataObject) -> None:
    sends = places(program, *SENDS)
    assume(sends)
    rank, at = data.draw(st.sampled_from(sends))
    orders = orders_of(program)
    action = orders[rank].pop(at)
    orders[rank].insert(0, action)

    found = verify(rebuild_program(program, orders))

    assert found[0].code == "early_send"
    assert (found[0].params["rank"], found[0].params["action"]) == (rank, str(action))


@faults
@given(program=programs(), data=st.data())
def test_a_receive_after_its_computation_is_reported(program: Program, data: st.DataObject) -> None:
    recvs = places(program, *RECVS)
    assume(recvs)
    rank, at = data.draw(st.sampled_from(recvs))
    orders = orders_of(program)
    action = orders[rank].pop(at)
    orders[rank].insert(len(orders[rank]) - 1, action)

    found = verify(rebuild_program(program, orders))

    assert found[0].code == "late_receive"
    assert (found[0].params["rank"], found[0].params["action"]) == (rank, str(action))


@faults
@given(program=programs(ranks=3), data=st.data())
def test_receives_in_another_order_than_their_sends_are_reported(program: Program, data: st.DataObject) -> None:
    """NCCL has no tags: the first receive gets the first message."""
    orders = orders_of(program)
    pairs = [
        (rank, at, at + 1)
        for rank, order in enumerate(orders)
        for at in range(len(order) - 1)
        if order[at].op in RECVS and order[at + 1].op in RECVS and is_same_channel(program, rank, at)
    ]
    assume(pairs)
    rank, a, b = data.draw(st.sampled_from(pairs))
    orders[rank][a], orders[rank][b] = orders[rank][b], orders[rank][a]

    found = verify(rebuild_program(program, orders))

    assert [each.code for each in found] == ["receive_order"]
    assert (found[0].params["peer"], found[0].params["receive"]) == (rank, str(orders[rank][a]))


def is_same_channel(program: Program, rank: int, at: int) -> bool:
    row = program.rows(rank).start + at
    return bool(program.peer[row] == program.peer[row + 1])


@pytest.mark.parametrize(
    ("change", "code", "params"),
    [
        (lambda orders: orders[0].remove(Action(Op.STEP)), "step_count", {"rank": 0, "count": 0}),
        (lambda orders: orders[0].append(Action(Op.STEP)), "step_count", {"rank": 0, "count": 2}),
        (
            lambda orders: orders[1].insert(0, orders[1].pop()),
            "early_step",
            {"rank": 1, "action": "1REDUCE_GRAD"},
        ),
        (
            lambda orders: orders[0].remove(Action(Op.REDUCE_GRAD, 1)),
            "missing_reduction",
            {"rank": 0, "action": "1REDUCE_GRAD", "stage": 1, "ranks": [0, 1]},
        ),
        (
            lambda orders: orders[0].insert(0, orders[0].pop(-2)),
            "early_reduction",
            {"rank": 0, "action": "1REDUCE_GRAD", "computation": "1B1"},
        ),
        (
            lambda orders: orders[0].insert(-1, Action(Op.REDUCE_GRAD, 1)),
            "repeated_reduction",
            {"rank": 0, "action": "1REDUCE_GRAD"},
        ),
        (
            lambda orders: orders[0].insert(-1, orders[0].pop(-3)),
            "reduction_order",
            {"rank": 1, "before": "0REDUCE_GRAD", "after": "1REDUCE_GRAD"},
        ),
    ],
)  # fmt: skip
def test_weights_are_updated_once_when_gradients_are_complete_and_in_one_order(
    change: Callable[[Orders], None], code: str, params: dict[str, Any]
) -> None:
    """Two replicas on two ranks, as in Chimera."""
    program = parse_program("""
        1RECV_F1 0F0 0RECV_B0 0SEND_F0 1F1 1B1 1SEND_B1 0B0 0REDUCE_GRAD 1REDUCE_GRAD STEP
        1RECV_F0 0F1 0RECV_B1 0SEND_F1 1F0 1B0 1SEND_B0 0B1 0REDUCE_GRAD 1REDUCE_GRAD STEP
    """)
    orders = orders_of(program)
    change(orders)

    assert verify(program) == []
    assert verify(rebuild_program(program, orders)) == [Problem("", code, params)]


@pytest.mark.parametrize(
    ("reductions", "code", "action"),
    [
        ("0REDUCE_GRAD0 0REDUCE_GRAD1", None, None),
        ("0REDUCE_GRAD1", "missing_reduction", "0REDUCE_GRAD0"),
        ("0REDUCE_GRAD0 0REDUCE_GRAD1 0REDUCE_GRAD1", "repeated_reduction", "0REDUCE_GRAD1"),
        ("0REDUCE_GRAD0 0REDUCE_GRAD", "repeated_reduction", "0REDUCE_GRAD"),
        ("0REDUCE_GRAD 0REDUCE_GRAD0", "repeated_reduction", "0REDUCE_GRAD0"),
    ],
)
def test_a_stage_is_reduced_as_a_whole_or_in_all_its_buckets(
    reductions: str, code: str | None, action: str | None
) -> None:
    found = verify(parse_program(f"0F0 0B0 {reductions} STEP"))

    assert [(each.code, each.params["action"]) for each in found] == ([(code, action)] if code else [])


def test_a_bucket_follows_the_computations_of_its_stage() -> None:
    (found,) = verify(parse_program("0F0 0REDUCE_GRAD0 0B0 STEP"))

    assert found.code == "early_reduction"


def test_a_stage_is_reduced_on_a_rank_that_holds_it() -> None:
    program = parse_program("0F0 0B0 0REDUCE_GRAD STEP")
    orders = [[*program.actions(0)[:-1], Action(Op.REDUCE_GRAD, 1), Action(Op.STEP)]]

    assert verify(program) == []
    params = {"action": "1REDUCE_GRAD", "stage": 1, "stages": 1}
    assert verify(rebuild_program(program, orders)) == [Problem("", "unknown_stage", params)]


# ---- codes and parameters ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0F0", [("missing_action", {"action": "0B0"})]),
        ("0B0", [("missing_action", {"action": "0F0"})]),
        ("0F0 0B0 0B0", [("repeated_action", {"action": "0B0", "count": 2, "ranks": [0]})]),
        ("0F0 0B0\n0B0 1F0 1B0", [("repeated_action", {"action": "0B0", "count": 2, "ranks": [0, 1]})]),
        ("0F0 0B0 0W0", [("backward_and_half", {"action": "0B0", "half": "0W0", "stage": 0})]),
        ("0F0 0I0", [("missing_half", {"action": "0W0", "half": "0I0"})]),
        ("0F0 0W0", [("missing_half", {"action": "0I0", "half": "0W0"})]),
        ("0F0\n0B0", [("wrong_rank", {"action": "0F0", "rank": 0, "home": 1, "stage": 0, "microbatch": 0})]),
        ("0F0 0B0\n", []),
        ([["0F0", "0B0"], []], [("idle_rank", {"rank": 1})]),
        ([[], []], [("no_computations", {})]),
        ("0F0 1F0 1B0 0SEND_F0 0B0", [("unnecessary_message", {"action": "0SEND_F0"})]),
        (
            "0F0 0B0\n1F0 1B0",
            [
                ("missing_message", {"action": "0SEND_F0", "receive": "1RECV_F0", "source": 0, "target": 1, "microbatch": 0}),
                ("missing_message", {"action": "1SEND_B0", "receive": "0RECV_B0", "source": 1, "target": 0, "microbatch": 0}),
            ],
        ),
        (
            "0F0 0SEND_F0 0RECV_B0 0B0\n1F0 1B0 1SEND_B0",
            [("missing_receive", {"action": "0SEND_F0", "receive": "1RECV_F0"})],
        ),
        (
            "0F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0",
            [("missing_send", {"action": "1RECV_F0", "send": "0SEND_F0"})],
        ),
        (
            "0F0 0SEND_F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0",
            [("repeated_message", {"action": "0SEND_F0", "sends": 2, "receive": "1RECV_F0", "receives": 1})],
        ),
        ("0RECV_F0 0F0 0B0", [("message_of_first_stage", {"action": "0RECV_F0"})]),
        ("0F0 0SEND_F0 0B0", [("message_of_last_stage", {"action": "0SEND_F0"})]),
        ("0F0 0B0 3SEND_F0", [("unknown_stage", {"action": "3SEND_F0", "stage": 3, "stages": 1})]),
        ("0F0 0B0 0SEND_F7", [("unknown_microbatch", {"action": "0SEND_F7", "microbatch": 7, "microbatches": 1})]),
    ],
)  # fmt: skip
def test_each_problem_has_its_code_and_parameters(
    text: str | list[list[str]], expected: list[tuple[str, dict[str, Any]]]
) -> None:
    assert verify(parse_program(text)) == [Problem("", code, params) for code, params in expected]


def test_a_program_for_more_microbatches_than_the_design_has_is_refused() -> None:
    found = computation_problems(parse_program("0F0 0F1 0B0 0B1"), 1)

    assert [(each.code, each.params["action"]) for each in found] == [
        ("unknown_microbatch", "0F1"),
        ("unknown_microbatch", "0B1"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0 0B0 0B0", "0B0 occurs 2 times; keep one"),
        ("0F0 0B0\n0B0 1F0 1B0", "0B0 occurs 2 times (ranks 0 and 1); keep one"),
        ("0F0 0B0 0SEND_F7", "microbatch 7 of 0SEND_F7 does not exist: there is 1 microbatch, numbered from 0; remove it"),
    ],
)  # fmt: skip
def test_messages_name_actions_ranks_and_remedies(text: str, message: str) -> None:
    assert [each.message for each in verify(parse_program(text))] == [message]


def test_few_of_many_problems_of_one_kind_are_listed() -> None:
    found = verify(parse_program(" ".join(f"0F{mb}" for mb in range(1000))))

    assert len(found) == MAX_LISTED + 1
    assert found[-1].code == "unlisted_problems"


# ---- deadlocks ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "0B0 0F0",
            "deadlock: rank 0 waits at 0B0, which needs 0F0; rank 0 runs 0F0 only after 0B0. Move 0B0 after 0F0",
            id="a rank and itself",
        ),
        pytest.param(
            """
            0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
            1F0 1F1 1F2 1B0 1F3 1B1 1B2 1B3
            2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3
            """,
            "deadlock: rank 1 waits at 1B0, which needs 2B0; rank 2 runs 2B0 only after 2F3, which needs 1F3; "
            "rank 1 runs 1F3 only after 1B0. Move 1B0 after 1F3",
            id="two ranks: 1F1B meets GPipe",
        ),
        pytest.param(
            """
            0F0 3F0 0F1 3F1 3B0 3B1 0B0 0B1
            1F0 1F1 1B0 1B1
            2F1 2F0 2B0 2B1
            """,
            "deadlock: rank 0 waits at 3F0, which needs 2F0; rank 2 runs 2F0 only after 2F1, which needs 1F1; "
            "rank 1 cannot run 1F1 before 0F1; rank 0 runs 0F1 only after 3F0. Move 3F0 after 0F1",
            id="three ranks in a loop",
        ),
        pytest.param(
            """
            0F0 4F0 0F1 0F2 4F1 4F2 4B0 4B1 4B2 0B0 0B1 0B2
            1F0 1F1 1F2 1B0 1B1 1B2
            2F0 2F2 2F1 2B0 2B1 2B2
            3F1 3F0 3F2 3B0 3B1 3B2
            """,
            "deadlock: rank 0 waits at 4F0, which needs 3F0; rank 3 runs 3F0 only after 3F1, which needs 2F1; "
            "rank 2 runs 2F1 only after 2F2, which needs 1F2; rank 1 runs 1F2 only after 1F1, which needs 0F1; "
            "rank 0 runs 0F1 only after 4F0. Move 4F0 after 0F1",
            id="four ranks",
        ),
    ],
)
def test_a_deadlock_names_the_shortest_cycle_and_the_move_that_breaks_it(text: str, message: str) -> None:
    program = add_transfers(parse_program(text))

    (found,) = verify(program)

    assert found.message == message
    assert found not in verify(add_transfers(move(program, *advice(found))))


@st.composite
def shuffled_programs(draw: st.DrawFn) -> Program:
    """Draw computations in an order that usually cannot run, with their transfers."""
    compute = draw(compute_programs(ranks=4, microbatches=3))
    orders = [draw(st.permutations(order)) for order in orders_of(compute)]
    return add_transfers(build_program(orders, compute.placement.tolist(), compute.replica.tolist()))


@faults
@given(program=shuffled_programs())
def test_deadlocks_are_found_if_and_only_if_a_reference_walk_stalls(program: Program) -> None:
    assert bool(verify(program)) == any(left_over(program))


@faults
@given(program=shuffled_programs())
def test_a_reported_cycle_exists_and_is_the_shortest(program: Program) -> None:
    stuck = {
        rank: [action for action in order if action.op in COMPUTE] for rank, order in enumerate(left_over(program))
    }
    stuck = {rank: order for rank, order in stuck.items() if order}
    assume(stuck)

    (found,) = verify(program)

    cycle = [(wait["rank"], wait["at"], wait["needs"]) for wait in found.params["cycle"]]
    for number, (rank, at, needed) in enumerate(cycle):
        assert str(stuck[rank][0]) == at, "a rank waits at the first action that it has still to run"
        assert needed in map(str, inputs(program, stuck[rank][0])), "and that needs what it waits for"
        there = cycle[(number + 1) % len(cycle)][0]
        assert needed in map(str, stuck[there]), "which the next rank has still to run"
    assert len(cycle) == shortest(program, stuck)
    moved, after = advice(found)
    mine = [str(action) for action in stuck[cycle[0][0]]]
    assert (moved, after) == (cycle[0][1], cycle[-1][2])
    assert mine.index(moved) < mine.index(after)


@settings(faults, max_examples=examples(15))
@given(program=shuffled_programs())
def test_repeated_suggested_moves_end_without_a_deadlock(program: Program) -> None:
    for _ in range(len(program) ** 2):
        found = verify(program)
        if not found:
            break
        program = add_transfers(move(program, *advice(found[0])))

    assert not any(left_over(program))


def shortest(program: Program, stuck: dict[int, list[Action]]) -> int:
    """Return the length of the shortest cycle of ranks that wait for each other, by counting walks."""
    waits = np.zeros((program.ranks, program.ranks), np.int64)
    for rank, order in stuck.items():
        for needed in inputs(program, order[0]):
            for other, theirs in stuck.items():
                waits[rank, other] |= needed in theirs
    walks, length = waits, 1
    while not walks.trace():
        walks, length = np.minimum(walks @ waits, 1), length + 1
    return length


def advice(deadlock: Problem) -> tuple[str, str]:
    """Return the action to be moved, and the action after which it is moved."""
    return deadlock.params["move"], deadlock.params["after"]


def move(program: Program, moved: str, after: str) -> Program:
    """Return the computations with one of them moved."""
    orders = [[action for action in order if action.op in COMPUTE] for order in orders_of(program)]
    for order in orders:
        names = [str(action) for action in order]
        if moved in names:
            order.insert(names.index(after), order.pop(names.index(moved)))
    return build_program(orders, program.placement.tolist(), program.replica.tolist())
