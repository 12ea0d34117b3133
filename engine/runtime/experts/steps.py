"""Steps of an expert layer on one device: one table of operations for the forward and the backward.

Each step except the two that compute is a linear map, whose adjoint is another step of the same table. The backward of
a layer is therefore run by the same code as its forward. The code does not depend on the schedule of the steps.

Convention for gradients: devices of a group that hold the same tensor hold the same complete gradient of it. The
adjoint of "keep your part" is therefore an all-gather, and the adjoint of an all-gather whose result is used
identically on all devices is "keep your part".

Tensors are ``[tokens, hidden]`` outside ORDER and RESTORE. Between the two they are ``[copies, blocks, slots,
hidden]``: a block consists of the slots of one expert that come from one place, and the copies of a slot are adjacent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from meshwave.engine.experts import Layer, Step, StepOp, backward_steps
from meshwave.engine.runs.recording import LayerPass
from meshwave.engine.runtime.communication.all_to_all import start_all_to_all
from meshwave.engine.runtime.communication.groups import Group, all_gather, reduce_scatter, to_group_memory
from meshwave.engine.runtime.device.turns import wait_in_turn
from meshwave.engine.runtime.experts.step_times import BeginStep, StepPosition, ignore_step

PendingTensor = Callable[[], Tensor]
"""Function that waits for a tensor in flight and returns it."""

COPIES, BLOCKS, SLOTS = range(3)
TOKENS = 0
UNCHUNKED = StepPosition()
BACKWARD = StepPosition(LayerPass.BACKWARD)
VIEWS = (StepOp.COPY, StepOp.SPLIT_TOKENS, StepOp.SPLIT_SLOTS, StepOp.KEEP_SHARD, StepOp.KEEP_INPUT)
"""Steps that select a part of their tensor and take no time."""


class CollectiveRecord(NamedTuple):
    """Bytes that one collective transferred. The buffer of an all-gather is this device's part."""

    op: StepOp
    collective: str
    group: str
    buffer_bytes: int
    sent_bytes: float  # bytes that left the device, in a ring or pair by pair


class ExchangePlan(NamedTuple):
    """Plan of an all-to-all: the blocks for each member of the group. It does not depend on the tokens."""

    order: Tensor | None  # order of the blocks by receiving member; None if they are already in this order
    inverse: Tensor | None
    sent: list[int]  # number of blocks for each member of the group
    received: list[int]  # number of blocks from each member


