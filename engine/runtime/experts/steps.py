"""What a device does in the steps of an expert layer: one table, played forwards and backwards.

Each step but the two that compute is a linear map, and its adjoint is another step of the same
table, so that the backward of a layer is played by what plays its forward. Nothing here knows which
schedule wrote the steps.

The convention of gradients: where the devices of a group hold the same tensor, they hold the same
gradient of it, the whole one. So the adjoint of "keep your part" is an all-gather, and that of an
all-gather of what is alike from then on is "keep your part".

Tensors are ``[tokens, hidden]`` outside ORDER and RESTORE. Between the two they are
``[copies, blocks, slots, hidden]``: a block is the slots of one expert that come from one place,
copies lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from meshwave.engine.experts import Layer, Step, StepOp, backward
from meshwave.engine.runs.recording import Way
from meshwave.engine.runtime.communication.all_to_all import start_all_to_all
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.device.accelerator import is_accelerator
from meshwave.engine.runtime.experts.step_times import At, Begins, unseen

# Newer torch calls them by these names and warns of the others.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Arrives = Callable[[], Tensor]
"""Waits for a tensor that is on its way."""

COPIES, BLOCKS, SLOTS = range(3)
TOKENS = 0
OUTSIDE = At()
VIEWS = (StepOp.COPY, StepOp.SPLIT_TOKENS, StepOp.SPLIT_SLOTS, StepOp.KEEP_SHARD, StepOp.KEEP_INPUT)
"""Steps that look at a part of their tensor and take no time."""


class Message(NamedTuple):
    """What one collective moved; an all-gather's buffer is the part that this device gave."""

    op: StepOp
    collective: str
    group: str
    buffer_bytes: int
    sent_bytes: float  # that left the device, in a ring or pair by pair


class Exchange(NamedTuple):
    """The static plan of an all-to-all: which block goes where."""

    order: Tensor | None  # the blocks in the order of the members that they go to; none: they lie so
    back: Tensor | None  # the inverse
    sent: list[int]  # blocks for each member of the group
    received: list[int]  # blocks from each


