"""Predicted timeline inside a pipeline block: its layers one after the other, expert layers step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.cost_model import layers_per_stage
from meshwave.engine.costs.device_sizes import device_workload
from meshwave.engine.costs.expert_blocks import expert_block, split_backward
from meshwave.engine.costs.kernels import recomputes_experts
from meshwave.engine.costs.models.roofline import mesh_prices, operator_costs
from meshwave.engine.costs.stage_parts import StagePart, stage_parts
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import expert_layer, price_expert_layer
from meshwave.engine.experts import LAYER_OPS, CostedStep, LayerTimeline, Price, StepOp, simulate_layer
from meshwave.engine.findings import Refusal
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.program.timeline import Source, Timeline

Floats = NDArray[np.float64]
LANES = ("compute", "inside the node", "between nodes")
Lane = tuple[int, int]
"""Number of a device within the block, and index into :data:`LANES`."""
COMPUTE, INTRA, INTER = range(3)
DENSE_LAYERS, WHOLE_BLOCK = "dense layers", "whole block"


@dataclass(frozen=True, eq=False)
class BlockTimeline:
    """Timeline inside a pipeline block, on the devices that compute it together."""

    timeline: Timeline  # its ranks are the used lanes
    labels: tuple[str, ...]  # [spans]
    steps: tuple[StepOp | None, ...]  # [spans] step of an expert layer; None for dense layers
    sent: Floats  # [spans] bytes that leave the device
    lanes: tuple[Lane, ...]
    block: tuple[int, ...]  # device numbers in the cluster

    @property
    def devices(self) -> tuple[int, ...]:
        """Device of each lane, ``[lanes]``."""
        return tuple(self.block[device] for device, _ in self.lanes)

    def add_lanes(self, lanes: tuple[Lane, ...]) -> BlockTimeline:
        """Return the timeline with additional, empty lanes."""
        place = np.array([lanes.index(lane) for lane in self.lanes], np.int32)
        timeline = replace(self.timeline, meshes=_lane_names(self.block, lanes), rank=place[self.timeline.rank])
        return replace(self, timeline=timeline, lanes=lanes)


def align_lanes(one: BlockTimeline, other: BlockTimeline) -> tuple[BlockTimeline, BlockTimeline]:
    """Return two timelines with the lanes of both, so that they can be overlaid."""
    lanes = tuple(sorted({*one.lanes, *other.lanes}))
    return one.add_lanes(lanes), other.add_lanes(lanes)


def predict_block(design: Design, rank: int, stage: int, op: Op) -> BlockTimeline:
    """Predict the timeline inside a forward or backward (``F``, ``B``, ``I`` or ``W``) of a stage on a mesh.

    Each dense part (attention, feed-forward) is one span that includes its reductions; an expert layer is simulated
    (:func:`meshwave.engine.experts.simulate_layer`). Devices with identical work are represented by one device. The last span
    ends at the end of the pipeline block: collectives of sharded state that computation does not hide, and copies of
    offloaded activations, are spans after the layers. If the costs of the stage are given or measured, all spans are
    scaled to them.

    Raises:
        InputError: the design has unit costs, which do not describe the inside of a block.
    """
    if not design.cost.is_in_seconds:
        raise Refusal("block_of_unit_costs")
    return _BlockPrediction(design, rank, op).predict(stage)


def representative_places(design: Design, rank: int) -> range:
    """Return the positions in a mesh of devices that represent all devices with identical work.

    With experts these are the devices of one expert block (the priced one if there are several), otherwise one
    tensor-parallel group.
    """
    mesh = design.meshes[rank]
    if design.model.moe is None:
        return range(mesh.tp)
    layer = expert_layer(design, mesh)
    firsts = range(0, len(mesh.devices), layer.devices)
    nodes = [
        tuple(map(design.cluster.node_of, mesh.ordered_devices[first : first + layer.devices])) for first in firsts
    ]
    first = firsts[nodes.index(layer.nodes or nodes[0])]
    return range(first, first + layer.devices)


class BlockSpan(NamedTuple):
    """Span of a :class:`BlockTimeline`."""

    device: int  # device number within the block
    lane: int  # index into LANES
    start: float  # seconds
    end: float  # seconds
    label: str
    step: StepOp | None
    sent: float  # bytes
    cause: int  # index of the previous span; -1 for none


class BlockTimelineBuilder:
    """Builder of a :class:`BlockTimeline` from spans that are added in any lane order."""

    def __init__(self, design: Design, rank: int, op: Op) -> None:
        mesh = design.meshes[rank]
        self.block = tuple(mesh.ordered_devices[place] for place in representative_places(design, rank))
        self._op = op
        self._rows: list[BlockSpan] = []
        self._last = [-1] * len(self.block)

    def __len__(self) -> int:
        return len(self._rows)

    def last_span(self, device: int) -> int:
        """Return the index of the latest span of a device; -1 if it has none."""
        return self._last[device]

    def add(self, span: BlockSpan) -> None:
        """Append a span; the spans of a device must be added in order of time."""
        self._last[span.device] = len(self._rows)
        self._rows.append(span)

    def build(self, source: Source, scale: float = 1.0) -> BlockTimeline:
        """Return the timeline of all spans, sorted by lane and start, with times multiplied by ``scale``."""
        lanes = tuple(sorted({(row.device, row.lane) for row in self._rows}))
        number = {lane: place for place, lane in enumerate(lanes)}
        order = sorted(range(len(self)), key=lambda n: (number[self._rows[n][:2]], self._rows[n].start))
        place = {row: at for at, row in enumerate(order)}
        rows = [self._rows[n] for n in order]
        n = len(rows)
        timeline = Timeline(
            source=source,
            digest="",
            meshes=_lane_names(self.block, lanes),
            rank=np.array([number[row[:2]] for row in rows], np.int32),
            peer=np.full(n, -1, np.int32),
            op=np.full(n, int(self._op), np.int8),
            stage=np.zeros(n, np.int32),
            microbatch=np.full(n, -1, np.int32),
            fused=np.zeros(n, np.bool_),
            start=scale * np.array([row.start for row in rows]),
            end=scale * np.array([row.end for row in rows]),
            cause=np.array([place[row.cause] if row.cause >= 0 else -1 for row in rows], np.int64),
        )
        labels, steps, sent = ([getattr(row, column) for row in rows] for column in ("label", "step", "sent"))
        return BlockTimeline(timeline, tuple(labels), tuple(steps), np.array(sent), lanes, self.block)


def _lane_names(block: tuple[int, ...], lanes: tuple[Lane, ...]) -> tuple[str, ...]:
    return tuple(f"{block[device]} {LANES[lane]}" for device, lane in lanes)


def step_label(step: StepOp, layer: int, chunk: int) -> str:
    """Return the label of a step of an expert layer, such as ``dispatch 3, chunk 0``."""
    return f"{step.value} {layer}" + (f", chunk {chunk}" if chunk >= 0 else "")


class _BlockPrediction:
    def __init__(self, design: Design, rank: int, op: Op) -> None:
        self._design, self._rank, self._op = design, rank, op
        self._mesh, self._prices = design.meshes[rank], mesh_prices(design)[rank]
        self._load = device_workload(design, self._mesh)
        self._block = expert_block(design, self._mesh, self._load)
        self._spans = BlockTimelineBuilder(design, rank, op)
        self._devices = range(len(self._spans.block))
        self._now = 0.0

    def predict(self, stage: int) -> BlockTimeline:
        layers = layers_per_stage(self._design)
        parts = list(stage_parts(self._design, self._load, self._block, layers, stage))
        recomputes = self._design.pipeline.recomputes(stage) and self._op in (Op.B, Op.I)
        for direction in [Op.F, self._op] if recomputes else [self._op]:
            for part in parts if direction == Op.F else reversed(parts):
                self._add_part(part, direction)
        program, model = lower(self._design), operator_costs(self._design)
        computed, copied = model.block_seconds(self._design, program, layers)
        whole = float(computed[self._op, self._rank, stage])
        is_measured = self._design.cost.stage_costs is not None or self._design.cost.profile_name
        if self._design.training.shards_gradients and not is_measured:
            self._add_on_all_devices("sharded state", None, whole - self._now)
        scale = whole / self._now if self._now else 1.0
        exposed = float(copied[self._op, self._rank, stage]) - whole
        self._add_on_all_devices("activation offload", None, exposed / scale)
        return self._spans.build("predicted", scale)

    def _add_part(self, part: StagePart, direction: Op) -> None:
        if part.layer < 0:
            self._add_on_all_devices(part.name, None, self._prices.part(part.operators).seconds_of(direction))
            return
        priced = price_expert_layer(self._design, self._mesh, part.layer)
        if direction in (Op.B, Op.I) and recomputes_experts(self._load.kernels.recomputes):
            self._add_steps(priced, _direction_steps(priced, Op.F), part.layer)
        self._add_steps(priced, _direction_steps(priced, direction), part.layer)

    def _add_on_all_devices(self, name: str, step: StepOp | None, seconds: float) -> None:
        if seconds > 0:
            for device in self._devices:
                before = self._spans.last_span(device)
                self._spans.add(BlockSpan(device, COMPUTE, self._now, self._now + seconds, name, step, 0.0, before))
            self._now += seconds

    def _add_steps(self, priced: Price, steps: list[CostedStep], number: int) -> None:
        if not any(costed.step.op in (StepOp.ORDER, StepOp.RESTORE) for costed in steps):  # weight gradients only
            seconds = sum(float(costed.compute_s.max()) for costed in steps)
            self._add_on_all_devices(f"experts {number}", StepOp.EXPERTS, seconds)
            return
        simulated = simulate_layer(priced, steps)
        base, before = len(self._spans), [self._spans.last_span(device) for device in self._devices]
        for span in range(len(simulated.start)):
            self._spans.add(self._span(simulated, span, number, base, before))
        self._now += simulated.makespan

    def _span(self, simulated: LayerTimeline, span: int, number: int, base: int, before: list[int]) -> BlockSpan:
        device, cause = int(simulated.device[span]), int(simulated.cause[span])
        step = LAYER_OPS[simulated.op[span]]
        return BlockSpan(
            device,
            int(simulated.lane[span]),
            self._now + float(simulated.start[span]),
            self._now + float(simulated.end[span]),
            step_label(step, number, int(simulated.chunk[span])),
            step,
            float(simulated.bytes[span]),
            base + cause if cause >= 0 else before[device],
        )


def _direction_steps(priced: Price, direction: Op) -> list[CostedStep]:
    if direction == Op.F:
        return list(priced.forward)
    if direction == Op.B:
        return list(priced.backward)
    inputs, weights = split_backward(priced)
    return inputs if direction == Op.I else weights
