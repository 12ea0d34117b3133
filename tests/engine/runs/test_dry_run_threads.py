"""Threads execute a program in its order, and share links like the simulator."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs import estimate
from meshwave.engine.document import Design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.program.simulation import simulate
from meshwave.engine.runs.dry_run import CATCH_UP_FRACTION, Stopped, plan_waits
from meshwave.engine.runs.dry_run_threads import run_step_in_threads
from tests.engine.runs.play import draw
from tests.engine.runs.test_dry_run import unit_cost_design

SMALL = {"kind": "gpt", "layers": 16, "hidden": 64, "heads": 2, "sequence": 64, "vocab": 260}


@pytest.mark.parametrize(
    ("schedule", "model", "more"),
    [
        ("1f1b", "latency", {}),
        ("hanayo", "link-serial", {"waves": 2}),
        ("chimera", "latency", {}),
        ("zb-v", "sender-blocking", {}),
        ("dualpipe", "latency", {}),
    ],
)
def test_threads_execute_every_action_in_order_and_none_too_fast(
    schedule: str, model: str, more: dict[str, Any]
) -> None:
    design = unit_cost_design(schedule, model, **more)
    program = lower(design)
    costs = estimate(design, program)
    scale = 0.002
    predicted = simulate(program, costs.seconds, costs.transfer_model)

    waits = plan_waits(program, costs, scale)
    times = run_step_in_threads(waits)

    own = program.is_compute & ~program.fused
    assert ((times.end - times.start)[own] >= (1 - CATCH_UP_FRACTION) * waits.ns[own] - 1e5).all()
    for rank in range(program.ranks):
        rows = np.flatnonzero(own[program.rows(rank)]) + program.rows(rank).start
        assert all(times.end[row] <= times.start[following] for row, following in pairwise(rows))
    assert times.seconds >= (1 - CATCH_UP_FRACTION) * scale * predicted.makespan - 1e-3
    took = np.isin(program.op, (Op.RECV_F, Op.RECV_B))
    assert (times.end[took] > 0).all(), "every message was taken"


def test_gradients_are_reduced_before_any_optimizer_step() -> None:
    design = draw(pp=4, pipeline={"schedule": "chimera", "microbatches": 4}, training={"steps": 1, "clip_norm": 1.0})
    program = lower(design)
    costs = estimate(design, program)

    waits = plan_waits(program, costs, 1.0)
    times = run_step_in_threads(waits)

    steps, reduced = program.op == Op.STEP, program.op == Op.REDUCE_GRAD
    assert reduced.any()
    assert times.start[steps].min() >= times.end[reduced].max(), "the norm is that of all gradients"
    assert (times.end - times.start >= waits.ns - 1)[reduced].all(), "it begins when the last copy is complete"


def test_sharded_stages_are_gathered_before_their_computations_and_reduced_after_them() -> None:
    training = {"steps": 1, "sharding": "parameters", "unsharded_stages": 2, "gradient_reduction": "step"}
    pipeline = {"schedule": "looped-bfs", "microbatches": 2, "chunks": 4}
    design = draw(pp=1, dp=2, model={**SMALL, "layers": 8}, pipeline=pipeline, training=training)
    program = lower(design)
    costs = estimate(design, program)

    waits = plan_waits(program, costs, 0.2 / costs.simulate(program).makespan)
    times = run_step_in_threads(waits)

    gathers = np.flatnonzero(program.op == Op.UNSHARD)
    assert len(gathers) > program.stages, "stages are gathered again for the backward"
    for row in gathers.tolist():
        later = np.flatnonzero(program.is_compute & (program.stage == program.stage[row]))
        assert times.end[row] <= times.start[later[later > row][0]]
    reductions = np.flatnonzero(program.op == Op.REDUCE_GRAD)
    assert program.stage[reductions].tolist() == [3, 2, 1, 0]
    for row in reductions.tolist():
        computed = np.flatnonzero(program.is_compute & (program.stage == program.stage[row]))
        assert times.end[row] >= times.end[computed].max()
    assert (times.end - times.start)[[*gathers, *reductions]].min() > 0


def slow_network(schedule: str, **more: Any) -> Design:
    """Return four meshes that alternate between two nodes; a message takes as long as a forward."""
    return draw(
        pp=4,
        pipeline={"schedule": schedule, "microbatches": 8, **more},
        model=SMALL,
        cluster={
            "nodes": 2,
            "devices_per_node": 2,
            "intra_node": {"latency_s": 1e-5, "bandwidth": 2e7},
            "inter_node": {"latency_s": 1e-5, "bandwidth": 2.5e6},
            "device": {"peak_flops": 2e10, "memory_bytes": 4e9, "memory_bandwidth": 1e9},
        },
        meshes=[{"name": f"M{rank}", "devices": [(0, 2, 1, 3)[rank]]} for rank in range(4)],
        training={"steps": 1},
    )


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["eager-1f1b", "gpipe"])
def test_threads_share_links_as_the_simulator_does(schedule: str) -> None:
    design = slow_network(schedule)
    program = lower(design)
    costs = estimate(design, program)
    shared, alone = costs.simulate(program).makespan, simulate(program, costs.seconds, "latency").makespan
    scale = 2.0 / shared

    times = run_step_in_threads(plan_waits(program, costs, scale))

    assert shared > 1.1 * alone, "else nothing is shared that matters"
    assert times.seconds / scale == pytest.approx(shared, rel=0.08)


@pytest.mark.slow
@pytest.mark.parametrize(
    "state",
    [
        {"sharding": "optimizer", "clip_norm": 1.0},
        {"sharding": "gradients"},
        {"sharding": "parameters", "unsharded_stages": 0},
    ],
)
def test_sharded_state_in_threads_shares_links_as_the_simulator_does(state: dict[str, Any]) -> None:
    design = draw(
        pp=2,
        pipeline={"schedule": "1f1b", "microbatches": 2},
        model=SMALL,
        cluster=slow_network("1f1b").cluster.model_dump(mode="json"),
        meshes=[{"name": f"M{rank}", "devices": [rank, rank + 2], "axes": {"dp": 2}} for rank in range(2)],
        training={"steps": 1, **state},
    )
    program = lower(design)
    costs = estimate(design, program)
    shared, alone = costs.simulate(program).makespan, simulate(program, costs.seconds, "latency").makespan
    scale = 2.0 / shared

    times = run_step_in_threads(plan_waits(program, costs, scale))

    assert shared > 1.05 * alone, "else nothing is shared that matters"
    assert times.seconds / scale == pytest.approx(shared, rel=0.08)


def test_a_dry_run_in_threads_can_be_stopped() -> None:
    design = unit_cost_design("1f1b")
    program = lower(design)
    stop = threading.Event()
    threading.Timer(0.05, stop.set).start()

    with pytest.raises(Stopped):
        run_step_in_threads(plan_waits(program, estimate(design, program), 1000.0), stop)
