"""A calibration profile from the measurements of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from meshwave.engine.costs import estimate
from meshwave.engine.costs.boundary_transfers import is_direct
from meshwave.engine.costs.device_sizes import device_sizes
from meshwave.engine.costs.distinct_actions import distinct_kinds
from meshwave.engine.costs.expert_blocks import expert_layers_per_stage
from meshwave.engine.costs.fabric import Fabric
from meshwave.engine.costs.gradient_buckets import bucket_sizes
from meshwave.engine.costs.line_fits import fit_line
from meshwave.engine.costs.microbatch_prices import microbatch_scale
from meshwave.engine.costs.models.calibrated import CalibratedCost
from meshwave.engine.costs.models.roofline import RooflineCost
from meshwave.engine.costs.network import transfer_messages
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
    measured, found = _seconds_alone(comparison), {}
    for key, rows in by_key.items():
        ratio = float(np.median(measured[rows] / roofline[rows]))
        if ratio > 0:
            found[key] = ratio, float(np.median(roofline[rows]))

    def scaled_profile(factor: float) -> Profile:
        actions = [
            ActionTime(**dict(zip(_KEY, key, strict=True)), seconds=factor * ratio * roofline_s, roofline_s=roofline_s)
            for key, (ratio, roofline_s) in found.items()
        ]
        return bare.model_copy(update={"actions": tuple(actions)})

    return scaled_profile(_step_time_factor(comparison, scaled_profile))


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
    """Yield the fitted line of message times inside a node, and the one between nodes, from known transfers.

    The size of a transfer is that of the messages that pass its busiest link, because the devices of a node share a NIC.
    """
    design, program = comparison.prediction.design, comparison.prediction.program
    rows, costs, cluster = comparison.rows, comparison.prediction.costs, design.cluster
    samples: dict[Pair, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    alone, fabric = _seconds_alone(comparison), Fabric(cluster)

    @cache
    def messages_per_link(source: int, destination: int, tensors: int) -> float:
        messages = transfer_messages(design, source, destination, tensors)
        usage = fabric.usage(messages)
        link = min(each.bandwidth for each in fabric.links_of(usage))
        seconds = float((usage.sizes / fabric.capacities(usage.kinds)).max())
        return max(1.0, seconds * link / float(messages.bytes.max()))

    for row in np.flatnonzero(program.is_send & rows.known & (rows.seconds > 0)).tolist():
        ends = int(program.rank[row]), int(program.peer[row])
        if is_direct(design, *ends):
            source, target = (design.meshes[end] for end in ends)
            near = cluster.node_of(source.devices[0]) == cluster.node_of(target.devices[0])
            pair: Pair = "same_node" if near else "across_nodes"
            size = float(costs.bytes[row]) * messages_per_link(*ends, int(program.tensors[row]))
            samples[pair][size].append(float(alone[row]))
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
    """Return the measured durations without the predicted effects of other actions, ``[rows]`` in seconds.

    These are the delays of shared links, and the time that the two actions of a slot save.
    """
    prediction, second = comparison.prediction, np.flatnonzero(comparison.prediction.program.fused)
    measured, simulated = comparison.rows.seconds.copy(), prediction.simulated_seconds.copy()
    for column in (measured, simulated):
        column[second] += column[second - 1]
        column[second - 1] = column[second]
    alone = _predicted_alone(prediction)
    return measured * np.where(alone > 0, alone / np.maximum(simulated, 1e-300), 1.0)


def _predicted_alone(prediction: Prediction) -> Floats:
    """Return the predicted durations without delays of shared links and without overlap in slots, ``[rows]``."""
    return prediction.costs.seconds + prediction.costs.overlap_saved


class _UnstoredProfile(CalibratedCost):
    """Calibrated costs of a profile that is not stored."""

    _found: Profile = PrivateAttr()

    def load(self) -> Profile:
        return self._found


def _predicted_makespan(prediction: Prediction, profile: Profile) -> float:
    """Return the step time that a profile predicts for the executed design, in seconds."""
    cost = _UnstoredProfile(profile="run", transfer_model=prediction.design.cost.transfer_model)
    cost._found = profile
    pipeline = prediction.design.pipeline.model_copy(update={"stages": tuple(prediction.costs.layers)})
    design = prediction.design.model_copy(update={"cost": cost, "pipeline": pipeline})
    costs = estimate(design, prediction.program)
    return float(costs.simulate(prediction.program).makespan)


def _step_time_factor(comparison: Comparison, profile: Callable[[float], Profile]) -> float:
    """Return the factor for durations at which the ``profile`` of that factor predicts the measured step time.

    The step time is almost a convex, piecewise linear function of the factor, so a few Newton steps suffice.
    """
    prediction, measured_s = comparison.prediction, comparison.iteration.measured_s
    factor, difference = 1.0, 1e-3
    for _ in range(NEWTON_STEPS):
        here = _predicted_makespan(prediction, profile(factor))
        longer = _predicted_makespan(prediction, profile(factor * (1 + difference)))
        slope = (longer - here) / (factor * difference)
        factor = max(factor + (measured_s - here) / slope, factor * LEAST_FACTOR) if slope > 0 else factor
    return factor


def _profiled_machine(comparison: Comparison, run: str) -> Machine:
    design, nccl = comparison.prediction.design, comparison.recording.has_arrival_times
    ranks = sum(len(mesh.devices) for mesh in design.meshes)
    per_node = min(ranks, design.cluster.devices_per_node)
    return Machine(ranks=ranks, ranks_per_node=per_node, backend="nccl" if nccl else "gloo", run=run)
