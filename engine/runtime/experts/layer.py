"""A layer of experts on the devices of one block, played as its schedule says.

A *block* is the ``P = ep * esp`` processes that a :class:`meshwave.engine.experts.Layer` is about, in its order; a
mesh has several blocks, one after the other, that hold the same experts. Every process of a block has
one :class:`ExpertLayer`, with the gate, which all hold alike, and the experts of its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.random import SeedSequence
from torch import Tensor
from torch.autograd import Function

from meshwave.engine.experts import ExpertSchedule, Layer, Step, StepOp, expert_schedules
from meshwave.engine.runs.recording import Way
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.device.accelerator import is_accelerator
from meshwave.engine.runtime.experts.dispatch import Journey, Loads
from meshwave.engine.runtime.experts.feed_forward import Expert, FeedForward
from meshwave.engine.runtime.experts.gate import Gate, Routing
from meshwave.engine.runtime.experts.step_times import At, Begins, Ends, nothing
from meshwave.engine.runtime.experts.steps import OUTSIDE, Message, Steps, all_gather
from meshwave.engine.runtime.modules.deferred_gradients import DeferrableModule

KINDS = ("mp", "esp", "ep", "ep_esp")
BACKWARD = At(Way.BACKWARD)


def groups_of(layer: Layer, block: Sequence[int], process: int) -> dict[str, tuple[int, ...]]:
    """The members of the groups that a process of ``block`` is in, by their kind."""
    device = list(block).index(process)
    return {kind: tuple(block[member] for member in layer.members(kind, device)) for kind in KINDS}


def all_groups(layer: Layer, blocks: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """The members of every group that layers like this one need, in one order for all processes."""
    return sorted(
        {tuple(block[member] for member in group) for block in blocks for kind in KINDS for group in layer.groups(kind)}
    )


def holders(schedule: ExpertSchedule, layer: Layer, expert: int, shard: int) -> tuple[int, ...]:
    """The devices of a block that hold one shard of an expert, ascending."""
    places = layer.holders(layer.size(schedule.places))[expert]
    return tuple(
        device
        for device in range(layer.devices)
        if (found := _place(schedule, layer, device))[0] in places and found[1] == shard
    )


class ExpertLayer(DeferrableModule):
    """``[..., hidden]`` to the same: every token is the weighted sum of what its experts make of it.

    Tokens are alike on the processes of an ``mp`` group, and so is the gradient that comes back.
    Weights are left empty; :meth:`draw` draws them. In :attr:`gate` lie the gate and what the last input
    came to; ``load`` is how many routes each expert had in it.

    The gradients that processes share, to be summed by who updates the weights: the gate's over all
    copies of the layer, and over ``mp`` where :attr:`gate_is_partial`; an expert's over the processes
    that hold the same shard of it, in all blocks and at all places (:meth:`holders`).
    """

    load: Tensor | None = None  # [experts] of the last input, with those that were dropped
    _loads: Loads | None = None  # of all devices of the block, where none of their tokens is dropped

    def __init__(
        self,
        layer: Layer,
        schedule: str | ExpertSchedule,
        groups: Mapping[str, Group],
        *,
        aux_loss: float = 0.0,
        z_loss: float = 0.0,
        dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
        watch: Callable[[Message], None] | None = None,
    ) -> None:
        """``groups`` are those of this process, by kind: mp, esp, ep and ep_esp.

        ``schedule`` is one that has steps: an automatic one is priced, and chosen, before a run.

        Raises:
            InputError: there is no such schedule.
        """
        super().__init__()
        self.layer = layer
        self.schedule = expert_schedules[schedule]() if isinstance(schedule, str) else schedule
        self.gate_is_partial = self.schedule.gate_is_partial
        self._before, self._inside, self._after = _parts(self.schedule.steps(layer))
        self._steps = Steps(layer, groups, device, watch)
        self._groups = groups
        own = _place(self.schedule, layer, self._steps.me)
        self.place, self.shard, shards = own
        self.held = sorted(set(layer.placed(layer.size(self.schedule.places))[self.place]))
        share = 1 / layer.mp if self.gate_is_partial else 1.0
        self.gate = Gate(
            layer.hidden,
            layer.experts,
            layer.top_k,
            aux_loss=aux_loss,
            z_loss=z_loss,
            share=share,
            dtype=dtype,
            device=device,
        )
        made = [
            Expert(layer.hidden, layer.ffn_hidden, shard=self.shard, shards=shards, dtype=dtype, device=device)
            for _ in self.held
        ]
        for number, expert in zip(self.held, made, strict=True):
            self.add_module(str(number), expert)
        self._experts = FeedForward(made, self.schedule.seen(layer))
        self._journey = Journey(self._inside, self._steps, self._experts, self.held, self)
        self._domain = _domain(layer, self._before)
        self._routed = torch.zeros(layer.experts, dtype=torch.float64, device=device)
        self._own_part = float(1 / (layer.mp * self._domain))  # of its gate's tokens, which others may have seen too
        self._exchanges = any(step.collective for step in self._inside)

    def watch_steps(self, begins: Begins) -> None:
        """Tell somebody of every step, as :class:`meshwave.engine.runtime.experts.step_times.Trace`."""
        self._steps.begins = begins

    @property
    def routed(self) -> list[float]:
        """Routes to each expert so far, this process's part: those of all processes of a mesh add up to all."""
        return self._routed.tolist()

    @property
    def experts(self) -> dict[int, Expert]:
        """The experts of this process by their number."""
        return {number: self.get_submodule(str(number)) for number in self.held}  # type: ignore[misc]

    def draw(self, key: tuple[int, ...], layers: int = 1) -> Self:
        """Draw the weights as GPT-2 does; ``key`` is a seed and where the layer stands in the model.

        The gate and every expert have a generator of their own: wherever an expert lies, whole or in
        shards, it starts alike.
        """
        gate = torch.empty(self.gate.weight.shape).normal_(0.0, 0.02, generator=_chance((*key, 0)))
        with torch.no_grad():
            self.gate.weight.copy_(gate)
        for number, expert in self.experts.items():
            expert.draw(_chance((*key, 1 + number)), 0.02, 0.02 / (2 * layers) ** 0.5)
        return self

    def holders(self, expert: int) -> tuple[int, ...]:
        """The devices of a block that hold the same shard of an expert as this one, ascending."""
        return holders(self.schedule, self.layer, expert, self.shard)

    def cast_weights(self, dtype: torch.dtype) -> None:
        """Those of the experts: the gate computes in 32 bits."""
        self._experts.copy(dtype)

    def drop_cast_weights(self) -> None:
        self._experts.forget()

    def forward(self, x: Tensor) -> Tensor:
        shape, kind = x.shape, x.device.type
        tokens = x.reshape(-1, shape[-1])
        if torch.is_autocast_enabled(kind):
            tokens = tokens.to(torch.get_autocast_dtype(kind))
        for step in self._before:
            tokens = self._steps.adds(step, tokens)
        routing = self._chosen(tokens)
        self.load = routing.load
        if torch.is_grad_enabled():  # what is computed again for its backward is routed once
            self._routed += routing.load.double() * self._own_part
        tokens = self._visited(tokens, routing)
        for step in self._after:
            tokens = self._steps.adds(step, tokens)
        return tokens.view(shape)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._experts.lay()
        return self

    def _chosen(self, tokens: Tensor) -> Routing:
        ends = self._steps.begins(StepOp.GATE, OUTSIDE)
        routing: Routing = self.gate(tokens, self._room, self._whole)
        ends()
        if ends is not nothing and routing.weights.requires_grad and tokens.requires_grad:
            self._note_backward(tokens, routing.weights)
        return routing

    def _note_backward(self, tokens: Tensor, weights: Tensor) -> None:
        """The backward of the gate is autograd's own: it lasts from when the gradient of the weights is there to
        when that of the tokens is."""
        begun: list[Ends] = []

        def begin(gradient: Tensor) -> None:
            begun.append(self._steps.begins(StepOp.GATE, BACKWARD))

        def end(gradient: Tensor) -> None:
            while begun:
                begun.pop()()

        weights.register_hook(begin)  # type: ignore[no-untyped-call]
        tokens.register_hook(end)  # type: ignore[no-untyped-call]

    # ---- from ORDER to RESTORE ----

    def _visited(self, tokens: Tensor, routing: Routing) -> Tensor:
        rows, counts = None, (self.layer.experts, routing.capacity)
        if not self._exchanges:
            mine, rows = self._own_slots(routing)
            routing, counts = routing.only(mine), (len(mine), 1)
        ordered: Tensor = _Order.apply(tokens, routing, self._steps.begins)  # type: ignore[no-untyped-call]
        found = self._journey(ordered.view(1, *counts, tokens.shape[1]), self.gate.weight, rows, self._loads)
        found = found.flatten(0, 2)
        y: Tensor = _Restore.apply(found, routing.weights, routing, self._steps.begins)  # type: ignore[no-untyped-call]
        return y.to(tokens.dtype)

    def _own_slots(self, routing: Routing) -> tuple[Tensor, list[int]]:
        """The slots of the experts here, and how many each has; who holds a copy takes every ``n``-th.

        Where no token is dropped those that are taken alone: no device waits for another's messages here,
        so that experts need not have as many rows as the fullest.
        """
        holders, capacity = self.layer.holders(self.layer.size(self.schedule.places)), routing.capacity
        ends = routing.load.tolist() if self.layer.capacity_factor is None else [capacity] * self.layer.experts
        device = self.gate.weight.device
        parts = []
        for e in self.held:
            first = holders[e].index(self.place)
            part = torch.arange(first, max(first, ends[e]), len(holders[e]), device=device)
            parts.append(part + e * capacity)
        mine = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device=device)
        return mine, [len(part) for part in parts]

    # ---- what the gate asks ----

    def _room(self, load: Tensor) -> int:
        """Slots of an expert for the tokens that one gate sees.

        Where no token may be dropped that is the largest load anywhere: all who exchange tell each other
        theirs, from which each knows too how many tokens are in the slots that it gets.
        """
        if self.layer.capacity_factor is not None:
            return int(self.layer.capacity * self._domain)
        self._loads = self._everyones(load) if self._exchanges else None
        largest = int(load.max()) if self._loads is None else int(self._loads.max())
        return int(self.layer.rounded(ceil(largest / self._domain)) * self._domain)

    def _everyones(self, load: Tensor) -> Loads:
        """``[devices, experts]`` of the ``load`` of every device of the block."""
        group = self._groups["ep_esp"]
        own = self._on_wire(load, group).contiguous()
        loads = own.new_empty(group.size, len(own))
        if group.size > 1:
            all_gather(loads.view(-1), own, group=group.handle)
        else:
            loads[0] = own
        return loads.numpy(force=True)

    def _whole(self, load: Tensor) -> Tensor:
        """The load of all tokens of an input of which each gate of the ``mp`` group sees a part."""
        group = self._groups["mp"]
        if self._domain >= 1 or group.size == 1:
            return load
        total = self._on_wire(load, group).clone()
        dist.all_reduce(total, group=group.handle)
        return total.to(load.device)

    @staticmethod
    def _on_wire(load: Tensor, group: Group) -> Tensor:
        is_gloo = is_accelerator(load.device) and group.size > 1 and dist.get_backend(group.handle) == "gloo"
        return load.to("cpu") if is_gloo else load


