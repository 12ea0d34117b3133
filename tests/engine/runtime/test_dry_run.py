"""When a message of a rehearsal was there: as its link says, unless it was surely later."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from meshwave.engine.costs import estimate, layers_per_stage  # noqa: E402
from meshwave.engine.lowering.lower import lower  # noqa: E402
from meshwave.engine.runs.dry_run import Device, Waits  # noqa: E402
from meshwave.engine.runtime.communication.communicator import PendingTensor  # noqa: E402
from meshwave.engine.runtime.dry_run.delayed_messages import (  # noqa: E402
    ASKING_NS,
    Board,
    DelayedMessage,
    Reductions,
    came_late,
    rings_of,
)
from meshwave.engine.runtime.execution.job import Job  # noqa: E402
from tests.engine.runs.play import draw  # noqa: E402

pytestmark = pytest.mark.torch

MS = 10**6
LONG_MS = 10**6
"""Longer than any machine needs to hand out what is there."""


WORLD = cast(Any, SimpleNamespace(process=0, size=2, device=torch.device("cpu")))


class BusyMachine(PendingTensor):
    """The message is there; who asks is told so a little later."""

    def wait(self) -> torch.Tensor:
        until = time.perf_counter_ns() + 2 * ASKING_NS
        while time.perf_counter_ns() < until:
            pass
        return torch.zeros(())


@pytest.mark.parametrize(
    ("was_due_ms", "waited_ms", "late"),
    [
        (80, 1.5, False),  # the machine was busy: who turns to it that late hardly comes just before it
        (80, 20, True),
        (1, 0.15, False),  # asking alone takes as long
        (1, 0.5, True),
        (-5, 6, True),  # asked for before it was due, and not there then
    ],
)
def test_a_wait_tells_of_a_late_message_where_it_is_a_clear_part_of_the_time(
    was_due_ms: float, waited_ms: float, late: bool
) -> None:
    asked = LONG_MS * MS

    assert came_late(asked - int(was_due_ms * MS), asked, asked + int(waited_ms * MS)) == late


def test_of_what_nobody_knows_when_it_was_due_every_wait_tells() -> None:
    """Such as a reduction over links that are emulated."""
    asked = LONG_MS * MS

    assert came_late(0, asked, asked + 2 * ASKING_NS)


def test_a_message_that_arrived_long_ago_is_recorded_so() -> None:
    device, due = Device("latency"), time.perf_counter_ns() - LONG_MS * MS
    device.start(due)
    held = DelayedMessage(BusyMachine(), device, WORLD, lambda: due)

    held.wait()

    assert held.arrival == due


@pytest.mark.parametrize("real", [True, False])
def test_a_reduction_over_real_links_takes_what_it_takes(real: bool, tmp_path: Path) -> None:
    """One that is held to its modelled time began as long before it was there; of another its start says it."""
    design = draw(pp=1, dp=2)
    program = lower(design)
    layout, costs = Job(design, program, layers_per_stage(design)).layout, estimate(design, program)
    device, communicator = Device("latency"), cast(Any, SimpleNamespace(reduce=lambda *what: BusyMachine()))
    rings = rings_of(design, layout, costs.layers)
    waits, board = Waits.of(program, costs, 1.0), Board(tmp_path / "board", layout, 1)
    reductions = Reductions(layout, WORLD, communicator, device, waits, board, rings, real=real)
    device.start(time.perf_counter_ns())
    board.reduced[0, 1] = device.free_ns

    reductions.reduce(0)
    found = reductions.collect()[0]

    assert found.arrival
    assert (found.departure is None) == real
