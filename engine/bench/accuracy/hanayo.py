"""Experiments of the Hanayo paper (Liu et al., SC'23, arXiv:2308.15762) as dry runs on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from meshwave.engine.bench.accuracy.cases import MODEL, Case, case_document
from meshwave.engine.bench.accuracy.results import Result
from meshwave.engine.bench.papers.hanayo_bars import EIGHT, MEASURED, WAVES, Place, paper_throughputs
from meshwave.engine.bench.papers.hanayo_designs import SCHEMES
from meshwave.engine.bench.papers.hanayo_fit import TRANSFERS, backward_ratio, data_sheet_ratio, wave_speed_ups

WHO: Mapping[str, Mapping[str, object]] = {
    "GPipe": {"schedule": "gpipe"},
    "1F1B": {"schedule": "1f1b"},
    "Chimera": {"schedule": "chimera"},
    "Chimera-wave": {"schedule": "hanayo", "waves": 1},
    "interleaved 1F1B": {"schedule": "interleaved-1f1b", "chunks": 4},
    **{name: schedule for name, schedule in SCHEMES.items() if name.startswith("H-")},
}
"""Schedules by their names in the paper.

Interleaved 1F1B is not in the paper; it has as many stages per device as two waves. Chimera-wave is one wave over half
of the devices in twice as many pipelines, the paper's substitute for the two replicas of Chimera.
"""
LAYERS = {**MODEL, "layers": 128}
"""Model with one layer for each stage of eight waves over eight devices."""


def place_title(cluster: str, ranks: int) -> str:
    """Return a title such as ``pc P=8`` or ``pc D=2 P=4``."""
    pipelines = EIGHT[ranks].pipelines
    return f"{cluster} {f'D={pipelines} ' if pipelines > 1 else ''}P={ranks}"


def paper_cases() -> list[Case]:
    """Return the cases of all schedules on each cluster of the paper, with as many microbatches as devices."""
    return [case for cluster, ranks in MEASURED for case in _cluster_cases(cluster, ranks)]


def _cluster_cases(cluster: str, ranks: int) -> Iterator[Case]:
    place = place_title(cluster, ranks)
    for who, schedule in WHO.items():
        fold = 2 if who == "Chimera-wave" else 1  # half as many meshes with twice the layers
        copies, meshes = fold * EIGHT[ranks].pipelines, ranks // fold
        cost = {
            "kind": "unit",
            "forward": float(fold),
            "backward": fold * backward_ratio(cluster, ranks),
            "transfer": TRANSFERS[cluster, ranks],
        }
        drawn = case_document(schedule, ((copies, 1),) * meshes, microbatches=meshes, model=LAYERS, cost=cost)
        tags = {"cluster": cluster, "ranks": str(ranks), "who": who}
        rivals = place if fold == 1 else ""  # compare equal mesh counts only
        yield Case(f"{place}: {who}", place, drawn, rivals=rivals, tags=tags)


def count_correct_waves(transfers: Mapping[Place, float]) -> int:
    """Return the number of cases in which the predicted best number of waves equals that of the paper.

    ``transfers`` are the T_C / T_F of each cluster and pipeline length.
    """
    right = 0
    for (cluster, ranks), bars in MEASURED.items():
        ours = wave_speed_ups(ranks, backward_ratio(cluster, ranks), transfers[cluster, ranks])
        right += ours.index(max(ours)) == bars.index(max(bars))
    return right


def introduction_text() -> str:
    """Return a text on the fitted transfer times, and on the accuracy of the best number of waves."""
    sheets = {place: data_sheet_ratio(*place) for place in MEASURED}
    bars = len(WAVES) * len(TRANSFERS)
    return (
        f"{len(TRANSFERS)} transfer times T_C, one per cluster and P, are fitted to {bars} bars: those of two, four and "
        f"eight waves. With them, the predicted best number of waves is that of the paper in {count_correct_waves(TRANSFERS)} "
        f"of {len(MEASURED)} cases; with T_C from data sheets, in {count_correct_waves(sheets)} of {len(MEASURED)}. `meshwave bench "
        "papers` predicts the same bars from data sheets alone."
    )


class SpeedUp(NamedTuple):
    """Speed-up of a schedule over GPipe on one cluster."""

    cluster: str
    ranks: int
    who: str
    paper: float | None  # None for a schedule that the paper does not show
    predicted: float
    measured: float


def measured_speed_ups(results: Sequence[Result]) -> list[SpeedUp]:
    """Return the speed-ups of all measured schedules on the clusters for which GPipe was measured."""
    known = {(each.tags["cluster"], int(each.tags["ranks"]), each.tags["who"]): each for each in results}
    found = []
    for (cluster, ranks, who), result in known.items():
        gpipe = known.get((cluster, ranks, "GPipe"))
        if gpipe is not None and who != "GPipe":
            predicted, measured = gpipe.predicted / result.predicted, gpipe.measured / result.measured
            found.append(SpeedUp(cluster, ranks, who, _paper_speed_up(cluster, ranks, who), predicted, measured))
    return found


def _paper_speed_up(cluster: str, ranks: int, who: str) -> float | None:
    bars = paper_throughputs((cluster, ranks))
    return bars[who] / bars["GPipe"] if who in bars else None
