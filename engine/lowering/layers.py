"""The inside of a block of the pipeline: its layers one after the other, and those with experts step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from engine.cost import flops
from engine.cost.costs import layers_per_stage
from engine.cost.expert_blocks import EXPERTS, expert_block, split_backward
from engine.cost.roofline import Seconds, mesh_prices
from engine.cost.sizes import workload
from engine.design import Design
from engine.design.expert_layers import priced_layer
from engine.errors import InputError
from engine.moe import LAYER_OPS, Costed, Played, Price, StepOp, play
from engine.program.action import Op
from engine.timeline import Timeline

Floats = NDArray[np.float64]
LANES = ("compute", "inside the node", "between nodes")


@dataclass(frozen=True, eq=False)
class Inside:
    """A block of the pipeline from within, on the devices that compute it together."""

    timeline: Timeline  # its ranks are the lanes that are used
    words: tuple[str, ...]  # [spans]
    steps: tuple[StepOp | None, ...]  # [spans] of a layer of experts; none of what is dense
    sent: Floats  # [spans] bytes that leave the device
    devices: tuple[int, ...]  # [lanes] the device of each


def inside(design: Design, rank: int, stage: int, op: Op) -> Inside:
    """What a forward or a backward (``F``, ``B``, ``I`` or ``W``) of a stage consists of on a mesh.

    Attention and dense blocks are a span each, their reductions included; a layer of experts is played
    (:func:`engine.moe.play`). Devices that do the same side by side are left out. The last span ends when
    the block of the pipeline does.

    Raises:
        InputError: the design is priced in units, which say nothing of what is inside a block.
    """
    if design.cost.kind == "unit":
        raise InputError("units say what a whole block costs and nothing of its inside; use cost kind roofline")
    return _Inside(design, rank, op).of(stage)


class _Inside:
    def __init__(self, design: Design, rank: int, op: Op) -> None:
        self._design, self._op = design, op
        self._mesh, self._prices = design.meshes[rank], mesh_prices(design)[rank]
        self._load = workload(design, self._mesh)
        block = expert_block(design, self._mesh, self._load)
        self._around = [] if block is None else [o for o in block.operators if o.name != EXPERTS]
        self._priced = None if block is None else priced_layer(design, self._mesh)
        count = self._priced.layer.devices if self._priced else self._mesh.tp
        self._devices = self._mesh.devices[:count]
        self._rows: list[tuple[int, int, float, float, str, StepOp | None, float, int]] = []
        self._now = 0.0

    def of(self, stage: int) -> Inside:
        layers = layers_per_stage(self._design)
        first, last = stage == 0, stage == len(layers) - 1
        start = list(accumulate(layers, initial=0))[stage]
        again = self._design.pipeline.recomputes(stage) and self._op in (Op.B, Op.I)
        ways = [Op.F, self._op] if again else [self._op]  # a stage that is recomputed runs its forward once more
        for way in ways:
            parts = list(self._parts(range(start, start + layers[stage]), first=first, last=last))
            for part in parts if way == Op.F else reversed(parts):
                part(way)
        return self._built()

    def _parts(self, numbers: range, *, first: bool, last: bool) -> Iterator[Callable[[Op], None]]:
        moe, model = self._design.model.moe, self._design.model
        sparse = moe.blocks(model.layers) if moe else ()
        if first:
            yield lambda way: self._dense("embedding", flops.ends(self._load, first=True, last=False), way)
        for number in numbers:
            if number in sparse:
                yield lambda way, n=number: self._experts(n, way)
            else:
                yield lambda way, n=number: self._plain(n, way)
        if last:
            yield lambda way: self._dense("head and loss", flops.ends(self._load, first=False, last=True), way)

    def _plain(self, number: int, way: Op) -> None:
        parts = (("attention", flops.attention), ("feed-forward", flops.mlp))
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
        took = _of(self._prices.part(operators), way)
        if took > 0:
            for device in range(len(self._devices)):
                self._rows.append((device, 0, self._now, self._now + took, name, None, 0.0, self._before(device)))
            self._now += took

    def _played(self, priced: Price, steps: list[Costed], number: int) -> None:
        if not any(costed.step.op == StepOp.ORDER or costed.step.op == StepOp.RESTORE for costed in steps):
            took = sum(float(costed.compute_s.max()) for costed in steps)
            for device in range(len(self._devices)):
                row = (
                    device,
                    0,
                    self._now,
                    self._now + took,
                    f"experts {number}",
                    StepOp.EXPERTS,
                    0.0,
                    self._before(device),
                )
                self._rows.append(row)
            self._now += took
            return
        played = play(priced, steps)
        base = len(self._rows)
        before = [self._before(device) for device in range(len(self._devices))]
        for span in range(len(played.start)):
            self._rows.append(self._row(played, span, number, base, before))
        self._now += played.makespan

    def _row(
        self, played: Played, span: int, number: int, base: int, before: list[int]
    ) -> tuple[int, int, float, float, str, StepOp | None, float, int]:
        device, lane, step = int(played.device[span]), int(played.lane[span]), LAYER_OPS[played.op[span]]
        chunk = f", chunk {played.chunk[span]}" if played.chunk[span] >= 0 else ""
        cause = int(played.cause[span])
        return (
            device,
            lane,
            self._now + float(played.start[span]),
            self._now + float(played.end[span]),
            f"{step.value} {number}{chunk}",
            step,
            float(played.bytes[span]),
            base + cause if cause >= 0 else before[device],
        )

    def _before(self, device: int) -> int:
        """The last span of a device so far."""
        return next((n for n in range(len(self._rows) - 1, -1, -1) if self._rows[n][0] == device), -1)

    def _built(self) -> Inside:
        lanes = sorted({(row[0], row[1]) for row in self._rows})
        number = {lane: place for place, lane in enumerate(lanes)}
        order = sorted(range(len(self._rows)), key=lambda n: (number[self._rows[n][:2]], self._rows[n][2]))
        place = {row: at for at, row in enumerate(order)}
        rows = [self._rows[n] for n in order]
        n = len(rows)
        timeline = Timeline(
            source="predicted",
            digest="",
            meshes=tuple(f"{self._devices[device]} {LANES[lane]}" for device, lane in lanes),
            rank=np.array([number[row[:2]] for row in rows], np.int32),
            peer=np.full(n, -1, np.int32),
            op=np.full(n, int(self._op), np.int8),
            stage=np.zeros(n, np.int32),
            microbatch=np.full(n, -1, np.int32),
            fused=np.zeros(n, np.bool_),
            start=np.array([row[2] for row in rows]),
            end=np.array([row[3] for row in rows]),
            cause=np.array([place[row[7]] if row[7] >= 0 else -1 for row in rows], np.int64),
        )
        return Inside(
            timeline,
            tuple(row[4] for row in rows),
            tuple(row[5] for row in rows),
            np.array([row[6] for row in rows]),
            tuple(self._devices[device] for device, _ in lanes),
        )


def _of(seconds: Seconds, way: Op) -> float:
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
