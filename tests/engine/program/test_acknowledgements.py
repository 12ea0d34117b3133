"""Acknowledgements: a rank may release exactly the messages that their consumers have acknowledged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program.acknowledgements import find_acknowledgements, find_messages
from meshwave.engine.program.program import Program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.schedules import Pipe, schedules
from tests._strategies import programs, seconds

NAMED = [name for name in schedules if name != "custom"]


def acknowledgement_rows(program: Program) -> dict[int, int]:
    """Return the row at which each sender learns that its message was consumed, for messages for which it does.

    Every message acknowledges those that its sender had consumed before. Each rank is replayed separately, since its
    order is given.
    """
    found = find_messages(program)
    sends, takers = found.send.tolist(), found.taker.tolist()
    told = [
        {n for n, taker in enumerate(takers) if program.rank[taker] == program.rank[send] and taker < send}
        for send in sends
    ]
    rows: dict[int, int] = {}
    for number in np.argsort(found.taker, kind="stable").tolist():
        for known in told[number]:
            if program.rank[sends[known]] == program.rank[takers[number]]:
                rows.setdefault(known, takers[number])
    return rows


def let_go(program: Program) -> dict[int, int]:
    """Return the same rows, computed from the program's tables."""
    messages, answer = find_acknowledgements(program)
    return {n: int(messages.taker[of]) for n, of in enumerate(answer.tolist()) if of >= 0}


@given(programs(slots=True), st.integers(0, 2**16))
def test_acknowledgements_equal_those_of_a_replay_and_have_arrived(program: Program, seed: int) -> None:
    assert let_go(program) == acknowledgement_rows(program)

    timeline = simulate(program, seconds(program, seed))
    messages, answer = find_acknowledgements(program)
    starts = timeline.start[program.span_of_row[messages.taker]]
    answered = np.flatnonzero(answer >= 0)
    assert (starts[answered] <= starts[answer[answered]] + 1e-9).all()
    assert (messages.send[answer[answered]] > messages.taker[answered]).all()


@pytest.mark.parametrize("name", NAMED)
def test_every_activation_is_acknowledged_by_its_gradient_at_the_latest(name: str) -> None:
    program = add_transfers(schedules[name]().program(Pipe(4, 8)), [(0, 3, 2)])
    back = program.tables.backward
    messages, answer = find_acknowledgements(program)

    assert let_go(program) == acknowledgement_rows(program)
    rows, stages, microbatches = messages.maker, program.stage[messages.maker], program.microbatch[messages.maker]
    forward = program.tables.forward[stages, microbatches] == rows
    assert forward.any() and (answer[forward] >= 0).all()
    released = messages.taker[answer[forward]]
    assert (released <= back[stages[forward], microbatches[forward]]).all()
