"""Change of the expert placement during training: experts move to other devices if the measured load is uneven.

Each place keeps its number of experts. Weights and optimizer states therefore keep their shapes, and the processes that
share them stay the same; only their contents move, from the device that held an expert to the one that will hold it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from meshwave.engine.document import Design
from meshwave.engine.experts import Layer, Placement, balance_experts, device_load, expert_schedules
from meshwave.engine.runtime.communication.communicator import Communicator
from meshwave.engine.runtime.communication.groups import Group, to_group_memory
from meshwave.engine.runtime.experts.build import ExpertLayers
from meshwave.engine.runtime.experts.layer import ExpertLayer
from meshwave.engine.units import quantity

Floats = NDArray[np.float64]
ExpertState = dict[str, Tensor]
"""Weights and optimizer states of one expert, or of its shard, by name."""


class PlacementChange(NamedTuple):
    """Change of a layer's placement of experts, and the tokens of its most loaded device relative to the mean."""

    layer: int
    before: Placement
    after: Placement
    load_before: float
    load_after: float
    seconds: float = 0.0
    """Seconds in which this process moved its experts of the layer; 0 if it holds none."""

    @property
    def note(self) -> str:
        """Description of the change."""
        old, new = ({expert: place for place, held in enumerate(each) for expert in held} for each in self[1:3])
        moved = sum(new[expert] != place for expert, place in old.items())
        loads = f"{self.load_before:.3g}x to {self.load_after:.3g}x the mean"
        took = f" in {quantity(self.seconds, 's')}" if self.seconds else ""
        return f"{moved} experts of layer {self.layer} moved{took}; the load of the fullest device changed from {loads}"


class TrainingState(Protocol):
    """Weights and optimizer states of a process."""

    def whole_state(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors of the weights whose names start with ``prefix``; all owners call it together."""

    def set_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Set tensors of the state; all owners call it together."""

    def rename(self, names: Mapping[nn.Parameter, str]) -> None:
        """Change the names of weights in the whole model."""


class Rebalancer:
    """Measured load of the expert layers of a run, and changes of their placement that balance it."""

    def __init__(
        self,
        design: Design,
        layers: ExpertLayers,
        ranks: Mapping[int, int],
        own: Mapping[int, ExpertLayer],
        state: TrainingState,
        communicator: Communicator,
    ) -> None:
        """Start to measure.

        Args:
            design: the design.
            layers: the expert layers of all ranks.
            ranks: a rank that holds each layer with experts, by number of the layer.
            own: the layers of this process by number.
            state: their weights and optimizer states.
            communicator: sums the loads over all processes.
        """
        self._threshold, self._own, self._state = design.experts.rebalance_threshold, own, state
        self._communicator = communicator
        self._layers = {number: layers.find(rank, number) for number, rank in ranks.items()}
        self._counted: Floats = np.zeros((len(ranks), 0))

    def rebalance(self) -> list[PlacementChange]:
        """Change the placement of the layers whose load since the last call is uneven; all processes call it together."""
        changes = []
        for (number, (schedule, layer)), load in zip(self._layers.items(), self._measured_loads(), strict=True):
            change = _plan_change(number, layer, load, self._threshold, expert_schedules[schedule].places)
            if change is not None:
                self._layers[number] = schedule, replace(layer, placement=change.after)
                if number in self._own:
                    began = time.perf_counter()
                    self._move_experts(self._own[number], change)
                    change = change._replace(seconds=time.perf_counter() - began)
                changes.append(change)
        return changes

    def _measured_loads(self) -> Floats:
        """Return the number of routes to each expert since the last call, ``[layers, experts]``."""
        none = [0.0] * next(iter(self._layers.values()))[1].experts
        own = [self._own[number].route_counts if number in self._own else none for number in self._layers]
        total = self._communicator.sum_over_processes([count for counts in own for count in counts])
        counted = total.numpy(force=True).reshape(len(own), -1)
        load = counted - self._counted if self._counted.size else counted
        self._counted = counted
        return load

    def _move_experts(self, layer: ExpertLayer, change: PlacementChange) -> None:
        """Exchange experts in each block of devices, which holds all experts of the layer."""
        prefix = f"layers.{change.layer}.experts."
        held: dict[int, ExpertState] = {number: {} for number in layer.expert_numbers}
        for name, tensor in self._state.whole_state(prefix).items():
            kind, _, rest = name.partition(prefix)
            number, _, weight = rest.partition(".")
            if number.isdecimal():  # not a weight of the gate
                held[int(number)][f"{kind}{{}}.{weight}"] = tensor.detach().clone()
        experts = range(layer.layer.experts)
        before = [layer.shard_holders(expert)[0] for expert in experts]
        layer.place_experts(change.after)
        after = [layer.shard_holders(expert)[0] for expert in experts]
        received = _exchange(layer.block, held, zip(before, after, strict=True))
        self._state.rename(
            {
                parameter: f"{prefix}{number}.{name}"
                for number, expert in layer.experts.items()
                for name, parameter in expert.named_parameters()
            }
        )
        kept = {number: {**held, **received}[number] for number in layer.expert_numbers}
        self._state.set_state(
            {
                name.format(f"{prefix}{number}"): tensor
                for number, tensors in kept.items()
                for name, tensor in tensors.items()
            }
        )


def _plan_change(number: int, layer: Layer, load: Floats, threshold: float, places: str) -> PlacementChange | None:
    """Return the change of a layer's placement by its measured load; None if the load is even or cannot be evened out."""
    if not load.any():
        return None
    before = layer.experts_by_place(layer.ep)
    now = replace(layer, placement=before, load=tuple((load / load.sum()).tolist()))
    after = _match_places(balance_experts(now, 0, places), before)
    loads = [float(device_load(replace(now, placement=each), places).max()) for each in (before, after)]
    same_sizes = [*map(len, before)] == [*map(len, after)]
    is_better = loads[0] > threshold and loads[1] < loads[0]
    return PlacementChange(number, before, after, *loads) if is_better and same_sizes else None


def _match_places(placement: Placement, before: Placement) -> Placement:
    """Return a placement with its places reordered so that few experts move."""
    common = sorted(
        ((len({*mine} & {*its}), -old, -new) for old, its in enumerate(before) for new, mine in enumerate(placement)),
        reverse=True,
    )
    found: dict[int, int] = {}
    for _, old, new in common:
        if -old not in found and -new not in found.values():
            found[-old] = -new
    return tuple(placement[found[place]] for place in range(len(before)))


def _exchange(
    block: Group, held: Mapping[int, ExpertState], moves: Iterable[tuple[int, int]]
) -> dict[int, ExpertState]:
    """Return the experts that this device receives, given the old and the new device of each expert."""
    received: dict[int, ExpertState] = {}
    messages, like = [], next(iter(held.values()))
    for expert, (source, target) in enumerate(moves):
        if source == target or block.index not in (source, target):
            continue
        sends = block.index == source
        if not sends:
            received[expert] = {name: torch.empty_like(to_group_memory(tensor, block)) for name, tensor in like.items()}
        tensors, peer = (held, target) if sends else (received, source)
        for name in sorted(like):
            tensor = to_group_memory(tensors[expert][name], block)
            messages.append(dist.P2POp(dist.isend if sends else dist.irecv, tensor, block.members[peer], block.handle))
    for work in dist.batch_isend_irecv(messages) if messages else ():
        work.wait()
    return received
