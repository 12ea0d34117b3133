"""Waits of a dry run are never too short, devices follow the modelled time, and threads keep the program's order."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs import estimate
from meshwave.engine.document import Design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.runs.dry_run import (
    CATCH_UP_FRACTION,
    DEFAULT_STEP_LIMIT_S,
    SHORTEST_WAIT_S,
    STEPS,
    ActionDurations,
    Device,
    Stopped,
    action_durations,
    default_scale,
    dry_run_note,
    limit_steps,
    wait_until,
)
from tests.engine.runs.play import draw

LONG_NS = 10**15
"""Time longer than any wait, for tasks that must not be waited for."""


def unit_cost_design(schedule: str, model: str = "latency", **more: Any) -> Design:
    """Return a design with eight microbatches on four meshes; a transfer takes a third of a forward."""
    cost = {"kind": "unit", "forward": 1, "backward": 2, "transfer": 1 / 3, "transfer_model": model}
    layers = {"kind": "gpt", "layers": 16, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 256}
    return draw(pipeline={"schedule": schedule, "microbatches": 8, **more}, model=layers, cost=cost)


# ---- the scale ----


def test_the_shortest_action_is_long_enough_to_be_accurate() -> None:
    assert default_scale(ActionDurations(shortest=1e-3, step=0.1), processes=4, cores=2) == pytest.approx(
        SHORTEST_WAIT_S / 1e-3
    )


def test_more_processes_than_cores_can_wake_in_time_wait_longer() -> None:
    lengths = ActionDurations(shortest=1e-3, step=0.1)

    assert default_scale(lengths, 64, cores=2) == pytest.approx(4 * default_scale(lengths, 16, cores=2))


def test_the_wall_time_of_a_step_is_limited() -> None:
    assert default_scale(ActionDurations(shortest=1e-6, step=1.0), 4, cores=2) == pytest.approx(DEFAULT_STEP_LIMIT_S)
    assert default_scale(ActionDurations(shortest=10.0, step=5000.0), 4, cores=2) == pytest.approx(SHORTEST_WAIT_S / 10)


def test_slow_steps_are_not_dilated() -> None:
    assert default_scale(ActionDurations(shortest=0.05, step=1.5), 4, cores=2) == 1.0
    assert default_scale(ActionDurations(0.0, 0.0), 4, cores=2) == 1.0


def test_negligible_actions_do_not_count_as_the_shortest() -> None:
    design = unit_cost_design("1f1b")
    program = lower(design)
    costs = estimate(design, program)
    costs.seconds[np.flatnonzero(program.op == Op.F)[0]] = 1e-9

    assert action_durations(program, costs).shortest == 1.0


def test_each_part_of_a_computation_that_exchanges_has_to_be_long_enough() -> None:
    design = draw(pp=1, pipeline={"schedule": "1f1b", "microbatches": 2})
    halves = design.model_copy(
        update={
            "cluster": design.cluster.model_copy(update={"devices_per_node": 2}),
            "meshes": (design.meshes[0].model_copy(update={"devices": (0, 1), "axes": {"tp": 2}}),),
            "model": design.model.model_copy(update={"layers": 4}),
        }
    )
    program = lower(halves)
    costs = estimate(halves, program)
    assert costs.network is not None
    assert set(costs.network.parts[program.op == Op.F].tolist()) == {4}
    assert action_durations(program, costs).shortest <= costs.seconds[program.op == Op.F].min() / 4


def test_the_accuracy_of_a_dry_run_is_stated() -> None:
    assert "each action waits 20 times its modelled time" in dry_run_note(ActionDurations(1e-3, 0.1), 20.0, "s")
    assert "0.02 s per unit" in dry_run_note(ActionDurations(1.0, 30.0), 0.02, "units")
    assert "use a larger --scale" in dry_run_note(ActionDurations(1e-3, 0.1), 2.0, "s")


def test_a_dry_run_has_a_limited_number_of_steps() -> None:
    assert limit_steps(draw(steps=1000)).training.steps == STEPS
    assert limit_steps(draw(steps=2)) == draw(steps=2)


# ---- waits ----


def test_a_wait_never_ends_early() -> None:
    for length in (50_000, 2_000_000, -1_000_000):
        at = time.perf_counter_ns() + length
        wait_until(at)
        assert time.perf_counter_ns() >= at


def test_a_stopped_wait_ends() -> None:
    stop = threading.Event()
    threading.Timer(0.01, stop.set).start()

    with pytest.raises(Stopped):
        wait_until(time.perf_counter_ns() + LONG_NS, stop)


def test_a_blocked_sender_waits_for_its_messages() -> None:
    blocked, free = Device("sender-blocking"), Device("latency")
    now = time.perf_counter_ns()
    for device in (blocked, free):
        device.start(now)
        device.send(2_000_000)

    assert not free.finish_sending()
    assert blocked.finish_sending()
    assert time.perf_counter_ns() >= now + 2_000_000
    blocked.compute(1_000_000)
    assert blocked.free_ns >= now + 3_000_000
    assert not blocked.finish_sending()


def test_a_device_catches_up_with_a_limited_delay() -> None:
    device = Device("latency")
    device.start(time.perf_counter_ns())
    wait_until(device.free_ns + 5_000_000)  # the machine was busy with something else
    woken = time.perf_counter_ns()

    device.compute(1_000_000)

    assert device.free_ns >= woken + (1 - CATCH_UP_FRACTION) * 1_000_000


def test_an_input_is_delivered_when_it_is_due() -> None:
    device = Device("latency")
    device.start(time.perf_counter_ns())
    due = device.free_ns + 3_000_000

    assert device.wait_for_input(due) == due
    assert time.perf_counter_ns() >= due
