"""What a process sent is held as long as the memory model says, and what came is noted when it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs.device_sizes import most_alive, sent_bytes
from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from tests.engine.runtime.conftest import Crew, Document
from tests.engine.runtime.test_equality import unequal

WORKS = "tests.engine.runtime.wire_works"


def most_sent(program: Program) -> list[int]:
    """[ranks] the most messages of its own that a rank holds at once, by the model."""
    change = np.zeros(len(program))
    sent = sent_bytes(program, np.ones(len(program)))
    for way, ops in enumerate(((Op.F,), (Op.B, Op.I))):
        rows = np.flatnonzero(np.isin(program.op, ops))
        change[rows] = sent[way, program.stage[rows], program.microbatch[rows]]
    return most_alive(program, change).astype(int).tolist()


@pytest.mark.parametrize("shapes", [[(1, 1), (1, 1)], [(1, 1), (2, 1)]], ids=["direct", "by a plan"])
def test_a_run_holds_as_many_messages_as_the_model_says(
    shapes: list[tuple[int, int]], crew: Crew, draw: Callable[..., Document]
) -> None:
    document = unequal(draw({"schedule": "1f1b", "microbatches": 6}, pp=2), shapes, "broadcast")
    expected = most_sent(lower(parse_design(document)))
    assert max(expected) < 4

    found: list[Any] = crew.call(f"{WORKS}:held", sum(dp * tp for dp, tp in shapes), document)

    assert [sent for sent, *_ in found] == [expected[0], *[expected[1]] * (len(found) - 1)]
    assert all(passing <= 3 and not left for _, passing, left in found)


def test_what_is_handed_on_is_noted_when_it_comes(crew: Crew) -> None:
    assert crew.call(f"{WORKS}:arrivals", 3, None) == [True, True, True]
