"""Predicted and measured times inside blocks with experts: steps of the expert layers, and waits for messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.predict.block_timeline import (
    COMPUTE,
    DENSE_LAYERS,
    BlockTimeline,
    predict_block,
    representative_places,
)
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program
from meshwave.engine.runs.accuracy.measured_block import measured_block_timeline
from meshwave.engine.runs.recording import Recording, read_layer_steps

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RecordedLayers:
    """Predicted and measured timeline of the layers inside one action of a rank, on all devices of the block."""

    rank: int
    action: Action
    predicted: BlockTimeline
    measured: BlockTimeline


class BlockWaits(NamedTuple):
    """Seconds for which each computation waits for messages inside it, ``[rows]``; 0 if unknown."""

    predicted: Floats
    measured: Floats


def compare_recorded_blocks(prediction: Prediction, recording: Recording) -> Iterator[RecordedLayers]:
    """Yield the recorded layers inside one computation of each kind and stage, for each mesh with experts."""
    design, program, first = prediction.design, prediction.program, 0
    for rank, mesh in enumerate(design.meshes if design.model.moe else ()):
        processes = [first + place for place in representative_places(design, rank)]
        first += len(mesh.devices)
        for action in _first_computations(program, rank):
            try:
                found = read_layer_steps(recording.folder, processes, action)
                if not any(len(rows) for rows in found.steps):
                    continue
                predicted = predict_block(design, rank, action.stage, action.op)
                measured = measured_block_timeline(design, rank, action.op, found)
            except MeshwaveError:
                return  # no layers were recorded, or costs in units do not predict them
            yield RecordedLayers(rank, action._replace(fused=0), predicted, measured)


def _first_computations(program: Program, rank: int) -> Iterable[Action]:
    """Return the first computation of each kind and stage of a rank that does not share its slot."""
    found: dict[tuple[Op, int], Action] = {}
    actions = program.actions(rank)
    for action, after in zip(actions, [*actions[1:], None], strict=True):
        if action.op <= Op.W and not action.fused and not (after and after.fused):
            found.setdefault((action.op, action.stage), action)
    return found.values()


def step_seconds(found: BlockTimeline) -> dict[str, float]:
    """Return the seconds of each step of each expert layer, and of dense computation, averaged over the devices."""
    seconds: dict[str, float] = defaultdict(float)
    durations = found.timeline.end - found.timeline.start
    for label, step, each in zip(found.labels, found.steps, durations.tolist(), strict=True):
        seconds[label.partition(", chunk")[0] if step is not None else DENSE_LAYERS] += each / len(found.block)
    return seconds


def block_waits(program: Program, predicted: Floats, measured: Floats, found: Sequence[RecordedLayers]) -> BlockWaits:
    """Return the waits for messages inside all computations, extrapolated from the recorded computations.

    ``predicted`` and ``measured`` are durations in seconds, ``[rows]``. All actions of the same kind and stage of a
    rank are assumed to wait for the same share of their duration.
    """
    shares = np.zeros((2, len(program)))
    for each in found:
        op, stage = each.action.op, each.action.stage
        rows = (program.op == op) & (program.stage == stage) & (program.rank == each.rank)
        shares[:, rows] = [[_wait_share(each.predicted)], [_wait_share(each.measured)]]
    return BlockWaits(*(shares * (predicted, measured)))


def _wait_share(found: BlockTimeline) -> float:
    """Return the fraction of its time in which a device of the block computes nothing, averaged over the devices.

    It is not the sum of the message times, because messages overlap with each other and with computations.
    """
    lanes = np.array(found.lanes)[found.timeline.rank]  # [spans] index of the device and lane
    start, end = found.timeline.start, found.timeline.end
    shares = []
    for device in np.unique(lanes[:, 0]).tolist():
        own = lanes[:, 0] == device
        computes = own & (lanes[:, 1] == COMPUTE)
        whole = float(end[own].max() - start[own].min())
        shares.append(1 - float((end - start)[computes].sum()) / whole if whole else 0.0)
    return max(0.0, float(np.mean(shares)))
