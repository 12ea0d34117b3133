"""A sound program passes, and whatever is wrong with another one is found and named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program._messages import SHOWN
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program, build, parse_program
from meshwave.engine.program.verification import complete, verify
from tests._strategies import compute_programs, programs
from tests.engine.program.walk import inputs, left_over

faults = settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
Orders = list[list[Action]]


def orders_of(program: Program) -> Orders:
    return [program.actions(rank) for rank in range(program.ranks)]


def rebuilt(program: Program, orders: Orders) -> Program:
    """The same stages on the same ranks, in another order."""
    return build(orders, program.placement.tolist(), program.replica.tolist())


def places(program: Program, *ops: Op) -> list[tuple[int, int]]:
    """(rank, number) of every action of some kinds."""
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
def test_nothing_is_said_of_a_sound_program(program: Program) -> None:
    assert verify(program) == []
    assert not any(left_over(program))


# ---- planted faults: each is found, and the sentence names the action ----


@faults
@given(program=programs(), data=st.data())
def test_a_removed_action_is_missed(program: Program, data: st.DataObject) -> None:
    rank, at = data.draw(st.sampled_from(places(program, *COMPUTE, *SENDS, *RECVS)))
    orders = orders_of(program)
    action = orders[rank].pop(at)

    found = verify(rebuilt(program, orders))

    assert found
    expected = {Op.I: Op.B}.get(action.op, action.op) if is_alone(action, program, orders) else action.op
    assert any(str(Action(op, *action[1:])) in found[0] for op in {expected, action.op})


def is_alone(action: Action, program: Program, orders: Orders) -> bool:
    """A backward of which nothing else is left."""
    return all(other[1:] != action[1:] or other.op == Op.F for order in orders for other in order)


@faults
@given(program=programs(), data=st.data())
def test_a_repeated_action_is_told(program: Program, data: st.DataObject) -> None:
    rank, at = data.draw(st.sampled_from(places(program, *Op)))
    orders = orders_of(program)
    action = orders[rank][at]
    orders[rank].insert(data.draw(st.integers(0, len(orders[rank]))), action)

    found = verify(rebuilt(program, orders))

    assert any(str(action) in fault for fault in found)


@faults
@given(program=programs(), data=st.data())
def test_a_computation_on_a_foreign_rank_is_sent_home(program: Program, data: st.DataObject) -> None:
    assume(program.ranks > 1)
    rank, at = data.draw(st.sampled_from(places(program, *COMPUTE)))
    other = data.draw(st.sampled_from([there for there in range(program.ranks) if there != rank]))
    orders = orders_of(program)
    action = orders[rank].pop(at)
    orders[other].append(action)

    found = verify(rebuilt(program, orders))

    assert found[0].startswith(f"{action} is on rank {other}, but rank {rank} holds stage {action.stage}")


@faults
@given(program=programs(), data=st.data())
def test_one_end_of_a_message_on_a_foreign_rank_is_sent_home(program: Program, data: st.DataObject) -> None:
    ends = places(program, *SENDS, *RECVS)
    assume(ends)
    rank, at = data.draw(st.sampled_from(ends))
    other = data.draw(st.sampled_from([there for there in range(program.ranks) if there != rank]))
    orders = orders_of(program)
    action = orders[rank].pop(at)
    orders[other].insert(data.draw(st.integers(0, len(orders[other]))), action)

    found = verify(rebuilt(program, orders))

    assert any(fault.startswith(f"{action} is on rank {other}; it belongs on rank {rank} beside ") for fault in found)


@faults
@given(program=programs(), data=st.data())
def test_a_message_to_the_wrong_rank_is_told(program: Program, data: st.DataObject) -> None:
    ends = np.flatnonzero(np.isin(program.op, (*SENDS, *RECVS)))
    assume(len(ends))
    row = int(data.draw(st.sampled_from(ends.tolist())))
    wrong = data.draw(st.sampled_from([peer for peer in range(-1, program.ranks) if peer != program.peer[row]]))
    peers = program.peer.copy()
    peers[row] = wrong

    found = verify(replace(program, peer=peers))

    here, there = program.rank[row], program.peer[row]
    assert found == [f"{program.row(row)} of rank {here} names rank {wrong}; its other end is on rank {there}"]


@faults
@given(program=programs(), data=st.data())
def test_a_send_before_its_tensor_is_made_is_told(program: Program, data: st.DataObject) -> None:
    sends = places(program, *SENDS)
    assume(sends)
    rank, at = data.draw(st.sampled_from(sends))
    orders = orders_of(program)
    action = orders[rank].pop(at)
    orders[rank].insert(0, action)

    found = verify(rebuilt(program, orders))

    assert re.fullmatch(rf"rank {rank} runs {action} before \d+[FBI]\d+ has made the tensor; move it after", found[0])


@faults
@given(program=programs(), data=st.data())
def test_a_receive_after_it_is_needed_is_told(program: Program, data: st.DataObject) -> None:
    recvs = places(program, *RECVS)
    assume(recvs)
    rank, at = data.draw(st.sampled_from(recvs))
    orders = orders_of(program)
    action = orders[rank].pop(at)
    orders[rank].insert(len(orders[rank]) - 1, action)

    found = verify(rebuilt(program, orders))

    assert re.fullmatch(rf"rank {rank} runs \d+[FBI]\d+ before {action}; move the receive before it", found[0])


@faults
@given(program=programs(ranks=3), data=st.data())
def test_receives_out_of_the_order_of_their_sends_are_told(program: Program, data: st.DataObject) -> None:
    """NCCL knows no tags: the first receive gets the first message."""
    orders = orders_of(program)
    pairs = [
        (rank, at, at + 1)
        for rank, order in enumerate(orders)
        for at in range(len(order) - 1)
        if order[at].op in RECVS and order[at + 1].op in RECVS and same_channel(program, rank, at)
    ]
    assume(pairs)
    rank, a, b = data.draw(st.sampled_from(pairs))
    orders[rank][a], orders[rank][b] = orders[rank][b], orders[rank][a]

    found = verify(rebuilt(program, orders))

    assert len(found) == 1
    assert f"to rank {rank}, which expects {orders[rank][a]} at that place; receives from one rank must" in found[0]


def same_channel(program: Program, rank: int, at: int) -> bool:
    row = program.rows(rank).start + at
    return bool(program.peer[row] == program.peer[row + 1])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda orders: orders[0].remove(Action(Op.STEP)), "rank 0 has no STEP; it needs one, at its end"),
        (lambda orders: orders[0].append(Action(Op.STEP)), "rank 0 has 2 STEPs; it needs one, at its end"),
        (
            lambda orders: orders[1].insert(0, orders[1].pop()),
            "rank 1 runs STEP before 1REDUCE_GRAD; move STEP to its end",
        ),
        (
            lambda orders: orders[0].remove(Action(Op.REDUCE_GRAD, 1)),
            "rank 0 never runs 1REDUCE_GRAD, and stage 1 has copies on ranks 0 and 1; "
            "add it after the stage's last backward",
        ),
        (
            lambda orders: orders[0].insert(0, orders[0].pop(-2)),
            "rank 0 runs 1REDUCE_GRAD before 1B1; move it after",
        ),
        (
            lambda orders: orders[0].insert(-1, Action(Op.REDUCE_GRAD, 1)),
            "rank 0 runs 1REDUCE_GRAD more than once; keep one",
        ),
        (
            lambda orders: orders[0].insert(-1, orders[0].pop(-3)),
            "rank 1 reduces stage 0 before stage 1, and ranks that it shares them with wait for each other in another "
            "order; reduce shared stages in ascending order on every rank",
        ),
    ],
)  # fmt: skip
def test_updates_are_made_once_when_gradients_are_complete_and_in_one_order(
    change: Callable[[Orders], None], told: str
) -> None:
    """Two replicas on two ranks, as Chimera has them."""
    program = parse_program("""
        1RECV_F1 0F0 0RECV_B0 0SEND_F0 1F1 1B1 1SEND_B1 0B0 0REDUCE_GRAD 1REDUCE_GRAD STEP
        1RECV_F0 0F1 0RECV_B1 0SEND_F1 1F0 1B0 1SEND_B0 0B1 0REDUCE_GRAD 1REDUCE_GRAD STEP
    """)
    orders = orders_of(program)
    change(orders)

    assert verify(program) == []
    assert verify(rebuilt(program, orders)) == [told]


def test_a_stage_is_reduced_where_it_lies() -> None:
    program = parse_program("0F0 0B0 0REDUCE_GRAD STEP")
    orders = [[*program.actions(0)[:-1], Action(Op.REDUCE_GRAD, 1), Action(Op.STEP)]]

    assert verify(program) == []
    assert verify(rebuilt(program, orders)) == ["1REDUCE_GRAD is of no stage: there are 1 (0 to 0); remove it"]


# ---- sentences ----


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0F0", ["0B0 is missing; every stage runs every microbatch forward and backward"]),
        ("0B0", ["0F0 is missing; every stage runs every microbatch forward and backward"]),
        ("0F0 0B0 0B0", ["0B0 stands 2 times; keep one"]),
        ("0F0 0B0 0W0", ["stage 0 runs 0B0 and also a half of it; use either B, or I and W"]),
        ("0F0 0I0", ["0W0 is missing; 0I0 is only half of the backward"]),
        ("0F0 0W0", ["0I0 is missing; 0W0 is only half of the backward"]),
        (
            "0F0\n0B0",
            [
                "0F0 is on rank 0, but rank 1 holds stage 0 of microbatch 0; "
                "a stage's forward and backward belong on one rank"
            ],
        ),
        ("0F0 0B0\n", []),
        ([["0F0", "0B0"], []], ["rank 1 computes nothing; give it actions such as 0F0 0B0, or take its mesh away"]),
        ([[], []], ["there is not a single computation; give every mesh its actions, such as 0F0 0B0"]),
        ("0F0 1F0 1B0 0SEND_F0 0B0", ["0SEND_F0 is not needed: both stages lie on one rank; remove it"]),
        (
            "0F0 0B0\n1F0 1B0",
            [
                "the tensor from stage 0 to stage 1 of microbatch 0 is never sent; add 0SEND_F0 and 1RECV_F0",
                "the tensor from stage 1 to stage 0 of microbatch 0 is never sent; add 1SEND_B0 and 0RECV_B0",
            ],
        ),
        (
            "0F0 0SEND_F0 0RECV_B0 0B0\n1F0 1B0 1SEND_B0",
            ["0SEND_F0 is never received: its other end needs 1RECV_F0"],
        ),
        ("0F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0", ["1RECV_F0 waits for ever: nobody runs 0SEND_F0"]),
        (
            "0F0 0SEND_F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0",
            ["there are 2 of 0SEND_F0 and 1 of 1RECV_F0; keep one of each"],
        ),
        (
            "0RECV_F0 0F0 0B0",
            ["0RECV_F0 has no other end: there is nobody before the first stage; remove it"],
        ),
        (
            "0F0 0SEND_F0 0B0",
            ["0SEND_F0 has no other end: there is nobody after the last stage; remove it"],
        ),
        ("0F0 0B0 3SEND_F0", ["3SEND_F0 is of no stage: there are 1 (0 to 0); remove it"]),
        ("0F0 0B0 0SEND_F7", ["0SEND_F7 is of no microbatch: there are 1 (0 to 0); remove it"]),
    ],
)  # fmt: skip
def test_says_what_is_wrong_and_what_to_do(text: str | list[list[str]], told: list[str]) -> None:
    assert verify(parse_program(text)) == told


def test_a_program_for_more_microbatches_than_the_design_has_is_told() -> None:
    assert complete(parse_program("0F0 0F1 0B0 0B1"), 1) == [
        "0F1 is of no microbatch: there are 1 (0 to 0); remove it",
        "0B1 is of no microbatch: there are 1 (0 to 0); remove it",
    ]


def test_a_program_that_is_wrong_throughout_says_so_in_a_few_lines() -> None:
    found = verify(parse_program(" ".join(f"0F{mb}" for mb in range(1000))))

    assert len(found) == SHOWN + 1
    assert found[-1] == "... and more of this kind"


# ---- deadlocks ----


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(
            "0B0 0F0",
            "rank 0 waits for ever at 0B0: it needs 0F0 first, which rank 0 runs only after 0B0. Move 0B0 after 0F0",
            id="a rank and itself",
        ),
        pytest.param(
            """
            0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
            1F0 1F1 1F2 1B0 1F3 1B1 1B2 1B3
            2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3
            """,
            "rank 1 waits for ever at 1B0: it needs 2B0 first, which rank 2 runs only after 2F3, "
            "and that needs 1F3, which rank 1 runs only after 1B0. Move 1B0 after 1F3",
            id="two ranks: 1F1B meets GPipe",
        ),
        pytest.param(
            """
            0F0 3F0 0F1 3F1 3B0 3B1 0B0 0B1
            1F0 1F1 1B0 1B1
            2F1 2F0 2B0 2B1
            """,
            "rank 0 waits for ever at 3F0: it needs 2F0 first, which rank 2 runs only after 2F1, and that needs 1F1, "
            "and that needs 0F1, which rank 0 runs only after 3F0. Move 3F0 after 0F1",
            id="three ranks in a loop",
        ),
        pytest.param(
            """
            0F0 4F0 0F1 0F2 4F1 4F2 4B0 4B1 4B2 0B0 0B1 0B2
            1F0 1F1 1F2 1B0 1B1 1B2
            2F0 2F2 2F1 2B0 2B1 2B2
            3F1 3F0 3F2 3B0 3B1 3B2
            """,
            "rank 0 waits for ever at 4F0: it needs 3F0 first, which rank 3 runs only after 3F1, and that needs 2F1, "
            "which rank 2 runs only after 2F2, and that needs 1F2, which rank 1 runs only after 1F1, "
            "and that needs 0F1, which rank 0 runs only after 4F0. Move 4F0 after 0F1",
            id="four ranks",
        ),
    ],
)
def test_the_shortest_ring_is_told_with_the_move_that_opens_it(text: str, told: str) -> None:
    program = add_transfers(parse_program(text))

    assert verify(program) == [told]
    assert told not in verify(add_transfers(move(program, *advice(told))))


@st.composite
def shuffled(draw: st.DrawFn) -> Program:
    """Computations in an order that mostly cannot run, with their transfers."""
    compute = draw(compute_programs(ranks=4, microbatches=3))
    orders = [draw(st.permutations(order)) for order in orders_of(compute)]
    return add_transfers(build(orders, compute.placement.tolist(), compute.replica.tolist()))


@faults
@given(program=shuffled())
def test_stalls_are_found_exactly_where_a_walk_by_hand_stalls(program: Program) -> None:
    assert bool(verify(program)) == any(left_over(program))


@faults
@given(program=shuffled())
def test_every_word_of_a_told_ring_is_true_and_no_ring_is_shorter(program: Program) -> None:
    stuck = {
        rank: [action for action in order if action.op in COMPUTE] for rank, order in enumerate(left_over(program))
    }
    stuck = {rank: order for rank, order in stuck.items() if order}
    assume(stuck)

    (told,) = verify(program)

    rank, at, needed = re.findall(r"^rank (\d+) waits for ever at (\w+): it needs (\w+) first", told)[0]
    links = re.findall(r"(?:, which rank (\d+) runs only after (\w+))?, and that needs (\w+)", told)
    ring = [(rank, at, needed)]
    for link_rank, link_at, link_needs in links:
        ring.append((link_rank or str(holder(stuck, ring[-1][2])), link_at or ring[-1][2], link_needs))
    for number, (rank, at, needed) in enumerate(ring):
        assert str(stuck[int(rank)][0]) == at, "a rank waits at the first thing that it has still to do"
        assert needed in map(str, inputs(program, stuck[int(rank)][0])), "and that takes what it waits for"
        there = int(ring[(number + 1) % len(ring)][0])
        assert needed in map(str, stuck[there]), "which the next rank has still to do"
    assert len(ring) == shortest(program, stuck)
    moved, after = advice(told)
    mine = [str(action) for action in stuck[int(ring[0][0])]]
    assert told.endswith(f", which rank {ring[0][0]} runs only after {moved}. Move {moved} after {after}")
    assert (moved, after) == (ring[0][1], ring[-1][2])
    assert mine.index(moved) < mine.index(after)


@settings(faults, max_examples=15)
@given(program=shuffled())
def test_taking_the_advice_again_and_again_ends_with_a_program_that_runs(program: Program) -> None:
    for _ in range(len(program) ** 2):
        found = verify(program)
        if not found:
            break
        program = add_transfers(move(program, *advice(found[0])))

    assert not any(left_over(program))


def holder(stuck: dict[int, list[Action]], name: str) -> int:
    return next(rank for rank, order in stuck.items() if name in map(str, order))


def shortest(program: Program, stuck: dict[int, list[Action]]) -> int:
    """The length of the shortest ring of ranks that wait for each other, by counting walks."""
    waits = np.zeros((program.ranks, program.ranks), np.int64)
    for rank, order in stuck.items():
        for needed in inputs(program, order[0]):
            for other, theirs in stuck.items():
                waits[rank, other] |= needed in theirs
    walks, length = waits, 1
    while not walks.trace():
        walks, length = np.minimum(walks @ waits, 1), length + 1
    return length


def advice(told: str) -> tuple[str, str]:
    """What to move, and after what."""
    moved, after = re.findall(r"\. Move (\w+) after (\w+)$", told)[0]
    return moved, after


def move(program: Program, moved: str, after: str) -> Program:
    """The computations with one of them moved."""
    orders = [[action for action in order if action.op in COMPUTE] for order in orders_of(program)]
    for order in orders:
        names = [str(action) for action in order]
        if moved in names:
            order.insert(names.index(after), order.pop(names.index(moved)))
    return build(orders, program.placement.tolist(), program.replica.tolist())
