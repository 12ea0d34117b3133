"""Parm (arXiv:2407.00599): expert layers and their schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.expert_grid import ALL, CLUSTERS, GRID, PRINTED, SPREAD, Grid, GridCluster, grid
from engine.papers._table import Row, Table


def tables() -> Iterator[Table]:
    """The range over its grid."""
    yield expert_layers()


def expert_layers() -> Table:
    """Parm's 1296 layers, as far as they can be made up for."""
    found = grid()
    gain, late = found.gain(), found.gain("a2a-allgather")
    named, of_all = (_wins(*each) for each in ((found.winner, SPREAD), (found.fastest, ALL)))
    inside = found.seconds["ppmoe"] / found.auto
    crowded = int((~found.fits("ppmoe")).sum())
    unknown = (
        "the paper's layers, links and constants are not known to us: this grid has as many, on 8 nodes of 4 GPUs with the "
        "links that FSMoE fitted; what kernels and launches cost both alike is not in it, and lowers what is measured"
    )
    return Table(
        "Parm: times as fast as DeepSpeed-MoE, forward and backward of 1296 layers, experts included",
        [
            Row("the least over the grid", 1.13, float(gain.min()), unknown),
            Row("the most over the grid", 5.77, float(gain.max()), unknown),
        ],
        tolerance=0.005,
        note=f"Ours: {np.median(gain):.2f} in the middle. DeepSpeed here is what Parm's paper describes, every token sent and "
        "computed once for each tensor-parallel device. Against what DeepSpeed and Megatron do today (exchange once, gather "
        f"late), which the paper leaves out, Parm is {late.min():.2f} to {late.max():.2f} times as fast. Of the schedules that "
        f"spread their experts over all GPUs, and so need the same memory, the fastest is {named} layers. PPMoE, whose experts "
        f"stay in a node and take {RANKS // 4} or {RANKS // 2} times the memory, takes {inside.min():.2f} to "
        f"{inside.max():.2f} of Parm's time; the experts of {crowded} layers leave it no room on a GPU. Of all six, with "
        f"whole experts on every GPU that would share one (expert-parallel) among them, the fastest where it fits is {of_all}. "
        "Copies of experts are summed over nodes once a step, which is no part of a layer, or lie in stages of a pipeline.",
    )


def _wins(winner: NDArray[np.int64], names: Sequence[str]) -> str:
    """In how many layers each is the fastest, most first; those that never are left out."""
    wins = np.bincount(winner, minlength=len(names))
    return ", ".join(f"{names[at]} in {wins[at]:,}" for at in np.argsort(-wins, kind="stable") if wins[at])
