"""Expert layers of a design on the processes of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import COMMON, ResolvedLayer, resolve_expert_layer
from meshwave.engine.experts import Layer, expert_schedules
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.experts.layer import (
    GROUP_KINDS,
    ExpertLayer,
    device_groups,
    required_groups,
    shard_holders,
)

Members = tuple[int, ...]


class ExpertLayers:
    """Expert layers of all ranks with their process groups and shared weights; the same in every process."""

    def __init__(self, design: Design, layout: ProcessLayout) -> None:
        self._design, self._layout = design, layout
        numbers = (COMMON, *design.experts.own_layers)
        self._layers = [
            {number: resolve_expert_layer(design, mesh, number) for number in numbers} for mesh in design.meshes
        ]
        self.by_rank: list[ResolvedLayer] = [layers[COMMON] for layers in self._layers]
        """Expert layers without a placement of their own; the others have the same schedule and groups."""

    def required_groups(self) -> list[Members]:
        """Return the members of every process group that the layers need, in the same order on all processes."""
        ranks = range(self._layout.program.ranks)
        return [members for rank in ranks for members in required_groups(self.by_rank[rank].layer, self._blocks(rank))]

    def factory(
        self, process: int, groups: dict[Members, Group], loss_scale: float, dtype: torch.dtype, device: Any
    ) -> ExpertLayerFactory:
        """Return a factory of the layers of ``process``, given all groups that contain it."""
        rank = self._layout.rank(process)
        name, layer, _ = self.by_rank[rank]
        block = next(block for block in self._blocks(rank) if process in block)
        own = {kind: groups[members] for kind, members in device_groups(layer, block, process).items()}
        context = groups[self._layout.cp_group(process)]
        layers = {number: found.layer for number, found in self._layers[rank].items()}
        return ExpertLayerFactory(self._design, name, layers, own, loss_scale, dtype, device, context)

    def find(self, rank: int, number: int) -> tuple[str, Layer]:
        """Return the schedule and the sizes of a layer on a rank."""
        layers = self._layers[rank]
        return layers[number if number in layers else COMMON][:2]

    # ---- processes that share the gradient of a weight ----

    def gradient_groups(self, stages: list[int]) -> list[tuple[int, Members]]:
        """Return (stage, processes) of every set of processes that shares an expert weight of ``stages``, in order."""
        found = []
        for stage in stages:
            sets = {
                self._processes_in_all_blocks(stage, shard_holders(expert_schedules[name](), layer, expert, shard))
                for name, layer, _ in self._layers[self._layout.program.ranks_of(stage)[0]].values()
                for expert in range(layer.experts)
                for shard in range(layer.esp if expert_schedules[name].places == "ep" else 1)
            }
            found += [(stage, members) for members in sorted({*sets, self._layout.processes_of_stage(stage)})]
        return [(stage, members) for stage, members in found if len(members) > 1]

    def processes_sharing_weight(self, stage: int, module: ExpertLayer, parameter: nn.Parameter) -> Members | None:
        """Return the processes that sum the gradient of a weight of an expert layer.

        None for the weight of a replicated gate, whose gradient is summed like that of any replicated weight.
        """
        if any(parameter is weight for weight in module.gate.parameters()):
            return self._layout.processes_of_stage(stage) if module.gate_is_partial else None
        expert = next(
            number
            for number, expert in module.experts.items()
            if any(weight is parameter for weight in expert.parameters())
        )
        return self._processes_in_all_blocks(stage, module.shard_holders(expert))

    def _processes_in_all_blocks(self, stage: int, devices: Members) -> Members:
        """Return the processes at positions ``devices`` of every block on every rank of the stage."""
        ranks = self._layout.program.ranks_of(stage)
        return tuple(block[device] for rank in ranks for block in self._blocks(rank) for device in devices)

    def _blocks(self, rank: int) -> list[Members]:
        mesh, size = self._layout.mesh(rank), self.by_rank[rank].layer.devices
        return [mesh[first : first + size] for first in range(0, len(mesh), size)]


class ExpertLayerFactory:
    """Factory that builds the expert layer at a position in the model, with its weights."""

    def __init__(
        self,
        design: Design,
        schedule: str,
        layers: Mapping[int, Layer],
        groups: dict[str, Group],
        loss_scale: float,
        dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
        context_group: Group = ALONE,
    ) -> None:
        self._design, self._schedule, self._layers, self._groups = design, schedule, layers, groups
        self._loss_scale, self._dtype, self._device, self._context_group = loss_scale, dtype, device, context_group

    def __call__(self, place: int, number: int = COMMON) -> ExpertLayer:
        """Build the expert layer at ``place`` of the model, layer ``number``, and draw its weights."""
        moe, model = self._design.model.moe, self._design.model
        assert moe is not None, "a model with experts"
        layer = ExpertLayer(
            self._layers[number if number in self._layers else COMMON],
            self._schedule,
            self._groups,
            mlp=model.architecture.mlp,
            router=moe.router,
            aux_loss=moe.aux_loss,
            z_loss=moe.z_loss,
            dtype=self._dtype,
            device=self._device,
        )
        layer.gate.loss_scale, layer.context_group = self._loss_scale, self._context_group
        return layer.draw_weights((self._design.training.seed, place), model.layers)


def single_process_factory(design: Design, loss_scale: float, dtype: torch.dtype) -> ExpertLayerFactory:
    """Return a factory of whole expert layers for a single process.

    The layers have the capacity of the design's first mesh, which is rounded up for its devices and chunks. All of
    these are chunks of the single process.
    """
    layer = resolve_expert_layer(design, design.meshes[0]).layer
    whole = replace(layer, mp=1, ep=1, esp=1, nodes=None, placement=None, load=None, degree=layer.mp * layer.degree)
    groups = dict.fromkeys(GROUP_KINDS, ALONE)
    return ExpertLayerFactory(design, "expert-parallel", {COMMON: whole}, groups, loss_scale, dtype)


def expert_layers(module: nn.Module) -> Iterator[ExpertLayer]:
    """Yield the expert layers of a stage."""
    return (part for part in module.modules() if isinstance(part, ExpertLayer))
