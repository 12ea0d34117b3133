"""What a run measured, as a profile that prices designs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.boundary_transfers import is_direct
from meshwave.engine.costs.device_sizes import device_sizes
from meshwave.engine.costs.distinct_actions import kinds
from meshwave.engine.costs.expert_blocks import expert_layers_per_stage
from meshwave.engine.costs.line_fits import fit_line
from meshwave.engine.costs.models.roofline import RooflineCost
from meshwave.engine.costs.profile import ActionTime, LinkLine, Machine, Pair, Profile
from meshwave.engine.costs.profile_prices import measured_design as measured_cluster
from meshwave.engine.errors import InputError
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.runs.accuracy.comparison import Comparison

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NEWTON = 3
LEAST_SPREAD = 0.1


def run_profile(comparison: Comparison, run: str = "") -> Profile:
    """What a run measured, as costs for other designs, and for this one.

    Each kind of action has its median; the time between actions is spread over them, so that the design that ran is
    predicted to take what it took. Messages are a line for each kind of link of which a transfer was waited for.

    Raises:
        InputError: it was a rehearsal, which measures nothing but the prediction that it waits.
    """
    prediction, recording = comparison.prediction, comparison.recording
    if recording.source == "rehearsed":
        raise InputError("a rehearsal waits what was predicted, so it is no measurement of computing; run the design")
    design, program = prediction.design, prediction.program
    links = [*_lines(comparison)]
    bare = Profile(machine=_machine(comparison, run), reference=design.cluster.device, links=tuple(links))
    roofline = _roofline(prediction, bare)
    by_key: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in np.flatnonzero(_is_timed(program) & (roofline > 0)).tolist():
        by_key[_key(prediction, row)].append(row)
    measured_design, predicted = comparison.rows.seconds, roofline.copy()
    found = {}
    for key, rows in by_key.items():
        ratio = float(np.median(measured_design[rows] / roofline[rows]))
        if ratio > 0:
            found[key] = float(np.median(roofline[rows]))
            predicted[rows] = ratio * roofline[rows]
    spread = _spread(
        comparison, predicted, np.isin(np.arange(len(program)), [row for rows in by_key.values() for row in rows])
    )
    actions = [
        ActionTime(
            **dict(zip(_KEY, key, strict=True)),
            seconds=spread * float(np.median(predicted[by_key[key]])),
            roofline_s=of_roof,
        )
        for key, of_roof in found.items()
    ]
    return bare.model_copy(update={"actions": tuple(actions)})


_KEY = ("op", "layers", "experts", "first", "last", "tp")


def _is_timed(program: Program) -> Bools:
    timed: Bools = program.is_compute | np.isin(program.op, (Op.REDUCE_GRAD, Op.STEP))
    return timed


def _key(prediction: Prediction, row: int) -> tuple[Any, ...]:
    """What a profile knows of an action: see :class:`meshwave.engine.costs.profile.ActionTime`."""
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
        design.meshes[rank].tp,
    )


def _roofline(prediction: Prediction, profile: Profile) -> Floats:
    """[rows] seconds by roofline, on links that are as fast as the profile says."""
    roofline = RooflineCost()
    priced = prediction.design.model_copy(update={"cost": roofline})
    program, layers = prediction.program, prediction.costs.layers
    distinct, held = kinds(program), device_sizes(priced, program, layers)
    return roofline.seconds(measured_cluster(priced, profile), program, distinct, layers, held)[distinct.of_row]


def _lines(comparison: Comparison) -> Iterator[LinkLine]:
    """A line for messages inside a node, and one for those across; through what somebody waited for."""
    design, program = comparison.prediction.design, comparison.prediction.program
    rows, costs, cluster = comparison.rows, comparison.prediction.costs, design.cluster
    samples: dict[Pair, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    played = np.maximum(comparison.prediction.simulated_seconds, 1e-300)
    alone = rows.seconds * np.where(costs.seconds > 0, costs.seconds / played, 1.0)  # without what sharing should add
    for row in np.flatnonzero(program.is_send & rows.known & (rows.seconds > 0)).tolist():
        source, target = (design.meshes[int(each[row])] for each in (program.rank, program.peer))
        if is_direct(source, target):
            near = cluster.node_of(source.devices[0]) == cluster.node_of(target.devices[0])
            pair: Pair = "same_node" if near else "across_nodes"
            samples[pair][float(costs.bytes[row])].append(float(alone[row]))
    for pair, by_size in samples.items():
        points = tuple((size, float(np.median(took))) for size, took in sorted(by_size.items()))
        drawn = cluster.intra_node if pair == "same_node" else cluster.inter_node
        if len(points) > 1:
            yield LinkLine(pair=pair, samples=points, **fit_line(points)._asdict())
        else:  # one size alone does not tell what a message costs at all: at most what is drawn
            ((size, took),) = points
            alpha = min(drawn.latency_s, took)
            yield LinkLine(pair=pair, alpha_s=alpha, beta_s_per_byte=(took - alpha) / size, r2=1.0, samples=points)


def _spread(comparison: Comparison, seconds: Floats, rows: Bools) -> float:
    """How many times longer these actions have to be for the step to take what it took; the step is a convex line of
    that, so that a few steps of Newton's find it."""
    prediction, took = comparison.prediction, comparison.iteration.measured_s

    def makespan(times: float) -> float:
        stretched = np.where(rows, times * seconds, seconds)
        return prediction.costs.play(prediction.program, stretched).makespan

    times, slope_at = 1.0, 1e-3
    for _ in range(NEWTON):
        here = makespan(times)
        slope = (makespan(times * (1 + slope_at)) - here) / (times * slope_at)
        times = max(times + (took - here) / slope, times * LEAST_SPREAD) if slope > 0 else times
    return times


def _machine(comparison: Comparison, run: str) -> Machine:
    design, nccl = comparison.prediction.design, comparison.recording.knows_arrivals
    ranks = sum(len(mesh.devices) for mesh in design.meshes)
    per_node = min(ranks, design.cluster.devices_per_node)
    return Machine(ranks=ranks, ranks_per_node=per_node, backend="nccl" if nccl else "gloo", run=run)
