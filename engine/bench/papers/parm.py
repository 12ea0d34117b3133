"""Parm (arXiv:2407.00599): expert layers and their schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.bench.papers import table
from meshwave.engine.bench.papers.table import Row, Table
from meshwave.engine.document import Design, parse_design
from meshwave.engine.predict.expert_map import (
    CLUSTERS,
    GRID_SCHEDULES,
    PUBLISHED_GAINS,
    SPREADING_SCHEDULES,
    Grid,
    GridCluster,
    price_grid,
)
from meshwave.engine.predict.prediction import predict

LATE = "a2a-allgather"
"""Expert schedule of DeepSpeed and Megatron today: all-to-all, then all-gather. The paper does not include it."""
CLUSTER, SERVER = CLUSTERS["pcie"], CLUSTERS["server"]
"""Models of the paper's cluster of 32 GPUs, and of its server of 8 GPUs."""


def tables() -> Iterator[Table | table.Grid]:
    """Yield the tables: gains by layer, by layout and by links, and two whole models."""
    yield expert_layers()
    yield gains_by_layout()
    yield gains_by_links()
    yield whole_model_gains()
    yield models_against_others()


# ---- layers ----


def expert_layers() -> Table:
    """Return the range of Parm's gains over 1296 layers; the paper does not list them, so they are assumed."""
    found, server = price_grid(CLUSTER), price_grid(SERVER, corners=True)
    gain = np.concatenate([found.speedup(), server.speedup()])
    named, of_all = (
        _count_wins(*each) for each in ((found.winner, SPREADING_SCHEDULES), (found.fastest, GRID_SCHEDULES))
    )
    folded = found.axes["mp"] > 1  # without tensor parallelism, PPMoE copies all experts to every GPU
    inside = (found.seconds["ppmoe"] / found.parm_auto_seconds)[folded]
    crowded = int((~found.fits("ppmoe") & folded).sum())
    layers = "the layers and constants of the paper are not available, and the speed of the server's links is assumed"
    most = int(np.argmax(found.speedup()))
    shared = _shared_part(found.seconds["deepspeed"][most], found.parm_auto_seconds[most])
    kernels = (
        f"the layer has mp {found.axes['mp'][most]:g}, esp {found.axes['esp'][most]:g}; time that every schedule needs, such as "
        f"that of kernel launches, is not in the model and reduces the gain; with {100 * shared:.0f}% of Parm's time of this "
        "layer, the gain would be the printed one (an estimate, not a measurement)"
    )
    return Table(
        "Parm: speedup over DeepSpeed-MoE, forward and backward of expert layers",
        [
            Row("lowest speedup, 32 GPUs and server of 8", PUBLISHED_GAINS[0], float(gain.min()), layers),
            Row("lowest speedup, 32 GPUs", PUBLISHED_GAINS[0], float(found.speedup().min()), layers),
            Row("highest speedup, 32 GPUs and server of 8", PUBLISHED_GAINS[1], float(gain.max()), kernels),
        ],
        tolerance=0.005,
        note=f"Fitted: the links, by FSMoE on its own testbed; nothing is fitted to Parm's results. Assumed: the grid of "
        f"{len(found.parm_auto_seconds):,} layers (on the server, the {len(server.parm_auto_seconds)} at the ends of every axis), half of the "
        "GPU's peak, the server's links. Exact: the steps and the bytes of each schedule. "
        f"Median speedup on 32 GPUs: {np.median(found.speedup()):.2f}. DeepSpeed here is what Parm's paper describes: every token is "
        "sent and computed once for each tensor-parallel device. Fastest of the schedules that distribute their experts "
        f"over all GPUs, and thus need the same memory, on 32 GPUs, in layers: {named}. PPMoE with mp > 1, which keeps all "
        f"experts in each node and needs {CLUSTER.devices // 4} or {CLUSTER.devices // 2} times the memory, takes "
        f"{inside.min():.2f} to {inside.max():.2f} of Parm's time; with {crowded} of these layers it does not fit into a GPU. "
        f"Fastest of all six that fit: {of_all}. The times of layers exclude the reduction of copies of experts over "
        "nodes, once per step.",
    )


