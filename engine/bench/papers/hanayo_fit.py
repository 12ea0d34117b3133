"""Transfer times of the Hanayo paper's clusters (arXiv:2308.15762): fitted to its bars, and from data sheets.

The paper does not state them. T_C is in units of T_F, the forward of a device's share of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import log, sqrt

import numpy as np

from meshwave.engine.bench.papers.hanayo_bars import BASELINES, MEASURED, WAVES, Place
from meshwave.engine.bench.papers.schedule_simulation import device_timeline, hanayo_timeline
from meshwave.engine.costs.presets import preset
from meshwave.engine.document import parse_design
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op

TRANSFERS: Mapping[Place, float] = {
    ("pc", 8): 0.0269,
    ("fc", 8): 0.0126,
    ("tacc", 8): 0.0854,
    ("tc", 8): 0.0122,
    ("pc", 4): 0.0037,
    ("fc", 4): 0.0105,
    ("tacc", 4): 0.0346,
    ("tc", 4): 0.0128,
}
"""T_C / T_F by cluster and number of devices of a pipeline, as returned by :func:`fit`."""


def fit(cluster: str, ranks: int) -> float:
    """Return the T_C / T_F at which the predicted speed-ups over GPipe are closest to the measured ones.

    Least squares of the logarithms of the speed-ups with two, four and eight waves.
    """
    backward = backward_ratio(cluster, ranks)
    gpipe, *_ = BASELINES[cluster, ranks]
    paper = [log(bar / gpipe) for bar in MEASURED[cluster, ranks]]

    def squared_error(exponent: float) -> float:
        ours = wave_speed_ups(ranks, backward, 10**exponent)
        return sum((log(mine) - theirs) ** 2 for mine, theirs in zip(ours, paper, strict=True))

    return 10 ** _minimize(squared_error, -4.0, 0.0)


def fitted_transfer(cluster: str, ranks: int) -> float:
    """Return the fitted T_C / T_F for a pipeline of any length; T_F is inversely proportional to its devices."""
    known = ranks if (cluster, ranks) in TRANSFERS else 8
    return TRANSFERS[cluster, known] * ranks / known


def wave_speed_ups(ranks: int, backward: float, transfer: float) -> list[float]:
    """Return the speed-ups over GPipe of 2, 4 and 8 waves, with unit costs and T_F = 1."""
    costs = {"backward": backward, "transfer": transfer}
    gpipe = device_timeline("gpipe", ranks, **costs).makespan
    return [gpipe / hanayo_timeline(ranks, waves, **costs).makespan for waves in WAVES]


def best_wave_count(backward: float, transfer: float) -> float:
    """Return the best number of waves, ``W* = sqrt(T_B / 4 T_C)``; infinite if transfers are free.

    It minimizes the sum of the bubble ``(P-1) T_B / W`` and the transfers ``4 W (P-1) T_C``.
    """
    return sqrt(backward / (4 * transfer)) if transfer else float("inf")


def _minimize(
    function: Callable[[float], float], low: float, high: float, points: int = 9, within: float = 0.02
) -> float:
    """Return the position of the minimum of a unimodal function, by repeated sampling around the best point."""
    while high - low > within:
        step = (high - low) / (points - 1)
        best = min((low + step * number for number in range(points)), key=function)
        low, high = best - step, best + step
    return (low + high) / 2


def backward_ratio(cluster: str, ranks: int) -> float:
    """Return T_B / T_F from data sheets with fp32, as in the dry runs."""
    backward, forward, _ = cluster_times(cluster, ranks, "fp32")
    return backward / forward


def data_sheet_ratio(cluster: str, ranks: int) -> float:
    """Return T_C / T_F from data sheets with bf16 on tensor cores."""
    _, forward, transfer = cluster_times(cluster, ranks, "bf16")
    return transfer / forward


@lru_cache(maxsize=16)
def cluster_times(cluster: str, ranks: int, precision: str) -> tuple[float, float, float]:
    """Return T_B, T_F and T_C in seconds for the paper's BERT with 512 tokens on one pipeline of a cluster."""
    document = {
        "format": "meshwave/1",
        "cluster": preset(f"hanayo-{cluster}").cluster.model_dump(mode="json"),
        "model": {"kind": "bert", "layers": 64, "hidden": 2560, "heads": 64, "sequence": 512, "vocab": 30522},
        "meshes": [{"name": str(rank), "devices": [rank], "axes": {"dp": 1, "tp": 1}} for rank in range(ranks)],
        "pipeline": {"schedule": "hanayo", "waves": 1, "microbatches": ranks},
        "training": {"micro_batch_size": 1, "precision": precision},
    }
    prediction = predict(parse_design(document))
    op, seconds = prediction.program.op, prediction.costs.seconds
    backward, forward = (float(seconds[op == kind].sum()) / ranks**2 for kind in (Op.B, Op.F))
    return backward, forward, float(np.median(seconds[(op == Op.SEND_F) | (op == Op.SEND_B)]))
