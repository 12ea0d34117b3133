"""The collectives inside the stages of a dry run: over the groups that training uses, with the bytes of the model.

A stage of several layers sums and exchanges in each of them. A dry run does so as often as the model of cost has exchange
and computing alternate (:data:`meshwave.engine.costs.network.MAX_EXCHANGE_PHASES`), with the bytes of all layers spread evenly over these parts.
Collectives of one part that go the same way over the same group are one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwave.engine.costs.collective_flows import blocks_of_stages, reduced_bytes
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import priced_layer
from meshwave.engine.experts import Costed, traffic
from meshwave.engine.program.action import Action, Op
from meshwave.engine.runtime.calibration.collective_timing import COLLECTIVES, ITEM_BYTES, Place
from meshwave.engine.runtime.communication.all_to_all import SMALL_BYTES, start_all_to_all
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.communication.world import World
from meshwave.engine.runtime.experts.build import ExpertLayers
from meshwave.engine.runtime.experts.layer import device_groups

Run = Callable[[], object]
Matrix = NDArray[np.float64]
TENSOR = "tp"
"""The group of a tensor-parallel copy, besides the kinds of groups of an expert layer."""


class Collective(NamedTuple):
    """A collective of a stage: its name in torch's words, and its kind of group."""

    name: str
    group: str


class Sent(NamedTuple):
    """What the collectives of a forward or backward of a stage move."""

    sizes: Counter[Collective]  # bytes of the larger of what goes in and what comes out
    pairs: dict[Collective, Matrix]  # of an all-to-all, bytes between the devices of a block of experts

    def __add__(self, other: Sent) -> Sent:  # type: ignore[override]
        pairs = dict(self.pairs)
        for key, matrix in other.pairs.items():
            pairs[key] = pairs[key] + matrix if key in pairs else matrix
        return Sent(self.sizes + other.sizes, pairs)


class StageCollectives:
    """Those that a process takes part in."""

    def __init__(
        self, design: Design, layout: ProcessLayout, layers: Sequence[int], world: World, ratio: float
    ) -> None:
        """``ratio``: the share of the bytes that is really sent."""
        self._design, self._layout, self._layers, self._ratio = design, layout, layers, ratio
        self._rank = layout.rank(world.process)
        self._stages = blocks_of_stages(design, layers)
        experts = ExpertLayers(design, layout) if design.model.moe else None
        groups = world.groups([*layout.tp_groups(), *(experts.required_groups() if experts else ())])
        self._groups = {TENSOR: groups[layout.tp_group(world.process)]}
        self._device = world.device
        if experts is not None:
            self._layer, mesh = experts.by_rank[self._rank].layer, layout.mesh(self._rank)
            place = mesh.index(world.process) // self._layer.devices * self._layer.devices
            block = mesh[place : place + self._layer.devices]
            self._me = block.index(world.process)
            members = device_groups(self._layer, block, world.process)
            self._groups |= {kind: groups[its] for kind, its in members.items()}
        self._buffers = torch.zeros(2, 0, device=world.device)

    def of(self, actions: Sequence[Action], parts: int) -> list[Run]:
        """What one part of the computations of a slot sends: to be called one after the other."""
        sent = sum((self._sent(action) for action in actions), start=Sent(Counter(), {}))
        share = self._ratio / parts
        runs = [self._ring(key, size * share) for key, size in sent.sizes.items()]
        runs += [self._pairwise(key, matrix * share) for key, matrix in sent.pairs.items()]
        return [run for run in runs if run is not None]

    def _sent(self, action: Action) -> Sent:
        forward, backward = self._of_stage(action.stage)
        if action.op == Op.F:
            return forward
        if action.op not in (Op.B, Op.I):
            return Sent(Counter(), {})
        return forward + backward if self._design.pipeline.recomputes(action.stage) else backward

    def _of_stage(self, stage: int) -> tuple[Sent, Sent]:
        experts = self._stages[stage].experts
        reduced = reduced_bytes(self._design, self._design.meshes[self._rank], self._stages[stage])
        forward, backward = (Sent(Counter({Collective("all_reduce", TENSOR): size}), {}) for size in reduced)
        if not experts:
            return forward, backward
        priced = priced_layer(self._design, self._design.meshes[self._rank])
        return forward + self._of_experts(priced.forward, experts), backward + self._of_experts(
            priced.backward, experts
        )

    def _of_experts(self, steps: Sequence[Costed], layers: int) -> Sent:
        sizes: Counter[Collective] = Counter()
        pairs: defaultdict[Collective, Matrix] = defaultdict(lambda: np.zeros((self._layer.devices,) * 2))
        for costed in steps:
            name, group = costed.step.collective, costed.step.group
            if name is None:
                continue
            key, size = Collective(name, group), layers * costed.step.bytes
            if name == "all_to_all":
                pairs[key] += layers * traffic(self._layer, costed.step)
            else:
                sizes[key] += size * (1 if name == "all_reduce" else self._layer.size(group))  # type: ignore[assignment]
        return Sent(sizes, dict(pairs))

    def _ring(self, key: Collective, size: float) -> Run | None:
        group = self._groups[key.group]
        items = int(size / ITEM_BYTES) // group.size * group.size
        if group.size < 2 or not items:
            return None
        return lambda: COLLECTIVES[key.name](Place(group, *self._two(items)), items)

    def _pairwise(self, key: Collective, matrix: Matrix) -> Run | None:
        group = self._groups[key.group]
        members = [*self._layer.members(key.group, self._me)]
        table = matrix[np.ix_(members, members)]
        np.fill_diagonal(table, 0)
        if group.size < 2 or not table.any():
            return None
        row, rows = _in_rows(table)
        sent, received = rows[group.index].tolist(), rows[:, group.index].tolist()
        return partial(self._exchange, group, row, sent, received)

    def _exchange(self, group: Group, row: int, sent: list[int], received: list[int]) -> None:
        source, target = self._two(row * max(sum(sent), sum(received)))
        leaving = source[: row * sum(sent)].view(-1, row)
        start_all_to_all(group, target[: row * sum(received)].view(-1, row), leaving, received, sent).wait()

    def _two(self, items: int) -> tuple[Tensor, Tensor]:
        """Two buffers that hold so many numbers at least; all collectives use the same ones."""
        if self._buffers.shape[1] < items:
            self._buffers = torch.zeros(2, items, device=self._device)
        source, target = self._buffers
        return source, target


def _in_rows(table: Matrix) -> tuple[int, NDArray[np.int64]]:
    """How many numbers a row holds, and how many rows each sends to each: rows are as small as the smallest message, and
    no smaller than what is worth a message of its own."""
    row = max(1, int(max(table[table > 0].min(), min(SMALL_BYTES, table.max())) / ITEM_BYTES))
    return row, np.rint(table / (row * ITEM_BYTES)).astype(np.int64)
