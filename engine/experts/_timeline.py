"""Timeline of one expert layer: every step on every device, on three lanes per device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.experts._collectives import CostedStep, hidden_gather_seconds, part_seconds
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._price import Price
from meshwave.engine.experts._steps import IN_CHUNKS, StepOp

LANES = ("compute", "intra-node", "inter-node")
COMPUTE, INTRA, INTER = range(3)
LAYER_OPS = tuple(StepOp)

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LayerTimeline:
    """Spans as columns: step ``op`` of a ``chunk`` on a lane of a device, with times in seconds from the layer's start."""

    device: NDArray[np.int32]
    lane: NDArray[np.int8]  # index in LANES
    op: NDArray[np.int8]  # index in LAYER_OPS
    chunk: NDArray[np.int32]  # -1 if slots are not split into chunks
    start: Floats
    end: Floats
    bytes: Floats  # bytes that the device sends on this lane
    cause: NDArray[np.int64]  # index of the span that this one waited for last; -1 if none

    @property
    def makespan(self) -> float:
        return float(self.end.max(initial=0.0))

    def compute_spans(self, device: int) -> NDArray[np.intp]:
        """Return the indices of the spans in which a device computes, in order."""
        spans = np.flatnonzero((self.device == device) & (self.lane == COMPUTE))
        return spans[np.argsort(self.start[spans], kind="stable")]


def simulate_layer(price: Price, direction: Sequence[CostedStep]) -> LayerTimeline:
    """Simulate ``price.forward`` or ``price.backward``; each step starts when all devices of its group are ready."""
    player = _LayerSimulation(price.layer)
    before, inside, after = _split_at_chunks(direction)
    for costed in before:
        player.run(costed, chunk=-1)
    chunks = price.layer.degree if len(inside) > 1 else 1
    numbers = range(chunks) if chunks > 1 else [-1]
    at = next((n for n, costed in enumerate(inside) if costed.step.op == StepOp.EXPERTS), len(inside))
    begun = player.save_state()
    states = []
    for chunk in numbers:  # every device runs all dispatches first, then chunk by chunk
        player.restore_state(begun)
        for number, costed in enumerate(inside[:at]):
            player.run(costed, chunk, inside[:number], chunks)
        states.append(player.save_state())
    done = []
    for chunk, state in zip(numbers, states, strict=True):
        player.restore_state(state)
        for number, costed in enumerate(inside[at:]):
            player.run(costed, chunk, inside[: at + number], chunks)
        done.append(player.save_state())
    player.join_states(done)
    for costed in after:
        player.run(costed, chunk=-1)
    return player.timeline()


def _split_at_chunks(direction: Sequence[CostedStep]) -> tuple[list[CostedStep], list[CostedStep], list[CostedStep]]:
    """Return the steps before, inside and after the chunked part.

    ORDER and RESTORE, which delimit the chunked part, are not in chunks.
    """
    ends = [n for n, costed in enumerate(direction) if costed.step.op in IN_CHUNKS]
    first, last = ends[0], ends[-1]
    return list(direction[: first + 1]), list(direction[first + 1 : last]), list(direction[last:])


@dataclass
class _LayerSimulation:
    """State of the simulation of one expert layer: ready times of devices, free times of lanes, and finished spans."""

    layer: Layer
    rows: list[tuple[int, int, int, int, float, float, float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = self.layer.devices
        self.ready, self.by = (
            np.zeros(n),
            np.full(n, -1, np.int64),
        )  # time at which each device's tensor is ready, and the span that made it
        self.free, self.last = (
            np.zeros((3, n)),
            np.full((3, n), -1, np.int64),
        )  # time at which each lane is free, and its last span

    def save_state(self) -> tuple[Floats, NDArray[np.int64]]:
        return self.ready.copy(), self.by.copy()

    def restore_state(self, moment: tuple[Floats, NDArray[np.int64]]) -> None:
        self.ready, self.by = moment[0].copy(), moment[1].copy()

    def join_states(self, moments: Sequence[tuple[Floats, NDArray[np.int64]]]) -> None:
        ready, by = (np.stack(each) for each in zip(*moments, strict=True))  # [moments, devices]
        latest = ready.argmax(axis=0), np.arange(self.layer.devices)
        self.ready, self.by = ready[latest], by[latest]

    def run(self, costed: CostedStep, chunk: int, before: Sequence[CostedStep] = (), chunks: int = 1) -> None:
        step = costed.step
        if step.collective is None:
            self._add_spans(costed, COMPUTE, chunk, range(self.layer.devices), costed.compute_s / chunks, chunks)
        elif costed.piece_s:
            under = next(c for c in reversed(before) if c.step.collective == "all_to_all")
            self._add_hidden_gather(costed, under, chunk, chunks)
        elif self.layer.size(step.group) > 1:
            for group in self.layer.groups(step.group):
                self._synchronize_group(group)
                for lane, took in zip((INTRA, INTER), costed.links_s, strict=True):
                    self._add_spans(
                        costed, lane, chunk, group, part_seconds(took, chunks, costed.startup[lane - INTRA]), chunks
                    )
                self._synchronize_group(group)

    def _synchronize_group(self, group: Sequence[int]) -> None:
        """Set all devices of a group ready at the time of the last one: a collective starts and ends on all at once."""
        members = list(group)
        slowest = members[int(np.argmax(self.ready[members]))]
        self.ready[members], self.by[members] = self.ready[slowest], self.by[slowest]

    def _add_hidden_gather(self, costed: CostedStep, under: CostedStep, chunk: int, chunks: int) -> None:
        """Add a hidden gather, whose pieces use the links within the node during the part between nodes."""
        exposed = max(hidden_gather_seconds(self.layer, costed, under, chunks), 0.0)
        length = max(exposed, self.layer.ep * costed.piece_seconds(chunks))
        lane = INTER if costed.inter_s.any() else INTRA
        for group in self.layer.groups(costed.step.group):
            self._synchronize_group(group)
            for device in group:
                end = self.ready[device] + exposed
                start = min(max(end - length, self.free[lane, device]), end)
                self._add_span(costed, lane, chunk, device, start, end, int(self.by[device]), chunks)

    def _add_spans(
        self, costed: CostedStep, lane: int, chunk: int, devices: Sequence[int] | range, took: Floats, chunks: int
    ) -> None:
        for device in devices:
            if took[device] <= 0:
                continue
            waits = self.free[lane, device] > self.ready[device]
            start = max(self.free[lane, device], self.ready[device])
            cause = int(self.last[lane, device] if waits else self.by[device])
            self._add_span(costed, lane, chunk, device, start, start + took[device], cause, chunks)

    def _add_span(
        self, costed: CostedStep, lane: int, chunk: int, device: int, start: float, end: float, cause: int, chunks: int
    ) -> None:
        sent = 0.0 if lane == COMPUTE else float(costed.sent[lane - INTRA, device]) / chunks
        self.rows.append((device, lane, LAYER_OPS.index(costed.step.op), chunk, start, end, sent, cause))
        number = len(self.rows) - 1
        self.free[lane, device], self.last[lane, device] = end, number
        self.ready[device], self.by[device] = end, number

    def timeline(self) -> LayerTimeline:
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in range(8))
        device, lane, op, chunk, start, end, sent, cause = map(np.array, columns)
        return LayerTimeline(
            device.astype(np.int32),
            lane.astype(np.int8),
            op.astype(np.int8),
            chunk.astype(np.int32),
            start.astype(np.float64),
            end.astype(np.float64),
            sent.astype(np.float64),
            cause.astype(np.int64),
        )
