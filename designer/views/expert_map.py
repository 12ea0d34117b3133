"""The map of many expert layers: which schedule is the fastest where, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from engine.moe import expert_schedules
from engine.moe_comparison import GRID, RANKS, RANKS_PER_NODE, SPREAD, Grid, grid, grid_as_data

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
MEASURES = {
    "winner": "Fastest",
    "deepspeed": "Against DeepSpeed-MoE",
    "a2a-allgather": "Against all-to-all, then all-gather",
}


@lru_cache(maxsize=1)
def map_of_layers() -> dict[str, Any]:
    """Columns of one entry a layer, row by row, with the words for axes, measures and what the map says."""
    found, printed = grid(), grid_as_data()["printed"]
    across = [name for name in GRID if name not in DOWN]
    order = np.lexsort([found.axes[name] for name in reversed([*DOWN, *across])])
    times = np.array([found.seconds[name] for name in SPREAD])
    best = np.sort(times, axis=0)
    return {
        "axes": {name: {"word": WORDS[name], "values": list(GRID[name])} for name in GRID},
        "down": list(DOWN),
        "across": across,
        "schedules": [{"name": name, "title": expert_schedules[name].title} for name in SPREAD],
        "measures": [{"key": key, "text": text} for key, text in MEASURES.items()],
        "winner": found.winner[order].tolist(),
        "margin": (best[1] / best[0])[order].round(4).tolist(),
        "deepspeed": found.gain()[order].round(4).tolist(),
        "a2a-allgather": found.gain("a2a-allgather")[order].round(4).tolist(),
        "printed": printed,
        "notes": _notes(found, printed),
    }


def _notes(found: Grid, printed: Sequence[float]) -> list[str]:
    gain, modern = found.gain(), found.gain("a2a-allgather")
    low, high = printed
    wins = np.bincount(found.winner, minlength=len(SPREAD))
    ranked = [
        f"{expert_schedules[SPREAD[at]].title} {wins[at]:,}" for at in np.argsort(-wins, kind="stable") if wins[at]
    ]
    within = np.mean((gain >= low) & (gain <= high))
    return [
        f"Fastest of {len(gain):,}: {', '.join(ranked)}.",
        f"Parm's choice is {gain.min():.2f}× to {gain.max():.2f}× as fast as DeepSpeed-MoE, {np.median(gain):.2f}× in the "
        f"middle. Its paper measured {low}× to {high}× over as many layers; {100 * within:.0f} % of these lie in that range.",
        f"Against the order of today's systems, which exchange first and gather afterwards, it is {modern.min():.2f}× to "
        f"{modern.max():.2f}× as fast.",
        f"Predicted, forward and backward with experts and gate, on {RANKS} devices, {RANKS_PER_NODE} a node, with links "
        "as FSMoE's second testbed was fitted. Which layers the paper took is not known, so this grid is ours.",
    ]
