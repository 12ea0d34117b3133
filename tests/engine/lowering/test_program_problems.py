"""Problems of custom orders have fixes, each of which resolves its problem."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.document import parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Fix, Problem
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.program import format_program
from tests._strategies import compute_programs, document

Orders = list[list[str]]


def problems(orders: Orders) -> list[Problem]:
    microbatches = 1 + max(
        (int(mb) for order in orders for cell in order for mb in re.findall(r"[A-Z](\d+)", cell)), default=0
    )
    try:
        lower(
            parse_design(document({"schedule": "custom", "microbatches": microbatches, "actions": orders}, len(orders)))
        )
    except DesignError as error:
        return list(error.problems)
    except InputError:  # the document itself is wrong
        return []
    return []


def apply_fix(orders: Orders, fix: Fix) -> Orders:
    """Return the orders after the edits of a fix."""
    changed: list[Any] = [list(order) for order in orders]
    for path, value in fix.edits:
        (rank,) = re.findall(r"^pipeline\.actions\[(\d+)\]$", path)
        changed[int(rank)] = value
    return changed


def key(problem: Problem) -> tuple[str, Any]:
    return problem.code, problem.params.get("action")


@pytest.mark.parametrize(
    ("orders", "code", "label", "fixed"),
    [
        ([["0F0", "0B0", "0B0"]], "repeated_action", "remove 0B0", [["0F0", "0B0"]]),
        ([["0F0", "0B0", "0I0", "0W0"]], "backward_and_half", "remove 0I0 and 0W0", [["0F0", "0B0"]]),
        ([["0F0", "0I0"]], "missing_half", "add 0W0", [["0F0", "0I0", "0W0"]]),
        ([["0F0", "0W0"]], "missing_half", "add 0I0", [["0F0", "0I0", "0W0"]]),
        ([["(0F0;0B0)OVERLAP_F_B"]], "slot_of_one_microbatch", "split the slot (0F0;0B0)OVERLAP_F_B", [["0F0", "0B0"]]),
        ([["0B0", "0F0"]], "deadlock", "repair the order: move 0B0", [["0F0", "0B0"]]),
    ],
)  # fmt: skip
def test_a_fix_names_its_edit_and_removes_the_problem(orders: Orders, code: str, label: str, fixed: Orders) -> None:
    (problem,) = problems(orders)

    assert problem.code == code
    (fix,) = problem.fixes
    assert fix.label == label
    assert apply_fix(orders, fix) == fixed
    assert problems(fixed) == []


@given(data=st.data())
def test_every_fix_of_a_disturbed_order_removes_its_problem(data: st.DataObject) -> None:
    program = data.draw(compute_programs(ranks=3, microbatches=3, slots=True))
    orders = format_program(program)
    for _ in range(data.draw(st.integers(1, 3))):
        order = data.draw(st.sampled_from(orders))
        cell = order[data.draw(st.integers(0, len(order) - 1))]
        order.insert(data.draw(st.integers(0, len(order))), cell)
        if data.draw(st.booleans()):
            order.remove(cell)

    for problem in problems(orders):
        for fix in problem.fixes:
            assert key(problem) not in map(key, problems(apply_fix(orders, fix)))
