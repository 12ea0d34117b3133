"""Expert layer on the devices of one block, run according to its schedule.

A *block* is the ``P = ep * esp`` processes of a :class:`meshwave.engine.experts.Layer`, in its order; a mesh has
several consecutive blocks with the same experts. Every process of a block has one :class:`ExpertLayer`, with the gate,
which is replicated, and the experts of its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.random import SeedSequence
from torch import Tensor

from meshwave.engine.document.architecture import PLAIN, Mlp
from meshwave.engine.document.model import PLAIN_ROUTER, Router
from meshwave.engine.experts import ExpertSchedule, Layer, Placement, Step, StepOp, expert_schedules
from meshwave.engine.runtime.communication.groups import ALONE, Group, all_gather, to_group_memory
from meshwave.engine.runtime.experts.dispatch import ExpertPath, GateLoads
from meshwave.engine.runtime.experts.feed_forward import Expert, FeedForward
from meshwave.engine.runtime.experts.gate import Gate, Routing
from meshwave.engine.runtime.experts.step_times import BeginStep, EndStep, do_nothing
from meshwave.engine.runtime.experts.steps import BACKWARD, UNCHUNKED, CollectiveRecord, StepRunner
from meshwave.engine.runtime.experts.token_order import order_tokens, restore_tokens
from meshwave.engine.runtime.modules.activations import make_activation
from meshwave.engine.runtime.modules.deferred_gradients import DeferrableModule
from meshwave.engine.runtime.modules.recomputation import is_first_forward

GROUP_KINDS = ("mp", "esp", "ep", "ep_esp")


def device_groups(layer: Layer, block: Sequence[int], process: int) -> dict[str, tuple[int, ...]]:
    """Return the members of the groups that contain ``process`` of ``block``, by kind of group."""
    device = list(block).index(process)
    return {kind: tuple(block[member] for member in layer.members(kind, device)) for kind in GROUP_KINDS}


def required_groups(layer: Layer, blocks: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the members of every group that a layer needs on ``blocks``, in the same order on all processes."""
    return sorted(
        {
            tuple(block[member] for member in group)
            for block in blocks
            for kind in GROUP_KINDS
            for group in layer.groups(kind)
        }
    )


class ExpertPlace(NamedTuple):
    """Place of a device in an expert layer, and its shard of the experts at this place."""

    place: int
    shard: int
    shards: int


