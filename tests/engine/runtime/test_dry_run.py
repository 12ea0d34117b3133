"""Tests of the arrival times of messages and reductions in a dry run."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from meshwave.engine.costs import estimate, layers_per_stage  # noqa: E402
from meshwave.engine.costs.boundary_transfers import boundary_tensor  # noqa: E402
from meshwave.engine.lowering.lower import lower  # noqa: E402
from meshwave.engine.program.action import Op  # noqa: E402
from meshwave.engine.runs.dry_run import Device, plan_waits  # noqa: E402
from meshwave.engine.runtime.communication.communicator import MessageFormat, PendingTensor  # noqa: E402
from meshwave.engine.runtime.dry_run.delayed_messages import (  # noqa: E402
    MIN_LATE_NS,
    DelayedTensor,
    SharedTimes,
    WaitingUpdate,
    collective_groups,
    is_late,
)
from meshwave.engine.runtime.dry_run.executor import WaitingStage  # noqa: E402
from meshwave.engine.runtime.dry_run.message_sizes import padded_message_lengths  # noqa: E402
from meshwave.engine.runtime.execution.job import Job  # noqa: E402
from tests.engine.costs.test_padded_documents import padded_design  # noqa: E402
from tests.engine.runs.play import draw  # noqa: E402

pytestmark = pytest.mark.torch

MS = 10**6
LONG_MS = 10**6
"""Longer than any machine needs to deliver a message that has arrived."""

WORLD = cast(Any, SimpleNamespace(process=0, size=2, device=torch.device("cpu")))


class BusyMachine(PendingTensor):
    """A message that has arrived, which a busy machine delivers a little later."""

    def wait(self) -> torch.Tensor:
        until = time.perf_counter_ns() + 2 * MIN_LATE_NS
        while time.perf_counter_ns() < until:
            pass
        return torch.zeros(())


@pytest.mark.parametrize(
    ("was_due_ms", "waited_ms", "late"),
    [
        (80, 1.5, False),  # the machine is busy: a message rarely arrives just after so late a wait for it
        (80, 20, True),
        (1, 0.15, False),  # the wait itself takes as long
        (1, 0.5, True),
        (-5, 6, True),  # the wait began before it was due
    ],
)
def test_a_message_is_late_if_the_wait_for_it_is_long_enough(was_due_ms: float, waited_ms: float, late: bool) -> None:
    requested = LONG_MS * MS

    assert is_late(requested - int(was_due_ms * MS), requested, requested + int(waited_ms * MS)) == late


def test_every_wait_counts_if_the_due_time_is_unknown() -> None:
    """Reductions over emulated links have no due time."""
    requested = LONG_MS * MS

    assert is_late(0, requested, requested + 2 * MIN_LATE_NS)


def test_arrival_of_a_message_that_was_due_long_ago_is_its_due_time() -> None:
    device, due = Device("latency"), time.perf_counter_ns() - LONG_MS * MS
    device.start(due)
    delayed = DelayedTensor(BusyMachine(), device, WORLD, lambda: due)

    delayed.wait()

    assert delayed.arrival == due


@pytest.mark.parametrize("emulates_links", [True, False])
def test_only_a_delayed_reduction_has_a_modelled_departure(emulates_links: bool, tmp_path: Path) -> None:
    """Emulated links take their own time, so the reduction departs when it is started."""
    design = draw(pp=1, dp=2)
    program = lower(design)
    layout, costs = Job(design, program, layers_per_stage(design)).layout, estimate(design, program)
    device, communicator = Device("latency"), cast(Any, SimpleNamespace(start_all_reduce=lambda *what: BusyMachine()))
    groups = collective_groups(design, layout, costs.layers, Op.REDUCE_GRAD)
    waits, shared = plan_waits(program, costs, 1.0), SharedTimes(tmp_path / "board", layout, 1)
    update = WaitingUpdate(layout, WORLD, communicator, device, waits, shared, groups, emulates_links=emulates_links)
    device.start(time.perf_counter_ns())
    shared.gradients_ready[0, 0, 1] = device.free_ns

    update.start_reduction(0)
    found = update.collect_gradients()[0, -1]

    assert found.arrival
    assert (found.departure is None) == emulates_links


def test_messages_are_as_long_as_the_padded_documents_of_their_microbatch() -> None:
    design = padded_design([4096, 1000, 300, 9000])
    program = lower(design)
    costs, message = estimate(design, program), MessageFormat(boundary_tensor(design).shape, torch.float32)
    first, last = (WaitingStage(program, stage, message, WORLD.device, cast(Any, None)) for stage in range(2))

    for mb, tokens in padded_message_lengths(design, design).items():
        y, _ = first.forward(torch.empty(0, tokens), None)
        loss, saved = last.forward(y, None)
        gradient, deferred = last.input_gradient(saved, None)
        sent = costs.bytes[np.isin(program.op, (Op.SEND_F, Op.SEND_B)) & (program.microbatch == mb)]
        assert gradient is not None
        assert {y.nbytes, gradient.nbytes} == set(sent.tolist())
        assert (loss.shape, deferred) == ((), [])


def test_sharded_gradients_send_half_the_bytes_of_an_all_reduce() -> None:
    """They are reduce-scattered; a dry run represents them by an all-reduce whose ring sends as many bytes."""

    def sizes(sharding: str) -> list[float]:
        design = draw(pp=1, dp=2, training={"sharding": sharding})
        layout = Job(design, lower(design), layers_per_stage(design)).layout
        groups = collective_groups(design, layout, layers_per_stage(design), Op.REDUCE_GRAD)
        return [size for found in groups.values() for _, size in found]

    assert sizes("optimizer") == [size / 2 for size in sizes("none")]