class StepRunner:
    """Runner of the steps of an expert layer on one device, over its process groups."""

    def __init__(
        self,
        layer: Layer,
        groups: Mapping[str, Group],
        device: Any = "cpu",
        on_collective: Callable[[CollectiveRecord], None] | None = None,
    ) -> None:
        """Bind the steps to a device.

        Args:
            layer: sizes and placement of the layer.
            groups: this device's group of each kind.
            device: device of the tensors.
            on_collective: called with the record of every collective; None for no records.
        """
        self.layer, self.groups = layer, groups
        self.begin_step: BeginStep = ignore_step
        self.index = groups["ep_esp"].index
        self.device = device
        self._on_collective = on_collective
        self._plans: dict[tuple[str, int], ExchangePlan] = {}
        self._operations: dict[StepOp, Callable[[Step, Tensor], PendingTensor]] = {
            StepOp.SPLIT_TOKENS: lambda step, x: self._keep_own_part(step, x, TOKENS),
            StepOp.GATHER_TOKENS: lambda step, x: self._gather(step, x, TOKENS),
            StepOp.SPLIT_SLOTS: lambda step, x: self._keep_own_part(step, x, SLOTS),
            StepOp.GATHER_SLOTS: lambda step, x: self._gather(step, x, SLOTS),
            StepOp.COPY: lambda step, x: lambda: x,
            StepOp.REDUCE: self._reduce,
            StepOp.GATHER_SHARDS: lambda step, x: self._gather(step, x, COPIES),
            StepOp.SCATTER_SHARDS: self._scatter,
            StepOp.REDUCE_SHARDS: self._reduce,
            StepOp.KEEP_SHARD: lambda step, x: self._keep_own_part(step, x, COPIES),
            StepOp.PAD_SHARD: self._pad,
            StepOp.GATHER_INPUTS: lambda step, x: self._gather(step, x, TOKENS),
            StepOp.SCATTER_INPUTS: self._scatter,
            StepOp.KEEP_INPUT: lambda step, x: self._keep_own_part(step, x, TOKENS),
            StepOp.PAD_INPUT: self._pad,
            StepOp.DUMP: lambda step, x: lambda: x.expand(self.groups[step.group].size, *x.shape[1:]),
            StepOp.SUM: lambda step, x: lambda: sum_copies(x),
            StepOp.DISPATCH: self._dispatch,
            StepOp.COMBINE: self._combine,
        }

    def change_placement(self, layer: Layer) -> None:
        """Use a layer that differs only in its placement."""
        self.layer = layer
        self._plans.clear()

    def start(self, step: Step, x: Tensor, position: StepPosition = UNCHUNKED) -> PendingTensor:
        """Start a step. A step without a collective is computed when its result is requested."""
        if step.op in VIEWS or (step.group and self.groups[step.group].size == 1):  # a view takes no time
            return self._operations[step.op](step, x)
        end_step = self.begin_step(step.op, position)
        pending = self._operations[step.op](step, x)

        def finish() -> Tensor:
            y = pending()
            end_step()
            return y

        return finish

    def apply(self, step: Step, x: Tensor) -> Tensor:
        """Run a step as an autograd operation."""
        y: Tensor = _Step.apply(x, self, step)  # type: ignore[no-untyped-call]
        return y

    # ---- on the device ----

    def _keep_own_part(self, step: Step, x: Tensor, dim: int) -> PendingTensor:
        group = self.groups[step.group]
        return lambda: x.chunk(group.size, dim)[group.index]

    def _pad(self, step: Step, x: Tensor) -> PendingTensor:
        group = self.groups[step.group]

        def pad() -> Tensor:
            padded = x.new_zeros(group.size, *x.shape)
            padded[group.index] = x
            return padded.flatten(0, 1)

        return pad

    # ---- gathers, scatters and reductions ----

    def _gather(self, step: Step, x: Tensor, dim: int) -> PendingTensor:
        parts = self.gather(step, x)
        return lambda: parts().movedim(0, dim).flatten(dim, dim + 1)

    def gather(self, step: Step, x: Tensor) -> PendingTensor:
        """Start to gather ``x`` from all members as ``[group size, *x.shape]``."""
        group = self.groups[step.group]
        if group.size == 1:
            return lambda: x.unsqueeze(0)
        part = self.to_send_buffer(x, step)
        parts = part.new_empty(group.size, *part.shape)
        self._record(step, "all_gather", part, (group.size - 1) * part.nbytes)
        work = all_gather(parts.view(-1), part.view(-1), group=group.handle, async_op=True)
        return _bind_wait(work, part, parts, x)

    def gather_uneven(self, step: Step, x: Tensor, blocks: Sequence[int]) -> Callable[[], Sequence[Tensor]]:
        """Start to gather ``x [1, blocks, ...]`` from all members, whose numbers of ``blocks`` differ.

        torch has no such gather; an all-to-all that sends the same data to all members transfers the same number of
        bytes.
        """
        group = self.groups[step.group]
        part = self.to_send_buffer(x[0], step)
        parts = part.new_empty(sum(blocks), *part.shape[1:])
        self._record(step, "all_gather", part, (group.size - 1) * part.nbytes)
        repeated = part.repeat(group.size, *[1] * (part.ndim - 1))
        sent = [len(part)] * group.size
        work = dist.all_to_all_single(parts, repeated, list(blocks), sent, group=group.handle, async_op=True)
        pending = _bind_wait(work, repeated, parts, x)
        return lambda: [each.unsqueeze(0) for each in torch.split(pending(), list(blocks))]

    def _scatter(self, step: Step, x: Tensor) -> PendingTensor:
        group = self.groups[step.group]
        if group.size == 1:
            return lambda: x
        whole = self.to_send_buffer(x, step)
        part = whole.new_empty(whole.shape[0] // group.size, *whole.shape[1:])
        self._record(step, "reduce_scatter", whole, (group.size - 1) * part.nbytes)
        work = reduce_scatter(part.view(-1), whole.view(-1), group=group.handle, async_op=True)
        return _bind_wait(work, whole, part, x)

    def _reduce(self, step: Step, x: Tensor) -> PendingTensor:
        group = self.groups[step.group]
        if group.size == 1:
            return lambda: x
        total = self.to_send_buffer(x, step)
        total = total.clone() if total.data_ptr() == x.data_ptr() else total
        self._record(step, "all_reduce", total, 2 * (group.size - 1) * total.nbytes / group.size)
        work = dist.all_reduce(total, group=group.handle, async_op=True)
        return _bind_wait(work, total, total, x)

    # ---- all-to-all ----

    def _dispatch(self, step: Step, x: Tensor) -> PendingTensor:
        plan = self.exchange_plan(step.group, x.shape[COPIES])
        pending = self._exchange(step, _reorder(x.flatten(0, 1), plan.order), plan.sent, plan.received)
        return lambda: pending().unsqueeze(0)

    def _combine(self, step: Step, x: Tensor) -> PendingTensor:
        copies = self.copy_count(step)
        plan = self.exchange_plan(step.group, copies)
        pending = self._exchange(step, x[0], plan.received, plan.sent)
        shape = copies, self.layer.experts, *x.shape[SLOTS:]
        return lambda: _reorder(pending(), plan.inverse).view(shape)

    def _exchange(self, step: Step, x: Tensor, sent: list[int], received: list[int]) -> PendingTensor:
        """Start to exchange ``x [sum(sent), slots, hidden]`` for ``[sum(received), slots, hidden]``."""
        group = self.groups[step.group]
        if group.size == 1:
            return lambda: x
        buffer = self.to_send_buffer(x, step)
        arriving = buffer.new_empty(sum(received), *buffer.shape[1:])
        self.record_exchange(step, buffer, sent)
        return _bind_wait(start_all_to_all(group, arriving, buffer, received, sent), buffer, arriving, x)

    def copy_count(self, step: Step) -> int:
        """Return the number of copies of each slot in an all-to-all: the number set by the step, or one per shard."""
        return self.layer.esp if step.group == "ep_esp" else step.copies

    def exchange_plan(self, kind: str, copies: int) -> ExchangePlan:
        """Return the plan of the all-to-all over the groups of a kind; it is computed once."""
        if (kind, copies) not in self._plans:
            self._plans[kind, copies] = self._plan(kind, copies)
        return self._plans[kind, copies]

    def member_place(self, kind: str, member: int) -> int:
        """Return the place of a member of an exchange group of the given kind."""
        return member if kind == "ep" else member // self.layer.esp

    def serving_experts(self, source: int, target: int) -> list[int]:
        """Return the experts at the place ``target`` that serve the tokens of the place ``source``, in ascending order."""
        return [int(e) for e in (self.layer.serving_places[source] == target).nonzero()[0]]

    def outgoing_blocks(self, kind: str, source: int, target: int, copies: int) -> list[int]:
        """Return the indices of the blocks that device ``source`` sends to device ``target``, in order.

        There is one block per copy of the tokens and expert. In a group of kind ``ep``, a device sends all copies; in a
        group of all devices, it sends only the copy for the expert shard of the receiver.
        """
        layer = self.layer
        sent_copies = range(copies) if kind == "ep" else [target % layer.esp]
        experts = self.serving_experts(source // layer.esp, target // layer.esp)
        return [copy * layer.experts + expert for copy in sent_copies for expert in experts]

    def _plan(self, kind: str, copies: int) -> ExchangePlan:
        order: list[int] = []
        sent, received = [], []
        for device in self.layer.members(kind, self.index):
            blocks = self.outgoing_blocks(kind, self.index, device, copies)
            order += blocks
            sent.append(len(blocks))
            received.append(len(self.outgoing_blocks(kind, device, self.index, copies)))
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return ExchangePlan(index_tensor(order, self.device), index_tensor(inverse, self.device), sent, received)

    # ---- bookkeeping ----

    def to_send_buffer(self, x: Tensor, step: Step) -> Tensor:
        """Return ``x`` contiguous, in memory from which the group of a step can send it."""
        return to_group_memory(x, self.groups[step.group]).contiguous()

    def record_exchange(self, step: Step, buffer: Tensor, sent: Sequence[int]) -> None:
        """Record an all-to-all of ``sent`` blocks for each member; the block that stays on this device is not counted."""
        blocks = sum(sent)
        leaving = blocks - sent[self.groups[step.group].index]
        self._record(step, "all_to_all", buffer, buffer.nbytes // blocks * leaving if blocks else 0)

    def _record(self, step: Step, collective: str, buffer: Tensor, sent_bytes: float) -> None:
        if self._on_collective is not None:
            self._on_collective(CollectiveRecord(step.op, collective, step.group, buffer.nbytes, sent_bytes))


def index_tensor(order: Sequence[int], device: Any) -> Tensor | None:
    """Return an order as a tensor of indices; None for the identity."""
    return None if list(order) == list(range(len(order))) else torch.tensor(order, device=device)


def sum_copies(x: Tensor) -> Tensor:
    """Return the sum of the copies, added in order.

    The rounding of an element then does not depend on other elements.
    """
    total = x[:1]
    for copy in x[1:]:
        total = total + copy
    return total


def _reorder(x: Tensor, order: Tensor | None) -> Tensor:
    return x if order is None else x.index_select(0, order)


def _bind_wait(work: Any, sent: Tensor, arriving: Tensor, x: Tensor) -> PendingTensor:
    """Return a function that waits for ``arriving`` and returns it on the device of ``x``; it keeps ``sent`` alive."""
    alive = [sent]

    def wait() -> Tensor:
        wait_in_turn(work)
        alive.clear()
        return arriving.to(x.device)

    return wait


class _Step(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, runner: StepRunner, step: Step) -> Tensor:
        ctx.runner, ctx.step = runner, step
        return _as_distinct_tensor(x, runner.start(step, x)())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (step,) = backward_steps([ctx.step])
        return ctx.runner.start(step, gradient, BACKWARD)(), None, None


def _as_distinct_tensor(x: Tensor, y: Tensor) -> Tensor:
    """Return ``y``, or a view of it if it is the input, because autograd treats a returned input as modified in place."""
    return y.view_as(y) if y is x else y