def expert_place(schedule: ExpertSchedule, layer: Layer, device: int) -> ExpertPlace:
    """Return the place of a device of a block under a schedule."""
    if schedule.places == "mp":
        return ExpertPlace(device % layer.mp, 0, 1)
    return ExpertPlace(device // layer.esp, device % layer.esp, layer.esp)


def shard_holders(schedule: ExpertSchedule, layer: Layer, expert: int, shard: int) -> tuple[int, ...]:
    """Return the devices of a block that hold one shard of an expert, in ascending order."""
    places = layer.holders(layer.size(schedule.places))[expert]
    by_device = ((device, expert_place(schedule, layer, device)) for device in range(layer.devices))
    return tuple(device for device, found in by_device if found.place in places and found.shard == shard)


class ExpertLayer(DeferrableModule):
    """Layer that maps ``[..., hidden]`` to the same shape: each token becomes the weighted sum of its experts' outputs.

    Tokens are the same on the processes of an ``mp`` group, and so is the gradient of the output. Weights are
    uninitialized until :meth:`draw_weights`. ``load`` contains the number of routes to each expert in the last input.

    The code that updates the weights must sum shared gradients: the gate's gradient over all copies of the layer, and
    over ``mp`` if :attr:`gate_is_partial`; an expert's gradient over the processes that hold the same shard of it, in
    all blocks and at all places (:meth:`shard_holders`).
    """

    context_group: Group = ALONE  # the processes that have the other tokens of the same sequences
    load: Tensor | None = None  # number of routes per expert in the last input, including dropped routes
    _loads: GateLoads | None = None  # loads of all devices of the block, if no token is dropped

    def __init__(
        self,
        layer: Layer,
        schedule: str | ExpertSchedule,
        groups: Mapping[str, Group],
        *,
        mlp: Mlp = PLAIN.mlp,
        router: Router = PLAIN_ROUTER,
        aux_loss: float = 0.0,
        z_loss: float = 0.0,
        dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
        on_collective: Callable[[CollectiveRecord], None] | None = None,
    ) -> None:
        """Create the part of a layer that one process holds.

        Args:
            layer: sizes and placement.
            schedule: a schedule that has steps; automatic schedules must be resolved before.
            groups: this process's group of each kind: mp, esp, ep and ep_esp.
            mlp: the feed-forward block of an expert.
            router: the rule by which tokens choose experts.
            aux_loss: weight of the load-balancing loss.
            z_loss: weight of the z-loss.
            dtype: dtype of the weights.
            device: device of the weights.
            on_collective: called with the record of every collective; None for no records.

        Raises:
            InputError: the schedule is unknown.
        """
        super().__init__()
        self.layer = layer
        self.schedule = expert_schedules[schedule]() if isinstance(schedule, str) else schedule
        self.gate_is_partial = self.schedule.gate_is_partial
        self._before, self._inside, self._after = _split_steps(self.schedule.steps(layer))
        self._runner = StepRunner(layer, groups, device, on_collective)
        self._groups = groups
        self.place, self.shard, shards = expert_place(self.schedule, layer, self._runner.index)
        self.expert_numbers = sorted(set(layer.experts_by_place(layer.size(self.schedule.places))[self.place]))
        self._sized = layer  # with the tokens of the current input, which may be padded documents
        self._domain = _gate_token_share(layer, self._before)
        self.gate = Gate(
            layer.hidden,
            layer.experts,
            layer.top_k,
            router=router,
            aux_loss=aux_loss,
            z_loss=z_loss,
            loss_share=1 / layer.mp if self.gate_is_partial else 1.0,
            load_share=float(1 / (self._domain * (layer.mp if self.gate_is_partial else 1))),
            dtype=dtype,
            device=device,
        )
        form: dict[str, Any] = {"is_gated": mlp.gated, "has_biases": mlp.bias, "shard": self.shard, "shards": shards}
        experts = [
            Expert(layer.hidden, layer.ffn_hidden, **form, dtype=dtype, device=device) for _ in self.expert_numbers
        ]
        for number, expert in zip(self.expert_numbers, experts, strict=True):
            self.add_module(str(number), expert)
        self._experts = FeedForward(experts, make_activation(mlp), self.schedule.token_copies(layer))
        self._rebuild_expert_path()
        self._route_counts = torch.zeros(layer.experts, dtype=torch.float64, device=device)
        self._gate_share = float(
            1 / (layer.mp * self._domain)
        )  # share of the gate's tokens, which other gates may route too
        self._has_exchange = any(step.collective for step in self._inside)

    def _rebuild_expert_path(self) -> None:
        self._path = ExpertPath(self._inside, self._runner, self._experts, self.expert_numbers, self)

    def place_experts(self, placement: Placement) -> None:
        """Change the placement to one with the same number of experts at each place.

        The modules stay, under the numbers of other experts; the caller exchanges their weights.
        """
        experts = [self._modules.pop(str(number)) for number in self.expert_numbers]
        self.layer = replace(self.layer, placement=placement)
        self.expert_numbers = sorted(placement[self.place])
        for number, expert in zip(self.expert_numbers, experts, strict=True):
            self.add_module(str(number), expert)
        self._runner.change_placement(self.layer)
        self._rebuild_expert_path()

    @property
    def block(self) -> Group:
        """The devices that together hold all experts."""
        return self._groups["ep_esp"]

    def record_steps(self, begin_step: BeginStep) -> None:
        """Call ``begin_step`` at the start of every step; see :class:`.step_times.StepTrace`."""
        self._runner.begin_step = begin_step

    @property
    def route_counts(self) -> list[float]:
        """Number of routes to each expert so far, as this process's share; the shares of a mesh add up to the total."""
        return self._route_counts.tolist()

    @property
    def experts(self) -> dict[int, Expert]:
        """Experts of this process by number."""
        return {number: self.get_submodule(str(number)) for number in self.expert_numbers}  # type: ignore[misc]

    def draw_weights(self, key: tuple[int, ...], layers: int = 1) -> Self:
        """Draw the weights as in GPT-2; ``key`` is a seed and the layer's place in the model.

        The gate and every expert have their own generator: an expert starts with the same weights wherever it is
        placed, whole or in shards.
        """
        self.gate.draw_weights(_seeded_generator((*key, 0)))
        for number, expert in self.experts.items():
            expert.draw_weights(_seeded_generator((*key, 1 + number)), 0.02, 0.02 / (2 * layers) ** 0.5)
        return self

    def shard_holders(self, expert: int) -> tuple[int, ...]:
        """Return the devices of a block that hold the same shard of an expert as this device, in ascending order."""
        return shard_holders(self.schedule, self.layer, expert, self.shard)

    def cast_weights(self, dtype: torch.dtype) -> None:
        """Make copies of the experts' weights in ``dtype``; the gate computes in float32."""
        self._experts.cast_weights(dtype)

    def drop_cast_weights(self) -> None:
        """Drop the copies of the experts' weights."""
        self._experts.drop_cast_weights()

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of the experts' outputs for each token of ``x [..., hidden]``, in the shape of ``x``."""
        shape, kind = x.shape, x.device.type
        tokens = x.reshape(-1, shape[-1])
        self._sized = self.layer if len(tokens) == self.layer.tokens else replace(self.layer, tokens=len(tokens))
        if torch.is_autocast_enabled(kind):
            tokens = tokens.to(torch.get_autocast_dtype(kind))
        for step in self._before:
            tokens = self._runner.apply(step, tokens)
        routing = self._route(tokens)
        self.load = routing.load
        if is_first_forward():
            self._route_counts += routing.load.double() * self._gate_share
        tokens = self._compute_experts(tokens, routing)
        for step in self._after:
            tokens = self._runner.apply(step, tokens)
        return tokens.view(shape)

    def use_float8(self) -> tuple[int, int]:
        """Let the experts multiply in fp8; see :meth:`.feed_forward.FeedForward.use_float8`. The gate does not."""
        return self._experts.use_float8()

    def use_weights_in_place(self) -> None:
        """Use the experts' weights where they now are; see :meth:`.feed_forward.FeedForward.use_weights_in_place`."""
        self._experts.use_weights_in_place()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._experts.stack_weights()
        return self

    def _route(self, tokens: Tensor) -> Routing:
        end_step = self._runner.begin_step(StepOp.GATE, UNCHUNKED)
        routing: Routing = self.gate(tokens, self._gate_capacity, self._sum_load)
        end_step()
        is_recorded = end_step is not do_nothing
        if is_recorded and routing.weights.requires_grad and tokens.requires_grad:
            self._record_backward(tokens, routing.weights)
        return routing

    def _record_backward(self, tokens: Tensor, weights: Tensor) -> None:
        """Record the backward of the gate, which autograd runs.

        It lasts from the arrival of the gradient of the weights to the arrival of the gradient of the tokens.
        """
        begun: list[EndStep] = []

        def record_start(gradient: Tensor) -> None:
            begun.append(self._runner.begin_step(StepOp.GATE, BACKWARD))

        def record_end(gradient: Tensor) -> None:
            while begun:
                begun.pop()()

        weights.register_hook(record_start)  # type: ignore[no-untyped-call]
        tokens.register_hook(record_end)  # type: ignore[no-untyped-call]

    # ---- from ORDER to RESTORE ----

    def _compute_experts(self, tokens: Tensor, routing: Routing) -> Tensor:
        blocks, shape = None, (self.layer.experts, routing.capacity)
        if not self._has_exchange:
            slots, blocks = self._own_slots(routing)
            routing, shape = routing.select_slots(slots), (len(slots), 1)
        begin_step = self._runner.begin_step
        ordered = order_tokens(tokens, routing, begin_step)
        results = self._path(ordered.view(1, *shape, tokens.shape[1]), self.gate.weight, blocks, self._loads)
        results = results.flatten(0, 2)
        y = restore_tokens(results, routing, begin_step)
        return y.to(tokens.dtype)

    def _own_slots(self, routing: Routing) -> tuple[Tensor, list[int]]:
        """Return the slots of the experts of this process, and the number of slots of each expert.

        Each of ``n`` holders of an expert takes every ``n``-th slot. If no token is dropped, only occupied slots are
        taken: no device waits for another's messages here, so experts may have different numbers of rows.
        """
        holders, capacity = self.layer.holders(self.layer.size(self.schedule.places)), routing.capacity
        ends = routing.load.tolist() if self.layer.capacity_factor is None else [capacity] * self.layer.experts
        device = self.gate.weight.device
        parts = []
        for expert in self.expert_numbers:
            first = holders[expert].index(self.place)
            part = torch.arange(first, max(first, ends[expert]), len(holders[expert]), device=device)
            parts.append(part + expert * capacity)
        slots = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device=device)
        return slots, [len(part) for part in parts]

    # ---- capacity and load of the gate ----

    def _gate_capacity(self, load: Tensor) -> int:
        """Return the number of slots per expert for the tokens of one gate.

        If no token may be dropped, it is the largest load on any device. Devices that exchange slots exchange their
        loads first, so that each also knows the number of tokens in the slots that it receives.
        """
        if self.layer.capacity_factor is not None:
            return int(self._sized.capacity * self._domain)
        self._loads = self._gather_loads(load) if self._has_exchange else None
        largest = int(load.max()) if self._loads is None else int(self._loads.max())
        return int(self.layer.round_slots(ceil(largest / self._domain)) * self._domain)

    def _gather_loads(self, load: Tensor) -> GateLoads:
        """Return the number of routes from every device of the block to each expert, ``[devices, experts]``."""
        group = self._groups["ep_esp"]
        own = to_group_memory(load, group).contiguous()
        loads = own.new_empty(group.size, len(own))
        if group.size > 1:
            all_gather(loads.view(-1), own, group=group.handle)
        else:
            loads[0] = own
        return loads.numpy(force=True)

    def _sum_load(self, load: Tensor) -> Tensor:
        """Return the load of all tokens of the sequences of an input.

        It is the sum over the context-parallel group, and over the ``mp`` group if its gates route different parts.
        """
        groups = [self.context_group] if self._domain >= 1 else [self._groups["mp"], self.context_group]
        for group in groups:
            if group.size > 1:
                total = to_group_memory(load, group).clone()
                dist.all_reduce(total, group=group.handle)
                load = total.to(load.device)
        return load


def _split_steps(steps: Sequence[Step]) -> tuple[list[Step], list[Step], list[Step]]:
    """Return the steps before the gate, the steps between ORDER and RESTORE, and the steps after RESTORE."""
    number = {step.op: number for number, step in enumerate(steps)}
    gate, order, restore = (number[op] for op in (StepOp.GATE, StepOp.ORDER, StepOp.RESTORE))
    return list(steps[:gate]), list(steps[order + 1 : restore]), list(steps[restore + 1 :])


def _gate_token_share(layer: Layer, before: Sequence[Step]) -> Fraction:
    """Return the number of tokens of a gate divided by the number of tokens of an input."""
    domain = Fraction(1)
    for step in before:
        if step.op == StepOp.SPLIT_TOKENS:
            domain /= layer.size(step.group)
        elif step.op == StepOp.GATHER_INPUTS:
            domain *= layer.size(step.group)
    return domain


def _seeded_generator(key: tuple[int, ...]) -> torch.Generator:
    return torch.Generator().manual_seed(int(SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))


# ---- tokens to slots and back ----
