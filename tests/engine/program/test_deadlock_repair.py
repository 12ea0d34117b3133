"""A repaired order can run, keeps all parts that could run, and has the fewest changes."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program import deadlock_repair as module
from meshwave.engine.program.action import Action
from meshwave.engine.program.deadlock_repair import repair
from meshwave.engine.program.order_difference import compare_orders
from meshwave.engine.program.order_edits import move_blocks, shift_blocks, split_slots
from meshwave.engine.program.program import Program, parse_program
from meshwave.engine.program.verification import computation_problems, verify
from tests._strategies import compute_programs


@st.composite
def scrambled_programs(draw: st.DrawFn, most: int = 4, **sizes: int) -> Program:
    """Draw a valid order in which some blocks were moved to any place."""
    order = draw(compute_programs(**{"ranks": 3, "microbatches": 3, **sizes}, slots=draw(st.booleans())))
    for _ in range(draw(st.integers(1, most))):
        row = draw(st.integers(0, len(order) - 1))
        own = order.rows(int(order.rank[row]))
        order = move_blocks(order, np.array([row]), draw(st.integers(own.start, own.stop)))
    return order


def can_run_order(order: Program) -> bool:
    return not computation_problems(order, order.microbatches) and verify(add_transfers(order)) == []


@given(order=compute_programs(slots=True))
def test_an_order_without_deadlock_is_unchanged(order: Program) -> None:
    found = repair(order)

    assert found.order == order
    assert (found.moved, found.split, found.is_smallest) == ((), (), True)
    assert found.summary == "The order is valid; no repair was needed"


@given(order=scrambled_programs())
def test_a_repaired_order_can_run_and_differs_by_its_reported_changes(order: Program) -> None:
    found = repair(order)

    assert can_run_order(found.order)
    rows = [row for row in range(len(order)) if order.row(row)._replace(fused=0) in found.split]
    split = split_slots(order, np.array(rows) + 1) if rows else order
    told = compare_orders(split, found.order)
    assert len({moved.action[:3] for moved in told.moved}) <= 2 * len(found.moved)  # a shared slot counts once
    assert told.overlapped == told.separated == ()


@given(order=scrambled_programs())
def test_the_greedy_repair_can_run(order: Program) -> None:
    assert can_run_order(module._Search(order).repair_greedily().order)


@given(order=scrambled_programs(most=3, ranks=2, microbatches=2))
def test_no_smaller_repair_exists(order: Program) -> None:
    found = repair(order)

    assert found.is_smallest
    assert len(found.moved) + len(found.split) == fewest_changes(order)


def fewest_changes(order: Program) -> int:
    """Return the fewest changes, by an exhaustive search over split slots, moved slots and places."""
    search = module._Search(order)
    doubles = [row for row in range(len(order)) if search._is_shared_slot(row)]
    for count in range(len(order)):
        for parts in range(count + 1):
            for split in combinations(doubles, parts):
                heads = [row for row in range(len(order)) if not order.fused[row] or row - 1 in split]
                if any(can_run(order, set(moved), set(split)) for moved in combinations(heads, count - parts)):
                    return count
    raise AssertionError("all can be moved")


def can_run(order: Program, moved: set[int], split: set[int]) -> bool:
    """Return True if the order of the other slots does not contradict the dependencies of computations."""
    slot = {row: row - bool(order.fused[row] and row - 1 not in split) for row in range(len(order))}
    after: dict[int, set[int]] = {head: set() for head in slot.values()}
    for needs in module._list_dependencies(order):
        for row, need in enumerate(needs.tolist()):
            if need >= 0:
                after[slot[row]].add(slot[need])
    for rank in range(order.ranks):
        own = order.rows(rank)
        kept = [head for head in dict.fromkeys(slot[row] for row in range(own.start, own.stop)) if head not in moved]
        for before, head in zip(kept, kept[1:], strict=False):
            after[head].add(before)
    left = dict(after)
    while ready := [head for head, needs in left.items() if not needs & left.keys()]:
        for head in ready:
            del left[head]
    return not left


def test_a_block_goes_to_the_nearest_place_where_it_can_run() -> None:
    order = parse_program("""
        0F0 0F1 0F2 0B2 0B0 0B1
        1F0 1F1 1F2 1B2 1B0 1B1
    """)
    wrong = move_blocks(order, np.array([3]), 0)  # 0B2 stands first

    found = repair(wrong)

    assert [str(action) for action in found.order.actions(0)] == ["0F0", "0F1", "0F2", "0B2", "0B0", "0B1"]
    assert found.summary == "Moved 0B2 (1 change, the fewest possible)"


def test_slots_that_depend_on_each_other_are_split() -> None:
    order = parse_program([["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"], ["(1F0;1B1)OVERLAP_F_B", "1F1", "1B0"]])

    found = repair(order)

    assert can_run_order(found.order)
    assert found.is_smallest


def test_every_order_of_two_ranks_is_repaired() -> None:
    blocks = [Action(op, 0, mb) for op in (0, 1) for mb in (0, 1)]
    for first in permutations(map(str, blocks)):
        order = parse_program([list(first), ["1F0", "1B0", "1F1", "1B1"]])
        assert can_run_order(repair(order).order)


def test_a_large_order_is_repaired_quickly() -> None:
    ranks, microbatches = 32, 128
    rows = [
        [f"{r}F{m}" for m in range(ranks - r)]
        + [cell for m in range(microbatches) for cell in (f"{r}B{m}", f"{r}F{m + ranks - r}") if m + ranks - r < microbatches or "B" in cell]
        for r in range(ranks)
    ]  # fmt: skip
    order = parse_program(rows)
    wrong = shift_blocks(order, np.array([int(order.offsets[3]) + 120]), -9)

    found = repair(wrong)

    assert can_run_order(found.order)
    assert len(found.moved) <= 1
