"""The map of many expert layers: which schedule is the fastest where, and by how much."""

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

DOWN = ("mp", "esp", "top_k", "capacity_factor")
"""The axes of the rows; the others are those of the columns."""
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
    "mp": "Tensor-parallel devices, which hold the same tokens",
    "esp": "Devices that share one expert, each a part of its width",
    "top_k": "Experts that a token visits",
    "capacity_factor": "Capacity factor: room at the experts, over what an even load needs",
    "batch": "Samples of a microbatch",
    "sequence": "Tokens of a sample",
    "hidden": "Width of a token",
    "width": "Width of an expert, over the width of a token",
}
MEASURES = {
    "alike": "Fastest, same memory",
    "fitting": "Fastest of all",
    "deepspeed": "Against DeepSpeed-MoE",
    "a2a-allgather": "Against all-to-all",
}
LINKS = [
    {"key": OWN_CLUSTER, "text": "This design's"},
    *({"key": key, "text": cluster.title} for key, cluster in CLUSTERS.items()),
]
"""Clusters on whose links the map can be priced."""


def map_of_layers(cluster: GridCluster = CLUSTERS["pcie"]) -> dict[str, Any]:
    """Columns of one entry a layer, row by row, with the words for axes, measures and what the map says."""
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
            "fitting": _ranking(found.names, found.fastest[order], found.lead[order]),
        },
        "measures": [{"key": key, "text": text} for key, text in MEASURES.items()],
        "deepspeed": found.speedup()[order].round(4).tolist(),
        "a2a-allgather": found.speedup("a2a-allgather")[order].round(4).tolist(),
        "printed": list(PUBLISHED_GAINS),
        "notes": _notes(found),
    }


def _ranking(names: Sequence[str], best: NDArray[np.int64], lead: NDArray[np.float64]) -> dict[str, Any]:
    """Which of some schedules is the fastest of each layer, of how many each is, and how many times as long the next
    one takes."""
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
    within = np.mean((gain >= low) & (gain <= high))
    return [
        f"Fastest of {len(gain):,} among schedules that need the same memory: {_ranked(found.winner, SPREADING_SCHEDULES)}. Among all "
        f"{len(found.names)}, where the experts of a layer fit a device of {cluster.memory_bytes / 1e9:.0f} GB: "
        f"{_ranked(found.fastest, found.names)}.",
        f"Parm's choice is {gain.min():.2f}× to {gain.max():.2f}× as fast as DeepSpeed-MoE, {np.median(gain):.2f}× in the "
        f"middle. Its paper measured {low}× to {high}× over as many layers; {100 * within:.0f} % of these lie in that range.",
        f"Against the order of today's systems, which exchange first and gather afterwards, it is {modern.min():.2f}× to "
        f"{modern.max():.2f}× as fast.",
        f"Predicted, forward and backward with experts and gate, on {cluster.devices} devices, {cluster.devices_per_node} a "
        f"node; {cluster.description}. Other links have other winners. Which layers the paper took is not known, so this grid is ours.",
        "; ".join(f"{WORDS[name]}: {help[0].lower()}{help[1:]}" for name, help in HELP.items()) + ".",
    ]


def _ranked(fastest: NDArray[np.int64], names: Sequence[str]) -> str:
    """In how many layers each schedule is the fastest, most first."""
    wins = np.bincount(fastest, minlength=len(names))
    return ", ".join(
        f"{expert_schedules[names[at]].title} {wins[at]:,}" for at in np.argsort(-wins, kind="stable") if wins[at]
    )
