"""The Hanayo paper (Liu et al., SC'23, arXiv:2308.15762) on this machine: its experiments as rehearsals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from meshwave.engine.bench.accuracy.cases import MODEL, Case, document
from meshwave.engine.bench.accuracy.results import Result
from meshwave.engine.bench.papers.hanayo_bars import EIGHT, MEASURED, WAVES, Place, printed
from meshwave.engine.bench.papers.hanayo_fit import TRANSFERS, backward_ratio, by_data_sheet, wave_speed_ups

WHO: Mapping[str, Mapping[str, object]] = {
    "GPipe": {"schedule": "gpipe"},
    "1F1B": {"schedule": "1f1b"},
    "Chimera": {"schedule": "chimera"},
    "Chimera-wave": {"schedule": "hanayo", "waves": 1},
    "interleaved 1F1B": {"schedule": "interleaved-1f1b", "chunks": 4},
    "H-1": {"schedule": "hanayo", "waves": 1},
    "H-2": {"schedule": "hanayo", "waves": 2},
    "H-4": {"schedule": "hanayo", "waves": 4},
    "H-8": {"schedule": "hanayo", "waves": 8},
}
"""Interleaved 1F1B, which the paper does not show, with as many stages a device as two waves have. Chimera-wave is one
wave over half of the devices in twice as many pipelines, Chimera the two replicas that it stands for."""
LAYERS = {**MODEL, "layers": 128}
"""A layer for each stage of eight waves over eight devices."""


def place_of(cluster: str, ranks: int) -> str:
    """``pc P=8``, ``pc D=2 P=4``."""
    pipelines = EIGHT[ranks].pipelines
    return f"{cluster} {f'D={pipelines} ' if pipelines > 1 else ''}P={ranks}"


def cases() -> list[Case]:
    """Every schedule on each of the paper's clusters, with one microbatch a device of a pipeline."""
    return [case for cluster, ranks in MEASURED for case in _on(cluster, ranks)]


def _on(cluster: str, ranks: int) -> Iterator[Case]:
    place = place_of(cluster, ranks)
    for who, schedule in WHO.items():
        fold = 2 if who == "Chimera-wave" else 1  # meshes that hold twice as much, for twice as many copies
        copies, meshes = fold * EIGHT[ranks].pipelines, ranks // fold
        cost = {
            "kind": "unit",
            "forward": float(fold),
            "backward": fold * backward_ratio(cluster, ranks),
            "transfer": TRANSFERS[cluster, ranks],
        }
        drawn = document(schedule, ((copies, 1),) * meshes, microbatches=meshes, model=LAYERS, cost=cost)
        tags = {"cluster": cluster, "ranks": str(ranks), "who": who}
        rivals = place if fold == 1 else ""  # another number of meshes is another training
        yield Case(f"{place}: {who}", place, drawn, rivals=rivals, tags=tags)


def waves_by(transfers: Mapping[Place, float]) -> int:
    """On how many places the best number of waves is the paper's, in unit costs with such T_C / T_F."""
    right = 0
    for (cluster, ranks), bars in MEASURED.items():
        ours = wave_speed_ups(ranks, backward_ratio(cluster, ranks), transfers[cluster, ranks])
        right += ours.index(max(ours)) == bars.index(max(bars))
    return right


def said_first() -> str:
    """Return which numbers are fitted, and how often the best number of waves is right with and without them."""
    sheets = {place: by_data_sheet(*place) for place in MEASURED}
    bars = len(WAVES) * len(TRANSFERS)
    return (
        f"{len(TRANSFERS)} transfer times T_C, one per cluster and P, are fitted to {bars} bars: those of two, four and "
        f"eight waves. With them, the predicted best number of waves is that of the paper in {waves_by(TRANSFERS)} of "
        f"{len(MEASURED)} cases; with T_C from data sheets, in {waves_by(sheets)} of {len(MEASURED)}. `meshwave bench "
        "papers` predicts the same bars from data sheets alone."
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
    bars = printed((cluster, ranks))
    return bars[who] / bars["GPipe"] if who in bars else None
