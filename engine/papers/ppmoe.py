"""PPMoE (arXiv:2304.11414): experts folded into tensor parallelism, with a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from engine.design import Design, parse_design
from engine.lowering.layers import inside
from engine.moe import Layer, Line, Links, Rates, StepOp, price
from engine.papers._table import Row, Table
from engine.predict import predict
from engine.program.action import Op


def tables() -> Iterator[Table]:
    """Two formulas, and two models."""
    yield printed_ratios()
    yield experts_in_pipelines()


def printed_ratios() -> Table:
    """The two ratios that PPMoE's argument rests on."""
    peak, network, nvlink = 125e12, 12.5e9, 300e9
    ring = "the formula charges every step of the ring with the whole tensor, of which a step carries an eighth"
    pairs = (
        "the formula charges every one of 63 steps with half of all tokens, of which a peer gets a 64th, and sets that against "
        "a 64th of the products, while a device computes as many rows for the others as it sends"
    )
    free = Links(Line(0.0, 1 / nvlink), Line(0.0, 1 / network))

    def ratio(name: str, devices: int, hidden: int, nodes: tuple[int, ...]) -> float:
        folded = name == "ppmoe"
        experts = devices if folded else 64
        layer = Layer(
            mp=devices if folded else 1,
            ep=devices,
            esp=1,
            experts=experts,
            tokens=64 * 1024,
            hidden=hidden,
            ffn_hidden=4 * hidden,
            item_bytes=2,
            nodes=nodes,
        )
        priced = price(name, layer, free, Rates(peak))
        collective = priced.collectives(priced.forward)[0]
        return collective.time_s / (priced.flops / peak)

    return Table(
        "PPMoE: seconds of a collective over those of the products, fp16, V100",
        [
            Row(
                "an all-to-all of 64 experts, h=10^4 (equation 3)",
                252,
                ratio("expert-parallel", 64, 10_000, tuple(range(64))),
                pairs,
            ),
            Row("an all-reduce of 8 devices, h=10^3 (equation 5)", 35 / 6, ratio("ppmoe", 8, 1000, (0,) * 8), ring),
        ],
        tolerance=0.05,
    )


MEDIUM, LARGE = (24, 1024, 16), (32, 4096, 32)
"""Layers, width and heads of PPMoE's backbones: 0.35 and 6.7 billion parameters."""


def experts_in_pipelines() -> Table:
    """PPMoE's two models on its cluster, under both ways of laying experts out."""
    medium, large = _expert_models(4, MEDIUM, 8), _expert_models(16, LARGE, 1)
    plain, folded = _forward_shares(large["plain"]), _forward_shares(large["folded"])
    batch = "micro-batches and global batch are not printed: here 256 sequences of 2048 a step, eight or one at a time"
    wait = f"{batch}; ours knows links and products, and not that selecting rows and experts one by one cost kernels of their own"
    nic = f"{batch}; ours has all eight GPUs of a node send the same tokens through one NIC, and counts no time of kernels"
    read = (
        f"{batch}; with so few tokens at once a device reads the weights of its experts, and adds to their gradients, for "
        "a few rows each, which a larger micro-batch would spread"
    )
    other = f"{batch}; ours cuts a narrow model over eight devices at what their all-reduces cost, which is most of it"

    def rate(found: Mapping[str, Design], over: str) -> float:
        return _tokens_per_s(found["folded"]) / _tokens_per_s(found[over])

    return Table(
        "PPMoE: experts folded into tensor parallelism with a pipeline, against plain expert parallelism (DPMoE)",
        [
            Row("DPMoE, 143B: both all-to-alls, % of a forward", 65.5, 100 * plain["exchange"], nic),
            Row("DPMoE, 143B: expert layers, % of a forward", 82.6, 100 * plain["experts"], nic),
            Row("PPMoE, 143B: expert layers, % of a forward (second-hand)", 38.2, 100 * folded["experts"], wait),
            Row("PPMoE, 143B: over DPMoE (more than)", 1.75, rate(large, "plain"), nic),
            Row("PPMoE, 6.7B: over DPMoE (second-hand)", 1.23, rate(medium, "plain"), nic),
            Row("PPMoE, 143B: % of the backbone's tokens/s (second-hand)", 90.7, 100 * rate(large, "backbone"), read),
            Row("PPMoE, 6.7B: % of its backbone's, 32 copies (second-hand)", 81.4, 100 * rate(medium, "copies"), other),
        ],
        tolerance=0.05,
        note="Both agree that PPMoE is faster, and that exchanges take most of DPMoE's forward. They disagree by how much, for "
        "the reasons given; figures that are second-hand were read in notes about the paper.",
    )


def _expert_models(nodes: int, backbone: tuple[int, int, int], micro_batch: int) -> dict[str, Design]:
    """Designs of 64 experts in every second layer, and their backbones, on nodes of eight V100."""
    moe = {"experts": 64, "top_k": 1, "capacity_factor": 1.0, "every": 2}
    ep = min(64, nodes * 8)

    def made(meshes: int, dp: int, tp: int, experts: Mapping[str, Any] | None = None) -> Design:
        size, layers = dp * tp, backbone[0]
        document = {
            "format": "meshwave/1",
            "name": "",
            "cluster": {**V100, "nodes": nodes},
            "model": {
                "kind": "gpt",
                "layers": layers,
                "hidden": backbone[1],
                "heads": backbone[2],
                "sequence": 2048,
                "vocab": 50304,
                "moe": moe if experts else None,
            },
            "meshes": [
                {"name": str(at), "devices": list(range(at * size, (at + 1) * size)), "axes": {"dp": dp, "tp": tp}}
                for at in range(meshes)
            ],
            "pipeline": {"schedule": "1f1b", "microbatches": 256 // dp // micro_batch},
            "experts": experts or {},
            "training": {"micro_batch_size": micro_batch, "precision": "bf16"},
        }
        return parse_design(document)

    return {
        "copies": made(1, nodes * 8, 1),
        "backbone": made(nodes, 1, 8),
        "plain": made(1, nodes, 8, {"schedule": "expert-parallel", "ep": ep}),
        "folded": made(nodes, 1, 8, {"schedule": "ppmoe"}),
    }


V100: Mapping[str, Any] = {
    "devices_per_node": 8,
    "device": {"peak_flops": 125e12, "memory_bytes": 32e9, "memory_bandwidth": 900e9, "efficiency": 0.5},
    "intra_node": {"latency_s": 5e-6, "bandwidth": 300e9},
    "inter_node": {"latency_s": 1e-5, "bandwidth": 12.5e9},
}
"""The paper's cluster; both bandwidths as it uses them."""


def _tokens_per_s(design: Design) -> float:
    return float(predict(design).numbers["tokens_per_s"])


def _forward_shares(design: Design) -> dict[str, float]:
    """Of the forward of a stage on one device: what its expert layers take, and their exchanges."""
    found = inside(design, 0, 0, Op.F)
    lanes = [lane for lane, device in enumerate(found.devices) if device == found.devices[0]]
    took = np.where(np.isin(found.timeline.rank, lanes), found.timeline.end - found.timeline.start, 0.0)
    steps = np.array([step or "" for step in found.steps])
    exchanges = np.isin(steps, [StepOp.DISPATCH, StepOp.COMBINE])
    whole = found.timeline.makespan
    return {"experts": float(took[steps != ""].sum()) / whole, "exchange": float(took[exchanges].sum()) / whole}
