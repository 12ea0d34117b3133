"""Collectives of the actions of a dry run: over the same groups as in training, with the modelled number of bytes.

A stage communicates in each of its layers. A dry run alternates exchanges and waits as often as the cost model
(:data:`meshwave.engine.costs.network.MAX_EXCHANGE_PHASES`), with the bytes of all layers divided evenly among these
parts. Collectives of one part with the same name and group are merged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwave.engine.costs.collective_flows import blocks_of_stages, context_costs, reduced_bytes
from meshwave.engine.costs.kernels import recomputes_experts
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import price_expert_layer
from meshwave.engine.experts import CostedStep, Layer, traffic
from meshwave.engine.program.action import Action, Op
from meshwave.engine.runtime.calibration.collective_timing import ITEM_BYTES, STARTS, CollectiveBuffers
from meshwave.engine.runtime.communication.all_to_all import SMALL_BYTES, start_all_to_all, start_ring_shift
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.communication.world import World
from meshwave.engine.runtime.dry_run.state_rings import RingCollective, StateRings
from meshwave.engine.runtime.experts.build import ExpertLayers
from meshwave.engine.runtime.experts.layer import device_groups

StartCollective = Callable[[], Any]
"""Function that starts a collective and returns a handle with ``wait()``."""
Matrix = NDArray[np.float64]
TENSOR_PARALLEL = "tp"
"""Key of the tensor-parallel group, in addition to the kinds of groups of an expert layer."""
CONTEXT_PARALLEL = "cp"
"""Key of the context-parallel group."""


class Collective(NamedTuple):
    """Key of a collective inside a stage: its operation, and the kind of process group."""

    name: str  # name of the torch.distributed operation
    group: str  # kind of group


PASS_ON = Collective("ring_shift", CONTEXT_PARALLEL)
"""Messages from each member of a context-parallel group to the next one."""


class CollectiveBytes(NamedTuple):
    """Bytes that the collectives in a forward or backward of a stage transfer."""

    sizes: Counter[Collective]  # size of the input or the output, whichever is larger
    pairs: dict[Collective, Matrix]  # bytes of an all-to-all between each two devices of a block of experts

    def __add__(self, other: CollectiveBytes) -> CollectiveBytes:  # type: ignore[override]
        pairs = dict(self.pairs)
        for key, matrix in other.pairs.items():
            pairs[key] = pairs[key] + matrix if key in pairs else matrix
        return CollectiveBytes(self.sizes + other.sizes, pairs)

    def scale(self, factor: float) -> CollectiveBytes:
        """Return ``factor`` times the bytes."""
        sizes = Counter({key: size * factor for key, size in self.sizes.items()})
        return CollectiveBytes(sizes, {key: matrix * factor for key, matrix in self.pairs.items()})


class StageCollectives:
    """Collectives inside and beside computations, and in optimizer steps, in which a process takes part."""

    def __init__(
        self,
        design: Design,
        layout: ProcessLayout,
        layers: Sequence[int],
        world: World,
        ratio: float,
        shares: Mapping[int, float],
    ) -> None:
        """Create the process groups.

        Args:
            design: the design.
            layout: the program and its processes.
            layers: number of layers of each stage.
            world: this process and its connection to the others.
            ratio: fraction of the modelled bytes that is sent.
            shares: tokens of each microbatch relative to those of whole sequences; microbatches that are absent are whole.
        """
        self._design, self._layout, self._ratio, self._shares = design, layout, ratio, shares
        self._rank = layout.rank(world.process)
        self._stages = blocks_of_stages(design, layers)
        experts = ExpertLayers(design, layout) if design.model.moe else None
        members = [*layout.tp_groups(), *layout.cp_groups(), *(experts.required_groups() if experts else ())]
        groups = world.make_groups(members)
        self._rings = StateRings(design, layout, tuple(layers), world)
        own = {TENSOR_PARALLEL: layout.tp_group(world.process), CONTEXT_PARALLEL: layout.cp_group(world.process)}
        self._groups = {kind: groups[its_members] for kind, its_members in own.items()}
        self._device = world.device
        if experts is not None:
            self._layer, mesh = experts.by_rank[self._rank].layer, layout.mesh(self._rank)
            first = mesh.index(world.process) // self._layer.devices * self._layer.devices
            block = mesh[first : first + self._layer.devices]
            self._index = block.index(world.process)
            section_of_layer = device_groups(self._layer, block, world.process)
            self._groups |= {kind: groups[its_members] for kind, its_members in section_of_layer.items()}
        self._buffers = torch.zeros(2, 0, device=world.device)

    def bind(self, actions: Sequence[Action], share: float) -> list[StartCollective]:
        """Return functions that start the collectives of ``actions``, with the fraction ``share`` of their bytes."""
        if actions[0].op == Op.STEP:
            return self._bind_rings(self._rings.step_collectives(), share)
        parts = (self._action_bytes(action).scale(self._shares.get(action.microbatch, 1.0)) for action in actions)
        total = sum(parts, start=CollectiveBytes(Counter(), {}))
        share *= self._ratio
        starts = [self._bind_ring(self._groups[key.group], key.name, size * share) for key, size in total.sizes.items()]
        starts += [self._bind_all_to_all(key, matrix * share) for key, matrix in total.pairs.items()]
        return [start for start in starts if start is not None]

    def bind_beside(self, actions: Sequence[Action], share: float) -> list[StartCollective]:
        """Return functions that start the collectives beside ``actions``, with the fraction ``share`` of their bytes."""
        return self._bind_rings([each for action in actions for each in self._rings.collectives_beside(action)], share)

    def _bind_rings(self, rings: Sequence[RingCollective], share: float) -> list[StartCollective]:
        found = (self._bind_ring(group, "all_reduce", size * share * self._ratio) for group, size in rings)
        return [start for start in found if start is not None]

    def _action_bytes(self, action: Action) -> CollectiveBytes:
        forward, backward = self._stage_bytes(action.stage)
        if action.op == Op.F:
            return forward
        if action.op not in (Op.B, Op.I):
            return CollectiveBytes(Counter(), {})
        return forward + backward if self._design.pipeline.recomputes(action.stage) else backward

    def _stage_bytes(self, stage: int) -> tuple[CollectiveBytes, CollectiveBytes]:
        """Return the bytes of the collectives in a forward and in a backward of a stage.

        A backward includes what it recomputes, unless the whole stage is recomputed. The exposed part of a
        context-parallel exchange is one message from each device to the next one.
        """
        mesh, experts = self._design.meshes[self._rank], self._stages[stage].experts
        all_reduce = Collective("all_reduce", TENSOR_PARALLEL)
        reduced = reduced_bytes(self._design, mesh, self._stages[stage])
        context_layers = self._stages[stage].layers
        passed = (context_layers * exposed.sent_bytes for exposed in context_costs(self._design, mesh))
        forward, backward = (
            CollectiveBytes(Counter({all_reduce: size, PASS_ON: sent}), {})
            for size, sent in zip(reduced, passed, strict=True)
        )
        for number, layers in experts.items():
            priced = price_expert_layer(self._design, mesh, number)
            forward += self._expert_bytes(priced.layer, priced.forward, layers)
            again = priced.forward if recomputes_experts(self._design.pipeline.recomputed_part) else []
            backward += self._expert_bytes(priced.layer, [*again, *priced.backward], layers)
        return forward, backward

    def _expert_bytes(self, layer: Layer, steps: Sequence[CostedStep], layers: int) -> CollectiveBytes:
        sizes: Counter[Collective] = Counter()
        pairs: defaultdict[Collective, Matrix] = defaultdict(lambda: np.zeros((self._layer.devices,) * 2))
        for costed in steps:
            name, group = costed.step.collective, costed.step.group
            if name is None:
                continue
            key, size = Collective(name, group), layers * costed.step.bytes
            if name == "all_to_all":
                pairs[key] += layers * traffic(layer, costed.step)
            else:
                sizes[key] += size * (1 if name == "all_reduce" else self._layer.size(group))  # type: ignore[assignment]
        return CollectiveBytes(sizes, dict(pairs))

    def _bind_ring(self, group: Group, name: str, size: float) -> StartCollective | None:
        items = int(size / ITEM_BYTES) // group.size * group.size
        if group.size < 2 or not items:
            return None
        if name == PASS_ON.name:
            return lambda: start_ring_shift(group, *(buffer[:items] for buffer in self._two_buffers(items)))
        return lambda: STARTS[name](CollectiveBuffers(group, *self._two_buffers(items)), items)

    def _bind_all_to_all(self, key: Collective, matrix: Matrix) -> StartCollective | None:
        group = self._groups[key.group]
        members = [*self._layer.members(key.group, self._index)]
        table = matrix[np.ix_(members, members)]
        np.fill_diagonal(table, 0)
        if group.size < 2 or not table.any():
            return None
        row_items, rows = _split_into_rows(table)
        sent, received = rows[group.index].tolist(), rows[:, group.index].tolist()
        return partial(self._all_to_all, group, row_items, sent, received)

    def _all_to_all(self, group: Group, row_items: int, sent: list[int], received: list[int]) -> Any:
        input_buffer, output_buffer = self._two_buffers(row_items * max(sum(sent), sum(received)))
        rows_in = input_buffer[: row_items * sum(sent)].view(-1, row_items)
        rows_out = output_buffer[: row_items * sum(received)].view(-1, row_items)
        return start_all_to_all(group, rows_out, rows_in, received, sent)

    def _two_buffers(self, items: int) -> tuple[Tensor, Tensor]:
        """Return two buffers of at least ``items`` elements, which all collectives share."""
        if self._buffers.shape[1] < items:
            self._buffers = torch.zeros(2, items, device=self._device)
        first, second = self._buffers
        return first, second


def _split_into_rows(table: Matrix) -> tuple[int, NDArray[np.int64]]:
    """Return the number of elements in a row, and the number of rows that each member sends to each other member.

    A row is as small as the smallest message, but not smaller than ``SMALL_BYTES`` unless all messages are.
    """
    row_items = max(1, int(max(table[table > 0].min(), min(SMALL_BYTES, table.max())) / ITEM_BYTES))
    return row_items, np.rint(table / (row_items * ITEM_BYTES)).astype(np.int64)
