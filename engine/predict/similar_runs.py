"""Evidence for a prediction: constants of the device, and prediction errors of similar published runs.

``make published`` writes the files of errors that this module reads. The interval comes from errors of runs whose source was
left out of the fit of the constants.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from math import exp, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import pricing_model
from meshwave.engine.costs.model_flops import parameter_counts
from meshwave.engine.document import Design
from meshwave.engine.document.devices import find_device_kind
from meshwave.engine.units import percent_change

Floats = NDArray[np.float64]
FILE = "published_errors.json"
LEFT_OUT_FILE = "left_out_errors.json"
ERROR_DIGITS = 4
"""Number of decimals of a recorded error."""
LISTED_RUNS = 3
"""Number of similar runs that the evidence lists."""
INTERVAL_RUNS = 3
"""Number of most similar runs of each source whose errors determine the interval.

Runs of one source have similar errors, so that each source counts once.
"""
MIN_INTERVAL_SOURCES = 3
"""Minimum number of sources for an interval."""
INTERVAL_SHARE = 0.8
"""Fraction of the errors that lie inside the interval."""


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
    def source(self) -> str:
        """Name of the source: the first part of the id."""
        return self.id.partition("-")[0]

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
    """Lowest and highest ratio of true to predicted step time; None if there are too few sources of similar runs."""

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


@cache
def left_out_errors() -> Mapping[str, float]:
    """Return the errors of published runs with constants that were fitted without their source, by id."""
    found: dict[str, float] = json.loads((resources.files(__package__) / LEFT_OUT_FILE).read_text())
    return found


class Traits(NamedTuple):
    """Properties by which designs and runs are compared."""

    device: str
    arch: str
    parameters: float
    devices: int
    ranks: int
    linear_precision: str


def find_evidence(design: Design) -> Evidence | None:
    """Return the evidence for the prediction of a design; None if its device or cost model has no constants."""
    kind = find_device_kind(design.cluster.device.name)
    if kind is None or not pricing_model(design).uses_device_constants:
        return None
    traits = Traits(
        kind.name,
        "moe" if design.model.moe else "dense",
        parameter_counts(design.model)[0],
        sum(len(mesh.devices) for mesh in design.meshes),
        design.ranks,
        design.training.linear_precision,
    )
    known = predicted_published_runs()
    alike = [run for run in known if (run.device, run.arch) == (traits.device, traits.arch)]
    listed = sorted(alike, key=lambda run: _distance(traits, run))[:LISTED_RUNS]
    return Evidence(kind.name, kind.constants.model_dump(), kind.origin, listed, find_interval(traits, known))


def find_interval(traits: Traits, known: Iterable[SimilarRun]) -> tuple[float, float] | None:
    """Return the lowest and highest likely ratio of true to predicted step time; None if there are too few sources.

    It holds :data:`INTERVAL_SHARE` of the errors of similar runs on any device, each predicted with its source left out
    of the fit, and is symmetric in the logarithm.
    """
    errors, by_source = left_out_errors(), defaultdict(list)
    for run in known:
        if run.arch == traits.arch and run.id in errors:
            by_source[run.source].append(run)
    if len(by_source) < MIN_INTERVAL_SOURCES:
        return None
    sizes, weights = [], []
    for runs in by_source.values():
        near = sorted(runs, key=lambda run: _distance(traits, run))[:INTERVAL_RUNS]
        sizes += [abs(log(1 + errors[run.id])) for run in near]
        weights += [1 / len(near)] * len(near)
    size = _weighted_quantile(np.array(sizes), np.array(weights), INTERVAL_SHARE)
    return exp(-size), exp(size)


def _distance(traits: Traits, run: SimilarRun) -> float:
    """Return the dissimilarity of a design and a run in device, parameters, devices, ranks and number format."""
    return (
        abs(log(run.parameters / traits.parameters))
        + abs(log(run.devices / traits.devices)) / 2
        + abs(log(run.ranks / traits.ranks)) / 2
        + (run.linear_precision != traits.linear_precision)
        + (run.device != traits.device)
    )


def _weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    return float(np.interp(share, (np.cumsum(weights) - weights / 2) / weights.sum(), values))
