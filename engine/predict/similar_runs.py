"""Evidence for a prediction: constants of the device, and prediction errors of similar published runs.

The errors come from ``meshwave bench published``, which writes the file that this module reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from math import log
from typing import Any, NamedTuple

import numpy as np

from meshwave.engine.costs import pricing_model
from meshwave.engine.costs.model_flops import parameter_counts
from meshwave.engine.document import Design
from meshwave.engine.document.devices import find_device_kind
from meshwave.engine.units import percent_change

FILE = "published_errors.json"
LISTED_RUNS = 3
"""Number of similar runs that the evidence lists."""
INTERVAL_RUNS = 12
"""Number of most similar runs whose errors determine the interval."""
MIN_INTERVAL_RUNS = 4
"""Minimum number of similar runs for an interval."""
INTERVAL_SHARE = 0.8
"""Fraction of the similar runs that lie inside the interval."""


@dataclass(frozen=True, kw_only=True)
class SimilarRun:
    """Published run and the relative error of its predicted step time."""

    id: str
    model: str
    device: str
    devices: int
    arch: str
    parameters: float
    ranks: int
    linear_precision: str
    published_s: float
    error: float
    """Predicted divided by published step time, minus one."""

    @property
    def description(self) -> str:
        """Model, devices and error of the run, such as "llama3-8b, 8 x H100, predicted +3.0%"."""
        return f"{self.model}, {self.devices} x {self.device}, predicted {percent_change(self.error)}"


class Evidence(NamedTuple):
    """Constants used by a prediction, and prediction errors of similar published runs."""

    device: str
    constants: Mapping[str, float]
    origin: Mapping[str, str]
    runs: Sequence[SimilarRun]
    interval: tuple[float, float] | None
    """Lowest and highest ratio of true to predicted step time; None if there are too few similar runs."""

    def as_data(self, makespan_s: float) -> dict[str, Any]:
        """Return the evidence as JSON data; ``makespan_s`` converts the interval to seconds."""
        interval = None if self.interval is None else [makespan_s * end for end in self.interval]
        return {
            "device": self.device,
            "constants": dict(self.constants),
            "origin": dict(self.origin),
            "like_runs": [{**asdict(run), "words": run.description} for run in self.runs],
            "interval_s": interval,
        }


@cache
def predicted_published_runs() -> tuple[SimilarRun, ...]:
    """Return all published runs that can be predicted."""
    file = resources.files(__package__) / FILE
    return tuple(SimilarRun(**row) for row in json.loads(file.read_text()))


def find_evidence(design: Design) -> Evidence | None:
    """Return the evidence for the prediction of a design; None if its device or cost model has no constants."""
    kind = find_device_kind(design.cluster.device.name)
    if kind is None or not pricing_model(design).uses_device_constants:
        return None
    arch = "moe" if design.model.moe else "dense"
    alike = [run for run in predicted_published_runs() if (run.device, run.arch) == (kind.name, arch)]
    runs = sorted(alike, key=lambda run: _design_distance(design, run))[:INTERVAL_RUNS]
    return Evidence(kind.name, kind.constants.model_dump(), kind.origin, runs[:LISTED_RUNS], _ratio_interval(runs))


def _design_distance(design: Design, run: SimilarRun) -> float:
    """Return the dissimilarity of a design and a run in parameters, devices, ranks and number format."""
    devices = sum(len(mesh.devices) for mesh in design.meshes)
    return (
        abs(log(run.parameters / parameter_counts(design.model)[0]))
        + abs(log(run.devices / devices)) / 2
        + abs(log(run.ranks / design.ranks)) / 2
        + (run.linear_precision != design.training.linear_precision)
    )


def _ratio_interval(runs: Sequence[SimilarRun]) -> tuple[float, float] | None:
    if len(runs) < MIN_INTERVAL_RUNS:
        return None
    ratios = [1 / (1 + run.error) for run in runs]
    low, high = np.quantile(ratios, [(1 - INTERVAL_SHARE) / 2, (1 + INTERVAL_SHARE) / 2])
    return float(low), float(high)