def _parts(steps: Sequence[Step]) -> tuple[list[Step], list[Step], list[Step]]:
    """Before the gate, between ORDER and RESTORE, and after that."""
    at = {step.op: number for number, step in enumerate(steps)}
    gate, order, restore = (at[op] for op in (StepOp.GATE, StepOp.ORDER, StepOp.RESTORE))
    return list(steps[:gate]), list(steps[order + 1 : restore]), list(steps[restore + 1 :])


def _place(schedule: ExpertSchedule, layer: Layer, device: int) -> tuple[int, int, int]:
    """Where a device holds experts, which shard of them, and of how many."""
    if schedule.places == "mp":
        return device % layer.mp, 0, 1
    return device // layer.esp, device % layer.esp, layer.esp


def _domain(layer: Layer, before: Sequence[Step]) -> Fraction:
    """The tokens that a gate sees, as a multiple of those of an input."""
    domain = Fraction(1)
    for step in before:
        if step.op == StepOp.SPLIT_TOKENS:
            domain /= layer.size(step.group)
        elif step.op == StepOp.GATHER_INPUTS:
            domain *= layer.size(step.group)
    return domain


def _chance(key: tuple[int, ...]) -> torch.Generator:
    return torch.Generator().manual_seed(int(SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))


# ---- tokens into slots, and back ----