def _shared_part(baseline_s: float, parm_s: float) -> float:
    """Return the additional time, as a share of Parm's, for which the gain would equal the largest printed one."""
    return (baseline_s - PUBLISHED_GAINS[1] * parm_s) / (PUBLISHED_GAINS[1] - 1) / parm_s


def gains_by_layout() -> table.Grid:
    """Return the gains by the sizes of the parallel groups, on both testbeds of the paper."""
    lines = []
    for name, cluster in (("32 GPUs", CLUSTER), ("server of 8", SERVER)):
        found = price_grid(cluster, corners=True)
        for layout, those in _layouts(found):
            gain, late = found.speedup()[those], found.speedup(LATE)[those]
            figures = gain.min(), np.median(gain), gain.max(), late.min(), late.max()
            lines.append(table.GridRow(f"{name}, {layout}", [float(figure) for figure in figures]))
    return table.Grid(
        "Parm: speedup of its choice by layout, over DeepSpeed-MoE and over a2a-allgather",
        ["lowest", "median", "highest", "over a2a-allgather: lowest", "highest"],
        lines,
        note="Fitted and assumed as above, for the layers at the ends of every axis. The paper's lowest speedup, "
        f"{PUBLISHED_GAINS[0]}, occurs in layers without tensor parallelism, where no token is sent twice: only the gather over the "
        "devices that share an expert is saved.",
    )


def gains_by_links() -> table.Grid:
    """Return the gains of Parm over the expert schedule of current systems, on several kinds of links."""
    lines = []
    for cluster in CLUSTERS.values():
        found = price_grid(cluster, corners=True)
        for layout, those in _layouts(found):
            gains = [found.speedup(LATE, name)[those] for name in ("parm-s1", "parm-s2", "")]
            figures = [float(end) for gain in gains for end in (gain.min(), gain.max())]
            fastest = float(np.mean(found.parm_auto_seconds[those] < found.seconds[LATE][those]))
            lines.append(table.GridRow(f"{cluster.title}; {layout}", [*figures, 100 * fastest]))
    return table.Grid(
        "Parm: speedup over a2a-allgather, by links",
        ["S1: lowest", "highest", "S2: lowest", "highest", "auto: lowest", "highest", "% of layers faster"],
        lines,
        note="Fitted: PCIe (4.5 GB/s) and the network of 100 Gb/s per node, by FSMoE. Assumed: all other links "
        f"({'; '.join(_describe_link_rates(cluster) for cluster in CLUSTERS.values())}), and the same GPUs everywhere. Exact: steps and "
        "bytes. Parm's fused exchange sends each token esp times and saves a gather inside the node. It is faster only if a "
        "link inside the node is about as slow as a GPU's share of the network, and not with NVLink or a slow network.",
    )


