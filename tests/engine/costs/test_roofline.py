"""Roofline costs compared with seconds calculated by hand from FLOPs, bytes and links."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs.cost_model import Costs, estimate
from meshwave.engine.costs.operators import Work
from meshwave.engine.costs.stage_prices import work_seconds
from meshwave.engine.document import Design, Device
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.simulation import simulate

LARGE = {"layers": 32, "hidden": 4096, "heads": 32, "sequence": 2048, "vocab": 51200}


def program_and_costs(design: Design) -> tuple[Program, Costs]:
    program = lower(design)
    return program, estimate(design, program)


def seconds_of(priced: tuple[Program, Costs], op: Op, **where: int) -> float:
    """Return the cost of all rows of an op."""
    program, costs = priced
    rows = program.op == op
    for column, value in where.items():
        rows &= getattr(program, column) == value
    (found,) = set(costs.seconds[rows].tolist())
    return float(found)


def test_work_takes_the_longer_of_computing_and_moving() -> None:
    device = Device(peak_flops=2e12, memory_bytes=1e9, memory_bandwidth=1e11, efficiency=0.5)

    assert work_seconds(Work(3e12, 1e11), device) == 3.0
    assert work_seconds(Work(1e12, 5e11), device) == 5.0


def test_a_large_stage_takes_its_flops_over_the_peak_and_a_little_for_memory(design: Callable[..., Design]) -> None:
    made = design(model=LARGE, training={"precision": "bf16", "micro_batch_size": 2}, pipeline={"stages": [8, 8, 8, 8]})
    inner = {"rank": 1}
    flop = 2 * (24 * 2048 * 4096**2 + 4 * 2048**2 * 4096) * 8
    forward = seconds_of(program_and_costs(made), Op.F, **inner)
    backward = seconds_of(program_and_costs(made), Op.B, **inner)

    assert 1.0 < forward / (flop / (312e12 * 0.5)) < 1.35
    assert 2.0 < backward / forward < 2.2


def test_a_backward_is_the_sum_of_its_halves(design: Callable[..., Design]) -> None:
    split = [["0F0", "0F1", "0I0", "0W0", "0B1"], ["1F0", "1I0", "1W0", "1F1", "1B1"]]
    hand_drawn = {"schedule": "custom", "microbatches": 2, "actions": split, "stages": [16, 16]}
    found = program_and_costs(design(2, model=LARGE, pipeline=hand_drawn))

    for stage in range(2):
        halves = [seconds_of(found, op, stage=stage) for op in (Op.I, Op.W)]
        assert seconds_of(found, Op.B, stage=stage) == pytest.approx(sum(halves))
    assert seconds_of(found, Op.F, stage=1) > seconds_of(found, Op.F, stage=0)  # the head


def test_a_boundary_takes_the_time_of_its_link(design: Callable[..., Design]) -> None:
    """Meshes 6 and 7 are on one node, 7 and 8 on two."""
    made = design(9, model=LARGE, training={"micro_batch_size": 2})
    message = 2 * 2048 * 4096 * 4
    found = program_and_costs(made)

    assert seconds_of(found, Op.SEND_F, rank=6) == pytest.approx(5e-6 + message / 300e9)
    assert seconds_of(found, Op.SEND_F, rank=7) == pytest.approx(1e-5 + message / 25e9)
    assert seconds_of(found, Op.SEND_B, rank=8) == pytest.approx(1e-5 + message / 25e9)
    assert seconds_of(found, Op.RECV_F) == 0.0
    program, costs = found
    assert set(costs.bytes[program.op == Op.SEND_F]) == {message}


@pytest.mark.parametrize(("precision", "item"), [("fp32", 4), ("bf16", 2), ("fp64", 8)])
def test_a_message_has_the_precision_of_the_activations(
    design: Callable[..., Design], precision: str, item: int
) -> None:
    program, costs = program_and_costs(design(training={"precision": precision}))

    assert set(costs.bytes[program.op == Op.SEND_B]) == {32 * 64 * item}


def test_copies_of_a_microbatch_that_leave_a_node_share_its_nic(design: Callable[..., Design]) -> None:
    message = 2048 * 4096 * 4
    one_nic, eight = (
        program_and_costs(design(2, dp=8, model=LARGE, cluster={"nics_per_node": nics})) for nics in (1, 8)
    )

    assert seconds_of(one_nic, Op.SEND_F) == pytest.approx(1e-5 + 8 * message / 25e9)
    assert seconds_of(eight, Op.SEND_F) == pytest.approx(1e-5 + message / 25e9)


def test_data_parallel_copies_reduce_the_gradients_of_a_stage(design: Callable[..., Design]) -> None:
    made = design(4, dp=2, model=LARGE, pipeline={"stages": [8, 8, 8, 8]}, training={"precision": "bf16"})
    gradients = 4 * 8 * (12 * 4096**2 + 13 * 4096)
    found = program_and_costs(made)

    assert seconds_of(found, Op.REDUCE_GRAD, rank=1) == pytest.approx(2 * 5e-6 + gradients / 300e9)
    program, costs = found
    assert set(costs.bytes[(program.op == Op.REDUCE_GRAD) & (program.rank == 1)]) == {gradients}


def test_replicas_of_chimera_reduce_across_their_meshes(design: Callable[..., Design]) -> None:
    found = program_and_costs(design(schedule="chimera", model=LARGE, training={"precision": "bf16"}))
    stage = 1
    program, costs = found
    gradients = 4 * costs.layers[stage] * (12 * 4096**2 + 13 * 4096)

    assert program.ranks_of(stage) == [1, 2]
    assert seconds_of(found, Op.REDUCE_GRAD, stage=stage) == pytest.approx(2 * 5e-6 + gradients / 300e9)


def test_a_step_moves_the_optimizer_s_bytes_and_clipping_more(design: Callable[..., Design]) -> None:
    stages: Any = {"pipeline": {"stages": [8, 8, 8, 8]}, "model": LARGE}
    parameters = 8 * (12 * 4096**2 + 13 * 4096)
    plain = program_and_costs(design(**stages))
    clipped = program_and_costs(design(**stages, training={"clip_norm": 1.0}))

    assert seconds_of(plain, Op.STEP, rank=1) == pytest.approx(28 * parameters / 2e12)
    assert seconds_of(clipped, Op.STEP, rank=1) == pytest.approx(40 * parameters / 2e12 + 2 * 5e-6)


def test_tensor_parallel_devices_share_work_and_pay_for_reductions(design: Callable[..., Design]) -> None:
    stages: Any = {"pipeline": {"stages": [16, 16]}, "model": LARGE}
    alone = seconds_of(program_and_costs(design(2, **stages)), Op.F, rank=0)
    shared = seconds_of(program_and_costs(design(2, tp=4, **stages)), Op.F, rank=0)
    reductions = (2 * 16 + 1) * (6 * 5e-6 + 1.5 * 2048 * 4096 * 4 / 300e9)

    assert alone / 4 + reductions < shared < alone / 4 * 1.2 + reductions


def test_the_efficiency_of_a_whole_job_is_below_that_of_its_products(design: Callable[..., Design]) -> None:
    made = design(model=LARGE, microbatches=16, training={"precision": "bf16", "micro_batch_size": 2})
    program, costs = program_and_costs(made)
    busy = costs.seconds[program.is_compute].sum()

    assert costs.samples == 32
    assert costs.tokens == 32 * 2048
    assert costs.peak_flops == 4 * 312e12
    assert 0.35 < costs.model_flops / (busy / 4 * costs.peak_flops) < 0.5


def test_costs_name_their_unit_and_transfer_model(design: Callable[..., Design]) -> None:
    _, costs = program_and_costs(design(cost={"kind": "roofline", "transfer_model": "sender-blocking"}))

    assert (costs.unit, costs.transfer_model) == ("s", "sender-blocking")
    assert sum(costs.layers) == 32


@pytest.mark.parametrize("transfer_model", ["shared-links", "latency"])
def test_batched_transfers_are_priced_as_they_are_issued(design: Callable[..., Design], transfer_model: str) -> None:
    cost = {"kind": "roofline", "transfer_model": transfer_model}
    program, costs = program_and_costs(design(cost=cost, transfer={"batched": True}))
    _, alone = program_and_costs(design(cost=cost))

    assert (costs.transfer_model, costs.network, alone.transfer_model) == ("batched", None, transfer_model)
    assert costs.simulate(program).makespan == simulate(program, costs.seconds, "batched").makespan


def test_reversing_the_meshes_changes_no_price(design: Callable[..., Design]) -> None:
    straight, turned = (
        program_and_costs(design(pipeline={"placement": order}))[1] for order in ([0, 1, 2, 3], [3, 2, 1, 0])
    )

    assert np.sort(straight.seconds) == pytest.approx(np.sort(turned.seconds))
    assert straight.layers == turned.layers
