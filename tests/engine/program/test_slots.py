"""Shared slots of a forward and a backward: dependencies, costs and problems."""

from __future__ import annotations

import numpy as np

from meshwave.engine.costs.memory import peak_inflight
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program.program import parse_program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.program.verification import verify


def test_a_slot_starts_with_its_last_input_and_ends_as_one() -> None:
    program = add_transfers(parse_program("0F0 0F1 0B0 0B1\n1F0 (1F1;1B0)OVERLAP_F_B 1B1"))
    assert verify(program) == []

    timeline = simulate(program, np.where(program.op == 0, 1.0, np.where(program.op == 1, 2.0, 0.5)))

    spans = {str(timeline.action(n)): (float(timeline.start[n]), float(timeline.end[n])) for n in range(len(timeline))}
    assert spans["1F1"] == spans["1B0"] == (2.5, 5.5)
    assert spans["1SEND_B0"] == (5.5, 6.0)
    assert spans["0B0"] == (6.0, 8.0)
    assert timeline.busy.tolist() == [6.0, 6.0]
    assert timeline.span_bubble_ratio < timeline.bubble_ratio
    assert peak_inflight(program).tolist() == [2.0, 2.0]


def test_the_overlap_shortens_a_shared_slot() -> None:
    program = parse_program("0F0 (0F1;0B0)OVERLAP_F_B 0B1")

    timeline = simulate(program, np.array([1.0, 1.0, 1.5, 2.0]))

    assert timeline.makespan == 5.5


def test_a_backward_does_not_overlap_with_the_forward_that_it_needs() -> None:
    (fault,) = verify(parse_program("(0F0;0B0)OVERLAP_F_B"))

    assert (fault.code, fault.params) == ("slot_of_one_microbatch", {"action": "0F0", "backward": "0B0"})


def test_shared_slots_that_wait_for_each_other_are_to_be_split() -> None:
    """Each backward needs the other rank's forward, which shares the slot of the other backward."""
    program = add_transfers(parse_program("0F0 (0F1;0B0)OVERLAP_F_B 0B1\n(1F0;1B1)OVERLAP_F_B 1F1 1B0"))

    (fault,) = verify(program)

    assert fault.code == "deadlock"
    assert fault.params["split"] in ("(0F1;0B0)OVERLAP_F_B", "(1F0;1B1)OVERLAP_F_B")
    assert fault.message.endswith(f". Split the slot {fault.params['split']}")