def _layouts(found: Grid) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield a layout name such as ``mp 2, esp 4``, with the mask of the layers that have this layout."""
    for mp in np.unique(found.axes["mp"]):
        for esp in np.unique(found.axes["esp"]):
            yield f"mp {mp:g}, esp {esp:g}", (found.axes["mp"] == mp) & (found.axes["esp"] == esp)


def _describe_link_rates(cluster: GridCluster) -> str:
    inside, between = (1e-9 / line.beta for line in (cluster.links.intra, cluster.links.inter))
    network = f", {between:.3g} GB/s per GPU between nodes" if len(set(cluster.nodes)) > 1 else ""
    return f"{cluster.title}: {inside:.3g} GB/s inside{network}"


def _count_wins(winner: NDArray[np.int64], names: Sequence[str]) -> str:
    """Return a text on the number of layers for which each schedule is the fastest, in descending order."""
    wins = np.bincount(winner, minlength=len(names))
    return ", ".join(f"{names[at]} in {wins[at]:,}" for at in np.argsort(-wins, kind="stable") if wins[at])


# ---- models ----

MODELS: Mapping[str, Mapping[str, Any]] = {
    "BERT-Base": {"kind": "bert", "layers": 12, "hidden": 768, "heads": 12, "sequence": 512, "vocab": 30522},
    "GPT-2": {"kind": "gpt", "layers": 12, "hidden": 768, "heads": 12, "sequence": 1024, "vocab": 50257},
}
MODEL_SCHEDULES = ("deepspeed", LATE, "parm-s1", "parm-s2", "parm-auto")


def model_design(model: str, schedule: str, *, cluster: GridCluster = CLUSTER, every: int = 2) -> Design:
    """Return the design of one of Parm's two models, on one mesh with mp = esp = 4.

    Every ``every``-th layer has experts.
    """
    devices, links = cluster.devices, cluster.links
    return parse_design(
        {
            "format": "meshwave/1",
            "name": f"{model} with experts",
            "cluster": {
                "nodes": devices // cluster.devices_per_node,
                "devices_per_node": cluster.devices_per_node,
                "nics_per_node": cluster.devices_per_node,  # the bandwidth between nodes is fitted per device
                "device": {
                    "peak_flops": 2 * cluster.rates.flops,
                    "memory_bytes": cluster.memory_bytes,
                    "memory_bandwidth": cluster.rates.memory,
                    "efficiency": 0.5,
                },
                "intra_node": {"latency_s": links.intra.alpha, "bandwidth": 1 / links.intra.beta},
                "inter_node": {"latency_s": links.inter.alpha, "bandwidth": 1 / links.inter.beta},
            },
            "model": {
                **MODELS[model],
                "moe": {"experts": devices // 4, "top_k": 2, "capacity_factor": 1.2, "every": every},
            },
            "meshes": [{"name": "all", "devices": list(range(devices)), "axes": {"dp": devices // 4, "tp": 4}}],
            "pipeline": {"schedule": "gpipe", "microbatches": 1},
            "experts": {"schedule": schedule, "ep": devices // 4, "esp": 4},
            "training": {"micro_batch_size": 4, "precision": "fp32"},
        }
    )


def predicted_step_seconds(model: str, schedule: str, *, cluster: GridCluster = CLUSTER, every: int = 2) -> float:
    """Return the predicted duration of a training step in seconds."""
    return predict(model_design(model, schedule, cluster=cluster, every=every)).timeline.makespan


def whole_model_gains() -> Table:
    """Return the gains for two whole models, which the paper's abstract states."""
    why = "it is not known which layers have experts, nor the batch"
    gains = {
        name: predicted_step_seconds(name, "deepspeed") / predicted_step_seconds(name, "parm-auto") for name in MODELS
    }
    return Table(
        "Parm: speedup over DeepSpeed-MoE, training steps of whole models on 32 GPUs",
        [Row(f"{name}, experts in every second layer (about)", 3.0, gain, why) for name, gain in gains.items()],
        tolerance=0.5,
        note="Each is a prediction of a complete design (dp 8, tp 4, ep 8, esp 4; including gradients and update). "
        "Fitted: the links, by FSMoE. Assumed: the sizes of BERT-Base and of the smallest GPT-2, experts in every second layer, "
        "one expert per ep rank, top 2 with capacity factor 1.2, 4 sequences per data-parallel copy, fp32 at half of the "
        "peak. Exact: steps and bytes.",
    )


def models_against_others() -> table.Grid:
    """Return the gains of the same models in other layouts and with other schedules."""
    lines = []
    for cluster, where in ((CLUSTER, "32 GPUs"), (SERVER, "server of 8"), (CLUSTERS["nvlink"], "32 GPUs with NVLink")):
        for name in MODELS:
            for every, layers in ((2, "every second layer"), (1, "every layer")):
                took = {of: predicted_step_seconds(name, of, cluster=cluster, every=every) for of in MODEL_SCHEDULES}
                figures = [took["deepspeed"] / took[of] for of in MODEL_SCHEDULES[1:]]
                lines.append(
                    table.GridRow(f"{name}, {where}, experts in {layers}", [*figures, took[LATE] / took["parm-auto"]])
                )
    return table.Grid(
        "Parm: whole models, speedup over DeepSpeed-MoE, and of Parm's choice over a2a-allgather",
        [LATE, "S1", "S2", "Parm's choice", "over a2a-allgather"],
        lines,
        note="Fitted and assumed as above. The clusters with PCIe and NVLink have the same GPUs and differ only in their links.",
    )
