"""Tests of the messages that a process holds, and of their arrival times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs.device_sizes import peak_per_rank, sent_byte_changes
from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from tests.engine.runtime.crew_client import Crew, Document
from tests.engine.runtime.equality import unequal_meshes

TASKS = "tests.engine.runtime.communicator_tasks"


def modelled_peaks(program: Program) -> list[int]:
    """Return for each rank the most sent messages that it holds at once by the memory model."""
    change = np.zeros(len(program))
    sent = sent_byte_changes(program, np.ones(len(program)))
    for way, ops in enumerate(((Op.F,), (Op.B, Op.I))):
        rows = np.flatnonzero(np.isin(program.op, ops))
        change[rows] = sent[way, program.stage[rows], program.microbatch[rows]]
    return peak_per_rank(program, change).astype(int).tolist()


@pytest.mark.parametrize("shapes", [[(1, 1), (1, 1)], [(1, 1), (2, 1)]], ids=["direct", "resharded"])
def test_a_process_holds_as_many_sent_messages_as_the_memory_model_says(
    shapes: list[tuple[int, int]], crew: Crew, draw: Callable[..., Document]
) -> None:
    document = unequal_meshes(draw({"schedule": "1f1b", "microbatches": 6}, pp=2), shapes, "broadcast")
    expected = modelled_peaks(lower(parse_design(document)))
    assert max(expected) < 4

    found: list[Any] = crew.call(f"{TASKS}:count_held_messages", sum(dp * tp for dp, tp in shapes), document)

    assert [sent for sent, *_ in found] == [expected[0], *[expected[1]] * (len(found) - 1)]
    assert all(forwarded <= 3 and not left for _, forwarded, left in found)


def test_arrival_of_a_forwarded_message_is_when_it_arrived_not_when_it_was_waited_for(crew: Crew) -> None:
    assert crew.call(f"{TASKS}:check_arrival", 3, None) == [True, True, True]
