"""A calibration profile from the measurements of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.boundary_transfers import is_direct
from meshwave.engine.costs.device_sizes import device_sizes
from meshwave.engine.costs.distinct_actions import distinct_kinds
from meshwave.engine.costs.expert_blocks import expert_layers_per_stage
from meshwave.engine.costs.gradient_buckets import bucket_sizes
from meshwave.engine.costs.line_fits import fit_line
from meshwave.engine.costs.microbatch_prices import microbatch_scale
from meshwave.engine.costs.models.roofline import RooflineCost
from meshwave.engine.costs.profile import ActionTime, LinkLine, Machine, Pair, Profile
from meshwave.engine.costs.profile_prices import measured_design
from meshwave.engine.document import Design
from meshwave.engine.findings import Refusal
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.runs.accuracy.comparison import Comparison

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NEWTON_STEPS = 3
LEAST_FACTOR = 0.1
"""Smallest factor by which one Newton step may change the durations."""


def run_profile(comparison: Comparison, run: str = "") -> Profile:
    """Return a calibration profile with the measurements of a run, which can price this and other designs.

    Each kind of action gets its median duration. The time between actions is distributed over the actions, so that the
    predicted step time of the executed design equals its measured step time. Each kind of link with known transfers
    gets latency and bandwidth.

    Raises:
        InputError: the run was a dry run, which measures no computation.
    """
    prediction, recording = comparison.prediction, comparison.recording
    if recording.source == "rehearsed":
        raise Refusal("profile_of_dry_run")
    design, program = prediction.design, prediction.program
    links = [*_link_lines(comparison)]
    bare = Profile(machine=_profiled_machine(comparison, run), reference=design.cluster.device, links=tuple(links))
    roofline = _roofline_seconds(prediction, bare)
    by_key: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in np.flatnonzero(_timed_rows(program) & (roofline > 0)).tolist():
        by_key[_profile_key(prediction, row)].append(row)
    measured, predicted = _seconds_alone(comparison), roofline.copy()
    found = {}
    for key, rows in by_key.items():
        ratio = float(np.median(measured[rows] / roofline[rows]))
        if ratio > 0:
            found[key] = float(np.median(roofline[rows]))
            predicted[rows] = ratio * roofline[rows]
    priced = np.isin(np.arange(len(program)), [row for rows in by_key.values() for row in rows])
    factor = _step_time_factor(comparison, predicted, priced)
    actions = [
        ActionTime(
            **dict(zip(_KEY, key, strict=True)),
            seconds=factor * float(np.median(predicted[by_key[key]])),
            roofline_s=roofline_s,
        )
        for key, roofline_s in found.items()
    ]
    return bare.model_copy(update={"actions": tuple(actions)})


_KEY = ("op", "layers", "experts", "first", "last", "recomputed", "tp")


def _timed_rows(program: Program) -> Bools:
    timed: Bools = program.is_compute | np.isin(program.op, (Op.REDUCE_GRAD, Op.STEP))
    return timed


def _profile_key(prediction: Prediction, row: int) -> tuple[Any, ...]:
    """Return the key of an action in a profile; see :class:`meshwave.engine.costs.profile.ActionTime`."""
    design, program, layers = prediction.design, prediction.program, prediction.costs.layers
    op, rank, stage = Op(int(program.op[row])), int(program.rank[row]), int(program.stage[row])
    stages = program.stages_of(rank) if op == Op.STEP else [stage]
    experts = expert_layers_per_stage(design, layers)
    return (
        op.name,
        sum(layers[each] for each in stages),
        sum(experts[each] for each in stages),
        0 in stages,
        program.stages - 1 in stages,
        op in (Op.B, Op.I) and design.pipeline.recomputes(stage),
        design.meshes[rank].tp,
    )


def _roofline_seconds(prediction: Prediction, profile: Profile) -> Floats:
    """Return the roofline seconds of each action on the links of the profile, ``[rows]``."""
    roofline = RooflineCost()
    priced = measured_design(prediction.design.model_copy(update={"cost": roofline}), profile)
    program, layers = prediction.program, prediction.costs.layers
    distinct, held = distinct_kinds(program), device_sizes(priced, program, layers)
    held = held._replace(buckets=bucket_sizes(priced, layers, held))

    def price(other: Design) -> Floats:
        return roofline.seconds(other, program, distinct, layers, held)

    alone = price(priced)
    return alone[distinct.of_row] * microbatch_scale(priced, program, alone, price)


def _link_lines(comparison: Comparison) -> Iterator[LinkLine]:
    """Yield the fitted line of message times inside a node, and the one between nodes, from known transfers."""
    design, program = comparison.prediction.design, comparison.prediction.program
    rows, costs, cluster = comparison.rows, comparison.prediction.costs, design.cluster
    samples: dict[Pair, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    alone = _seconds_alone(comparison)
    for row in np.flatnonzero(program.is_send & rows.known & (rows.seconds > 0)).tolist():
        ends = int(program.rank[row]), int(program.peer[row])
        if is_direct(design, *ends):
            source, target = (design.meshes[end] for end in ends)
            near = cluster.node_of(source.devices[0]) == cluster.node_of(target.devices[0])
            pair: Pair = "same_node" if near else "across_nodes"
            samples[pair][float(costs.bytes[row])].append(float(alone[row]))
    for pair, by_size in samples.items():
        points = tuple((size, float(np.median(took))) for size, took in sorted(by_size.items()))
        drawn = cluster.intra_node if pair == "same_node" else cluster.inter_node
        if len(points) > 1:
            yield LinkLine(pair=pair, samples=points, **fit_line(points)._asdict())
        else:  # a single size does not determine alpha: use at most the latency of the design
            ((size, took),) = points
            alpha = min(drawn.latency_s, took)
            yield LinkLine(pair=pair, alpha_s=alpha, beta_s_per_byte=(took - alpha) / size, r2=1.0, samples=points)


def _seconds_alone(comparison: Comparison) -> Floats:
    """Return the measured durations without the predicted delays of shared links, ``[rows]`` in seconds."""
    costs = comparison.prediction.costs.seconds
    simulated = np.maximum(comparison.prediction.simulated_seconds, 1e-300)
    return comparison.rows.seconds * np.where(costs > 0, costs / simulated, 1.0)


def _step_time_factor(comparison: Comparison, seconds: Floats, rows: Bools) -> float:
    """Return the factor for the durations of ``rows`` at which the simulated step time equals the measured one.

    The step time is a convex, piecewise linear function of the factor, so a few Newton steps suffice.
    """
    prediction, measured_s = comparison.prediction, comparison.iteration.measured_s

    def makespan(factor: float) -> float:
        scaled = np.where(rows, factor * seconds, seconds)
        return prediction.costs.simulate(prediction.program, scaled).makespan

    factor, difference = 1.0, 1e-3
    for _ in range(NEWTON_STEPS):
        here = makespan(factor)
        slope = (makespan(factor * (1 + difference)) - here) / (factor * difference)
        factor = max(factor + (measured_s - here) / slope, factor * LEAST_FACTOR) if slope > 0 else factor
    return factor


def _profiled_machine(comparison: Comparison, run: str) -> Machine:
    design, nccl = comparison.prediction.design, comparison.recording.has_arrival_times
    ranks = sum(len(mesh.devices) for mesh in design.meshes)
    per_node = min(ranks, design.cluster.devices_per_node)
    return Machine(ranks=ranks, ranks_per_node=per_node, backend="nccl" if nccl else "gloo", run=run)