class _Order(Function):
    """``[slots, hidden]`` of ``[S, hidden]``: a copy of a token in each of its slots, zeros in empty ones."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, routing: Routing, begins: Begins) -> Tensor:
        ends = begins(StepOp.ORDER, OUTSIDE)
        ctx.slot, ctx.begins = routing.slot, begins
        ordered = _picked(tokens, routing.token)
        ends()
        return ordered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ends = ctx.begins(StepOp.RESTORE, BACKWARD)  # its adjoint
        first, *others = ctx.slot
        total = _picked(gradient, first)
        for slot in others:
            total += _picked(gradient, slot)
        ends()
        return total, None, None


class _Restore(Function):
    """``[S, hidden]``: of every token the results in its slots, weighted; a dropped route adds nothing."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, weights: Tensor, routing: Routing, begins: Begins) -> Tensor:
        ends = begins(StepOp.RESTORE, OUTSIDE)
        ctx.begins = begins
        ctx.save_for_backward(found, weights)
        ctx.routing = routing._replace(weights=weights.detach())
        total = torch.zeros((), dtype=weights.dtype, device=found.device)
        for choice, slot in enumerate(routing.slot):
            total = total + weights[:, choice, None] * _picked(found, slot)
        ends()
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        ends = ctx.begins(StepOp.ORDER, BACKWARD)  # its adjoint
        found, weights = ctx.saved_tensors
        routing: Routing = ctx.routing
        of_slot = _picked(weights.t().reshape(-1, 1), routing.route)
        of_found = (of_slot * _picked(gradient, routing.token)).to(found.dtype)
        of_weights = torch.stack([(gradient * _picked(found, slot)).sum(-1) for slot in routing.slot], -1)
        ends()
        return of_found, of_weights, None, None


def _picked(rows: Tensor, index: Tensor) -> Tensor:
    """The rows of those numbers; zeros for the number behind the last."""
    return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])]).index_select(0, index)
