"""The map of many expert layers: the fastest schedule of each, and its speedup over the second fastest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.experts import expert_schedules
from meshwave.engine.predict.expert_map import (
    CLUSTERS,
    GRID,
    OWN_CLUSTER,
    PUBLISHED_GAINS,
    SPREADING_SCHEDULES,
    Grid,
    GridCluster,
    price_grid,
)
from meshwave.engine.units import percent

DOWN = ("mp", "esp", "top_k", "capacity_factor")
"""Axes whose values are the rows of the map; the values of the other axes are its columns."""
WORDS = {
    "mp": "mp",
    "esp": "esp",
    "top_k": "k",
    "capacity_factor": "f",
    "batch": "B",
    "sequence": "L",
    "hidden": "M",
    "width": "H/M",
}
HELP = {
    "mp": "Number of tensor-parallel devices, which hold the same tokens",
    "esp": "Number of devices that share one expert, each with a part of its width",
    "top_k": "Number of experts per token",
    "capacity_factor": "Capacity factor: slots of the experts relative to an even load",
    "batch": "Samples per microbatch",
    "sequence": "Tokens per sample",
    "hidden": "Hidden size",
    "width": "Width of an expert relative to the hidden size",
}
MEASURES = {
    "alike": "Fastest at equal memory",
    "fitting": "Fastest overall",
    "deepspeed": "Speedup over DeepSpeed-MoE",
    "a2a-allgather": "Speedup over all-to-all",
}
LINKS = [
    {"key": OWN_CLUSTER, "text": "This design"},
    *({"key": key, "text": cluster.title} for key, cluster in CLUSTERS.items()),
]
"""Clusters whose links the map can use."""


def make_expert_map(cluster: GridCluster = CLUSTERS["pcie"]) -> dict[str, Any]:
    """Return the data of the map: columns with one entry per layer, and the texts of axes, measures and notes."""
    found = price_grid(cluster)
    across = [name for name in GRID if name not in DOWN]
    order = np.lexsort([found.axes[name] for name in reversed([*DOWN, *across])])
    first, second = np.sort([found.seconds[name] for name in SPREADING_SCHEDULES], axis=0)[:2]
    return {
        "axes": {name: {"word": WORDS[name], "help": HELP[name], "values": list(GRID[name])} for name in GRID},
        "down": list(DOWN),
        "across": across,
        "rankings": {
            "alike": _ranking(SPREADING_SCHEDULES, found.winner[order], (second / first)[order]),
            "fitting": _ranking(found.names, found.fastest[order], found.speedup_over_second[order]),
        },
        "measures": [{"key": key, "text": text} for key, text in MEASURES.items()],
        "deepspeed": found.speedup()[order].round(4).tolist(),
        "a2a-allgather": found.speedup("a2a-allgather")[order].round(4).tolist(),
        "printed": list(PUBLISHED_GAINS),
        "notes": _notes(found),
    }


def _ranking(names: Sequence[str], best: NDArray[np.int64], lead: NDArray[np.float64]) -> dict[str, Any]:
    """Return the fastest schedule of each layer, its speedup over the second fastest, and the wins of each schedule."""
    wins = np.bincount(best, minlength=len(names)).tolist()
    return {
        "schedules": [
            {"name": name, "title": expert_schedules[name].title, "wins": won}
            for name, won in zip(names, wins, strict=True)
        ],
        "best": best.tolist(),
        "lead": lead.round(4).tolist(),
    }


def _notes(found: Grid) -> list[str]:
    gain, modern = found.speedup(), found.speedup("a2a-allgather")
    low, high = PUBLISHED_GAINS
    cluster = found.cluster
    within = float(np.mean((gain >= low) & (gain <= high)))
    return [
        f"Number of layers (of {len(gain):,}) for which each schedule is the fastest. Among schedules that need equal "
        f"memory: {_describe_wins(found.winner, SPREADING_SCHEDULES)}. Among all {len(found.names)} schedules, if the "
        f"experts of a layer fit on a device with {cluster.memory_bytes / 1e9:.0f} GB: "
        f"{_describe_wins(found.fastest, found.names)}.",
        f"Speedup of Parm's choice over DeepSpeed-MoE: median {np.median(gain):.2f}×, range {gain.min():.2f}× to "
        f"{gain.max():.2f}×. The Parm paper measured {low}× to {high}× on the same number of layers; {percent(within)} of these layers are in "
        "that range.",
        f"Speedup over all-to-all followed by all-gather, the order of current systems: {modern.min():.2f}× to "
        f"{modern.max():.2f}×.",
        f"Predicted times of forward and backward with experts and gate, on {cluster.devices} devices with "
        f"{cluster.devices_per_node} per node; {cluster.description}. The fastest schedule depends on the links. The Parm "
        "paper does not list its layers, so Meshwave chose this grid.",
        "; ".join(f"{WORDS[name]}: {help[0].lower()}{help[1:]}" for name, help in HELP.items()) + ".",
    ]


def _describe_wins(fastest: NDArray[np.int64], names: Sequence[str]) -> str:
    """Name the schedules with the number of layers in which each is the fastest, most first."""
    wins = np.bincount(fastest, minlength=len(names))
    return ", ".join(
        f"{expert_schedules[names[at]].title} {wins[at]:,}" for at in np.argsort(-wins, kind="stable") if wins[at]
    )
