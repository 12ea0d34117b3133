"""Simulations with slow devices, slow links and jitter, and the resulting step time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import Refusal
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import Op
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.units import duration, percent

SAMPLES = 32
"""Number of simulations with jitter, whose mean is the result."""
MOST_FACTOR, MOST_JITTER = 1e3, 1.0
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Slowdown:
    """Parts of a cluster that are slower than their data sheets."""

    devices: Mapping[int, float] = field(default_factory=dict)
    """Factor by which computations on a device take longer. All devices of a mesh wait for the slowest one."""
    links: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Factor by which messages between two meshes take longer, in both directions."""
    jitter: float = 0.0
    """Coefficient of variation of the duration of each computation, with unchanged mean."""


class SlowStep(NamedTuple):
    """Step time of a design with slow parts."""

    makespan_s: float
    """Step time in seconds; with jitter, the mean."""
    p95_s: float
    """Step time in seconds; with jitter, the 95th percentile."""
    loss: float
    """Fraction of the throughput that is lost."""

    def as_data(self) -> dict[str, Any]:
        """Return the step time as JSON data."""
        return self._asdict()

    def description(self, unit: str) -> str:
        """Return the step time and the lost throughput as a phrase; ``unit`` is that of the costs."""
        times = duration(self.makespan_s, unit)
        if self.p95_s != self.makespan_s:  # with jitter
            times = f"{times}, 95th percentile {duration(self.p95_s, unit)}"
        return f"{times}: {percent(self.loss)} of the throughput is lost"


def slow_step(prediction: Prediction, slowdown: Slowdown, samples: int = SAMPLES, seed: int = 0) -> SlowStep:
    """Simulate a design with slow devices, slow links and jitter.

    Raises:
        Refusal: a device or a mesh does not exist, or a value is out of range.
    """
    times = [timeline.makespan for timeline in _slow_timelines(prediction, slowdown, samples, seed)]
    mean, before = float(np.mean(times)), prediction.timeline.makespan
    return SlowStep(mean, float(np.quantile(times, 0.95)), 1 - before / mean if mean else 0.0)


def slow_timeline(prediction: Prediction, slowdown: Slowdown, seed: int = 0) -> Timeline:
    """Return the timeline of a step with a slowdown; with jitter, that of one sample.

    Raises:
        Refusal: a device or a mesh does not exist, or a number is out of range.
    """
    timeline = next(_slow_timelines(prediction, slowdown, 1, seed))
    return replace(timeline, meshes=prediction.timeline.meshes)


def _slow_timelines(prediction: Prediction, slowdown: Slowdown, samples: int, seed: int) -> Iterator[Timeline]:
    program, factors = prediction.program, _slowdown_factors(prediction, slowdown)
    costs = prediction.costs.scale_latencies(program, factors)
    chance = np.random.default_rng(seed)
    variation = np.sqrt(np.log1p(slowdown.jitter**2))
    for _ in range(samples if slowdown.jitter else 1):
        drawn = chance.lognormal(-(variation**2) / 2, variation, len(program)) if slowdown.jitter else 1.0
        yield costs.simulate(program, costs.seconds * factors * np.where(program.is_compute, drawn, 1.0))


def _slowdown_factors(prediction: Prediction, slowdown: Slowdown) -> Floats:
    """Return the slowdown factor of each row, ``[rows]``."""
    design, program = prediction.design, prediction.program
    if not 0 <= slowdown.jitter <= MOST_JITTER:
        raise Refusal("jitter_out_of_range", {"jitter": slowdown.jitter, "most": MOST_JITTER})
    factors, names = np.ones(len(program)), [mesh.name for mesh in design.meshes]
    by_rank = np.ones(program.ranks)
    for device, factor in slowdown.devices.items():
        ranks = [rank for rank, mesh in enumerate(design.meshes) if device in mesh.devices]
        if not ranks:
            raise Refusal("unused_slow_device", {"device": device})
        by_rank[ranks] = np.maximum(by_rank[ranks], _check_factor(factor))
    computes = program.is_compute | (program.op == Op.STEP)
    factors[computes] = by_rank[program.rank[computes]]
    for pair, factor in slowdown.links.items():
        if unknown := [name for name in pair if name not in names]:
            raise Refusal("unknown_slow_link", {"mesh": unknown[0], "known": names})
        ends = {names.index(pair[0]), names.index(pair[1])}
        between = [
            {rank, peer} == ends for rank, peer in zip(program.rank.tolist(), program.peer.tolist(), strict=True)
        ]
        factors[program.is_send & np.array(between)] = _check_factor(factor)
    return factors


def _check_factor(factor: float) -> float:
    if not 0 < factor <= MOST_FACTOR:
        raise Refusal("slow_factor_out_of_range", {"factor": factor, "most": MOST_FACTOR})
    return factor