class Steps:
    """The steps of one device over its groups."""

    def __init__(
        self,
        layer: Layer,
        groups: Mapping[str, Group],
        device: Any = "cpu",
        watch: Callable[[Message], None] | None = None,
    ) -> None:
        """``groups`` are the own ones of each kind; ``watch`` is shown what every collective moves."""
        self.layer, self.groups, self.watch = layer, groups, watch
        self.begins: Begins = unseen  # is told of every step, and tells what to call at its end
        self.me = groups["ep_esp"].index
        self.device = device
        self._plans: dict[tuple[str, int], Exchange] = {}
        self._do: dict[StepOp, Callable[[Step, Tensor], Arrives]] = {
            StepOp.SPLIT_TOKENS: lambda step, x: self._keep(step, x, TOKENS),
            StepOp.GATHER_TOKENS: lambda step, x: self._gather(step, x, TOKENS),
            StepOp.SPLIT_SLOTS: lambda step, x: self._keep(step, x, SLOTS),
            StepOp.GATHER_SLOTS: lambda step, x: self._gather(step, x, SLOTS),
            StepOp.COPY: lambda step, x: lambda: x,
            StepOp.REDUCE: self._reduce,
            StepOp.GATHER_SHARDS: lambda step, x: self._gather(step, x, COPIES),
            StepOp.SCATTER_SHARDS: self._scatter,
            StepOp.REDUCE_SHARDS: self._reduce,
            StepOp.KEEP_SHARD: lambda step, x: self._keep(step, x, COPIES),
            StepOp.PAD_SHARD: self._pad,
            StepOp.GATHER_INPUTS: lambda step, x: self._gather(step, x, TOKENS),
            StepOp.SCATTER_INPUTS: self._scatter,
            StepOp.KEEP_INPUT: lambda step, x: self._keep(step, x, TOKENS),
            StepOp.PAD_INPUT: self._pad,
            StepOp.DUMP: lambda step, x: lambda: x.expand(self.groups[step.group].size, *x.shape[1:]),
            StepOp.SUM: lambda step, x: lambda: added(x),
            StepOp.DISPATCH: self._dispatch,
            StepOp.COMBINE: self._combine,
        }

    def start(self, step: Step, x: Tensor, at: At = OUTSIDE) -> Arrives:
        """Begin a step; what stays on the device is done when it is asked for."""
        if step.op in VIEWS or (step.group and self.groups[step.group].size == 1):  # it looks at what is there
            return self._do[step.op](step, x)
        ends = self.begins(step.op, at)
        arrives = self._do[step.op](step, x)

        def arrived() -> Tensor:
            y = arrives()
            ends()
            return y

        return arrived

    def adds(self, step: Step, x: Tensor) -> Tensor:
        """A step as an operation that autograd knows."""
        y: Tensor = _Stepped.apply(x, self, step)  # type: ignore[no-untyped-call]
        return y

    # ---- on the device ----

    def _keep(self, step: Step, x: Tensor, dim: int) -> Arrives:
        group = self.groups[step.group]
        return lambda: x.chunk(group.size, dim)[group.index]

    def _pad(self, step: Step, x: Tensor) -> Arrives:
        group = self.groups[step.group]

        def pad() -> Tensor:
            padded = x.new_zeros(group.size, *x.shape)
            padded[group.index] = x
            return padded.flatten(0, 1)

        return pad

    # ---- collectives among neighbours ----

    def _gather(self, step: Step, x: Tensor, dim: int) -> Arrives:
        parts = self.gather(step, x)
        return lambda: parts().movedim(0, dim).flatten(dim, dim + 1)

    def gather(self, step: Step, x: Tensor) -> Arrives:
        """``[size of the group, *x.shape]``"""
        group = self.groups[step.group]
        if group.size == 1:
            return lambda: x.unsqueeze(0)
        part = self.on_wire(x, step)
        parts = part.new_empty(group.size, *part.shape)
        self._note(step, "all_gather", part, (group.size - 1) * part.nbytes)
        work = all_gather(parts.view(-1), part.view(-1), group=group.handle, async_op=True)
        return _arrival(work, part, parts, x)

    def gather_uneven(self, step: Step, x: Tensor, blocks: Sequence[int]) -> Callable[[], Sequence[Tensor]]:
        """The same where the members give ``blocks`` each, which the gathers of torch cannot: an
        all-to-all in which all get the same moves as much."""
        group = self.groups[step.group]
        part = self.on_wire(x[0], step)
        parts = part.new_empty(sum(blocks), *part.shape[1:])
        self._note(step, "all_gather", part, (group.size - 1) * part.nbytes)
        repeated = part.repeat(group.size, *[1] * (part.ndim - 1))
        sent = [len(part)] * group.size
        work = dist.all_to_all_single(parts, repeated, list(blocks), sent, group=group.handle, async_op=True)
        arrived = _arrival(work, repeated, parts, x)
        return lambda: [each.unsqueeze(0) for each in torch.split(arrived(), list(blocks))]

    def _scatter(self, step: Step, x: Tensor) -> Arrives:
        group = self.groups[step.group]
        if group.size == 1:
            return lambda: x
        whole = self.on_wire(x, step)
        part = whole.new_empty(whole.shape[0] // group.size, *whole.shape[1:])
        self._note(step, "reduce_scatter", whole, (group.size - 1) * part.nbytes)
        work = _reduce_scatter(part.view(-1), whole.view(-1), group=group.handle, async_op=True)
        return _arrival(work, whole, part, x)

    def _reduce(self, step: Step, x: Tensor) -> Arrives:
        group = self.groups[step.group]
        if group.size == 1:
            return lambda: x
        total = self.on_wire(x, step)
        total = total.clone() if total.data_ptr() == x.data_ptr() else total
        self._note(step, "all_reduce", total, 2 * (group.size - 1) * total.nbytes / group.size)
        work = dist.all_reduce(total, group=group.handle, async_op=True)
        return _arrival(work, total, total, x)

    # ---- all to all ----

    def _dispatch(self, step: Step, x: Tensor) -> Arrives:
        plan = self.exchange(step.group, x.shape[COPIES])
        arrived = self._all_to_all(step, _reordered(x.flatten(0, 1), plan.order), plan.sent, plan.received)
        return lambda: arrived().unsqueeze(0)

    def _combine(self, step: Step, x: Tensor) -> Arrives:
        copies = self.copies(step)
        plan = self.exchange(step.group, copies)
        arrived = self._all_to_all(step, x[0], plan.received, plan.sent)
        shape = copies, self.layer.experts, *x.shape[SLOTS:]
        return lambda: _reordered(arrived(), plan.back).view(shape)

    def _all_to_all(self, step: Step, x: Tensor, sent: list[int], received: list[int]) -> Arrives:
        """``[sum(received), slots, hidden]`` of ``x [sum(sent), slots, hidden]``."""
        group = self.groups[step.group]
        if group.size == 1:
            return lambda: x
        buffer = self.on_wire(x, step)
        arriving = buffer.new_empty(sum(received), *buffer.shape[1:])
        self.note_exchange(step, buffer, sent)
        return _arrival(start_all_to_all(group, arriving, buffer, received, sent), buffer, arriving, x)

    def copies(self, step: Step) -> int:
        """Of every slot, in an all-to-all: one for each shard, or what its step says."""
        return self.layer.esp if step.group == "ep_esp" else step.copies

    def exchange(self, kind: str, copies: int) -> Exchange:
        """The plan of the all-to-all over groups of a kind; made once."""
        if (kind, copies) not in self._plans:
            self._plans[kind, copies] = self._plan(kind, copies)
        return self._plans[kind, copies]

    def place(self, kind: str, member: int) -> int:
        """Where a member of the group of a kind that exchanges stands."""
        return member if kind == "ep" else member // self.layer.esp

    def visited(self, place: int, at: int) -> list[int]:
        """The experts that serve the tokens of one place at another, ascending."""
        return [int(e) for e in (self.layer.serving[place] == at).nonzero()[0]]

    def outgoing(self, kind: str, source: int, target: int, copies: int) -> list[int]:
        """Of the blocks that lie at one device of a group of a kind those that it sends to another, in order:
        all copies, or in the group of all devices the copy for that shard."""
        layer = self.layer
        of_copies = range(copies) if kind == "ep" else [target % layer.esp]
        visited = self.visited(source // layer.esp, target // layer.esp)
        return [copy * layer.experts + expert for copy in of_copies for expert in visited]

    def _plan(self, kind: str, copies: int) -> Exchange:
        order: list[int] = []
        sent, received = [], []
        for device in self.layer.members(kind, self.me):
            blocks = self.outgoing(kind, self.me, device, copies)
            order += blocks
            sent.append(len(blocks))
            received.append(len(self.outgoing(kind, device, self.me, copies)))
        back = sorted(range(len(order)), key=order.__getitem__)
        return Exchange(indices(order, self.device), indices(back, self.device), sent, received)

    # ---- bookkeeping ----

    def on_wire(self, x: Tensor, step: Step) -> Tensor:
        """Gloo moves host memory: what lies on a GPU goes through it."""
        is_gloo = is_accelerator(x.device) and dist.get_backend(self.groups[step.group].handle) == "gloo"
        return (x.to("cpu") if is_gloo else x).contiguous()

    def note_exchange(self, step: Step, buffer: Tensor, sent: Sequence[int]) -> None:
        blocks = sum(sent)
        away = blocks - sent[self.groups[step.group].index]
        self._note(step, "all_to_all", buffer, buffer.nbytes // blocks * away if blocks else 0)

    def _note(self, step: Step, collective: str, buffer: Tensor, sent: float) -> None:
        if self.watch is not None:
            self.watch(Message(step.op, collective, step.group, buffer.nbytes, sent))


def indices(order: Sequence[int], device: Any) -> Tensor | None:
    """An order to gather by; none where it changes nothing."""
    return None if list(order) == list(range(len(order))) else torch.tensor(order, device=device)


def added(x: Tensor) -> Tensor:
    """The copies added up one after the other: the bits do not depend on how many numbers lie beside."""
    total = x[:1]
    for copy in x[1:]:
        total = total + copy
    return total


def _reordered(x: Tensor, order: Tensor | None) -> Tensor:
    return x if order is None else x.index_select(0, order)


def _arrival(work: Any, sent: Tensor, arriving: Tensor, x: Tensor) -> Arrives:
    """What was sent lives until it is waited for."""
    alive = [sent]

    def wait() -> Tensor:
        work.wait()
        alive.clear()
        return arriving.to(x.device)

    return wait


class _Stepped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: Steps, step: Step) -> Tensor:
        ctx.steps, ctx.step = steps, step
        return _fresh(x, steps.start(step, x)())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (step,) = backward([ctx.step])
        return ctx.steps.start(step, gradient, At(Way.BACKWARD))(), None, None


def _fresh(x: Tensor, y: Tensor) -> Tensor:
    """An output of its own: autograd takes an input that is handed back for one that was changed."""
    return y.view_as(y) if y is x else y
