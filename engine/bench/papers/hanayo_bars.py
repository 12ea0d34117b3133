"""Values of the figures in the Hanayo paper (Liu et al., SC'23, arXiv:2308.15762), section 5.

They are read from its vector graphics. Throughputs are in the paper's "sequences/s";
:mod:`meshwave.engine.bench.papers.hanayo_throughput` analyses what that unit counts. ``batch`` is the label *B* of the
figures, which is halved when the number of data-parallel pipelines is doubled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Place = tuple[str, int]
"""Cluster, and number of devices of one pipeline."""


class Layout(NamedTuple):
    """Number of data-parallel pipelines (D), devices of each pipeline (P), and batch of each pipeline (B)."""

    pipelines: int
    ranks: int
    batch: int

    def __str__(self) -> str:
        return f"D={self.pipelines} P={self.ranks} B={self.batch}"


MEASURED: Mapping[Place, tuple[float, float, float]] = {
    ("pc", 8): (1.626, 1.665, 1.655),
    ("fc", 8): (1.645, 1.754, 1.779),
    ("tacc", 8): (1.453, 1.367, 1.147),
    ("tc", 8): (1.264, 1.350, 1.375),
    ("pc", 4): (3.048, 3.233, 3.317),
    ("fc", 4): (3.082, 3.302, 3.420),
    ("tacc", 4): (2.896, 2.944, 2.751),
    ("tc", 4): (2.327, 2.487, 2.547),
}
"""Throughput of BERT on 8 GPUs: Hanayo with 2, 4 and 8 waves, on one pipeline of 8 devices or two of 4."""

BASELINES: Mapping[Place, tuple[float, float, float]] = {
    ("pc", 8): (1.150, 1.142, 1.439),
    ("fc", 8): (1.132, 1.131, 1.445),
    ("tacc", 8): (1.089, 1.086, 1.343),
    ("tc", 8): (0.872, 0.872, 1.104),
    ("pc", 4): (2.099, 2.208, 2.543),
    ("fc", 4): (2.227, 2.183, 2.632),
    ("tacc", 4): (2.082, 2.142, 2.514),
    ("tc", 4): (1.687, 1.688, 1.991),
}
"""Throughput of BERT on 8 GPUs: GPipe, DAPPLE (1F1B) and Chimera-wave, on the same layouts."""

WAVES = (2, 4, 8)
"""Numbers of waves in :data:`MEASURED`."""

EIGHT: Mapping[int, Layout] = {8: Layout(1, 8, 2), 4: Layout(2, 4, 1)}
"""Layouts of the 8 GPUs of :data:`MEASURED`, by the number of devices of a pipeline."""

SEARCH: Mapping[tuple[str, Layout], Mapping[str, float | None]] = {
    ("gpt", Layout(4, 8, 2)): {"GPipe": 1.636, "1F1B": 1.609, "Chimera-wave": 1.995, "H-2": 2.173, "H-4": 2.104},
    ("gpt", Layout(2, 16, 4)): {"GPipe": None, "1F1B": 0.766, "Chimera-wave": 0.937, "H-2": 2.011},
    ("gpt", Layout(1, 32, 8)): {"GPipe": None, "1F1B": None, "Chimera-wave": None, "H-2": None},
    ("bert", Layout(4, 8, 2)): {"GPipe": 4.358, "1F1B": 4.352, "Chimera-wave": 5.367, "H-2": 5.803, "H-4": 5.478},
    ("bert", Layout(2, 16, 4)): {"GPipe": None, "1F1B": 2.03, "Chimera-wave": 2.442, "H-2": 2.516},
    ("bert", Layout(1, 32, 8)): {"GPipe": None, "1F1B": None, "Chimera-wave": None, "H-2": None},
}
"""Throughputs of the search on 32 GPUs of TACC; None means out of memory."""

WEAK: Mapping[Layout, Mapping[str, float]] = {
    Layout(1, 8, 2): {"GPipe": 1.089, "1F1B": 1.087, "Chimera-wave": 1.343, "H-2": 1.453},
    Layout(2, 8, 2): {"GPipe": 2.182, "1F1B": 2.184, "Chimera-wave": 2.690, "H-2": 2.909},
    Layout(4, 8, 2): {"GPipe": 4.359, "1F1B": 4.352, "Chimera-wave": 5.366, "H-2": 5.803},
}
"""Throughputs of weak scaling of BERT on TACC, batch 2 to 8."""

STRONG: Mapping[Layout, Mapping[str, float | None]] = {
    Layout(1, 8, 4): {"GPipe": None, "1F1B": None, "Chimera-wave": 1.419, "H-2": 1.544},
    Layout(2, 8, 2): {"GPipe": 2.183, "1F1B": 2.184, "Chimera-wave": 2.690, "H-2": 2.908},
    Layout(4, 8, 1): {"GPipe": 3.894, "1F1B": 3.891, "Chimera-wave": 4.793, "H-2": 5.210},
}
"""Throughputs of strong scaling of BERT on TACC, batch 4; None means out of memory."""

VARIANCES: Mapping[str, float] = {"GPipe": 1.33, "1F1B": 16.85, "Chimera-wave": 2.86, "H-2": 1.44}
"""Variance of the peak memory in GB over 32 GPUs."""


def known_bar(bars: Mapping[str, float | None], scheme: str) -> float:
    """Return the bar value of a schedule.

    Raises:
        KeyError: the schedule has no bar, or ran out of memory.
    """
    bar = bars[scheme]
    if bar is None:
        raise KeyError(scheme)
    return bar


def paper_throughputs(place: Place) -> dict[str, float]:
    """Return the paper's throughputs on a cluster and layout, by schedule."""
    bars = dict(zip(("GPipe", "1F1B", "Chimera-wave"), BASELINES[place], strict=True))
    return bars | {f"H-{waves}": bar for waves, bar in zip(WAVES, MEASURED[place], strict=True)}
