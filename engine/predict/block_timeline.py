"""The inside of a block of the pipeline: its layers one after the other, and those with experts step by step;
as it is predicted, and as a run has measured it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import operators as flops
from meshwave.engine.costs.block_models import BlockModel
from meshwave.engine.costs.cost_model import layers_per_stage
from meshwave.engine.costs.device_sizes import workload
from meshwave.engine.costs.expert_blocks import EXPERTS, expert_block, split_backward
from meshwave.engine.costs.models.roofline import mesh_prices
from meshwave.engine.costs.stage_prices import Seconds
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import expert_layer, priced_layer
from meshwave.engine.errors import InputError
from meshwave.engine.experts import LAYER_OPS, Costed, Played, Price, StepOp, play
from meshwave.engine.program.action import Op
from meshwave.engine.program.timeline import Source, Timeline

Floats = NDArray[np.float64]
LANES = ("compute", "inside the node", "between nodes")


Lane = tuple[int, int]
"""The number of a device of the block, and which of LANES."""
COMPUTE, INTRA, INTER = range(3)
DENSE, WHOLE = "dense layers", "whole block"


@dataclass(frozen=True, eq=False)
class BlockTimeline:
    """A block of the pipeline from within, on the devices that compute it together."""

    timeline: Timeline  # its ranks are the lanes that are used
    words: tuple[str, ...]  # [spans]
    steps: tuple[StepOp | None, ...]  # [spans] of a layer of experts; none of what is dense
    sent: Floats  # [spans] bytes that leave the device
    lanes: tuple[Lane, ...]
    block: tuple[int, ...]  # the devices

    @property
    def devices(self) -> tuple[int, ...]:
        """[lanes] the device of each."""
        return tuple(self.block[device] for device, _ in self.lanes)

    def on(self, lanes: tuple[Lane, ...]) -> BlockTimeline:
        """The same on more lanes."""
        place = np.array([lanes.index(lane) for lane in self.lanes], np.int32)
        timeline = replace(self.timeline, meshes=_lane_names(self.block, lanes), rank=place[self.timeline.rank])
        return replace(self, timeline=timeline, lanes=lanes)


def align_lanes(one: BlockTimeline, other: BlockTimeline) -> tuple[BlockTimeline, BlockTimeline]:
    """Both on the lanes that either uses, so that they can be laid over each other."""
    lanes = tuple(sorted({*one.lanes, *other.lanes}))
    return one.on(lanes), other.on(lanes)


def predict_block(design: Design, rank: int, stage: int, op: Op) -> BlockTimeline:
    """What a forward or a backward (``F``, ``B``, ``I`` or ``W``) of a stage consists of on a mesh.

    Attention and dense blocks are a span each, their reductions included; a layer of experts is played
    (:func:`meshwave.engine.experts.play`). Devices that do the same side by side are left out. The last span ends when
    the block of the pipeline does.

    Raises:
        InputError: the design is priced in units, which say nothing of what is inside a block.
    """
    if not design.cost.is_in_seconds:
        raise InputError("units say what a whole block costs and nothing of its inside; use cost kind roofline")
    return _BlockPrediction(design, rank, op).of(stage)


def block_places(design: Design, rank: int) -> range:
    """Which devices of a mesh, by their place in it, stand for all that do the same side by side: a block of
    experts, of several the one that the price is of; else a tensor-parallel group."""
    mesh = design.meshes[rank]
    if design.model.moe is None:
        return range(mesh.tp)
    layer = expert_layer(design, mesh)
    firsts = range(0, len(mesh.devices), layer.devices)
    nodes = [tuple(map(design.cluster.node_of, mesh.devices[first : first + layer.devices])) for first in firsts]
    first = firsts[nodes.index(layer.nodes or nodes[0])]
    return range(first, first + layer.devices)


class _Span(NamedTuple):
    device: int  # of the block
    lane: int
    start: float
    end: float
    words: str
    step: StepOp | None
    sent: float
    cause: int  # the span that it came after, -1 for none


class _Spans:
    """The spans of a block as they are found."""

    def __init__(self, design: Design, rank: int, op: Op) -> None:
        mesh = design.meshes[rank]
        self.block = tuple(mesh.devices[place] for place in block_places(design, rank))
        self._op = op
        self._rows: list[_Span] = []
        self._last = [-1] * len(self.block)

    def __len__(self) -> int:
        return len(self._rows)

    def last(self, device: int) -> int:
        """The last span of a device so far, -1 for none."""
        return self._last[device]

    def add(self, span: _Span) -> None:
        self._last[span.device] = len(self._rows)
        self._rows.append(span)

    def built(self, source: Source) -> BlockTimeline:
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
            start=np.array([row.start for row in rows]),
            end=np.array([row.end for row in rows]),
            cause=np.array([place[row.cause] if row.cause >= 0 else -1 for row in rows], np.int64),
        )
        words, steps, sent = ([getattr(row, column) for row in rows] for column in ("words", "step", "sent"))
        return BlockTimeline(timeline, tuple(words), tuple(steps), np.array(sent), lanes, self.block)


def _lane_names(block: tuple[int, ...], lanes: tuple[Lane, ...]) -> tuple[str, ...]:
    return tuple(f"{block[device]} {LANES[lane]}" for device, lane in lanes)


def _step_label(step: StepOp, layer: int, chunk: int) -> str:
    return f"{step.value} {layer}" + (f", chunk {chunk}" if chunk >= 0 else "")


# ---- predicted ----


class _BlockPrediction:
    def __init__(self, design: Design, rank: int, op: Op) -> None:
        self._design, self._op = design, op
        self._mesh, self._prices = design.meshes[rank], mesh_prices(design)[rank]
        self._load = workload(design, self._mesh)
        block = expert_block(design, self._mesh, self._load)
        self._around = [] if block is None else [o for o in block.operators if o.name != EXPERTS]
        self._priced = None if block is None else priced_layer(design, self._mesh)
        self._spans = _Spans(design, rank, op)
        self._devices = range(len(self._spans.block))
        self._now = 0.0

    def of(self, stage: int) -> BlockTimeline:
        layers = layers_per_stage(self._design)
        first, last = stage == 0, stage == len(layers) - 1
        start = list(accumulate(layers, initial=0))[stage]
        again = self._design.pipeline.recomputes(stage) and self._op in (Op.B, Op.I)
        ways = [Op.F, self._op] if again else [self._op]  # a stage that is recomputed runs its forward once more
        for way in ways:
            parts = list(self._parts(range(start, start + layers[stage]), first=first, last=last))
            for part in parts if way == Op.F else reversed(parts):
                part(way)
        return self._spans.built("predicted")

    def _parts(self, numbers: range, *, first: bool, last: bool) -> Iterator[Callable[[Op], None]]:
        if isinstance(self._design.model, BlockModel):
            yield from self._block_parts(self._design.model, numbers, first=first, last=last)
            return
        sparse = self._design.model.expert_blocks
        if first:
            yield lambda way: self._dense("embedding", flops.ends(self._load, first=True, last=False), way)
        for number in numbers:
            if number in sparse:
                yield partial(self._experts, number)
            else:
                yield partial(self._plain, number)
        if last:
            yield lambda way: self._dense("head and loss", flops.ends(self._load, first=False, last=True), way)

    def _block_parts(
        self, model: BlockModel, numbers: range, *, first: bool, last: bool
    ) -> Iterator[Callable[[Op], None]]:
        named = [(f"block {number}", model.block_operators(self._load, number)) for number in numbers]
        if first:
            named.insert(0, ("embedding", model.embedding_operators(self._load)))
        if last:
            named.append(("head and loss", model.head_operators(self._load)))
        for name, operators in named:
            yield partial(self._dense, name, operators)

    def _plain(self, number: int, way: Op) -> None:
        parts = [("attention", flops.attention), ("feed-forward", flops.mlp)]
        if any(number == target for _, target in self._design.model.skips):
            parts.insert(0, ("join", flops.join))
        for name, operators in parts if way == Op.F else reversed(parts):
            self._dense(f"{name} {number}", operators(self._load), way)

    def _experts(self, number: int, way: Op) -> None:
        assert self._priced is not None
        if way == Op.F:
            self._dense(f"attention {number}", self._around, way)
        self._played(self._priced, _steps(self._priced, way), number)
        if way != Op.F:
            self._dense(f"attention {number}", self._around, way)

    def _dense(self, name: str, operators: Iterable[flops.Operator], way: Op) -> None:
        self._everywhere(name, None, _direction_seconds(self._prices.part(operators), way))

    def _everywhere(self, name: str, step: StepOp | None, took: float) -> None:
        """A computation of all devices alike."""
        if took > 0:
            for device in self._devices:
                before = self._spans.last(device)
                self._spans.add(_Span(device, COMPUTE, self._now, self._now + took, name, step, 0.0, before))
            self._now += took

    def _played(self, priced: Price, steps: list[Costed], number: int) -> None:
        if not any(costed.step.op in (StepOp.ORDER, StepOp.RESTORE) for costed in steps):  # weight gradients alone
            took = sum(float(costed.compute_s.max()) for costed in steps)
            self._everywhere(f"experts {number}", StepOp.EXPERTS, took)
            return
        played = play(priced, steps)
        base, before = len(self._spans), [self._spans.last(device) for device in self._devices]
        for span in range(len(played.start)):
            self._spans.add(self._span(played, span, number, base, before))
        self._now += played.makespan

    def _span(self, played: Played, span: int, number: int, base: int, before: list[int]) -> _Span:
        device, cause = int(played.device[span]), int(played.cause[span])
        step = LAYER_OPS[played.op[span]]
        return _Span(
            device,
            int(played.lane[span]),
            self._now + float(played.start[span]),
            self._now + float(played.end[span]),
            _step_label(step, number, int(played.chunk[span])),
            step,
            float(played.bytes[span]),
            base + cause if cause >= 0 else before[device],
        )


# ---- what they are made of ----


def _direction_seconds(seconds: Seconds, way: Op) -> float:
    return {
        Op.F: seconds.forward,
        Op.B: seconds.backward,
        Op.I: seconds.input_gradient,
        Op.W: seconds.weight_gradient,
    }[way]


def _steps(priced: Price, way: Op) -> list[Costed]:
    if way == Op.F:
        return list(priced.forward)
    if way == Op.B:
        return list(priced.backward)
    inputs, weights = split_backward(priced)
    return inputs if way == Op.I else weights
