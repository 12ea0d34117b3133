"""The Hanayo paper (Liu et al., SC'23, arXiv:2308.15762) on this machine: its experiments as rehearsals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log
from typing import NamedTuple

from engine.accuracy_bench.cases import MODEL, Case, document
from engine.accuracy_bench.results import Result
from engine.papers._play import devices, in_waves
from engine.papers.hanayo import MEASURED, shares_on

BASELINES: Mapping[tuple[str, int], tuple[float, float, float]] = {
    ("pc", 8): (1.150, 1.142, 1.439),
    ("fc", 8): (1.132, 1.131, 1.445),
    ("tacc", 8): (1.089, 1.086, 1.343),
    ("tc", 8): (0.872, 0.872, 1.104),
    ("pc", 4): (2.099, 2.208, 2.543),
    ("fc", 4): (2.227, 2.183, 2.632),
    ("tacc", 4): (2.082, 2.142, 2.514),
    ("tc", 4): (1.687, 1.688, 1.991),
}
"""Sequences a second of GPipe, DAPPLE (1F1B) and Chimera: the paper's figure of BERT on 8 GPUs, read from its bars."""

WAVES = (2, 4, 8)
WHO: Mapping[str, Mapping[str, object]] = {
    "GPipe": {"schedule": "gpipe"},
    "1F1B": {"schedule": "1f1b"},
    "Chimera": {"schedule": "chimera"},
    "interleaved 1F1B": {"schedule": "interleaved-1f1b", "chunks": 4},
    "H-1": {"schedule": "hanayo", "waves": 1},
    "H-2": {"schedule": "hanayo", "waves": 2},
    "H-4": {"schedule": "hanayo", "waves": 4},
    "H-8": {"schedule": "hanayo", "waves": 8},
}
"""Interleaved 1F1B, which the paper does not show, with as many stages a device as two waves have."""
LAYERS = {**MODEL, "layers": 128}
"""A layer for each stage of eight waves over eight devices."""


TRANSFERS: Mapping[tuple[str, int], float] = {
    ("pc", 8): 0.0269,
    ("fc", 8): 0.0126,
    ("tacc", 8): 0.0854,
    ("tc", 8): 0.0122,
    ("pc", 4): 0.0037,
    ("fc", 4): 0.0105,
    ("tacc", 4): 0.0346,
    ("tc", 4): 0.0128,
}
"""T_C of each of the paper's clusters, in forwards of a device's share of the model: what :func:`fitted` finds."""


def fitted(cluster: str, ranks: int) -> float:
    """The paper tells no transfer time. Its bars do: of all ratios, the one at which predicted speed-ups of two, four
    and eight waves over GPipe are nearest to the measured ones, in least squares of their logarithms."""
    backward, forward, _ = shares_on(f"hanayo-{cluster}", ranks)
    gpipe, *_ = BASELINES[cluster, ranks]
    paper = [log(bar / gpipe) for bar in MEASURED[cluster, ranks]]

    def off(exponent: float) -> float:
        ours = _speed_ups(ranks, backward / forward, 10**exponent)
        return sum((log(mine) - theirs) ** 2 for mine, theirs in zip(ours, paper, strict=True))

    return 10 ** _lowest(off, -4.0, 0.0)


def by_data_sheet(cluster: str, ranks: int) -> float:
    """The same ratio as links and devices of our presets make it."""
    _, forward, transfer = shares_on(f"hanayo-{cluster}", ranks)
    return transfer / forward


def _speed_ups(ranks: int, backward: float, transfer: float) -> list[float]:
    costs = {"backward": backward, "transfer": transfer}
    gpipe = devices("gpipe", ranks, **costs).makespan
    return [gpipe / in_waves(ranks, waves, **costs).makespan for waves in WAVES]


def _lowest(
    function: Callable[[float], float], low: float, high: float, points: int = 9, within: float = 0.02
) -> float:
    """Where a function of one valley is lowest: the best of some points, and again between its neighbours."""
    while high - low > within:
        step = (high - low) / (points - 1)
        best = min((low + step * number for number in range(points)), key=function)
        low, high = best - step, best + step
    return (low + high) / 2


def name_of(cluster: str, ranks: int, who: str) -> str:
    return f"{cluster} P={ranks}: {who}"


def cases() -> list[Case]:
    """Every schedule on each of the paper's clusters, with one microbatch a device."""
    return [case for cluster, ranks in BASELINES for case in _on(cluster, ranks)]


def _on(cluster: str, ranks: int) -> Iterator[Case]:
    backward, forward, _ = shares_on(f"hanayo-{cluster}", ranks)
    cost = {"kind": "unit", "backward": backward / forward, "transfer": TRANSFERS[cluster, ranks]}
    for who, schedule in WHO.items():
        drawn = document(schedule, ((1, 1),) * ranks, microbatches=ranks, model=LAYERS, cost=cost)
        tags = {"cluster": cluster, "ranks": str(ranks), "who": who}
        yield Case(
            name_of(cluster, ranks, who), f"{cluster} P={ranks}", drawn, rivals=f"{cluster} P={ranks}", tags=tags
        )


class SpeedUp(NamedTuple):
    """Times faster than GPipe on one cluster."""

    cluster: str
    ranks: int
    who: str
    paper: float | None  # None of what the paper does not show
    predicted: float
    measured: float


def speed_ups(results: Sequence[Result]) -> list[SpeedUp]:
    """Of every schedule that was rehearsed beside GPipe."""
    known = {(each.tags["cluster"], int(each.tags["ranks"]), each.tags["who"]): each for each in results}
    found = []
    for (cluster, ranks, who), result in known.items():
        gpipe = known.get((cluster, ranks, "GPipe"))
        if gpipe is not None and who != "GPipe":
            predicted, measured = gpipe.predicted / result.predicted, gpipe.measured / result.measured
            found.append(SpeedUp(cluster, ranks, who, _printed(cluster, ranks, who), predicted, measured))
    return found


def _printed(cluster: str, ranks: int, who: str) -> float | None:
    gpipe, dapple, chimera = BASELINES[cluster, ranks]
    bars = {"1F1B": dapple, "Chimera": chimera}
    bars |= {f"H-{waves}": bar for waves, bar in zip(WAVES, MEASURED[cluster, ranks], strict=True)}
    return bars[who] / gpipe if who in bars else None
