"""Predicted cost of the moves of experts during training."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.predict.prediction import predict

EXPERT = 2 * 16 * 32 + 32 + 16
"""Parameters of an expert: two matrices and their biases."""


def moves_of(training: dict[str, Any], **experts: Any) -> Any:
    """Return the moves of a design with two layers with experts on a mesh of four devices on two nodes."""
    device = {"name": "core", "peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10, "efficiency": 0.5}
    link = {"latency_s": 1e-5, "bandwidth": 1e9}
    sizes = {"layers": 4, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 257, "ffn": 32}
    document = {
        "format": "meshwave/1",
        "cluster": {
            "nodes": 2,
            "devices_per_node": 2,
            "device": device,
            "intra_node": link,
            "inter_node": {**link, "bandwidth": 1e8},
        },
        "model": {"kind": "gpt", **sizes, "moe": {"experts": 8, "top_k": 2, "every": 2}},
        "meshes": [{"name": "A", "devices": [0, 1, 2, 3], "axes": {"dp": 4, "tp": 1}}],
        "pipeline": {"schedule": "1f1b", "microbatches": 2},
        "experts": {"schedule": "expert-parallel", "ep": 4, "rebalance_steps": 10, **experts},
        "training": training,
    }
    return predict(parse_design(document))


@pytest.mark.parametrize(
    ("training", "bytes_per_parameter"),
    [
        ({"precision": "fp32"}, 12),
        ({"precision": "bf16"}, 12),
        ({"precision": "pure_bf16"}, 6),
        ({"precision": "fp32", "optimizer": "sgd"}, 4),
    ],
)
def test_weights_and_moments_of_moved_experts_share_the_links_between_nodes(
    training: dict[str, Any], bytes_per_parameter: int
) -> None:
    prediction = moves_of(training)
    moves, size = prediction.numbers["expert_moves"], EXPERT * bytes_per_parameter

    assert moves["expert_bytes"] == size
    assert moves["exchange_s"] == pytest.approx(1e-5 + size / 1e8)
    assert moves["largest_s"] == pytest.approx(2 * (1e-5 + 4 * size / 1e8)), "two layers; four experts leave each node"
    assert moves["largest_share"] == pytest.approx(moves["largest_s"] / (10 * prediction.timeline.makespan))


def test_sharded_states_are_gathered_before_a_move() -> None:
    """With ep 2, two devices on different nodes hold each expert; its experts move inside a node."""
    plain, sharded = (
        moves_of({"precision": "fp32", "sharding": sharding}, ep=2).numbers["expert_moves"]
        for sharding in ("none", "optimizer")
    )
    size = 4 * EXPERT * 12

    assert plain["largest_s"] == pytest.approx(2 * (1e-5 + size / 1e9))
    assert sharded["largest_s"] - plain["largest_s"] == pytest.approx(2 * (1e-5 + 2 * (size / 2) / 1e8))


def test_experts_that_stay_where_they_are_cost_no_moves() -> None:
    assert moves_of({}, rebalance_steps=None).numbers["expert_moves"] is None
