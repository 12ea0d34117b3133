"""PPMoE (arXiv:2304.11414): experts folded into tensor parallelism, with a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np

from meshwave.engine.bench.papers import table
from meshwave.engine.bench.papers.table import Row, Table
from meshwave.engine.document import Design, parse_design
from meshwave.engine.experts import Layer, Line, Links, Rates, StepOp, price_expert_schedule
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.block_timeline import predict_block
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op


def tables() -> Iterator[Table | table.Grid]:
    """Yield the tables of the paper."""
    yield printed_ratios()
    yield experts_in_pipelines()
    yield micro_batch_effects()


def printed_ratios() -> Table:
    """Return the two ratios of communication to computation on which the paper's argument is based."""
    peak, network, nvlink = 125e12, 12.5e9, 300e9
    ring = "the formula counts the whole tensor in every step of the ring; a step sends one eighth of it"
    pairs = (
        "the formula counts half of all tokens in each of 63 steps, although a peer gets one 64th of them, and divides by one "
        "64th of the products, although a device computes as many rows for other devices as it sends"
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
        priced = price_expert_schedule(name, layer, free, Rates(peak))
        collective = priced.collectives(priced.forward)[0]
        return collective.time_s / (priced.flops / peak)

    return Table(
        "PPMoE: time of a collective relative to that of the products, fp16, V100",
        [
            Row(
                "all-to-all of 64 experts, h=10^4 (equation 3)",
                252,
                ratio("expert-parallel", 64, 10_000, tuple(range(64))),
                pairs,
            ),
            Row("all-reduce of 8 devices, h=10^3 (equation 5)", 35 / 6, ratio("ppmoe", 8, 1000, (0,) * 8), ring),
        ],
        tolerance=0.05,
    )


BATCH, SEQUENCE = 256, 2048
"""Sequences per training step, and tokens per sequence; the paper states neither."""
GPU_BYTES = 32e9


class Scale(NamedTuple):
    """Model size of the paper."""

    name: str
    nodes: int
    layers: int
    hidden: int
    heads: int
    micro_batches: tuple[int, ...]
    """Microbatch sizes to try."""


SMALL, LARGE = Scale("6.7B", 4, 24, 1024, 16, (1, 2, 4, 8)), Scale("143B", 16, 32, 4096, 32, (1, 2, 4, 8))
"""Models with 64 experts in every second layer, on backbones of 0.35 and 6.7 billion parameters."""
LAYOUTS: Mapping[str, str] = {
    "ppmoe": "PPMoE",
    "resent": "DPMoE, tokens sent tp times",
    "once": "DPMoE, tokens sent once",
    "cut": "DPMoE, tokens sent once, experts sharded over the node",
    "backbone": "backbone in the layout of PPMoE",
    "copies": "backbone, one copy per GPU",
}


def layout_design(scale: Scale, layout: str, micro_batch: int) -> Design:
    """Return the design of one of :data:`LAYOUTS` on nodes of eight V100.

    DPMoE layouts have one mesh, the others are pipelines.

    Raises:
        DesignError: the step has too few sequences for this microbatch size.
    """
    nodes = scale.nodes
    meshes, dp, tp = {"copies": (1, nodes * 8, 1), "backbone": (nodes, 1, 8), "ppmoe": (nodes, 1, 8)}.get(
        layout, (1, nodes, 8)
    )
    whole = min(64, nodes * 8)
    schedules: Mapping[str, Mapping[str, Any]] = {
        "ppmoe": {"schedule": "ppmoe"},
        "resent": {"schedule": "expert-parallel", "ep": whole},
        "once": {"schedule": "a2a-allgather", "ep": whole},
        "cut": {"schedule": "a2a-allgather", "ep": nodes, "esp": 8},
    }
    experts = schedules.get(layout)
    size = dp * tp
    return parse_design(
        {
            "format": "meshwave/1",
            "name": f"{scale.name}: {LAYOUTS[layout]}",
            "cluster": {**V100, "nodes": nodes},
            "model": {
                "kind": "gpt",
                "layers": scale.layers,
                "hidden": scale.hidden,
                "heads": scale.heads,
                "sequence": SEQUENCE,
                "vocab": 50304,
                "moe": {"experts": 64, "top_k": 1, "capacity_factor": 1.0, "every": 2} if experts else None,
            },
            "meshes": [
                {"name": str(at), "devices": list(range(at * size, (at + 1) * size)), "axes": {"dp": dp, "tp": tp}}
                for at in range(meshes)
            ],
            "pipeline": {"schedule": "1f1b", "microbatches": BATCH // dp // micro_batch},
            "experts": experts or {},
            "training": {"micro_batch_size": micro_batch, "precision": "bf16"},
        }
    )


V100: Mapping[str, Any] = {
    "devices_per_node": 8,
    "device": {"peak_flops": 125e12, "memory_bytes": 32e9, "memory_bandwidth": 900e9, "efficiency": 0.5},
    "intra_node": {"latency_s": 5e-6, "bandwidth": 300e9},
    "inter_node": {"latency_s": 1e-5, "bandwidth": 12.5e9},
}
"""Cluster of the paper, with the bandwidths that the paper states."""


class Step(NamedTuple):
    """Prediction of a training step."""

    tokens_per_s: float
    memory_bytes: float
    """Highest peak memory of a GPU in bytes."""


@lru_cache
def predict_step(scale: Scale, layout: str, micro_batch: int) -> Step | None:
    """Predict a training step; return None if it has too few sequences for this microbatch size."""
    try:
        numbers = predict(layout_design(scale, layout, micro_batch)).numbers
    except DesignError:
        return None
    return Step(float(numbers["tokens_per_s"]), float(max(numbers["peak_memory_bytes"])))


def largest_micro_batch(scale: Scale) -> int:
    """Return the largest of the tried microbatch sizes at which PPMoE fits into the memory of a GPU."""
    return max(
        size
        for size in scale.micro_batches
        if (made := predict_step(scale, "ppmoe", size)) and made.memory_bytes <= GPU_BYTES
    )


def throughput_ratio(scale: Scale, one: str, other: str, micro_batch: int) -> float:
    """Return the throughput ratio of two layouts; nan if a step has too few sequences for one of them."""
    first, second = predict_step(scale, one, micro_batch), predict_step(scale, other, micro_batch)
    return first.tokens_per_s / second.tokens_per_s if first and second else nan


def experts_in_pipelines() -> Table:
    """Return the comparison of PPMoE with two variants of expert parallelism alone."""
    small, large = largest_micro_batch(SMALL), largest_micro_batch(LARGE)
    shares = {layout: _forward_shares(layout_design(LARGE, layout, large)) for layout in ("ppmoe", "resent", "once")}
    batch = "the paper states neither batch; the table of microbatch sizes shows how much depends on them"
    kernels = f"the model contains links and products, but not the kernels that select rows and run experts one by one; {batch}"
    narrow = (
        f"in the model, tensor parallelism of a narrow model over eight GPUs costs as much as its all-reduces; {batch}"
    )
    bound = "the paper states a lower bound, and the computed value is above it"
    rows = [
        *_claims_about_dpmoe(
            "DPMoE, 143B: both all-to-alls, % of a forward", 65.5, lambda of: 100 * shares[of]["exchange"]
        ),
        *_claims_about_dpmoe(
            "DPMoE, 143B: expert layers, % of a forward", 82.6, lambda of: 100 * shares[of]["experts"]
        ),
        Row(
            "PPMoE, 143B: expert layers, % of a forward (second-hand)", 38.2, 100 * shares["ppmoe"]["experts"], kernels
        ),
        *_claims_about_dpmoe(
            "PPMoE, 143B: over DPMoE (more than)", 1.75, lambda of: throughput_ratio(LARGE, "ppmoe", of, large), bound
        ),
        *_claims_about_dpmoe(
            "PPMoE, 6.7B: over DPMoE (second-hand)", 1.23, lambda of: throughput_ratio(SMALL, "ppmoe", of, small)
        ),
        Row(
            "PPMoE, 143B: % of the backbone (second-hand)",
            90.7,
            100 * throughput_ratio(LARGE, "ppmoe", "backbone", large),
            batch,
        ),
        Row(
            "PPMoE, 6.7B: % of 32 backbones (second-hand)",
            81.4,
            100 * throughput_ratio(SMALL, "ppmoe", "copies", small),
            narrow,
        ),
        *_claims_about_dpmoe(
            "DPMoE, 6.7B: % of 32 backbones (second-hand)",
            66.2,
            lambda of: 100 * throughput_ratio(SMALL, of, "copies", small),
            narrow,
        ),
    ]
    return Table(
        "PPMoE: experts folded into tensor parallelism with a pipeline, compared with expert parallelism alone (DPMoE)",
        rows,
        tolerance=0.05,
        note=f"Fitted: nothing. Assumed: half of the peak of a V100, {BATCH} sequences of {SEQUENCE} tokens per step, one NIC per node, and "
        f"microbatches of {small} (6.7B) and {large} (143B), the largest tried sizes with which PPMoE fits into {GPU_BYTES / 1e9:.0f} GB. "
        "Stated by the paper: parallel layouts, sizes of the models and speeds of the links. Exact: the bytes and steps of "
        "each schedule. By the paper and with both variants of DPMoE, PPMoE is faster. DPMoE that sends tokens tp times is "
        "closer to the printed shares of a forward, and DPMoE that sends them once to the printed speedups; no baseline "
        "agrees with both. Second-hand values are from notes about the paper.",
    )


REASONS = {
    "resent": "here all eight GPUs of a node send the same tokens through one NIC; in the next row each token is sent once",
    "once": "here each GPU of a node sends a different part of the tokens, as in DeepSpeed since PR 2074, which is newer than "
    "the release that the paper measured (second-hand)",
}


def _claims_about_dpmoe(what: str, paper: float, ours: Callable[[str], float], more: str = "") -> Iterator[Row]:
    """Yield a claim about both variants of DPMoE: tokens sent tp times, and tokens sent once."""
    for layout, why in REASONS.items():
        kind = LAYOUTS[layout].removeprefix("DPMoE, ")
        yield Row(f"{what}; {kind}", paper, ours(layout), f"{why}; {more}" if more else why)


PAIRS = (("ppmoe", "resent"), ("ppmoe", "once"), ("ppmoe", "cut"))


def micro_batch_effects() -> table.Grid:
    """Return the results by microbatch size, which the paper does not state."""
    lines = []
    for scale in (SMALL, LARGE):
        for size in scale.micro_batches:
            made = predict_step(scale, "ppmoe", size)
            over = [throughput_ratio(scale, *pair, size) for pair in PAIRS]
            parts = [throughput_ratio(scale, of, "backbone", size) for of in ("ppmoe", "resent", "once")]
            parts += [throughput_ratio(scale, of, "copies", size) for of in ("ppmoe", "once")]
            memory = made.memory_bytes / 1e9 if made else nan
            figures = [*over, *(100 * part for part in parts), memory]
            shown = [None if isnan(figure) else figure for figure in figures]
            lines.append(table.GridRow(f"{scale.name}, microbatches of {size}", shown))
    lacking = ", ".join(
        f"{LAYOUTS[layout]} {found.memory_bytes / 1e9:.0f} GB"
        for layout in ("resent", "once", "cut")
        if (found := predict_step(LARGE, layout, largest_micro_batch(LARGE)))
    )
    return table.Grid(
        "PPMoE by microbatch size: speedup over DPMoE, % of the backbone in its own layout and in 32 or 128 copies, GB per GPU",
        ["x DPMoE", "once", "cut", "% own", "DPMoE", "once", "% copies", "once", "GB"],
        lines,
        note="x DPMoE: PPMoE over DPMoE that sends tokens tp times, that sends them once, and that also shards its experts over "
        "the node. % own: PPMoE and both DPMoE, relative to the backbone in the layout of PPMoE; % copies: PPMoE and DPMoE that "
        "sends once, relative to one copy of the backbone per GPU, if the step has enough sequences. With few tokens, a device "
        "reads the weights of its experts, and adds to their gradients, for a few rows each; larger microbatches mainly save "
        f"this time. Without sharded optimizer states, no DPMoE of 143B fits into 32 GB by the predictions: {lacking}. The "
        "paper states 1.23 and 81.4 % (of copies) for 6.7B, more than 1.75 and 90.7 % for 143B.",
    )


def _forward_shares(design: Design) -> dict[str, float]:
    """Return the shares of expert layers and of their exchanges in the forward time of a stage on one device."""
    found = predict_block(design, 0, 0, Op.F)
    lanes = [lane for lane, device in enumerate(found.devices) if device == found.devices[0]]
    took = np.where(np.isin(found.timeline.rank, lanes), found.timeline.end - found.timeline.start, 0.0)
    steps = np.array([step or "" for step in found.steps])
    exchanges = np.isin(steps, [StepOp.DISPATCH, StepOp.COMBINE])
    whole = found.timeline.makespan
    return {"experts": float(took[steps != ""].sum()) / whole, "exchange": float(took[exchanges].sum()) / whole}
