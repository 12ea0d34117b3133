"""Prices and sizes where several features meet, against hand calculations and equal designs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs import estimate, layers_per_stage
from meshwave.engine.costs.collective_flows import blocks_of_stages, exchange_usages
from meshwave.engine.costs.device_sizes import device_sizes, device_workload
from meshwave.engine.costs.expert_blocks import expert_block
from meshwave.engine.costs.fabric import Fabric
from meshwave.engine.document import Design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.action import Op

Make = Callable[..., Design]
ROPE = {"kind": "transformer", "positions": {"kind": "rope"}, "layers": 8, "hidden": 256, "heads": 4, "ffn": 1024}
SLOW = {"devices_per_node": 1, "nodes": 8, "inter_node": {"latency_s": 1e-6, "bandwidth": 5e9}}


def seconds_of(prediction: Prediction, op: Op) -> float:
    rows = np.flatnonzero(prediction.program.op == op)
    return float(prediction.costs.seconds[rows[0]])


def sent_bytes(prediction: Prediction) -> float:
    return sum(load.bytes or 0.0 for load in prediction.port_loads)


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe-v"])
def test_padded_documents_cost_what_sequences_of_their_length_cost(schedule: str, design: Make) -> None:
    shared: dict[str, Any] = {"ranks": 4, "tp": 2, "schedule": schedule, "microbatches": 8, "cluster": SLOW}
    training = {"micro_batch_size": 2, "sequence_parallel": True}
    documents = {"document_end": 10, "document_lengths": [1024], "pad_documents": True}
    padded = predict(design(**shared, model={**ROPE, "sequence": 8192}, training={**training, **documents}))
    short = predict(design(**shared, model={**ROPE, "sequence": 1024}, training=training))

    assert padded.timeline.makespan == pytest.approx(short.timeline.makespan, rel=2e-3)
    assert padded.costs.model_flops == pytest.approx(short.costs.model_flops)
    assert padded.communication_inside_blocks == pytest.approx(short.communication_inside_blocks)
    assert padded.overlap_saved == pytest.approx(short.overlap_saved)
    assert sent_bytes(padded) == pytest.approx(sent_bytes(short), rel=0.005)
    assert short.communication_inside_blocks.min() > 0
    assert (short.overlap_saved.min() > 0) == (schedule == "dualpipe-v")


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize(("schedule", "tables"), [("1f1b", 1), ("zb-v", 2)])
def test_a_tied_table_is_reduced_by_the_step_only(schedule: str, tables: int, buckets: int, design: Make) -> None:
    """The table of the first rank belongs to its first stage, and with ``zb-v`` also to its last one."""
    programs, costs = [], []
    for tied in (True, False):
        model = {**ROPE, "vocab": 50_000, "sequence": 512, "tied_embeddings": tied}
        drawn = design(2, dp=2, schedule=schedule, model=model, training={"gradient_buckets": buckets})
        programs.append(lower(drawn))
        costs.append(estimate(drawn, programs[-1]))

    reduced, untied = (
        each.bytes[(program.op == Op.REDUCE_GRAD) & (program.rank == 0)].sum()
        for program, each in zip(programs, costs, strict=True)
    )

    assert reduced == pytest.approx(untied - tables * 4 * 50_000 * 256)
    assert costs[0].reduced_bytes[0].sum() == pytest.approx(reduced)
    assert costs[0].gradient_bytes[0].sum() == pytest.approx(reduced + 4 * 50_000 * 256)


def with_experts(every: int = 1) -> dict[str, Any]:
    return {**ROPE, "sequence": 256, "vocab": 1000, "moe": {"experts": 8, "top_k": 2, "every": every}}


def recomputing(design: Make, part: str | None, **sections: Any) -> Design:
    """Return a design with tensor-parallel experts whose backward recomputes a part of each layer."""
    pipeline = {} if part is None else {"recompute": part}
    experts = {"schedule": "ppmoe", "ep": 1}
    return design(2, tp=2, model=with_experts(), experts=experts, cluster=SLOW, pipeline=pipeline, **sections)


@pytest.mark.parametrize("part", ["operators", "layers", "layers-early-stop"])
def test_a_backward_takes_the_forward_of_recomputed_experts(part: str, design: Make) -> None:
    plain, again = (predict(recomputing(design, each)) for each in (None, part))
    drawn = plain.design
    load = device_workload(drawn, drawn.meshes[0])
    block = expert_block(drawn, drawn.meshes[0], load)
    assert block is not None

    added = seconds_of(again, Op.B) - seconds_of(plain, Op.B)

    assert 4 * block.forward_s < added < seconds_of(plain, Op.F)
    assert block.forward_waits_s > 0


@pytest.mark.parametrize(
    ("part", "repeated"),
    [(None, 0.0), ("operators", 0.5 + 1), ("layers", 2.0), ("layers-early-stop", 2.0), ("full", 0.0)],
)
def test_a_backward_repeats_the_exchanges_of_what_it_recomputes(
    part: str | None, repeated: float, design: Make
) -> None:
    """A layer has two all-reduces of equal size in each direction: of attention, and of its experts."""
    drawn = recomputing(design, part)
    layers = layers_per_stage(drawn)
    stage = blocks_of_stages(drawn, layers)[0]

    usages = exchange_usages(Fabric(drawn.cluster), drawn, drawn.meshes[0], stage)

    forward, backward = (sum(usage.values()) for usage in usages)
    of_embedding = 1
    assert backward / forward == pytest.approx((2 + repeated) * layers[0] / (2 * layers[0] + of_embedding))


def test_a_recomputed_stage_gathers_sharded_weights_again(design: Make) -> None:
    sections: dict[str, Any] = {"dp": 4, "cluster": SLOW, "model": {**ROPE, "sequence": 256}}
    training = {"sharding": "parameters", "unsharded_stages": 0}
    plain, again = (
        predict(design(2, training=training, pipeline=pipeline, **sections)) for pipeline in ({}, {"recompute": "full"})
    )
    forward = seconds_of(plain, Op.F)

    assert seconds_of(again, Op.B) == pytest.approx(seconds_of(plain, Op.B) + forward)
    assert forward > 1.5 * seconds_of(predict(design(2, **sections)), Op.F), "the forward waits for gathers"


@pytest.mark.parametrize("ep", [1, 2, 4])
@pytest.mark.parametrize("sharding", ["optimizer", "parameters"])
def test_experts_shard_their_master_weights_over_their_own_replicas(sharding: str, ep: int, design: Make) -> None:
    model = {**with_experts(), "kind": "gpt"}
    del model["positions"]
    training = {"sharding": sharding, "precision": "bf16"}
    drawn = design(2, dp=4, model=model, experts={"schedule": "expert-parallel", "ep": ep}, training=training)
    program = lower(drawn)
    hidden, layers = 256, layers_per_stage(drawn)[0]
    experts = layers * 8 // ep * (2 * hidden * 1024 + 1024 + hidden)
    products = layers * (4 * hidden**2 + 4 * hidden)  # which have a copy in bf16
    others = layers * (4 * hidden + 8 * hidden) + (1000 + 256) * hidden

    weights = estimate(drawn, program).static_bytes["weights"][0]

    of_experts, of_dense = ep / 4, 1 / 4
    masters = 4 * (products * of_dense + experts * of_experts)
    if sharding == "parameters":
        expected = masters + 2 * (products * of_dense + experts * of_experts) + 4 * others * of_dense
    else:
        expected = masters + 2 * (products + experts) + 4 * others
    assert weights == pytest.approx(expected)


def test_only_adjacent_blocks_are_gathered_together(design: Make) -> None:
    """Layers with experts are large; two of them are neighbours only if every layer has experts."""
    training = {"sharding": "parameters", "unsharded_stages": 0}

    def gathered(every: int) -> float:
        drawn = design(2, dp=2, model=with_experts(every), experts={"ep": 1}, training=training)
        whole = device_sizes(drawn, lower(drawn), layers_per_stage(drawn)).working_bytes[0]
        unsharded = drawn.model_copy(update={"training": drawn.training.model_copy(update={"sharding": "none"})})
        return float(whole - device_sizes(unsharded, lower(unsharded), layers_per_stage(unsharded)).working_bytes[0])

    dense, routed = 2 * 256 * 1024, 8 * 2 * 256 * 1024
    assert gathered(1) - gathered(2) == pytest.approx(8 * (routed - dense), rel=0.01)
    assert gathered(4) == pytest.approx(gathered(2))


def test_sequence_parallelism_sums_whole_weights_over_the_mesh(design: Make) -> None:
    """The bytes are those that a run sums: 68608 for two joins of skip connections, and the norms of the last stage."""
    model = {"kind": "u-transformer", "layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "vocab": 512}
    drawn = design(2, tp=2, model=model, cluster=SLOW, training={"sequence_parallel": True})
    program = lower(drawn)

    prediction = predict(drawn)

    joins, norms = 2 * (2 * 64**2 + 64), 5 * 2 * 64
    assert 4 * device_sizes(drawn, program, [2, 2]).partial[1, 1] == 4 * (joins + norms) == 68_608
    (row,) = np.flatnonzero((program.op == Op.REDUCE_GRAD) & (program.rank == 1))
    assert prediction.costs.seconds[row] == pytest.approx(68_608 / 5e9 + 2e-6)
    assert not device_sizes(design(2, tp=2, model=model), program, [2, 2]).partial.any()
