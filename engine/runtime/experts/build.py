"""The expert layers of a design, on the processes of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import Resolved, resolved
from meshwave.engine.experts import Layer, expert_schedules
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.experts.layer import KINDS, ExpertLayer, all_groups, groups_of, holders

Members = tuple[int, ...]


class ExpertLayers:
    """What every process knows of the expert layers of all: who takes part, and who shares weights."""

    def __init__(self, design: Design, layout: ProcessLayout) -> None:
        self._design, self._layout = design, layout
        self._of_rank = [resolved(design, mesh) for mesh in design.meshes]

    def groups(self) -> list[Members]:
        """The members of every group that is needed, in one order for all processes."""
        ranks = range(self._layout.program.ranks)
        return [members for rank in ranks for members in all_groups(self._of_rank[rank].layer, self._blocks(rank))]

    def of(self, rank: int) -> Resolved:
        """The expert layer of a rank."""
        return self._of_rank[rank]

    def maker(
        self, process: int, groups: dict[Members, Group], loss_scale: float, dtype: torch.dtype, device: Any
    ) -> MakeExpertLayer:
        """What makes the layers of ``process``, given all groups that it is in."""
        rank = self._layout.rank(process)
        name, layer, _ = self._of_rank[rank]
        block = next(block for block in self._blocks(rank) if process in block)
        own = {kind: groups[members] for kind, members in groups_of(layer, block, process).items()}
        return MakeExpertLayer(self._design, name, layer, own, loss_scale, dtype, device)

    # ---- who shares the gradient of a weight ----

    def gradient_groups(self, stages: list[int]) -> list[tuple[int, Members]]:
        """Every set of processes that shares a weight of the experts of one of ``stages``, in one order."""
        found = []
        for stage in stages:
            name, layer, _ = self._of_rank[self._layout.program.ranks_of(stage)[0]]
            shards = layer.esp if expert_schedules[name].places == "ep" else 1
            sets = {
                self._spread(stage, holders(expert_schedules[name](), layer, expert, shard))
                for expert in range(layer.experts)
                for shard in range(shards)
            }
            found += [(stage, members) for members in sorted({*sets, self._everyone(stage)})]
        return [(stage, members) for stage, members in found if len(members) > 1]

    def sharers(self, stage: int, module: ExpertLayer, parameter: nn.Parameter) -> Members | None:
        """Who sums the gradient of a weight of an expert layer; none where it is as of any weight that all hold."""
        if parameter is module.gate.weight:
            return self._everyone(stage) if module.gate_is_partial else None
        expert = next(
            number for number, held in module.experts.items() if any(p is parameter for p in held.parameters())
        )
        return self._spread(stage, module.holders(expert))

    def _everyone(self, stage: int) -> Members:
        ranks = self._layout.program.ranks_of(stage)
        return tuple(process for rank in ranks for process in self._layout.mesh(rank))

    def _spread(self, stage: int, devices: Members) -> Members:
        """The processes of those devices of a block, in all blocks and on all ranks of the stage."""
        ranks = self._layout.program.ranks_of(stage)
        return tuple(block[device] for rank in ranks for block in self._blocks(rank) for device in devices)

    def _blocks(self, rank: int) -> list[Members]:
        mesh, size = self._layout.mesh(rank), self._of_rank[rank].layer.devices
        return [mesh[first : first + size] for first in range(0, len(mesh), size)]


class MakeExpertLayer:
    """Makes the expert layer at a place of the model."""

    def __init__(
        self,
        design: Design,
        schedule: str,
        layer: Layer,
        groups: dict[str, Group],
        loss_scale: float,
        dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
    ) -> None:
        self._design, self._schedule, self._layer, self._groups = design, schedule, layer, groups
        self._loss_scale, self._dtype, self._device = loss_scale, dtype, device

    def __call__(self, place: int) -> ExpertLayer:
        moe, model = self._design.model.moe, self._design.model
        assert moe is not None, "a model with experts"
        made = ExpertLayer(
            self._layer,
            self._schedule,
            self._groups,
            aux_loss=moe.aux_loss,
            z_loss=moe.z_loss,
            dtype=self._dtype,
            device=self._device,
        )
        made.gate.loss_scale = self._loss_scale
        return made.draw((self._design.training.seed, place), model.layers)


def alone(design: Design, loss_scale: float, dtype: torch.dtype) -> MakeExpertLayer:
    """Makes whole expert layers in one process, with the capacity that they have on the design's first mesh:
    rounded up for its devices and chunks, which are all chunks here."""
    layer = resolved(design, design.meshes[0]).layer
    whole = Layer(
        mp=1,
        ep=1,
        esp=1,
        experts=layer.experts,
        tokens=layer.tokens,
        hidden=layer.hidden,
        ffn_hidden=layer.ffn_hidden,
        top_k=layer.top_k,
        capacity_factor=layer.capacity_factor,
        item_bytes=layer.item_bytes,
        degree=layer.mp * layer.degree,
    )
    return MakeExpertLayer(design, "expert-parallel", whole, dict.fromkeys(KINDS, ALONE), loss_scale, dtype)


def expert_layers(module: nn.Module) -> Iterator[ExpertLayer]:
    """Those of a stage."""
    return (part for part in module.modules() if isinstance(part, ExpertLayer))
