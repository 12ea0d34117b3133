"""Moves, patterns and differences of a custom order, and their effects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwave.engine.document import parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.lowering.lower import lower, order_computations
from meshwave.engine.predict.order_consequences import find_consequences, simulate_order
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Action, Op, backward, forward, input_gradient
from meshwave.engine.program.order_difference import compare_orders
from meshwave.engine.program.order_edits import (
    find_rows,
    join_backwards,
    join_slots,
    move_blocks,
    move_stage,
    shift_blocks,
    split_backwards,
    split_slots,
)
from meshwave.engine.program.order_repetition import find_repetitions, find_steady_state, repeat_blocks
from meshwave.engine.program.program import Program, format_program, parse_program
from meshwave.engine.program.verification import computation_problems
from tests._strategies import compute_programs, document

orders = compute_programs(slots=True)


def cells(program: Program, rank: int = 0) -> str:
    return " ".join(format_program(program)[rank])


def design(schedule: str = "1f1b", ranks: int = 3, microbatches: int = 8, **sections: object):  # type: ignore[no-untyped-def]
    return parse_design(document({"schedule": schedule, "microbatches": microbatches}, ranks, **sections))


# ---- moving ----


@given(program=orders, data=st.data())
def test_a_move_and_its_inverse_restore_the_order(program: Program, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(program) - 1))
    own = program.rows(int(program.rank[row]))
    taken = find_rows(program, [program.row(row)])
    after = int(taken[-1]) + 1
    follower = program.row(after) if after < own.stop else None

    there = move_blocks(program, taken, data.draw(st.integers(own.start, own.stop)))
    back = own.stop if follower is None else int(find_rows(there, [follower])[0])

    assert move_blocks(there, find_rows(there, [program.row(row)]), back) == program
    assert not computation_problems(there, there.microbatches)
    assert compare_orders(program, there).is_empty == (there == program)


@given(program=orders, data=st.data())
def test_moved_blocks_are_adjacent_before_the_target(program: Program, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, program.ranks - 1))
    own = program.rows(rank)
    rows = np.array(data.draw(st.lists(st.integers(own.start, own.stop - 1), min_size=1, unique=True)))
    before = data.draw(st.integers(own.start, own.stop - 1))
    actions = [program.row(row) for row in find_rows(program, [program.row(row) for row in rows])]
    assume(program.row(before) not in actions)

    moved = move_blocks(program, rows, before)

    told = moved.actions(rank)
    at = told.index(actions[0])
    assert told[at : at + len(actions)] == actions
    following = [a for a in program.actions(rank)[program.slot[before] - own.start :] if a not in actions]
    assert told[at + len(actions) :] == following
    assert all(moved.actions(other) == program.actions(other) for other in range(program.ranks) if other != rank)


@given(program=orders, data=st.data(), by=st.integers(-6, 6))
def test_a_shift_moves_one_block_by_places_and_no_further_than_the_end(
    program: Program, data: st.DataObject, by: int
) -> None:
    row = int(program.slot[data.draw(st.integers(0, len(program) - 1))])
    own = program.rows(int(program.rank[row]))
    slots = [r for r in range(own.start, own.stop) if not program.fused[r]]
    at = slots.index(row)

    moved = shift_blocks(program, np.array([row]), by)

    left = [program.row(r) for r in slots if r != row]
    place = min(max(at + by, 0), len(left))
    expected = [*left[:place], program.row(row), *left[place:]]
    assert [moved.row(r) for r in range(own.start, own.stop) if not moved.fused[r]] == expected


def test_a_move_stays_on_its_mesh() -> None:
    program = parse_program("0F0 0B0\n1F0 1B0")
    with pytest.raises(InputError, match="must be on the mesh"):
        move_blocks(program, np.array([0]), 3)
    with pytest.raises(InputError, match="several meshes"):
        move_blocks(program, np.array([0, 2]), 1)
    with pytest.raises(InputError, match="0F7 is not in this order"):
        find_rows(program, [forward(0, 7)])


def test_a_slot_moves_as_one() -> None:
    program = parse_program([["0F0", "0F1", "(0F2;0B0)OVERLAP_F_B", "0B1", "0B2"]])

    assert (
        cells(move_blocks(program, find_rows(program, [backward(0, 0)]), 0)) == "(0F2;0B0)OVERLAP_F_B 0F0 0F1 0B1 0B2"
    )
    assert (
        cells(shift_blocks(program, find_rows(program, [forward(0, 2)]), 1)) == "0F0 0F1 0B1 (0F2;0B0)OVERLAP_F_B 0B2"
    )
    assert (
        cells(move_blocks(program, find_rows(program, [backward(0, 2)]), 3)) == "0F0 0F1 0B2 (0F2;0B0)OVERLAP_F_B 0B1"
    )


@given(program=orders, data=st.data())
def test_a_stage_moves_with_all_its_blocks_and_the_order_can_still_run(program: Program, data: st.DataObject) -> None:
    costs = {"kind": "unit", "forward": 1.0, "backward": 2.0}
    doc = document(
        {"schedule": "custom", "microbatches": program.microbatches, "actions": format_program(program)},
        program.ranks,
        cost=costs,
    )
    drawn = parse_design(doc)
    program = order_computations(drawn)
    simulated = simulate_order(drawn, program)
    stage, rank = data.draw(st.integers(0, program.stages - 1)), data.draw(st.integers(0, program.ranks - 1))
    assert simulated.timeline is not None
    home = int(program.placement[0, stage])
    if rank != home and len(program.stages_of(home)) == 1 and (program.placement == home).sum() == 1:
        with pytest.raises(InputError, match="a mesh needs a stage"):
            move_stage(program, simulated.timeline, stage, rank)
        return
    try:
        moved = move_stage(program, simulated.timeline, stage, rank)
    except InputError:  # all that its mesh computes is of this replica
        return

    assert moved.placement[0, stage] == rank
    assert simulate_order(drawn, moved).problems == []


# ---- halves and slots ----


@given(program=orders)
def test_splitting_and_joining_backwards_restore_the_order(program: Program) -> None:
    whole = np.flatnonzero(program.op == Op.B)
    assume(len(whole))

    halves = split_backwards(program, whole)
    rows = np.flatnonzero(halves.op == Op.I)
    back = join_backwards(halves, np.array([row for row in rows if halves.row(row + 1).op == Op.W]))

    assert not computation_problems(halves, program.microbatches)
    assert not (halves.op == Op.B).any()
    assert not computation_problems(back, program.microbatches)
    if not (program.op == Op.I).any():
        assert back == program


def test_joining_and_splitting_a_slot_restore_the_order() -> None:
    program = parse_program("0F0 0F1 0B0 0B1")
    together = join_slots(program, find_rows(program, [forward(0, 1), backward(0, 0)]))

    assert cells(together) == "0F0 (0F1;0B0)OVERLAP_F_B 0B1"
    assert split_slots(together, find_rows(together, [forward(0, 1)])) == program
    with pytest.raises(InputError, match="already shares a slot"):
        join_slots(together, find_rows(together, [forward(0, 1)]))
    with pytest.raises(InputError, match="cannot overlap"):
        join_slots(program, find_rows(program, [forward(0, 1), backward(0, 1)]))
    with pytest.raises(InputError, match="one forward and one backward"):
        join_slots(program, find_rows(program, [forward(0, 1), forward(0, 0)]))
    for wrong in (split_backwards, split_slots):
        with pytest.raises(InputError, match="none of these"):
            wrong(program, find_rows(program, [forward(0, 0)]))


# ---- what follows ----


def test_the_simulated_order_is_the_prediction() -> None:
    drawn = design()
    prediction = predict(drawn)

    simulated = simulate_order(drawn, order_computations(drawn))

    assert simulated.program == lower(drawn)
    assert simulated.timeline is not None
    assert (simulated.timeline.start == prediction.timeline.start).all()
    assert simulated.peak_bytes is not None
    assert simulated.peak_bytes.tolist() == prediction.memory.total_bytes.tolist()


def test_effects_of_an_edit_are_those_of_the_simulator() -> None:
    drawn = design(training={"micro_batch_size": 4})  # activations outweigh gradients
    before = simulate_order(drawn, order_computations(drawn))
    # rank 2 takes a forward in more before its first backward
    later = simulate_order(
        drawn, move_blocks(before.order, find_rows(before.order, [forward(2, 1)]), int(before.order.offsets[2]) + 1)
    )

    found = find_consequences(before, later)

    assert later.timeline is not None and before.timeline is not None
    assert found.makespan == (before.timeline.makespan, later.timeline.makespan)
    assert found.later > 0
    span = next(s for s in range(len(before.timeline)) if before.timeline.action(s) == backward(2, 0))
    there = next(s for s in range(len(later.timeline)) if later.timeline.action(s) == backward(2, 0))
    assert found.delay[span] == later.timeline.start[there] - before.timeline.start[span] > 0
    assert found.peak_bytes[1][2] > found.peak_bytes[0][2]


def test_a_deadlock_names_the_ranks_that_wait_for_each_other() -> None:
    drawn = design(ranks=2, microbatches=2)
    program = order_computations(drawn)
    wrong = simulate_order(drawn, move_blocks(program, find_rows(program, [backward(0, 0)]), 0))

    assert wrong.timeline is None
    assert (wrong.problems[0].code, wrong.problems[0].params["action"]) == ("deadlock", "0B0")
    assert (wrong.cycle[0].rank, str(wrong.cycle[0].at)) == (0, "0B0")
    with pytest.raises(InputError, match="deadlock"):
        find_consequences(simulate_order(drawn, program), wrong)


# ---- patterns ----


@given(program=orders, data=st.data())
def test_repeated_edits_keep_all_computations_on_their_ranks(program: Program, data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, len(program) - 1), min_size=1, max_size=3, unique=True)))

    again = repeat_blocks(program, np.sort(rows))

    assert not computation_problems(again, program.microbatches)
    assert (again.placement == program.placement).all()
    for rank in range(program.ranks):
        assert sorted(again.actions(rank)) == sorted(program.actions(rank))


def test_repeating_a_pattern_that_is_everywhere_changes_nothing() -> None:
    program = order_computations(design(ranks=2, microbatches=6))
    once = repeat_blocks(program, find_rows(program, [backward(0, 2)]))  # it follows 0F3, and so do all others theirs

    assert cells(once) == cells(program)


def test_an_edit_is_repeated_for_all_microbatches() -> None:
    program = parse_program("0F0 0F1 0F2 0F3 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3")
    edited = move_blocks(
        program, find_rows(program, [Action(Op.W, 0, 1)]), int(find_rows(program, [input_gradient(0, 3)])[0])
    )
    assert cells(edited) == "0F0 0F1 0F2 0F3 0I0 0W0 0I1 0I2 0W2 0W1 0I3 0W3"

    again = repeat_blocks(edited, find_rows(edited, [Action(Op.W, 0, 1)]))

    assert cells(again) == "0F0 0F1 0F2 0F3 0I0 0I1 0W0 0I2 0W2 0W1 0I3 0W3"  # W before the I of two on


def test_the_steady_state_of_1f1b_is_one_forward_one_backward() -> None:
    program = order_computations(design(ranks=4, microbatches=12))
    for rank in range(4):
        found = find_steady_state(program, rank)
        assert found is not None
        assert (found.period, found.step) == (2, 1)


def test_the_steady_state_of_interleaved_1f1b_repeats_after_a_group() -> None:
    drawn = parse_design(document({"schedule": "interleaved-1f1b", "microbatches": 24, "chunks": 2}, 2))
    found = find_steady_state(order_computations(drawn), 0)

    assert found is not None
    assert (found.period, found.step) == (8, 2)


def test_an_edit_is_applied_to_all_repetitions_only() -> None:
    program = order_computations(design(ranks=3, microbatches=10))
    edited = shift_blocks(program, find_rows(program, [forward(0, 6)]), -1)  # before the backward that it followed
    shifts = find_repetitions(edited, find_rows(edited, [forward(0, 6)]))

    everywhere = repeat_blocks(edited, find_rows(edited, [forward(0, 6)]), shifts)

    assert 1 in shifts and -1 in shifts
    assert cells(program).startswith("0F0 0F1 0F2 0B0 0F3 0B1 0F4 0B2 0F5 0B3 0F6")
    assert "0F6 0B3" in cells(edited)
    for mb in range(4, 9):
        assert f"0F{mb} 0B{mb - 3}" in cells(everywhere)
    assert cells(everywhere).startswith("0F0 0F1 0F2")
    assert [everywhere.actions(rank) for rank in (1, 2)] == [program.actions(rank) for rank in (1, 2)]


def test_an_order_without_repetition_has_no_steady_state() -> None:
    program = parse_program("0F0 0B0")

    assert find_steady_state(program, 0) is None
    with pytest.raises(InputError, match="cannot be repeated in the steady state"):
        find_repetitions(program, find_rows(program, [forward(0, 0)]))


# ---- differences ----


@given(program=orders)
def test_an_order_equals_itself(program: Program) -> None:
    assert compare_orders(program, program).is_empty


@given(program=orders, data=st.data(), by=st.integers(1, 5))
def test_one_block_moved_is_one_difference(program: Program, data: st.DataObject, by: int) -> None:
    row = data.draw(st.integers(0, len(program) - 1))
    moved = shift_blocks(program, np.array([row]), by)

    told = compare_orders(program, moved)

    slots = {(m.action.stage, m.action.microbatch) for m in told.moved}
    assert len(told.moved) <= 2  # the two of a slot
    assert bool(slots) == (moved != program)


def test_differences_are_summarized_as_text() -> None:
    program = order_computations(design(ranks=2, microbatches=4))
    moved = move_blocks(program, find_rows(program, [forward(0, 3)]), 0)
    halves = split_backwards(moved, find_rows(moved, [backward(1, 0)]))

    names = ("A", "B")
    assert compare_orders(program, moved).summary(names, "1F1B") == "Compared with 1F1B: 1 block earlier on A"
    assert (
        compare_orders(program, halves).summary(names, "1F1B")
        == "Compared with 1F1B: 1 block earlier, 1 backward split"
    )
    assert compare_orders(program, program).summary(names, "1F1B") == "Same order as 1F1B"
    with pytest.raises(InputError, match="no block in common"):
        compare_orders(program, parse_program("0F0 0B0"))
